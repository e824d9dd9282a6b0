// What more workers would bring a job, before it runs: its speed-up, its step, and what holds it back.

import { Chart, TALL } from "../parts/chart.js";
import { Editor } from "../parts/editor.js";
import { stackedSteps } from "../parts/stack.js";
import { facts, heading, problemItem, section, table } from "../parts/widgets.js";
import { el, setText } from "../lib/dom.js";
import { count, duration, figure, percent } from "../lib/format.js";
import { api } from "../lib/http.js";
import { planOf } from "../lib/planning.js";
import { simulatedParts } from "../simulation/simulated.js";

const BEGIN = `algorithm: {name: downpour, num_push: 1, num_fetch: 1, max_staleness: 4}
workers: 2
data: digits
model: mlp
batch: 32
`;

/** The view. `job`: one whose spec it begins with. */
export function planView(main, { query }, signal) {
  const view = new PlanPage(signal);
  main.append(view.element);
  view.begin(query.get("job"));
  return "Plan";
}

class PlanPage {
  constructor(signal) {
    this.signal = signal;
    this.editor = new Editor(
      BEGIN,
      () => {},
      () => this.plan(),
    );
    this.editor.field.rows = 12;
    this.workers = el("input", { placeholder: "1..64", size: 10, autocomplete: "off" });
    this.price = el("input", { size: 6, inputmode: "decimal", autocomplete: "off" });
    this.target = el("input", { size: 20, placeholder: "test_accuracy=0.95", autocomplete: "off" });
    this.cluster = el("textarea", { rows: 4, spellcheck: "false", "aria-describedby": "cluster-note" }, "ec2-g2");
    this.search = el("input", { type: "checkbox" });
    this.simulate = el("input", { type: "checkbox" });
    this.verdict = el("p", { class: "verdict", role: "status" });
    this.problems = el("ul", { class: "problems", id: "problems" });
    this.button = el("button", { type: "submit", class: "main" }, "Plan");
    this.found = el("div");
    const note =
      "A name (ec2-g2, minotauro, big-basin, one-weird-trick), or a description: devices, links, switches. Empty: the " +
      "service's machine, if it keeps a profile of this minibatch.";
    const send = (event) => {
      event.preventDefault();
      this.plan();
    };
    this.element = el(
      "form",
      { class: "spec", onsubmit: send },
      heading("Plan"),
      this.editor.element,
      el(
        "div",
        { class: "asked" },
        el("label", { class: "check" }, "workers ", this.workers),
        el("label", { class: "check" }, "price of a worker for an hour ", this.price),
        el("label", { class: "check" }, "target ", this.target),
        el("label", { class: "check" }, this.search, " other algorithms and batches too"),
        el("label", { class: "check" }, this.simulate, " simulate it, event by event"),
        el("label", { class: "check" }, "cluster ", this.cluster),
        el("p", { class: "note", id: "cluster-note" }, note),
      ),
      el("div", { class: "buttons" }, this.button, this.verdict),
      this.problems,
      this.found,
    );
    signal.addEventListener("abort", () => this.#close());
  }

  async begin(job) {
    if (!job) return;
    try {
      const { spec } = await api(`v1/jobs/${encodeURIComponent(job)}`, { signal: this.signal });
      this.editor.text = JSON.stringify(spec, null, 2);
    } catch (error) {
      if (!this.signal.aborted) this.#refused(error);
    }
  }

  async plan() {
    if (this.button.disabled) return;
    this.button.disabled = true;
    this.verdict.dataset.busy = "";
    setText(this.verdict, "The model is counted, which takes seconds the first time …");
    const asked = {
      workers: this.workers.value,
      cluster: this.cluster.value,
      price: this.price.value,
      target: this.target.value,
      search: this.search.checked ? "true" : "",
      simulate: this.simulate.checked ? "1" : "",
    };
    try {
      this.#show(await planOf(this.editor.text, asked, this.signal));
    } catch (error) {
      if (!this.signal.aborted) this.#refused(error);
    } finally {
      this.button.disabled = false;
      delete this.verdict.dataset.busy;
    }
  }

  #show(plan) {
    this.editor.show([]);
    this.problems.replaceChildren();
    this.verdict.dataset.good = "";
    setText(this.verdict, `Recommended: ${workers(plan.recommended)}: ${plan.reason}.`);
    this.#close();
    this.chart = speedUps(plan);
    this.simulated = simulatedParts(plan);
    this.found.replaceChildren(
      section("Speed-up", this.chart.element, limit(plan)),
      section("A step", stackedSteps(plan)),
      section("At the recommended size", facts(figures(plan))),
      ...this.simulated.sections,
      ...(plan.options.length ? [section("What else it could be", options(plan))] : []),
      ...(plan.notes.length ? [section("Not counted, or assumed", el("ul", {}, plan.notes.map((one) => el("li", {}, one))))] : []),
    );
    draw(this.chart, plan);
    this.simulated.draw();
  }

