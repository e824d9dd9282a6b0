// The table of a list of jobs and sweeps, with the columns and in the order that the address says.

import { el, keyed } from "../lib/dom.js";
import { table } from "../parts/widgets.js";
import { columnOf, sorted } from "./columns.js";

/** `onSort(name)`: a column's head was pressed; `pick(row)`: what stands before a row's name; `name(row)`: the name's cell. */
export class JobTable {
  constructor({ onSort, pick, name }) {
    Object.assign(this, { onSort, pick, name, rows: [], columns: [], sort: "" });
    this.body = el("tbody");
    this.element = table("Jobs", [], this.body);
    this.head = this.element.querySelector("thead tr");
  }

  /** Show these columns, the rows by one of them. */
  arrange(names, sort) {
    const focused = document.activeElement?.dataset.column;
    [this.columns, this.sort] = [names.map(columnOf), sort];
    const first = [el("th", { scope: "col" }, el("span", { class: "unseen" }, "Chosen")), el("th", { scope: "col" }, "Job")];
    this.head.replaceChildren(...first, ...this.columns.map((column) => this.#heading(column)));
    this.head.querySelector(`button[data-column="${CSS.escape(focused ?? "")}"]`)?.focus();
    this.body.replaceChildren();
    this.show(this.rows);
  }

  /** Show these rows: jobs, and sweeps with the `trials` that are shown under them. */
  show(rows) {
    this.rows = rows;
    const lines = sorted(rows, this.sort).flatMap((row) => [row, ...sorted(row.shown ?? [], this.sort)]);
    keyed(
      this.body,
      lines,
      (row) => row.id,
      (row) => this.#line(row),
      (line, row) => this.columns.forEach(({ fill }, at) => fill(line.children[2 + at], row)),
    );
  }

  #line(row) {
    const cells = this.columns.map(({ title, make }) => el("td", { "data-label": make().length ? null : title }, make()));
    const kind = row.trial ? "trial" : null;
    return el("tr", { "data-row": true, class: kind }, el("td", { class: "pick" }, this.pick(row)), this.name(row), cells);
  }

  #heading({ name, title }) {
    const here = this.sort.replace(/^-/, "") === name;
    const direction = here ? (this.sort.startsWith("-") ? "descending" : "ascending") : "none";
    const press = () => this.onSort(here && !this.sort.startsWith("-") ? `-${name}` : name);
    const button = el("button", { type: "button", class: "sort", "data-column": name, onclick: press }, title);
    return el("th", { scope: "col", "aria-sort": direction }, button);
  }
}
