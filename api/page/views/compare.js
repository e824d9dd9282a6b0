// Several runs overlaid: one figure of each, on one axis.

import { Chart, TALL, lineColour } from "../parts/chart.js";
import { announce, el, link } from "../lib/dom.js";
import { duration, figure, metricFormat, metricTitle } from "../lib/format.js";
import { api } from "../lib/http.js";
import { every, heading } from "../parts/widgets.js";
import { fetchLines } from "../lib/fetch_lines.js";
import { AXES, aligned, isMeasured } from "../lib/metric_series.js";
import { ENDED } from "../lib/states.js";

const REFRESH_MS = 5000;
const RECENT = 12;
const FIGURES = {
  loss: ["Training loss", figure],
  test_loss: ["Test loss", figure],
  examples_per_s: ["Examples a second", figure],
  staleness: ["Mean staleness", figure],
  workers: ["Workers", figure],
  learning_rate: ["Learning rate", figure],
  gradient_norm: ["Gradient norm", figure],
};

/** Title and format of a figure: one that every run has, or a metric of the task. */
const looksOf = (name) => FIGURES[name] ?? [metricTitle(name), metricFormat(name)];

/** `jobs`: ids with commas between, or else the last jobs; `sweep`: all trials of one; `figure`, `over`. */
export function compareView(main, { query }, signal) {
  const asked = query.get("figure") ?? "";
  const name = Object.hasOwn(FIGURES, asked) || isMeasured(asked) ? asked : "loss";
  const axis = Object.hasOwn(AXES, query.get("over")) ? query.get("over") : "epoch";
  const place = el("div", {}, el("p", { class: "note", "aria-busy": "true" }, "Reading…"));
  const offered = choices(query, name, axis);
  main.append(heading("Overlay", offered.element), place);
  let overlay = null;
  every(REFRESH_MS, signal, async () => {
    const isNew = !overlay;
    overlay ??= await Overlay.open(query, name, axis, place, signal);
    await overlay.refresh();
    if (isNew) offered.add(await measured(overlay.jobs, signal));
  });
  signal.addEventListener("abort", () => overlay?.chart.close());
  return "Overlay";
}

class Overlay {
  static async open(query, name, axis, place, signal) {
    const jobs = await chosen(query, signal);
    const overlay = new Overlay(jobs, name, axis, signal);
    place.replaceChildren(overlay.element);
    return overlay;
  }

  constructor(jobs, name, axis, signal) {
    const [title, format] = looksOf(name);
    this.jobs = jobs;
    this.name = name;
    this.axis = axis;
    this.signal = signal;
    this.lines = jobs.map(() => [[], []]);
    this.done = new Set();
    this.chart = new Chart({
      title,
      height: TALL,
      legend: false,
      lines: jobs.map((job) => ({ label: job.name, format })),
      xFormat: axis === "time" ? duration : figure,
      xLabel: () => AXES[axis],
    });
    this.items = jobs.map((job, i) => this.#item(job, i));
    const none = el("p", { class: "note" }, "Tick jobs in the list, and press Overlay there.");
    this.element = el("div", {}, jobs.length ? this.chart.element : none, el("ul", { class: "runs" }, this.items));
  }

  /** Read what has grown, and draw. */
  async refresh() {
    const growing = this.jobs.map((job, i) => i).filter((i) => !this.done.has(i));
    if (!growing.length) return;
    const jobs = growing.map((i) => this.jobs[i]);
    // How they stand first, so that of one that has ended all is read.
    const ended = await Promise.all(jobs.map((job) => hasEnded(job, this.drawn, this.signal)));
    const ids = jobs.map((job) => job.id);
    const lines = await fetchLines(ids, this.name, this.axis, this.signal);
    growing.forEach((i, at) => {
      if (lines[at]) this.lines[i] = lines[at];
      if (ended[at] || !lines[at]) this.done.add(i);
    });
    this.chart.draw(aligned(this.lines));
    if (!this.drawn) {
      performance.mark("first plot");
      announce(`${this.jobs.length} runs are drawn`);
    }
    this.drawn = true;
  }

  #item(job, i) {
    const box = el("input", {
      type: "checkbox",
      checked: true,
      "aria-label": `Show ${job.name}`,
      onchange: () => this.chart.toggle(i, box.checked),
    });
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = lineColour(i);
    const bring = () => this.chart.single(i),
      back = () => this.chart.single(null);
    return el(
      "li",
      { onpointerenter: bring, onpointerleave: back, onfocusin: bring, onfocusout: back },
      box,
      swatch,
      link(`#/jobs/${job.id}`, job.name),
      el("span", { class: "id" }, job.hint ?? job.id),
    );
  }
}

