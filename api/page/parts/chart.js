// One chart: uPlot with our colours, a legend of our own, marks on the axis, and the keyboard.

import { announce, el, setText } from "../lib/dom.js";
import { figure } from "../lib/format.js";
import uPlot from "../vendor/uPlot.esm.js";

const HEIGHT = 200;
const FONT = "12px system-ui, sans-serif";
const LABEL_WIDTH = 7;
const COLOURS = 8;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]; // between two ticks
const MARKED = { pause: "rest", resume: "rest" }; // mark -> the name of its colour, where that is another
const NEAR = 24; // pixels between the pointer and the line that is meant
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = new Set();
let colours = {};

dark.addEventListener("change", () => {
  colours = {};
  for (const chart of charts) chart.plot?.redraw(false);
});

/** A colour of the style sheet, as it is now. */
export function colour(name) {
  colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return colours[name];
}

/** The colour of the i-th of many lines: the style sheet's eight, then round the wheel. */
export function lineColour(i) {
  if (i < COLOURS) return colour(`line-${i + 1}`);
  return `hsl(${(i * 137.5) % 360} 65% ${dark.matches ? 65 : 42}%)`;
}

/** The same for a style sheet: it follows the system from the light into the dark. */
export const lineStyle = (i) => (i < COLOURS ? `var(--line-${i + 1})` : lineColour(i));

/** How the i-th of many lines is dashed, since nobody can tell more than some colours apart. */
export const lineDash = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];

/** The height of a chart that is all there is. */
export const TALL = 360;

/**
 * A figure with a title, a legend and a plot.
 *
 * options: `title`; `lines`: [{ label, format, stepped, dots, gaps, tint, edge }], formats being functions of a value,
 * `tint` the number of its colour, and an `edge` that of an area, not drawn; `bands`: [[upper, lower]], lines between
 * which an area is filled; `xLabel` and `xFormat`, functions, since the axis may be changed; `sync`: charts of one name
 * share their cursor; `zero`: the axis begins at 0; `whole`: its figures are whole numbers; `height`; `logX`: base of a logarithmic axis; `logY`; `xSplits`: where
 * its ticks are; `after(plot)`: draws more; `legend`: whether to show one; `onCursor(at)`: the place in the data under
 * the pointer, or null; `atRest(i)`: what the legend tells of a line while
 * there is no pointer, instead of its last value; `onNear(i)`: the line that is meant, or null; `onZoom(zoomed)`.
 */
export class Chart {
  constructor(options) {
    this.options = { height: HEIGHT, legend: true, xFormat: figure, ...options };
    this.marks = [];
    this.zoomed = false;
    this.plot = null;
    this.values = this.options.lines.map(() => el("span", { class: "value" }, "–"));
    this.frame = el("div", {
      class: "plot",
      tabindex: 0,
      role: "img",
      "aria-label": this.options.title,
      onkeydown: (event) => this.#key(event),
    });
    this.note = el("p", { class: "note" }, "Nothing yet.");
    this.below = el("p", { class: "axis", "aria-hidden": "true" }); // its name is in the frame's own label
    this.element = el(
      "figure",
      { class: "chart", "aria-label": this.options.title },
      el("figcaption", {}, el("strong", {}, this.options.title), this.options.legend && this.#legend()),
      this.frame,
      this.below,
      this.note,
    );
    this.observer = new ResizeObserver(() => this.#fit());
    this.observer.observe(this.frame);
    charts.add(this);
  }

  /** Draw `data` as uPlot wants it, with marks [{ x, type, text }]. */
  draw(data, marks = []) {
    this.marks = marks;
    this.data = data;
    const empty = !data[0].length || data.slice(1).every((ys) => ys.every((y) => y === null || y === undefined));
    this.note.hidden = !empty;
    this.frame.hidden = this.below.hidden = empty;
    setText(this.below, this.options.xLabel?.() ?? "");
    if (empty) return;
    if (!this.plot) this.#make(data);
    else this.plot.setData(data, !this.zoomed);
    if (this.zoomed) this.plot.redraw();
    this.#show(null);
  }

  /** Bring the i-th line before the others; null: all are equal. */
  single(i) {
    this.brought = true; // nobody pointed at it here
    this.plot?.setSeries(i === null ? null : i + 1, { focus: true });
    this.brought = false;
  }

  /** Show all of the axis again. */
  whole() {
    this.#zoom(false);
    this.plot?.setData(this.data, true);
  }

  /** What is drawn, as a canvas; null while nothing is. */
  get canvas() {
    return this.plot?.ctx.canvas ?? null;
  }

  /** Lines [xs, ys] of their own axes on one that they share. */
  static join(lines) {
    return uPlot.join(lines);
  }

  /** Let go of what outlives the element. */
  close() {
    this.observer.disconnect();
    charts.delete(this);
    this.plot?.destroy();
  }

  #make(data) {
    const { lines, height, zero, whole, sync, logX, logY, xSplits, bands = [] } = this.options;
    const axis = {
      stroke: () => colour("faint"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { show: false },
      font: FONT,
    };
    const y = {
      ...axis,
      values: (_, ticks) => plain(ticks.map((tick) => (tick === null ? "" : lines[0].format(tick)))),
      size: widest,
      ...(whole ? { incrs: WHOLE } : {}),
    };
    const x = {
      ...axis,
      size: 28,
      ...(xSplits ? { splits: () => xSplits, filter: (_, ticks) => ticks } : {}),
      values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.options.xFormat(tick))),
    };
    const range = zero ? (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] : undefined;
    this.plot = new uPlot(
      {
        width: this.#width(),
        height,
        axes: [x, y],
        legend: { show: false },
        focus: { alpha: 0.3 },
        scales: {
          x: { time: false, ...(logX ? { distr: 3, log: logX, range: roomy } : {}) },
          y: { ...(range ? { range } : {}), ...(logY ? { distr: 3, log: 10 } : {}) },
        },
        cursor: {
          y: false,
          points: { size: 6 },
          ...(this.options.onNear ? { focus: { prox: NEAR } } : {}),
          ...(sync ? { sync: { key: sync } } : {}),
        },
        series: [{}, ...lines.map((line, i) => series(line, i, lines.length))],
        bands: bands.map(([upper, lower]) => ({
          series: [upper + 1, lower + 1],
          fill: () => `color-mix(in srgb, ${lineColour(lines[upper].tint)} 18%, transparent)`,
        })),
        hooks: {
          draw: [() => this.#drawMarks(), () => this.options.after?.(this.plot)],
          setCursor: [
            (plot) => {
              this.#show(plot.cursor.idx ?? null);
              this.options.onCursor?.(plot.cursor.idx ?? null);
            },
          ],
          setSeries: [(_, i, how) => how?.focus !== undefined && !this.brought && this.options.onNear?.(i ? i - 1 : null)],
          setSelect: [(plot) => this.#zoom(plot.select.width > 0)],
        },
      },
      data,
      this.frame,
    );
    this.plot.over.addEventListener("dblclick", () => this.#zoom(false));
  }

  #zoom(on) {
    this.zoomed = on;
    this.options.onZoom?.(on);
  }

  #legend() {
    const { lines } = this.options;
    if (lines.length === 1) return el("span", { class: "legend" }, this.values[0]);
    return el(
      "ul",
      { class: "legend" },
      lines.map(({ label, tint }, i) => el("li", { "data-line": (tint ?? i) + 1 }, label, " ", this.values[i])),
    );
  }

  #width() {
    return Math.max(200, Math.floor(this.frame.clientWidth));
  }

