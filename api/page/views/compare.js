// Several runs compared: one figure of each on one axis, how they ended, and how their specs differ.

import { Chart, TALL, lineColour, lineDash, lineStyle } from "../parts/chart.js";
import { CompareBar } from "../parts/compare_bar.js";
import { RunTable } from "../parts/run_table.js";
import { picture } from "../parts/picture.js";
import { actionButton, every, heading } from "../parts/widgets.js";
import { csv, differences, groups, positive, smoothed, spread } from "../lib/comparing.js";
import { chosen, read, told } from "../lib/compared_runs.js";
import { announce, el } from "../lib/dom.js";
import { fetchLines } from "../lib/fetch_lines.js";
import { duration, figure, metricFormat, metricTitle } from "../lib/format.js";
import { keep } from "../lib/http.js";
import { AXES, aligned, isMeasured } from "../lib/metric_series.js";

const REFRESH_MS = 5000;
const FIGURES = {
  loss: "Training loss",
  test_loss: "Test loss",
  examples_per_s: "Examples a second",
  staleness: "Mean staleness",
  workers: "Workers",
  learning_rate: "Learning rate",
  gradient_norm: "Gradient norm",
  noise_scale: "Gradient noise scale",
};

const titleOf = (name) => FIGURES[name] ?? metricTitle(name);
const formatOf = (name) => (FIGURES[name] ? figure : metricFormat(name));

/** `jobs`, `sweep`: which runs; `figure`, `over`, `smooth`, `logX`, `logY`, `group`: how they are drawn. */
export function compareView(main, { query }, signal) {
  const looks = looksOf(query);
  const place = el("div", {}, el("p", { class: "note", "aria-busy": "true" }, "Reading…"));
  main.append(heading("Compare"), place);
  let comparison = null;
  every(REFRESH_MS, signal, async () => {
    if (!comparison) {
      const runs = await told(await chosen(query, signal), signal);
      comparison = new Comparison(runs, looks, query, signal);
      place.replaceChildren(...(runs.length ? [unasked(query, runs), ...comparison.elements] : [nothing()]).filter(Boolean));
    }
    await comparison.refresh();
  });
  signal.addEventListener("abort", () => comparison?.chart?.close());
  return "Compare";
}

const nothing = () => el("p", { class: "note" }, "Tick jobs in the ", el("a", { href: "#/jobs" }, "list"), ", and press Compare there.");

/** Which runs these are where the address names none. */
function unasked(query, runs) {
  if (query.get("jobs") || query.get("sweep")) return null;
  const last = runs.length === 1 ? "This is the last job. " : `These are the last ${runs.length} jobs. `;
  return el("p", { class: "note" }, last, "Tick others in the ", el("a", { href: "#/jobs" }, "list"), ", and press Compare there.");
}

function looksOf(query) {
  const asked = query.get("figure") ?? "",
    smooth = Number(query.get("smooth"));
  return {
    figure: Object.hasOwn(FIGURES, asked) || isMeasured(asked) ? asked : "loss",
    over: Object.hasOwn(AXES, query.get("over")) ? query.get("over") : "epoch",
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
    logX: query.has("logX"),
    logY: query.has("logY"),
    group: query.get("group") ?? "",
  };
}

