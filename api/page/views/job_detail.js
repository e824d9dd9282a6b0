// One job: where it is, its curves, what happened, and what can be done with it.

import { Chart } from "../parts/chart.js";
import { announce, el, link, setText } from "../lib/dom.js";
import { count, duration, figure, metricFormat, metricTitle, moment } from "../lib/format.js";
import { api, events, sleep } from "../lib/http.js";
import { actorsPanel } from "../parts/actors.js";
import { checkpointsPanel } from "../parts/checkpoints.js";
import { logPanel } from "../parts/log.js";
import { predictedPanel } from "../parts/predicted.js";
import { tracesPanel } from "../parts/traces.js";
import { absent, badge, facts, folder, heading, progressBar, section, setBadge, setProgress, trouble } from "../parts/widgets.js";
import { secondsText } from "../lib/latency.js";
import { AXES, Curves } from "../lib/metric_series.js";
import { ENDED } from "../lib/states.js";
import { DEFAULT } from "../lib/project_choice.js";
import { verbs } from "../parts/verbs.js";
import { usagePanel } from "../usage/actor_usage.js";
import { latencyPanel } from "../usage/latency.js";

const DRAW_EVERY_MS = 400;
const LOOK_EVERY_MS = 15000; // the stream tells the rest: many may watch
const LOOK_SOON_MS = 200;
const AGAIN_MS = 2000;
const PLOTS = [
  {
    title: "Loss",
    lines: [
      ["training", "steps", "loss"],
      ["test", "evaluations", "test_loss"],
    ],
  },
  { title: "Examples a second", zero: true, format: count, lines: [["all workers", "steps", "examples_per_s"]] },
  {
    title: "Staleness",
    zero: true,
    mayLack: true, // of synchronous algorithms
    lines: [
      ["mean", "steps", "staleness"],
      ["largest", "steps", "stalest"],
    ],
  },
  ...["fetch", "push"].map((call) => ({
    title: `${call === "fetch" ? "Fetch" : "Push"} latency`,
    zero: true,
    mayLack: true, // without shards
    format: secondsText,
    lines: ["p50", "p90", "p99"].map((share) => [share, "steps", `${call}_${share}_s`]),
  })),
  { title: "Workers", zero: true, stepped: true, whole: true, lines: [["workers", "steps", "workers"]] },
  { title: "Learning rate", zero: true, lines: [["rate", "steps", "learning_rate"]] },
];

const NORM = { title: "Gradient norm", zero: true, lines: [["before clipping", "steps", "gradient_norm"]] };
const NOISE = { title: "Gradient noise scale", zero: true, lines: [["examples", "steps", "noise_scale"]] };

const DRAWN_WITH_LOSS = ["test_loss", "test_error_median", "validation_error_median"];

/** On which examples a metric was measured, by its name in the log. */
const setOf = (name) => name.split("_")[0];

/** A chart of one metric of the task. */
function metricPlot(name) {
  return { title: metricTitle(name), format: metricFormat(name), lines: [[setOf(name), "evaluations", name]] };
}

/** The metrics of a task by name: that by which runs are compared first, and the loss last. */
function metricsText(metrics, headline) {
  const place = (name) => (name === headline ? 0 : name === "loss" ? 2 : 1);
  const names = Object.keys(metrics ?? {}).sort((a, b) => place(a) - place(b));
  const texts = names.map((name) => `${name.replaceAll("_", " ")} ${metricFormat(name, 2)(metrics[name])}`);
  return texts.length ? texts.join(", ") : "–";
}

/** One job. */
export function jobView(main, { id }, signal) {
  const view = new JobPage(id, signal);
  main.append(view.element);
  view.run();
  return `Job ${id}`;
}

