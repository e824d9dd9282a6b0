// What a simulation says of the recommended number of workers: a step as it passes, what the slowest costs, staleness.

import { gantt } from "./gantt.js";
import { el } from "../lib/dom.js";
import { count, figure, percent } from "../lib/format.js";
import { Chart } from "../parts/chart.js";
import { facts, section } from "../parts/widgets.js";

/** Its sections, none without a simulation; `draw` once they are on the page, `close` when they leave it. */
export function simulatedParts({ candidates, recommended }) {
  const found = candidates.find(({ workers }) => workers === recommended).simulated;
  if (!found) return { sections: [], draw() {}, close() {} };
  const { timeline, stragglers, staleness } = found,
    late = stragglers && stragglers.mean_s > 0 ? lateness(stragglers) : null,
    stale = Object.keys(staleness).length ? pushes(staleness) : null,
    charts = [late, stale].filter(Boolean);
  const sections = [section("A step, event by event", el("p", { class: "note" }, about(found)), gantt(timeline))];
  if (stragglers) sections.push(section("The slowest", facts(costs(stragglers)), late?.chart.element));
  if (stale) sections.push(section("Staleness", stale.chart.element));
  return {
    sections,
    draw: () => charts.forEach(({ chart, data }) => chart.draw(data)),
    close: () => charts.forEach(({ chart }) => chart.close()),
  };
}

function about({ examples_per_s, low, high, steps, timeline }) {
  const rate = `${count(examples_per_s)} examples a second over ${count(steps)} steps of each worker`;
  const blocks = `of 20 equal parts of the run, nine in ten have ${count(low)} to ${count(high)}`;
  const step = timeline.steps === 1 ? "one step" : `${timeline.steps} steps`;
  const missing = timeline.left_out ? ` ${count(timeline.left_out)} more workers are not drawn.` : "";
  return `Simulated: ${rate}; ${blocks}. Below is ${step}.${missing}`;
}

function costs({ of, mean_s, share, without_one_s, quantiles_s }) {
  const ms = (seconds) => `${figure(1000 * seconds)} ms`;
  return [
    ["Meeting each other", `${of} workers`],
    ["The slowest costs", `${ms(mean_s)}, ${percent(share, 1)} of the time between two meetings`],
    ["In nine of ten meetings", `${ms(quantiles_s[1])} to ${ms(quantiles_s[19])}`],
    ["Without the slowest", ms(without_one_s)],
  ];
}

function lateness({ quantiles_s }) {
  const reached = new Map(quantiles_s.map((seconds, i) => [1000 * seconds, i / (quantiles_s.length - 1)]));
  const chart = new Chart({
    title: "Share of the meetings at which the slowest is later by at most so many ms",
    lines: [{ label: "meetings", format: percent, tint: 0, dots: true }],
    zero: true,
    xLabel: () => "ms",
    xFormat: figure,
  });
  return { chart, data: [[...reached.keys()], [...reached.values()]] };
}

function pushes(staleness) {
  const behind = Object.keys(staleness).map(Number);
  const xs = Array.from({ length: Math.max(...behind) + 1 }, (_, i) => i);
  const chart = new Chart({
    title: "Share of the pushes that are so many updates behind",
    lines: [{ label: "pushes", format: percent, tint: 0, dots: true }],
    zero: true,
    xLabel: () => "updates",
    xFormat: (x) => (Number.isInteger(x) ? count(x) : ""),
  });
  return { chart, data: [xs, xs.map((x) => staleness[x] ?? 0)] };
}