  #fit() {
    if (this.plot && this.frame.clientWidth && this.plot.width !== this.#width()) {
      this.plot.setSize({ width: this.#width(), height: this.options.height });
    }
  }

  /** The values under the cursor, or the last ones. */
  #show(at) {
    if (!this.options.legend) return;
    const { atRest } = this.options;
    const values = this.options.lines.map(({ label, format }, i) => {
      const text = at === null && atRest ? atRest(i) : format(before(this.data[i + 1], at ?? this.data[0].length - 1));
      setText(this.values[i], text);
      return `${label} ${text}`;
    });
    const place = at === null ? "last" : `at ${this.options.xFormat(this.data[0][at])} ${this.options.xLabel?.() ?? ""}`;
    const x = at === null && atRest ? "" : `, ${place.trim()}`;
    this.description = `${this.options.title}${x}: ${values.join(", ")}`;
    this.frame.setAttribute("aria-label", this.description);
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.plot) return;
    event.preventDefault();
    const xs = this.data[0],
      many = event.shiftKey ? Math.ceil(xs.length / 20) : 1;
    const at = Math.max(0, Math.min(xs.length - 1, (this.plot.cursor.idx ?? xs.length) + by * many));
    this.plot.setCursor({ left: this.plot.valToPos(xs[at], "x"), top: 0 });
    announce(this.description);
  }

  #drawMarks() {
    const { ctx, bbox } = this.plot,
      size = 5 * devicePixelRatio;
    for (const { x, type } of this.marks) {
      const left = Math.round(this.plot.valToPos(x, "x", true));
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour(MARKED[type] ?? type);
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(type === "fault" ? [] : [4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath(); // a triangle for a fault, a diamond for a resize, a square for a pause: colour alone tells too few
      if (type in MARKED) ctx.rect(left - size * 0.8, bbox.top - size * 0.8, size * 1.6, size * 1.6);
      else {
        ctx.moveTo(left - size, bbox.top);
        if (type !== "fault") ctx.lineTo(left, bbox.top - size);
        ctx.lineTo(left + size, bbox.top);
        ctx.lineTo(left, bbox.top + size * (type === "fault" ? 1.6 : 1));
      }
      ctx.fill();
      ctx.restore();
    }
  }
}

function series({ label, stepped, dots, gaps, tint = null, edge }, i, total) {
  return {
    label,
    spanGaps: !gaps,
    width: edge ? 0 : total > 40 ? 0.8 : 1.5,
    stroke: () => (edge ? "transparent" : lineColour(tint ?? i)),
    dash: tint === null ? undefined : lineDash(tint),
    points: { show: dots || ((plot, at) => isLone(plot.data[at])), size: 6, fill: () => colour("panel") },
    ...(stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
  };
}

/** Whether there is one value only, of which no line can be drawn. */
const isLone = (ys) => ys.filter((y) => y !== null && y !== undefined).length === 1;

/** Percents of ticks without the decimals that none of them needs. */
function plain(texts) {
  const isRound = texts.every((text) => text === "" || /\.0+ %$/.test(text));
  return isRound ? texts.map((text) => text.replace(/\.0+ %$/, " %")) : texts;
}

function widest(_, labels) {
  return 16 + LABEL_WIDTH * Math.max(0, ...(labels ?? []).map((label) => String(label).length));
}

function roomy(_, low, high) {
  return [low / 1.2, high * 1.2];
}

/** The last value at or before a place. */
function before(ys, at) {
  for (let i = at; i >= 0; i--) if (ys[i] !== null && ys[i] !== undefined) return ys[i];
  return null;
}
