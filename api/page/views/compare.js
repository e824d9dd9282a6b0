// Several runs overlaid: one figure of each, on one axis.

import { Chart, TALL, lineColour } from "../parts/chart.js";
import { announce, el, link } from "../lib/dom.js";
import { duration, figure, percent } from "../lib/format.js";
import { api } from "../lib/http.js";
import { every, heading } from "../parts/widgets.js";
import { fetchLines } from "../lib/fetch_lines.js";
import { AXES, aligned } from "../lib/metric_series.js";
import { ENDED } from "../lib/states.js";

const REFRESH_MS = 5000;
const RECENT = 12;
const FIGURES = {
  loss: ["Training loss", figure],
  test_loss: ["Test loss", figure],
  test_accuracy: ["Test accuracy", (value) => percent(value, 1)],
  test_perplexity: ["Test perplexity", figure],
  test_r2: ["Test R2", figure],
  examples_per_s: ["Examples a second", figure],
  staleness: ["Mean staleness", figure],
  workers: ["Workers", figure],
  learning_rate: ["Learning rate", figure],
};

/** `jobs`: ids with commas between, or else the last jobs; `sweep`: all trials of one; `figure`, `over`. */
export function compareView(main, { query }, signal) {
  const name = Object.hasOwn(FIGURES, query.get("figure")) ? query.get("figure") : "loss";
  const axis = Object.hasOwn(AXES, query.get("over")) ? query.get("over") : "epoch";
  const place = el("div", {}, el("p", { class: "note", "aria-busy": "true" }, "Reading…"));
  main.append(heading("Overlay", choices(query, name, axis)), place);
  let overlay = null;
  every(REFRESH_MS, signal, async () => {
    overlay ??= await Overlay.open(query, name, axis, place, signal);
    await overlay.refresh();
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
    const [title, format] = FIGURES[name];
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
    return sweep.results.filter(({ starts }) => starts > 0).map(ofTrial);
  }
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean);
  const { jobs } = await api(`v1/jobs?page_size=${ids.length ? 200 : RECENT}`, { signal });
  if (!ids.length) return jobs;
  const known = new Map(jobs.map((job) => [job.id, job]));
  return Promise.all(ids.map((id) => known.get(id) ?? api(`v1/jobs/${encodeURIComponent(id)}`, { signal })));
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
  return el(
    "span",
    { class: "filters" },
    el(
      "select",
      { "aria-label": "Figure", onchange: change("figure") },
      options(
        Object.entries(FIGURES).map(([key, [label]]) => [key, label]),
        name,
      ),
    ),
    el(
      "label",
      { class: "check" },
      "over ",
      el("select", { onchange: change("over") }, options(Object.entries(AXES), axis)),
    ),
  );
}
