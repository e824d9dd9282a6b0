// The runs that are compared, a row each: what the chart shows of them, how they ended, and how their specs differ.

import { el, link, setText } from "../lib/dom.js";
import { table } from "./widgets.js";

/**
 * `runs`: [{ id, name }]; columns: [{ title, note, values }], one text or number a run, with `show` a function of it;
 * `onShow(i, on)`: a run is to be drawn or not; `onPoint(i)`: somebody points at one, or (null) no more.
 */
export class RunTable {
  constructor(runs, { onShow, onPoint }) {
    this.body = el("tbody");
    this.columns = [];
    this.order = { column: null, down: false };
    this.rows = runs.map((run, i) => this.#row(run, i, onShow, onPoint));
    this.body.append(...this.rows.map(({ line }) => line));
    this.element = table("Runs", [], this.body);
    this.head = this.element.querySelector("thead tr");
    this.show([]);
  }

  /** Show these columns, with the rows in their order. */
  show(columns) {
    const titles = JSON.stringify([columns.map(({ title }) => title), this.order]);
    if (titles !== this.titles) {
      this.titles = titles;
      this.notes = columns.map(() => el("span", { class: "id" }));
      this.head.replaceChildren(
        el("th", { scope: "col" }, el("span", { class: "unseen" }, "Shown")),
        el("th", { scope: "col" }, "Run"),
        ...columns.map(({ title }, at) => this.#heading(title, this.notes[at])),
      );
    }
    this.fill(columns);
    this.#sort();
  }

  /** Write other values into the columns that are shown. */
  fill(columns) {
    this.columns = columns;
    columns.forEach(({ note = "" }, at) => setText(this.notes[at], note));
    this.rows.forEach(({ line, cells }, i) => {
      while (cells.length > columns.length) cells.pop().remove();
      columns.forEach(({ title, values, show = String }, at) => {
        if (!cells[at]) line.append((cells[at] = el("td", { class: "number" })));
        cells[at].dataset.label = title;
        setText(cells[at], values[i] === null || values[i] === undefined ? "–" : show(values[i]));
      });
    });
  }

  /** Colour the runs' marks. */
  paint(colourOf) {
    this.rows.forEach(({ swatch }, i) => {
      swatch.style.background = colourOf(i);
    });
  }

  /** Make some rows stand out. */
  point(members) {
    this.rows.forEach(({ line }, i) => line.toggleAttribute("data-pointed", members.includes(i)));
  }

  #row(run, i, onShow, onPoint) {
    const box = el("input", {
      type: "checkbox",
      checked: true,
      "aria-label": `Show ${run.name}`,
      onchange: () => onShow(i, box.checked),
    });
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    const bring = () => onPoint(i),
      back = () => onPoint(null);
    const line = el(
      "tr",
      { onpointerenter: bring, onpointerleave: back, onfocusin: bring, onfocusout: back },
      el("td", { class: "pick" }, el("label", {}, box)),
      el("td", { class: "named" }, swatch, link(`#/jobs/${run.id}`, run.name), el("span", { class: "id" }, run.id)),
    );
    return { line, swatch, cells: [] };
  }

  #heading(title, note) {
    const here = this.order.column === title;
    const press = () => {
      this.order = { column: title, down: here && !this.order.down };
      this.show(this.columns);
      this.head.querySelector(`button[data-column="${CSS.escape(title)}"]`).focus();
    };
    const direction = here ? (this.order.down ? "descending" : "ascending") : "none";
    const button = el("button", { type: "button", class: "sort", "data-column": title, onclick: press }, title);
    return el("th", { scope: "col", "aria-sort": direction }, button, " ", note);
  }

  /** The rows by the chosen column, those without a value last; without one as they were chosen. */
  #sort() {
    const column = this.columns.find(({ title }) => title === this.order.column);
    const order = this.rows.map((_, i) => i);
    if (column) {
      const { values } = column,
        sign = this.order.down ? -1 : 1;
      order.sort((a, b) => (missing(values[a]) - missing(values[b]) || sign * compare(values[a], values[b])) || a - b);
    }
    order.forEach((i, at) => {
      const { line } = this.rows[i];
      if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
    });
  }
}

const missing = (value) => Number(value === null || value === undefined || value === "–" || value === "");

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return String(a).localeCompare(String(b));
}