class JobPage {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.job = null;
    this.curves = new Curves();
    this.title = el("span", {}, id);
    this.badge = badge();
    this.why = el("p", { class: "why" });
    this.bar = progressBar();
    this.facts = el("div");
    this.live = { epochs: el("span"), examples: el("span"), test: el("span"), validation: el("span") };
    this.spec = el("pre", { tabindex: 0, role: "region", "aria-label": "Spec" });
    this.whole = el("pre", { tabindex: 0, role: "region", "aria-label": "Spec with every default" });
    this.traces = tracesPanel(id);
    this.traced = section("Traces", this.traces.element);
    this.verbs = verbs(id, () => this.look(), this.traces.record);
    this.actors = actorsPanel();
    this.checkpoints = checkpointsPanel(id);
    this.log = logPanel();
    this.predicted = predictedPanel(signal);
    this.latency = latencyPanel();
    this.usage = usagePanel(id);
    this.happened = el("ol", { class: "happened" });
    this.axis = this.#axisChoice();
    this.charts = PLOTS.map((plot) => this.#chart(plot));
    this.chartList = el(
      "div",
      { class: "charts" },
      this.charts.map(({ chart }) => chart.element),
    );
    this.element = el(
      "div",
      { class: "job" },
      heading(this.title, this.badge),
      this.why,
      this.bar,
      this.verbs.element,
      this.facts,
      el(
        "section",
        {},
        el(
          "div",
          { class: "heading" },
          el("h2", {}, "Curves"),
          this.axis,
          link(`#/compare?jobs=${id}`, "Compare with others"),
          link(`#/plan?job=${id}`, "Plan more workers"),
        ),
        this.happened,
        this.chartList,
      ),
      this.predicted.element,
      this.latency.element,
      this.usage.element,
      this.traced,
      el(
        "div",
        { class: "columns" },
        section("Log", this.log.element),
        section("Checkpoints", this.checkpoints.element),
        section("Actors", this.actors.element),
        section("Spec", this.spec, el("details", {}, el("summary", {}, "With every default"), this.whole)),
      ),
    );
    signal.addEventListener("abort", () => {
      this.traces.close();
      for (const panel of [this.latency, this.usage]) panel.close();
      for (const { chart } of this.charts) chart.close();
    });
  }

