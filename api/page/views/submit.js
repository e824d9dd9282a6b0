// Write a spec, see at once what is wrong with it, and submit it.

import { announce, el, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { Editor } from "../parts/editor.js";
import { api, newKey } from "../lib/http.js";
import { mayPlan, planOf } from "../lib/planning.js";
import { projectOf, projectSelect, withProject } from "../lib/project_choice.js";
import { heading, problemItem, section } from "../parts/widgets.js";

const CHECK_AFTER_MS = 250;
const YAML = "application/yaml";
const JOB = (algorithm, options) => `name: first
algorithm: ${options ? `{name: ${algorithm}, ${options}}` : algorithm}
workers: 2
data: digits
model: mlp
optimizer: {name: momentum, lr: 0.02, momentum: 0.9}
schedule: cosine
batch: 32              # examples a worker and step
epochs: 20
seed: 0
`;
const SWEEP = `name: how-large
job:
  data: digits
  model: mlp
  workers: 1
  batch: {per_worker: 32, base: 32}
  optimizer: {name: momentum, lr: 0.02, momentum: 0.9}
  epochs: 5
axes:
  batch: [32, 128, 512]
  rule: [none, linear]
  seed: [0, 1]
`;
const OPTIONS = { downpour: "num_push: 1, num_fetch: 1, max_staleness: 4" };

/** The form. `from`: a job whose spec it begins with; `kind=sweep`: begin with a sweep. */
export function submitView(main, { query }, signal) {
  const form = new SpecForm(signal);
  main.append(form.element);
  form.begin(query);
  return "New";
}

class SpecForm {
  constructor(signal) {
    this.signal = signal;
    this.latest = 0;
    this.key = newKey();
    this.start = el("select", { "aria-label": "Begin with", onchange: () => this.#begun() });
    this.project = projectSelect("", "", signal, () => this.#assigned(), () => projectOf(this.editor.text));
    this.editor = new Editor(
      "",
      () => this.#typed(),
      () => this.submit(),
    );
    this.verdict = el("p", { class: "verdict", role: "status" }, "…");
    this.predicted = el("p", { class: "note", role: "status" });
    this.problems = el("ul", { class: "problems", id: "problems" });
    this.resolved = el("pre", { tabindex: 0, role: "region", "aria-label": "The spec in full" });
    this.button = el("button", { type: "submit", class: "main" }, "Submit");
    const send = (event) => {
      event.preventDefault();
      this.submit();
    };
    this.element = el(
      "form",
      { class: "spec", onsubmit: send },
      heading("New", el("label", { class: "check" }, "begin with ", this.start), this.project),
      this.editor.element,
      el("div", { class: "buttons" }, this.button, this.verdict),
      this.predicted,
      this.problems,
      el("details", {}, el("summary", {}, "The spec in full, as it would run"), section("", this.resolved)),
    );
  }

  async begin(query) {
    this.start.append(option("downpour", "a job: downpour"), option("sweep", "a sweep"));
    if (query.get("kind") === "sweep") this.start.value = "sweep";
    this.#begun();
    try {
      const algorithms = await api("v1/algorithms", { signal: this.signal });
      const others = algorithms.filter(({ name }) => name !== "downpour");
      this.start.firstElementChild.after(...others.map(({ name, summary }) => option(name, `a job: ${name}`, summary)));
    } catch {
      // the two that are there are enough to begin with
    }
  }

  /** Submit what is written, once, however often the button is pressed. */
  async submit() {
    if (this.button.disabled) return;
    this.button.disabled = true;
    try {
      const options = { method: "POST", body: this.editor.text, type: YAML, headers: { "Idempotency-Key": this.key } };
      const made = await api(`v1/${this.#noun()}s`, options);
      announce(`${made.name} is submitted`);
      location.hash = `#/${this.#noun()}s/${made.id}`;
    } catch (error) {
      this.#refused(error);
      this.problems.querySelector("button")?.focus();
    } finally {
      this.button.disabled = false;
    }
  }

  #noun() {
    return /^(axes|"axes")\s*:|^\s*\{[^]*"axes"\s*:/m.test(this.editor.text) ? "sweep" : "job";
  }

  #begun() {
    const { value } = this.start;
    const text = value === "sweep" ? SWEEP : JOB(value, OPTIONS[value]);
    this.editor.text = this.project.value ? withProject(text, this.project.value) : text;
    this.#typed();
  }

  /** Write the chosen project into the spec. */
  #assigned() {
    this.editor.text = withProject(this.editor.text, this.project.value);
    this.#typed();
  }

  /** Check in a moment, unless one goes on typing. */
  #typed() {
    this.key = newKey();
    this.project.value = projectOf(this.editor.text);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#check(), CHECK_AFTER_MS);
  }

  async #check() {
    const number = ++this.latest;
    try {
      const options = { method: "POST", body: this.editor.text, type: YAML, signal: this.signal };
      const found = await api(`v1/${this.#noun()}s?dry_run=true`, options);
      if (number === this.latest) this.#valid(found);
    } catch (error) {
      if (number === this.latest && !this.signal.aborted) this.#refused(error);
    }
  }

  #valid(found) {
    const spec = found.spec ?? found;
    const job = spec.job ?? spec;
    this.editor.show([]);
    this.problems.replaceChildren();
    this.verdict.dataset.good = "";
    const trials = found.trials === undefined ? "" : `${count(found.trials)} trials of `;
    setText(
      this.verdict,
      `Good: ${trials}${job.algorithm.name}, ${job.model.name} on ${job.data.name}, ` +
        `${job.workers.count} worker${job.workers.count === 1 ? "" : "s"}, ${job.epochs} epochs.`,
    );
    setText(this.resolved, JSON.stringify(spec, null, 2));
    if (found.trials === undefined) this.#predict(job, this.latest);
    else setText(this.predicted, "");
  }

  /** The rate of a job, where the service knows enough for it. */
  async #predict(spec, number) {
    let text = "";
    try {
      this.plans ??= await mayPlan(this.signal);
      if (!this.plans) return;
      const plan = await planOf(JSON.stringify(spec), { workers: `[${spec.workers.count}]` }, this.signal);
      const [{ examples_per_s: rate, least_per_s: least, most_per_s: most }] = plan.candidates;
      const range = least === null ? "" : `, nine runs of ten between ${count(least)} and ${count(most)}`;
      text = `Predicted: ${count(rate)} examples a second${range}.`;
    } catch (error) {
      const isUnknown = error.errors?.some(({ pointer }) => pointer === "/profile");
      text = isUnknown ? "How fast it would be is not known: the service keeps no profile of this minibatch." : "";
    }
    if (number === this.latest) setText(this.predicted, text);
  }

  #lineButton(line) {
    return el("button", { type: "button", class: "quiet", onclick: () => this.editor.go(line) }, `line ${line}`);
  }

  #refused(error) {
    const found = error.errors?.length ? error.errors : [{ pointer: "", message: error.message }];
    const errors = found.toSorted((a, b) => (a.line ?? 0) - (b.line ?? 0));
    setText(this.predicted, "");
    delete this.verdict.dataset.good;
    setText(this.verdict, errors.length === 1 ? "One thing is wrong." : `${errors.length} things are wrong.`);
    this.editor.show(errors);
    this.problems.replaceChildren(
      ...errors.map((error) => problemItem(error, error.line ? this.#lineButton(error.line) : null)),
    );
  }
}

function option(value, label, title) {
  return el("option", { value, title }, label);
}