  #close() {
    this.chart?.close();
    this.simulated?.close();
  }

  #refused(error) {
    const errors = error.errors?.length ? error.errors : [{ pointer: "", message: error.message }];
    delete this.verdict.dataset.good;
    setText(this.verdict, errors.length === 1 ? "One thing is wrong." : `${errors.length} things are wrong.`);
    const inSpec = errors.filter(({ pointer, line }) => line > 1 && pointer.startsWith("/spec"));
    this.editor.show(inSpec.map((one) => ({ ...one, line: one.line - 1 })));
    this.problems.replaceChildren(
      ...errors.map((error) => problemItem(error)),
    );
  }
}

function workers(number) {
  return number === 1 ? "1 worker" : `${count(number)} workers`;
}

function speedUps(plan) {
  const times = (value) => (value === null || value === undefined ? "–" : `${figure(value)} ×`);
  const hasBand = plan.candidates[0].least_per_s !== null;
  const edges = [
    { label: "nine runs of ten: at most", format: times, tint: 2, edge: true },
    { label: "at least", format: times, tint: 2, edge: true },
  ];
  return new Chart({
    title: "Speed-up against one worker that exchanges nothing",
    lines: [
      { label: "predicted", format: times, tint: 0, dots: plan.candidates.length < 20 },
      { label: "each as fast as one alone", format: times, tint: 1 },
      ...(hasBand ? edges : []),
    ],
    bands: hasBand ? [[2, 3]] : [],
    zero: true,
    height: TALL,
    xLabel: () => "workers",
    xFormat: count,
  });
}

function draw(chart, { candidates, corner }) {
  const xs = candidates.map((one) => one.workers);
  const alone = candidates[0].examples_per_s / candidates[0].speed_up;
  const bounds = ["most_per_s", "least_per_s"].map((name) => candidates.map((one) => one[name] / alone));
  const most = Math.max(...candidates.map((one) => one.speed_up)) * 1.5;
  const ideal = xs.map((x) => (x <= most ? x : null));
  const marks = corner !== null && corner <= xs.at(-1) ? [{ x: corner, type: "resize" }] : [];
  const has = candidates[0].least_per_s !== null;
  chart.draw([xs, candidates.map((one) => one.speed_up), ideal, ...(has ? bounds : [])], marks);
}

function limit({ corner }) {
  if (corner === null) return null;
  const from = `The shards are busy all the time from (T + tau)/tau = ${figure(corner)} workers on, the dashed line: `;
  return el("p", { class: "note" }, from, "T is a worker's own time for a step, tau that of the shards for its push.");
}

const megabytes = (bytes) => (bytes === null ? "unknown" : `${figure(bytes / 1e6)} MB at least`);

function figures(plan) {
  const best = plan.candidates.find((one) => one.workers === plan.recommended);
  const { least_per_s: least, most_per_s: most, staleness } = best;
  const faster = `${percent(best.without_bottleneck / best.examples_per_s - 1)} faster without it`;
  return [
    ["Workers", String(best.workers)],
    ["Examples a second", count(best.examples_per_s)],
    ...(least === null ? [] : [["Nine runs of ten", `${count(least)} to ${count(most)}`]]),
    ["Efficiency", percent(best.efficiency)],
    ["Slower than the fastest", `by ${percent(plan.regret, 1)}`],
    ["Held back by", best.bottleneck ? `${best.bottleneck}, ${faster}` : "nothing"],
    ...(best.next_bottleneck ? [["Next", best.next_bottleneck]] : []),
    ...(staleness
      ? [["Staleness", `${figure(staleness.mean)} updates, nine in ten ${figure(staleness.least)} to ${figure(staleness.most)}`]]
      : []),
    ["A worker needs", megabytes(plan.memory_bytes)],
    ...(plan.shards === null ? [] : [["The fullest shard needs", megabytes(best.shard_bytes)]]),
    ...(best.price === null ? [] : [["Price of a million examples", figure(best.price)]]),
    ...(plan.target ? [["Until the target", untilTarget(plan)]] : []),
    ["On", `${plan.cluster} (${plan.device})`],
    ["From", plan.basis],
  ];
}

function untilTarget({ target, recommended }) {
  const seconds = target.seconds[recommended];
  if (seconds === undefined) return `unknown; ${target.trials.length} trials would tell`;
  const price = target.prices[recommended];
  const paid = price === undefined ? "" : `, price ${figure(price)}`;
  return `${duration(seconds)}${paid}; ${figure(target.epochs)} epochs, from ${target.jobs.length} runs`;
}

function options({ options: found }) {
  const names = ["algorithm", "minibatch", "shards", "workers", "examples a second", "below the fastest at this minibatch"];
  const frame = table("What else it could be", names);
  frame.querySelector("tbody").append(
    ...found.map((one) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, one.algorithm),
        [one.per_worker, one.shards ?? "–", one.workers, count(one.examples_per_s), percent(one.regret)].map((value, i) =>
          el("td", { class: "number", "data-label": names[i + 1] }, String(value)),
        ),
      ),
    ),
  );
  return frame;
}
