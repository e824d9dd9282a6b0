// Parallel coordinates (Inselberg 1985): a line for each combination of settings, through its value on each axis to what
// it came to. The best are drawn last, above the others.

import { el, setText } from "../lib/dom.js";
import { figure, word } from "../lib/format.js";

const WIDTH = 960,
  HEIGHT = 320,
  TOP = 34,
  BOTTOM = 36,
  BELOW = -0.08, // where a line passes an axis that its combination does not have
  LEFT = 24,
  RIGHT = 110,
  MOST_LINES = 400,
  MOST_TICKS = 8,
  DECADES = 10;

/** The picture. `lines`: settings, `cost` of which less is better, and `text` for people. `last`: names the costs. */
export function parallelCoordinates(lines, last, told) {
  const drawn = lines.slice(0, MOST_LINES);
  const axes = [...new Set(drawn.flatMap(({ settings }) => Object.keys(settings)))];
  const scales = axes.map((axis) => scaleOf(drawn.filter(({ settings }) => axis in settings).map((one) => one.settings[axis])));
  const costs = drawn.map(({ cost }) => cost);
  const ends = scaleOf(costs, told);
  const x = (i) => LEFT + (i * (WIDTH - LEFT - RIGHT)) / axes.length;
  const pointed = el("p", { class: "note told" }, "Point at a line to read it.");
  const paths = drawn.map((one) => {
    const places = axes.map((axis, i) => [x(i), y(axis in one.settings ? scales[i].place(one.settings[axis]) : BELOW)]);
    const node = svg("path", { d: drawing([...places, [x(axes.length), y(ends.place(one.cost))]]) });
    node.style.stroke = `color-mix(in oklab, var(--line-2) ${Math.round(100 * ends.place(one.cost))}%, var(--line-1))`;
    node.addEventListener("pointerenter", () => setText(pointed, one.text));
    return node;
  });
  const names = [...axes, last].map((name, i) => {
    const lacking = i < axes.length && drawn.some(({ settings }) => !(name in settings));
    return upright(name, x(i), [...(scales[i] ?? ends).ticks, ...(lacking ? [[BELOW, "–"]] : [])]);
  });
  const picture = svg(
    "svg",
    { class: "parallel", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Parallel coordinates of ${last}` },
    ...paths.reverse(),
    ...names,
  );
  const frame = el("div", { class: "frame", tabindex: 0, role: "region", "aria-label": "Lines of all settings" }, picture);
  return el("figure", {}, frame, el("figcaption", {}, pointed));
}

const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);

/** From one point to the next. */
const drawing = (points) => `M${points.map(([across, down]) => `${across.toFixed(1)} ${down.toFixed(1)}`).join("L")}`;

/** Where values stand, 0 to 1: numbers by size, in logarithms where they span decades, others one beside the other. */
export function scaleOf(values, told = figure) {
  const numbers = [...new Set(values.filter(Number.isFinite))].sort((a, b) => a - b);
  if (numbers.length > 1 && values.every(Number.isFinite)) {
    const [low, high] = [numbers[0], numbers.at(-1)];
    const size = low > 0 && high >= DECADES * low ? Math.log10 : (value) => value;
    const place = (value) => (size(value) - size(low)) / (size(high) - size(low));
    const between = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const at = size(low) + share * (size(high) - size(low));
      return size === Math.log10 ? 10 ** at : at;
    });
    const marked = numbers.length > MOST_TICKS ? between : numbers;
    return { place, ticks: marked.map((value) => [place(value), told(value)]) };
  }
  const words = [...new Set(values.map(word))].sort();
  const at = (text) => (words.indexOf(text) + 0.5) / words.length;
  return { place: (value) => at(word(value)), ticks: words.slice(0, MOST_TICKS).map((text) => [at(text), text]) };
}

function upright(name, x, ticks) {
  const marks = ticks.map(([place, text]) => svg("text", { x: x + 5, y: y(place) + 4, class: "tick" }, text));
  const line = svg("line", { x1: x, x2: x, y1: y(0), y2: y(1) });
  const head = svg("text", { x: x - 6, y: 16, class: "head" }, name);
  return svg("g", { "aria-hidden": "true" }, line, ...marks, head);
}

function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