  /** Show it until the view is left. */
  async run() {
    try {
      await this.look();
      this.#follow();
      this.#lookOn();
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === 404) return this.element.replaceChildren(absent("job", this.id, "jobs"));
      trouble(error.message);
      if (error.status) return;
      await sleep(AGAIN_MS, this.signal);
      if (!this.signal.aborted) this.run();
    }
  }

  /** Ask how it stands. */
  async look() {
    const job = await api(`v1/jobs/${encodeURIComponent(this.id)}`, { signal: this.signal });
    if (this.job && this.job.state !== job.state) announce(`${job.name} is ${job.state}: ${job.message}`);
    if (!this.job) {
      setText(this.spec, JSON.stringify(job.short_spec, null, 2));
      setText(this.whole, JSON.stringify(job.spec, null, 2));
      this.predicted.ask(job.spec);
    }
    this.job = job;
    document.title = `${job.name} ${job.state} · Millrace`;
    setText(this.title, job.name);
    setBadge(this.badge, job.state);
    setText(this.why, job.message);
    this.looked = performance.now();
    setProgress(this.bar, job.progress, job.eta_s);
    this.verbs.update(job);
    this.traced.hidden = ENDED.includes(job.state) && this.traces.isEmpty(); // none will come any more
    this.#showFacts(job);
    trouble("");
  }

  #showFacts(job) {
    const labels = Object.entries(job.labels).map(([key, value]) =>
      el("span", { class: "label" }, value ? `${key}=${value}` : key),
    );
    const { result } = job;
    this.#showLive(result.epochs, result.examples, { test: result.metrics, validation: result.validation });
    const isValidated = Object.keys(result.validation ?? {}).length > 0;
    this.facts.replaceChildren(
      facts([
        ["Job", el("code", {}, job.id)],
        ["Reason", el("code", {}, job.reason)],
        ["Algorithm", job.algorithm],
        ["Model on data", `${job.spec.model.name} on ${job.spec.data.name}`],
        ...(job.spec.task && job.spec.task.name !== "classification" ? [["Task", job.spec.task.name]] : []),
        ["Workers", ENDED.includes(job.state) ? String(result.workers) : `${job.workers} of ${job.spec.workers.count}`],
        ["Epochs", this.live.epochs],
        ["Examples", this.live.examples],
        ...(isValidated ? [["On the validation set", this.live.validation]] : []),
        ["On the test set", this.live.test],
        ...(result.best ? [["Best model", bestText(result.best)]] : []),
        ["Time", duration(result.wall_s)],
        ["Created", moment(job.created)],
        ...(job.project === DEFAULT ? [] : [["Project", job.project]]),
        ["Priority", String(job.priority)],
        ...(job.user ? [["User", job.user]] : []),
        ...(job.labels.sweep ? [["Sweep", link(`#/sweeps/${job.labels.sweep}`, job.labels.sweep)]] : []),
        ...(job.forked_from ? [["Forked from", link(`#/jobs/${job.forked_from.split("/")[0]}`, job.forked_from)]] : []),
        ...(labels.length ? [["Labels", labels]] : []),
        ...(job.notes ? [["Notes", job.notes]] : []),
        ["Folder", folder(job.run_dir)],
      ]),
    );
  }

  async #follow() {
    try {
      for await (const batch of events(`v1/jobs/${encodeURIComponent(this.id)}/events`, 0, this.signal, showAnswer)) {
        for (const event of batch) this.#take(event);
        this.#soon();
      }
      await this.look();
    } catch (error) {
      if (!this.signal.aborted) trouble(error.message);
    }
  }

  #take(event) {
    this.curves.add(event);
    this.usage.add(event);
    this.log.add(event);
    if (event.type === "step") for (const panel of [this.predicted, this.latency]) panel.add(event);
    if (event.type === "result") this.predicted.end(event.data);
    if (event.type === "state") this.#lookSoon();
    if (event.type === "checkpoint") this.checkpoints.add(event);
    if (event.type === "result" && event.data.model_path) this.checkpoints.finish(event.data);
    if (event.type === "trace") this.traces.add(event);
    if (event.type === "trace") this.traced.hidden = false;
    if (event.type === "actors" || event.type === "resize") this.actors.show(event);
    this.#tellMarks();
  }

  /** Say what has come to pass since the last time. */
  #tellMarks() {
    for (const { type, epoch, text } of this.curves.marks.slice(this.happened.children.length)) {
      this.happened.append(
        el("li", { "data-type": type }, el("strong", {}, type), ` at epoch ${figure(epoch)}: ${text}`),
      );
      if (this.drawn) announce(`${type}: ${text}`); // not what had happened before the page was opened
    }
  }

  /** Draw in a moment, once for all that comes until then. */
  #soon() {
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(
      () => {
        this.drawing = false;
        requestAnimationFrame(() => this.#draw());
      },
      this.drawn ? DRAW_EVERY_MS : 0,
    );
  }

  /** Fetch the job again in a moment, once for all events until then. */
  #lookSoon() {
    if (this.looking) return;
    this.looking = true;
    sleep(LOOK_SOON_MS, this.signal).then(() => {
      this.looking = false;
      if (!this.signal.aborted) this.look().catch(() => {});
    });
  }

  /** Ask now and again, for what no event tells: the time left, the place in the queue. */
  async #lookOn() {
    while (!this.signal.aborted && !ENDED.includes(this.job.state)) {
      await sleep(LOOK_EVERY_MS, this.signal);
      if (!document.hidden && !this.signal.aborted) await this.look().catch(() => {});
    }
  }

  #draw() {
    if (this.signal.aborted) return;
    const axis = this.axisName,
      marks = this.curves.marks.map((mark) => ({ ...mark, x: mark[axis] }));
    this.#addMetrics();
    this.#addNorms();
    for (const { plot, chart } of this.charts) {
      const lines = plot.lines.map(([, from, name]) => this.curves.line(from, name, axis));
      chart.element.hidden = Boolean(plot.mayLack) && lines.every(([, ys]) => ys.every((value) => value === null));
      chart.draw(joined(lines), marks);
    }
    if (!this.drawn) performance.mark("first plot");
    this.drawn = true;
    for (const panel of [this.predicted, this.latency, this.usage]) panel.draw();
    this.#showProgress();
  }

  /** A chart for each metric of the task that has been measured since, behind the loss. */
  #addMetrics() {
    const drawn = this.charts.map(({ plot }) => plot.lines[0][2]);
    const missing = this.curves.metrics.filter((name) => !DRAWN_WITH_LOSS.includes(name) && !drawn.includes(name));
    for (const name of missing.reverse()) {
      const added = this.#chart(metricPlot(name));
      this.charts.splice(1, 0, added);
      this.charts[0].chart.element.after(added.chart.element);
    }
  }

  /** Charts of the gradients' norms and of their noise scale, where the run measures them. */
  #addNorms() {
    for (const norm of [NORM, NOISE]) {
      const measured = this.curves.steps[norm.lines[0][2]].some((value) => value !== null);
      if (!measured || this.charts.some(({ plot }) => plot === norm)) continue;
      const added = this.#chart(norm);
      this.charts.push(added);
      this.chartList.append(added.chart.element);
    }
  }

  #showLive(epochs, examples, measured) {
    setText(this.live.epochs, `${figure(epochs)} of ${figure(this.curves.runEpochs || this.job.spec.epochs)}`);
    setText(this.live.examples, count(examples));
    for (const set of ["test", "validation"])
      setText(this.live[set], metricsText(measured[set], this.job.result.headline));
  }

  /** From the stream, between two looks. */
  #showProgress() {
    const { job } = this;
    if (!job || job.state !== "RUNNING") return;
    const { epoch, examples } = this.curves.at;
    const measured = { test: {}, validation: {} };
    for (const name of this.curves.metrics.filter((name) => !name.endsWith("_error_median")))
      measured[setOf(name)][name.replace(/^[a-z]+_/, "")] = this.curves.evaluations[name].at(-1);
    this.#showLive(epoch, examples, measured);
    const since = (performance.now() - this.looked) / 1000;
    const share = Math.max(job.progress, Math.min(1, this.curves.at.epoch / (this.curves.runEpochs || job.spec.epochs)));
    setProgress(this.bar, share, job.eta_s === null ? null : Math.max(0, job.eta_s - since));
  }

  #chart(plot) {
    const format = plot.format ?? figure;
    const lines = plot.lines.map(([label]) => ({ label, format, stepped: plot.stepped }));
    const chart = new Chart({
      title: plot.title,
      lines,
      zero: plot.zero,
      whole: plot.whole,
      sync: this.id,
      xLabel: () => AXES[this.axisName],
      xFormat: (value) => (this.axisName === "time" ? duration(value) : figure(value)),
    });
    return { plot, chart };
  }

  #axisChoice() {
    this.axisName = "epoch";
    const choice = el(
      "select",
      {},
      Object.entries(AXES).map(([name, label]) => el("option", { value: name }, label)),
    );
    choice.addEventListener("change", () => {
      this.axisName = choice.value;
      for (const { chart } of this.charts) chart.zoomed = false;
      this.#draw();
    });
    return el("label", { class: "check" }, "over ", choice);
  }
}

/** Lines on one axis; uPlot's own join, only where there is more than one axis to join. */
function joined(lines) {
  const [first, ...others] = lines;
  return others.every(([xs]) => xs === first[0]) ? [first[0], ...lines.map(([, ys]) => ys)] : Chart.join(lines);
}

function bestText({ metric, value, epoch }) {
  return `${metricTitle(metric)} ${metricFormat(metric)(value)} after epoch ${figure(epoch)}`;
}

function showAnswer(answers) {
  trouble(answers ? "" : "The service does not answer. What you see may be old; the page tries again by itself.");
}
