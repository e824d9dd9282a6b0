// A step as stacked bars: one for each number of workers, its parts as long as they take.

import { lineStyle } from "./chart.js";
import { el } from "../lib/dom.js";
import { figure } from "../lib/format.js";
import { table } from "./widgets.js";

const MANY = 12;

/** The parts of a candidate's step that a worker sees, by name, in seconds. */
export function partsOf(candidate) {
  const seen = candidate.exchanges.map(({ name, total_s, hidden_s }) => [name, total_s - hidden_s]);
  return [["computing", candidate.computing_s], ["data", candidate.data_s], ...seen, ["waits", candidate.waiting_s]];
}

/** All candidates, or of many the powers of two, the last and the recommended one. */
export function shown({ candidates, recommended }) {
  if (candidates.length <= MANY) return candidates;
  const last = candidates.at(-1).workers;
  return candidates.filter(({ workers }) => [last, recommended].includes(workers) || !(workers & (workers - 1)));
}

/** A plan's steps: a bar and the milliseconds of each part. */
export function stackedSteps(plan) {
  const rows = shown(plan),
    names = partsOf(rows[0]).map(([name]) => name),
    longest = Math.max(...rows.map(({ step_s }) => step_s));
  const frame = table("A step, part by part", ["workers", "a step", "ms", ...names]);
  frame.querySelector("tbody").append(
    ...rows.map((candidate) => {
      const parts = partsOf(candidate);
      const cells = parts.map(([name, seconds]) =>
        el("td", { class: "number", "data-label": `${name}, ms` }, figure(1000 * seconds)),
      );
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, candidate.workers === 1 ? "1 worker" : `${candidate.workers} workers`),
        el("td", { class: "bar" }, bar(parts, longest)),
        el("td", { class: "number", "data-label": "a step, ms" }, figure(1000 * candidate.step_s)),
        cells,
      );
    }),
  );
  names.forEach((_, i) => frame.querySelectorAll("thead th")[i + 3].prepend(swatch(lineStyle(i)), " "));
  return frame;
}

function bar(parts, longest) {
  const pieces = parts.map(([, seconds], i) => {
    const piece = el("span");
    piece.style.width = `${(100 * seconds) / longest}%`;
    piece.style.background = lineStyle(i);
    return piece;
  });
  return el("div", { class: "stack", "aria-hidden": true }, pieces);
}

/** A piece of a colour, for a heading. */
export function swatch(style) {
  const mark = el("span", { class: "swatch", "aria-hidden": true });
  mark.style.background = style;
  return mark;
}