/** Whether a job has ended: as it was listed a moment ago, later asked again. */
async function hasEnded(job, again, signal) {
  if (!again) return job.finished !== null;
  try {
    return (await api(`v1/jobs/${encodeURIComponent(job.id)}`, { signal })).finished !== null;
  } catch (error) {
    if (error.status !== 404) throw error;
    return true; // it has been removed since it was chosen
  }
}

async function chosen(query, signal) {
  if (query.get("sweep")) {
    const sweep = await api(`v1/sweeps/${encodeURIComponent(query.get("sweep"))}`, { signal });
    const { name, measured_on = "test" } = sweep.metric;
    const metrics = [`${measured_on}_${name === "error" ? "accuracy" : name}`];
    return sweep.results.filter(({ starts }) => starts > 0).map((trial) => ({ ...ofTrial(trial), metrics }));
  }
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean);
  const { jobs } = await api(`v1/jobs?page_size=${ids.length ? 200 : RECENT}`, { signal });
  if (!ids.length) return jobs;
  const known = new Map(jobs.map((job) => [job.id, job]));
  return Promise.all(ids.map((id) => known.get(id) ?? api(`v1/jobs/${encodeURIComponent(id)}`, { signal })));
}

/** The metrics that the first of the runs have measured; those by which runs are judged stand first. */
async function measured(jobs, signal) {
  const some = jobs.slice(0, RECENT).map(async ({ id, metrics }) => {
    if (Array.isArray(metrics)) return metrics; // of a trial; a job's: its last step
    const job = await api(`v1/jobs/${encodeURIComponent(id)}`, { signal }).catch(() => null); // removed since
    const judged = Object.keys(job?.result.validation ?? {}).map((name) => `validation_${name}`);
    const last = Object.keys(job?.evaluation ?? {}).filter((name) => isMeasured(name) && !name.endsWith("_error_median"));
    return [...judged, ...last];
  });
  return (await Promise.all(some)).flat();
}

function ofTrial({ id, number, settings, state }) {
  const hint = Object.entries(settings)
    .map(([axis, value]) => `${axis} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
  const ended = [...ENDED, "STOPPED"].includes(state);
  return { id, name: `trial ${number}`, hint, finished: ended ? 0 : null };
}

function choices(query, name, axis) {
  const change = (key) => (event) => {
    const next = new URLSearchParams(query);
    next.set(key, event.target.value);
    location.hash = `#/compare?${next}`;
  };
  const options = (pairs, now) =>
    pairs.map(([value, label]) => el("option", { value, selected: value === now }, label));
  const keys = new Set([...Object.keys(FIGURES), name]);
  const figures = el(
    "select",
    { "aria-label": "Figure", onchange: change("figure") },
    options(
      [...keys].map((key) => [key, looksOf(key)[0]]),
      name,
    ),
  );
  /** Offer the metrics that the runs have measured, too. */
  const add = (metrics) => {
    const before = figures.querySelector("option[value=test_loss]");
    for (const key of metrics) {
      if (keys.has(key)) continue;
      keys.add(key);
      const option = el("option", { value: key }, looksOf(key)[0]);
      if (key.startsWith("validation_")) before.before(option);
      else figures.append(option);
    }
  };
  const element = el(
    "span",
    { class: "filters" },
    figures,
    el(
      "label",
      { class: "check" },
      "over ",
      el("select", { onchange: change("over") }, options(Object.entries(AXES), axis)),
    ),
  );
  return { element, add };
}
