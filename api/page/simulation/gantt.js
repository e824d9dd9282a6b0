// One simulated step as a Gantt chart: a row for each worker, shard and kind of link, and how long each did what.

import { el } from "../lib/dom.js";
import { figure } from "../lib/format.js";
import { lineStyle } from "../parts/chart.js";
import { swatch } from "../parts/stack.js";
import { table } from "../parts/widgets.js";

const IDLE = new Set(["waits", "not waited for"]);

/** The rows of a timeline. */
export function gantt({ seconds, tracks }) {
  const names = [...new Set(tracks.flatMap(({ spans }) => spans.map(({ what }) => what)))],
    busy = names.filter((name) => !IDLE.has(name)),
    style = (name) => (IDLE.has(name) ? "var(--grid)" : lineStyle(busy.indexOf(name)));
  const frame = table("A step, event by event", ["who", `0 to ${figure(1000 * seconds)} ms`, ...names]);
  frame.querySelector("tbody").append(
    ...tracks.map(({ who, spans }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, who),
        el("td", { class: "bar" }, bar(spans, seconds, style)),
        names.map((name) => el("td", { class: "number", "data-label": `${name}, ms` }, told(spans, name))),
      ),
    ),
  );
  names.forEach((name, i) => frame.querySelectorAll("thead th")[i + 2].prepend(swatch(style(name)), " "));
  return frame;
}

function bar(spans, seconds, style) {
  const pieces = spans.map(({ what, begin_s, end_s }) => {
    const piece = el("span", { title: what });
    piece.style.left = `${(100 * begin_s) / seconds}%`;
    piece.style.width = `${(100 * (end_s - begin_s)) / seconds}%`;
    piece.style.background = style(what);
    return piece;
  });
  return el("div", { class: "gantt", "aria-hidden": true }, pieces);
}

function told(spans, name) {
  const mine = spans.filter(({ what }) => what === name);
  return mine.length ? figure(1000 * mine.reduce((sum, { begin_s, end_s }) => sum + end_s - begin_s, 0)) : "–";
}
