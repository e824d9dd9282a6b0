// A flame chart: what a thread does over time, each call below the one that it lies in. Drawn on a canvas, for a trace
// has thousands of calls; read by pointer and by keyboard.

import { announce, el, setText } from "../lib/dom.js";
import { microseconds } from "../lib/format.js";
import { colour } from "./chart.js";

const ROW = 18;
const HEAD = 20; // the name of a thread
const TOP = 18; // the axis
const FONT = "11px system-ui, sans-serif";
const LEAST = 0.5; // pixels of a call that is drawn
const LETTER = 6; // pixels, about
const COLOURS = { forward: 1, backward: 2, update: 4, sums: 3, gather: 7, waiting: 8, fetch: 3, push: 7, data: 6, exchange: 5 };
const OTHER = 5;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** A chart of one trace. */
export class FlameChart {
  constructor(trace) {
    this.trace = trace;
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": "Flame chart",
      "aria-describedby": "flame-keys",
      onkeydown: (event) => this.#key(event),
      onpointerdown: (event) => this.#press(event),
      onpointermove: (event) => this.#move(event),
      onpointerup: (event) => this.#release(event),
      onpointerleave: () => this.#point(null),
      ondblclick: () => this.show(0, this.trace.end),
      onwheel: (event) => this.#wheel(event),
    });
    this.told = el("p", { class: "number told" }, "\u00a0");
    this.element = el(
      "div",
      { class: "flame" },
      this.#buttons(),
      this.canvas,
      this.told,
      el(
        "p",
        { class: "note", id: "flame-keys" },
        "Drag over what is to fill the width, or turn the wheel with Ctrl; a double click shows all. By keyboard: + and " +
          "- zoom, the arrows move, Home shows all.",
      ),
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
    this.onScheme = () => this.draw();
    dark.addEventListener("change", this.onScheme);
    this.#step(trace.steps.length > 1 ? 1 : 0); // the first one begins what the others have
  }

  /** Let go of what outlives the element. */
  close() {
    this.observer.disconnect();
    dark.removeEventListener("change", this.onScheme);
  }

  /** Fill the width with what lies between two times, in microseconds. */
  show(begin, end) {
    const least = 1,
      width = Math.max(least, Math.min(end - begin, this.trace.end));
    this.begin = Math.max(0, Math.min(begin, this.trace.end - width));
    this.end = this.begin + width;
    this.choice.selectedIndex = begin <= 0 && end >= this.trace.end ? 0 : -1;
    this.draw();
  }

  /** Draw what is shown now. */
  draw() {
    const { canvas } = this,
      wide = canvas.clientWidth;
    if (!wide) return;
    const height = TOP + this.trace.tracks.reduce((sum, { rows }) => sum + HEAD + rows.length * ROW, 0);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(wide * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    const ctx = canvas.getContext("2d");
    ctx.scale(devicePixelRatio, devicePixelRatio);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    this.scale = wide / (this.end - this.begin);
    this.#axis(ctx, wide, height);
    this.#tracks(ctx, wide);
    if (this.dragged) this.#selection(ctx, height);
  }

  #buttons() {
    const choice = el(
      "select",
      {},
      el("option", { value: "" }, "all steps"),
      this.trace.steps.map((_, i) => el("option", { value: i }, `step ${i + 1}`)),
    );
    choice.addEventListener("change", () => (choice.value ? this.#step(Number(choice.value)) : this.show(0, this.trace.end)));
    this.choice = choice;
    const button = (label, name, work) => el("button", { type: "button", class: "quiet", "aria-label": name, onclick: work }, label);
    return el(
      "div",
      { class: "buttons" },
      el("label", { class: "check" }, "Show ", choice),
      button("+", "Zoom in", () => this.#zoom(0.5)),
      button("−", "Zoom out", () => this.#zoom(2)),
      button("←", "Earlier", () => this.#shift(-0.25)),
      button("→", "Later", () => this.#shift(0.25)),
    );
  }

  #step(i) {
    const { begin, end } = this.trace.steps[i] ?? { begin: 0, end: this.trace.end };
    this.show(begin, end);
    if (this.trace.steps[i]) this.choice.value = String(i);
  }

  #axis(ctx, wide, height) {
    const raw = (this.end - this.begin) / Math.max(2, wide / 110),
      ten = 10 ** Math.floor(Math.log10(raw)),
      tick = ten * [1, 2, 5, 10].find((by) => by * ten >= raw);
    ctx.strokeStyle = colour("grid");
    ctx.fillStyle = colour("faint");
    for (let at = Math.ceil(this.begin / tick) * tick; at < this.end; at += tick) {
      const x = Math.round(this.#x(at)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, TOP - 4);
      ctx.lineTo(x, height);
      ctx.stroke();
      ctx.fillText(microseconds(at, tick), x + 3, TOP / 2);
    }
  }

  #tracks(ctx, wide) {
    this.places = [];
    let y = TOP;
    for (const { name, rows } of this.trace.tracks) {
      ctx.fillStyle = colour("faint");
      ctx.fillText(name, 4, y + HEAD / 2);
      y += HEAD;
      for (const row of rows) {
        this.places.push({ y, row });
        this.#row(ctx, row, y, wide);
        y += ROW;
      }
    }
  }

  #row(ctx, row, y, wide) {
    let free = 0;
    for (let i = after(row, this.begin); i < row.length && row[i].begin < this.end; i++) {
      const call = row[i],
        left = Math.max(0, this.#x(call.begin)),
        right = Math.min(wide, this.#x(call.end));
      if (right - free < LEAST) continue; // lies in what is drawn already
      const from = Math.max(left, free);
      ctx.fillStyle = fill(call);
      ctx.fillRect(from, y, Math.max(LEAST, right - from - (right - from > 3 ? 1 : 0)), ROW - 1);
      free = Math.max(right, from + LEAST);
      if (call === this.pointed) {
        ctx.strokeStyle = colour("text");
        ctx.strokeRect(from + 0.5, y + 0.5, Math.max(1, right - from - 2), ROW - 2);
      }
      const letters = Math.floor((right - from - 6) / LETTER);
      if (letters < 3) continue;
      ctx.fillStyle = colour("text");
      const text = `${call.name} ${microseconds(call.end - call.begin)}`;
      ctx.fillText(letters >= text.length ? text : shortened(call.name, letters), from + 3, y + ROW / 2);
    }
  }

  #selection(ctx, height) {
    const [from, to] = this.dragged;
    ctx.fillStyle = `color-mix(in srgb, ${colour("accent")} 20%, transparent)`;
    ctx.fillRect(Math.min(from, to), 0, Math.abs(to - from), height);
  }

  #x(time) {
    return (time - this.begin) * this.scale;
  }

  #time(x) {
    return this.begin + x / this.scale;
  }

  #zoom(by, at = (this.begin + this.end) / 2) {
    this.show(at - (at - this.begin) * by, at + (this.end - at) * by);
  }

  #shift(by) {
    const far = by * (this.end - this.begin);
    this.show(this.begin + far, this.end + far);
  }

  #key(event) {
    const work = {
      "+": () => this.#zoom(0.5),
      "=": () => this.#zoom(0.5),
      "-": () => this.#zoom(2),
      ArrowLeft: () => this.#shift(-0.25),
      ArrowRight: () => this.#shift(0.25),
      Home: () => this.show(0, this.trace.end),
    }[event.key];
    if (!work || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    work();
    announce(`From ${microseconds(this.begin)} to ${microseconds(this.end)}`);
  }

  #wheel(event) {
    if (!event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    this.#zoom(event.deltaY < 0 ? 0.8 : 1.25, this.#time(event.offsetX));
  }

  #press(event) {
    if (event.button) return;
    this.dragged = [event.offsetX, event.offsetX];
  }

  #move(event) {
    if (this.dragged) {
      this.dragged[1] = event.offsetX;
      this.draw();
    } else this.#point(event);
  }

  #release(event) {
    if (!this.dragged) return;
    const [from, to] = [Math.min(...this.dragged), Math.max(...this.dragged)];
    this.dragged = null;
    if (to - from > 5) this.show(this.#time(from), this.#time(to));
    else {
      this.#point(event);
      this.draw();
    }
  }

  #point(event) {
    const place = event && this.places?.find(({ y }) => event.offsetY >= y && event.offsetY < y + ROW),
      time = event && this.#time(event.offsetX),
      found = place?.row[after(place.row, time)],
      call = found && found.begin <= time ? found : null;
    if (call === this.pointed) return;
    this.pointed = call;
    setText(this.told, call ? this.#words(call) : "\u00a0");
    this.draw();
  }

  #words({ name, begin, end }) {
    const step = this.trace.steps.find((one) => one.begin <= begin && begin < one.end);
    const share = step ? `, ${(((end - begin) / (step.end - step.begin)) * 100).toFixed(1)} % of its step` : "";
    return `${name}: ${microseconds(end - begin)}${share}`;
  }
}

/** The first of calls that lie one after the other to end after a time. */
function after(row, time) {
  let low = 0,
    high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle].end > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Our own parts have colours of their own, operators that of the panel's edge. Text stays readable on all of them. */
function fill({ name, ours }) {
  if (!ours) return `color-mix(in srgb, ${colour("edge")} 75%, ${colour("panel")})`;
  if (name === "step") return colour("cool");
  return `color-mix(in srgb, ${colour(`line-${COLOURS[name] ?? OTHER}`)} 38%, ${colour("panel")})`;
}

const shortened = (name, letters) => (name.length <= letters ? name : `${name.slice(0, letters - 1)}…`);
