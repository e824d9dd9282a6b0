// The list of jobs and sweeps: newest first, live, with what is looked for, the columns and the order in the address.

import { announce, el, setText } from "../lib/dom.js";
import { api } from "../lib/http.js";
import { DEFAULT as DEFAULT_PROJECT, projectSelect } from "../lib/project_choice.js";
import { columnOf, DEFAULT, isColumn, offered } from "../listing/columns.js";
import { JobTable } from "../listing/job_table.js";
import { SavedViews } from "../listing/saved_views.js";
import { SweepRows } from "../listing/sweep_rows.js";
import { filters, turnPage, wanted } from "../parts/pages.js";
import { every, heading } from "../parts/widgets.js";

const REFRESH_MS = 2500;
const COLUMNS = "millrace.columns"; // that were chosen last, in this browser

/** All jobs. */
export function jobsView(main, { query }, signal) {
  const list = new JobList(query, signal);
  main.append(
    heading("Jobs", el("a", { class: "button", href: "#/new" }, "New job"), list.compare, list.views.element),
    filters("#/jobs", query, list.menu, projectSelect(query.get("project"), "any project", signal)),
    list.table.element,
    list.none,
    list.older,
  );
  const leave = ({ target, key }) => {
    if (key ? key === "Escape" : !list.menu.contains(target)) list.menu.open = false;
  };
  for (const kind of ["click", "keydown"]) document.addEventListener(kind, leave, { signal });
  every(REFRESH_MS, signal, () => list.refresh());
  return "Jobs";
}

class JobList {
  constructor(query, signal) {
    Object.assign(this, { query, signal, chosen: new Set(), states: new Map(), sweeps: new SweepRows() });
    this.compare = el("a", { class: "button", href: "#/compare" }, "Compare");
    this.none = el("p", { class: "note", hidden: true });
    this.older = el("p", { class: "pager" });
    this.views = new SavedViews("#/jobs", query);
    this.choices = el("fieldset", {}, el("legend", { class: "unseen" }, "Columns"));
    this.menu = el("details", { class: "menu" }, el("summary", { class: "button" }, "Columns"), this.choices);
    this.table = new JobTable({
      onSort: (sort) => this.#look({ sort }),
      pick: (row) => (row.sweep ? this.sweeps.opener(row, () => this.refresh()) : el("label", {}, this.#box(row))),
      name: nameCell,
    });
    this.table.arrange(this.columns, this.sort);
  }

  /** The names of the columns: of the address, or else those of the last time. */
  get columns() {
    const told = this.query.get("columns") ?? localStorage.getItem(COLUMNS);
    return told === null ? DEFAULT : told.split(",").filter(isColumn);
  }

  /** The column by which rows stand, after `-` downwards; empty: newest first. */
  get sort() {
    const told = this.query.get("sort") ?? "";
    return isColumn(told.replace(/^-/, "")) ? told : "";
  }

  /** Ask the service, and show what it has. */
  async refresh() {
    const { query, signal } = this;
    const asked = wanted(query);
    const ofSweep = /^sweep(=|$)/.test(query.get("label") ?? "");
    const page = await api(`v1/jobs?${asked}&trials=${ofSweep}`, { signal });
    const oldest = page.next_page_token ? page.jobs.at(-1).created : -Infinity,
      newest = query.get("page_token") && page.jobs.length ? page.jobs[0].created : Infinity;
    const sweeps = await this.sweeps.fetch(asked, [oldest, newest], signal);
    const rows = [...page.jobs, ...sweeps].sort((a, b) => b.created - a.created);
    this.table.show(rows);
    this.#offer(rows);
    this.none.hidden = rows.length > 0 && !(this.sort && page.next_page_token);
    const nothing = looksForSome(query) ? "No jobs match these filters." : "No jobs yet. Press New job, or the key n, to write one.";
    setText(this.none, rows.length ? `Only the ${rows.length} rows of this page are sorted.` : nothing);
    turnPage(this.older, "#/jobs", query, page.next_page_token);
    this.#tell(page.jobs);
  }

  /** Show it otherwise, and say so in the address. */
  #look(changes) {
    for (const [name, value] of Object.entries(changes)) this.query.set(name, value);
    history.replaceState(null, "", `#/jobs?${this.query}`);
    this.table.arrange(this.columns, this.sort);
    this.views.show();
  }

  /** Boxes of all columns that there are, what is measured among them. */
  #offer(rows) {
    const shown = this.columns,
      all = [...new Set([...offered(rows.flatMap((row) => [row, ...(row.shown ?? [])])), ...shown])];
    const now = JSON.stringify([all, shown]);
    if (this.offered === now || this.choices.contains(document.activeElement)) return;
    this.offered = now;
    const boxes = all.map((name) => {
      const { title } = columnOf(name),
        checked = shown.includes(name);
      const box = el("input", { type: "checkbox", value: name, checked, "aria-label": `Column ${title}`, onchange: () => choose() });
      return el("label", { class: "check" }, box, title);
    });
    const choose = () => {
      const columns = [...this.choices.querySelectorAll("input:checked")].map((box) => box.value).join(",");
      localStorage.setItem(COLUMNS, columns);
      this.#look({ columns });
    };
    this.choices.replaceChildren(this.choices.firstElementChild, ...boxes);
  }

  #box(job) {
    const box = el("input", {
      type: "checkbox",
      checked: this.chosen.has(job.id),
      "aria-label": `Compare ${job.name}`,
      onchange: () => {
        if (box.checked) this.chosen.add(job.id);
        else this.chosen.delete(job.id);
        setText(this.compare, this.chosen.size ? `Compare ${this.chosen.size}` : "Compare");
        this.compare.href = `#/compare?jobs=${[...this.chosen].join(",")}`;
      },
    });
    return box;
  }

  /** Say which jobs have changed their state since the last look. */
  #tell(jobs) {
    const { states } = this;
    const changed = jobs.filter((job) => states.has(job.id) && states.get(job.id) !== job.state);
    if (changed.length) announce(changed.map((job) => `${job.name} is ${job.state}`).join("; "));
    for (const job of jobs) states.set(job.id, job.state);
  }
}

/** The cell with a row's name, which leads to it; a space chooses its job, or opens its sweep. */
function nameCell(row) {
  const open = el("a", { href: row.sweep ? `#/sweeps/${row.id}` : `#/jobs/${row.id}`, "data-open": true }, row.name);
  open.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    open.closest("tr").querySelector(".pick > *").click();
  });
  const labels = Object.entries(row.labels)
    .filter(([key]) => !(row.trial && key === "sweep"))
    .map(([key, value]) => el("span", { class: "label" }, value ? `${key}=${value}` : key));
  if (row.project !== DEFAULT_PROJECT) labels.unshift(el("span", { class: "label" }, `project ${row.project}`));
  const kind = row.sweep ? el("span", { class: "label" }, `sweep of ${row.trials.total} trials`) : null;
  return el("td", { class: "named" }, open, el("span", { class: "id" }, row.id), el("span", { class: "labels" }, kind, labels));
}

const looksForSome = (query) => [...query.keys()].some((name) => !["columns", "sort"].includes(name));