class Comparison {
  constructor(runs, looks, query, signal) {
    this.runs = runs;
    this.looks = looks;
    this.query = query;
    this.signal = signal;
    this.lines = runs.map(() => [[], []]);
    this.hidden = new Set();
    this.done = new Set();
    this.differences = differences(runs.map(({ spec }) => spec));
    this.bar = new CompareBar(looks, { ...FIGURES, [looks.figure]: titleOf(looks.figure) }, {
      go: (changes) => this.#go(changes),
      change: (changes) => this.#change(changes),
    });
    this.bar.offerFigures(runs.flatMap(({ metrics }) => metrics).map((name) => [name, titleOf(name)]));
    this.bar.offerGroups([...this.differences.keys()]);
    this.table = new RunTable(runs, {
      onShow: (i, on) => this.#hide(i, !on),
      onPoint: (i) => this.chart?.single(i === null ? null : this.lineOf[i]),
    });
    this.whole = el("button", { type: "button", disabled: true, onclick: () => this.chart.whole() }, "Whole axis");
    this.whole.title = "Drag over the chart to see a part of the axis; this shows all of it again";
    this.frame = el("div");
    const buttons = [
      this.whole,
      actionButton("Save as CSV", "", () => this.#saveCsv()),
      actionButton("Save as PNG", "", () => this.#savePng()),
    ];
    this.elements = [this.bar.element, this.frame, el("div", { class: "buttons" }, buttons), this.table.element];
    this.#chart();
  }

  /** Read what has grown, and draw. */
  async refresh() {
    const growing = this.runs.map((_, i) => i).filter((i) => !this.done.has(i));
    if (!growing.length) return;
    if (this.drawn) {
      // How they stand first, so that of one that has ended all is read.
      const now = await Promise.all(growing.map((i) => read(this.runs[i], this.signal)));
      growing.forEach((i, at) => (this.runs[i] = now[at]));
    }
    const ids = growing.map((i) => this.runs[i].id);
    const lines = await fetchLines(ids, this.looks.figure, this.looks.over, this.signal);
    growing.forEach((i, at) => {
      if (lines[at]) this.lines[i] = lines[at];
      if (this.runs[i].finished !== null || !lines[at]) this.done.add(i);
    });
    this.#draw();
    if (!this.drawn) {
      performance.mark("first plot");
      announce(`${this.runs.length} runs are drawn`);
    }
    this.drawn = true;
  }

  /** A chart for the lines as they are grouped now. */
  #chart() {
    const { looks } = this,
      format = formatOf(looks.figure);
    const told = this.differences.get(looks.group);
    this.groups = told && groups(told.map((text) => `${looks.group} ${text}`));
    const names = this.groups ? this.groups.map(({ label }) => label) : this.runs.map(({ name }) => name);
    const line = (label, tint, more = {}) => ({ label, format, tint, ...more });
    this.named = names.map((label, tint) => ({ label, tint }));
    this.lineOf = this.runs.map((_, i) => (this.groups ? 3 * this.#groupOf(i) : i));
    this.chart?.close();
    this.chart = new Chart({
      title: titleOf(looks.figure) + (this.groups ? ", mean and range" : ""),
      height: TALL,
      legend: false,
      lines: this.groups
        ? names.flatMap((name, i) => [line(name, i), line("", i, { edge: true }), line("", i, { edge: true })])
        : names.map((name, i) => line(name, i)),
      bands: this.groups ? names.map((_, i) => [3 * i + 2, 3 * i + 1]) : [],
      xFormat: looks.over === "time" ? duration : figure,
      xLabel: () => AXES[looks.over],
      logX: looks.logX && 10,
      logY: looks.logY,
      onCursor: (at) => this.#values(at),
      onNear: (at) => this.table.point(this.#members(at)),
      onZoom: (on) => (this.whole.disabled = !on),
    });
    this.frame.replaceChildren(this.chart.element);
    this.table.paint((i) => lineStyle(this.groups ? this.#groupOf(i) : i));
  }

  #groupOf(i) {
    return this.groups.findIndex(({ members }) => members.includes(i));
  }

  #members(at) {
    if (at === null) return [];
    return this.groups ? this.groups[Math.floor(at / 3)].members : [at];
  }

  #draw() {
    const { looks } = this;
    const lines = this.lines.map((line, i) => (this.hidden.has(i) ? [[], []] : positive(smoothed(line, looks.smooth), looks)));
    const data = looks.logX ? onLogarithms(lines) : aligned(lines);
    this.data = data;
    this.chart.draw(this.groups ? [data[0], ...this.groups.flatMap((group) => this.#spread(group, data))] : data);
    this.#values(null);
  }

  #spread({ members }, data) {
    const { mean, low, high } = spread(members.map((i) => data[i + 1]));
    return [mean, low, high];
  }

  /** The table, with each run's value at a place of the axis, or else its last. */
  #values(at) {
    if (!this.data) return;
    const { looks, runs } = this;
    const facts = new Map();
    runs.forEach((run, i) =>
      run.facts.forEach(({ title, value, show }) => {
        if (!facts.has(title)) facts.set(title, { title, show, values: [] });
        facts.get(title).values[i] = value;
      }),
    );
    const drawn = {
      title: titleOf(looks.figure),
      note: at === null ? "last" : `at ${this.chart.options.xFormat(this.data[0][at])} ${AXES[looks.over]}`,
      values: this.data.slice(1).map((ys) => valueAt(ys, at)),
      show: formatOf(looks.figure),
    };
    const states = { title: "State", values: runs.map(({ state }) => state) };
    const specs = [...this.differences].map(([title, values]) => ({ title, values }));
    const columns = [drawn, states, ...facts.values(), ...specs];
    if (at === null) this.table.show(columns);
    else this.table.fill(columns); // the rows stay where they are while somebody points
  }

  #hide(i, hidden) {
    if (hidden) this.hidden.add(i);
    else this.hidden.delete(i);
    this.#draw();
  }

  #address(changes) {
    const next = new URLSearchParams(this.query);
    for (const [key, value] of Object.entries(changes)) {
      if (value === false || value === "" || value === 0) next.delete(key);
      else next.set(key, value === true ? "" : value);
    }
    this.query = next;
    return `#/compare?${next}`;
  }

  #go(changes) {
    location.hash = this.#address(changes);
  }

  #change(changes) {
    history.replaceState(history.state, "", this.#address(changes));
    Object.assign(this.looks, changes);
    if (!("smooth" in changes)) this.#chart();
    this.#draw();
  }

  #saveCsv() {
    const { looks } = this;
    const rows = this.runs.flatMap(({ id, name }, i) => {
      const [xs, ys] = this.lines[i];
      return this.hidden.has(i) ? [] : xs.map((x, at) => [id, name, x, ys[at]]);
    });
    const text = csv([["job", "name", looks.over, looks.figure], ...rows]);
    keep(new Blob([text], { type: "text/csv" }), `${looks.figure}.csv`);
  }

  async #savePng() {
    if (!this.chart.canvas) throw new Error("Nothing is drawn yet.");
    const lines = this.named.map(({ label, tint }) => ({ label, colour: lineColour(tint), dash: lineDash(tint) }));
    const title = `${this.chart.options.title}, over ${AXES[this.looks.over]}`;
    keep(await picture(this.chart, title, lines), `${this.looks.figure}.png`);
  }
}

/** Lines on one axis whose buckets are as wide on a logarithmic one. */
function onLogarithms(lines) {
  const [x, ...ys] = aligned(lines.map(([xs, values]) => [xs.map(Math.log10), values]));
  return [x.map((value) => 10 ** value), ...ys];
}

/** A line's value at a place, or its last; none before it begins and after it ends. */
function valueAt(ys, at) {
  const last = ys.findLastIndex((y) => y !== null);
  if (at === null) return last < 0 ? null : ys[last];
  if (at > last + 1) return null;
  for (let i = at; i >= 0; i--) if (ys[i] !== null) return ys[i];
  return null;
}
