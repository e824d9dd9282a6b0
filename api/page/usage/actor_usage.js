// What each actor of a job uses of its machine: a chart for each figure, a line for each actor.

import { Chart } from "../parts/chart.js";
import { section } from "../parts/widgets.js";
import { el } from "../lib/dom.js";
import { count, duration, figure, percent } from "../lib/format.js";

const megabytes = (value) => (value === null ? "–" : `${count(value)} MB`);
const kilobytes = (value) => (value === null ? "–" : value < 10000 ? `${count(value)} kB/s` : `${count(value / 1000)} MB/s`);
const FIGURES = {
  cpu_cores: { title: "CPU, cores", format: figure },
  memory_mb: { title: "Memory", format: megabytes },
  sent_kb_per_s: { title: "Sent over the network", format: kilobytes },
  received_kb_per_s: { title: "Received over the network", format: kilobytes },
  gpu_share: { title: "GPU at work", format: (value) => percent(value) },
  gpu_memory_mb: { title: "GPU memory", format: megabytes },
};

/** Rows of `usage` events as columns: when they were told, and of each figure a column for each actor. */
export class UsageColumns {
  constructor() {
    this.actors = [];
    this.times = []; // seconds since the first event of the log
    this.figures = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, []]));
  }

  add(time, data) {
    for (const actor of data.actors) {
      if (this.actors.includes(actor)) continue;
      this.actors.push(actor); // nothing of it is known until now
      for (const columns of Object.values(this.figures)) columns.push(this.times.map(() => null));
    }
    this.times.push(time);
    for (const [name, columns] of Object.entries(this.figures)) {
      const told = Object.fromEntries(data.actors.map((actor, i) => [actor, data[name]?.[i] ?? null]));
      this.actors.forEach((actor, i) => columns[i].push(told[actor] ?? null));
    }
  }

  /** Whether any actor tells it. */
  has = (name) => this.figures[name].some((column) => column.some((value) => value !== null));
}

/** The panel; hidden while nothing is told. */
export function usagePanel(id) {
  const columns = new UsageColumns();
  const charts = new Map(); // figure -> its chart, and of which actors
  const list = el("div", { class: "charts" });
  const element = section("What the actors use", list);
  element.hidden = true;
  let begin = null;

  /** The chart of a figure, made anew once there are more actors. */
  function chartOf(name) {
    const known = charts.get(name);
    if (known?.actors === columns.actors.length) return known.chart;
    const { title, format } = FIGURES[name];
    const chart = new Chart({
      title,
      lines: columns.actors.map((label) => ({ label, format, gaps: true })),
      zero: true,
      sync: `${id} usage`,
      xLabel: () => "after the start",
      xFormat: duration,
    });
    if (known) known.chart.element.replaceWith(chart.element);
    else list.append(chart.element);
    known?.chart.close();
    charts.set(name, { chart, actors: columns.actors.length });
    return chart;
  }

  return {
    element,
    /** Take in an event of the log; the first one begins the time. */
    add(event) {
      begin ??= event.time;
      if (event.type === "usage") columns.add(event.time - begin, event.data);
    },
    /** Show what there is. */
    draw() {
      if (!columns.times.length) return;
      element.hidden = false;
      for (const name of Object.keys(FIGURES))
        if (columns.has(name)) chartOf(name).draw([columns.times, ...columns.figures[name]]);
    },
    close() {
      for (const { chart } of charts.values()) chart.close();
    },
  };
}
