// Sweeps among the jobs of a list: a row each, which opens to its trials.

import { el, setText } from "../lib/dom.js";
import { api } from "../lib/http.js";

const MOST = "200"; // sweeps, and trials of one

/** The sweeps that are as new as a page of jobs, with the trials of those that are open. */
export class SweepRows {
  constructor() {
    this.open = new Set();
  }

  /** As rows of the list. `asked`: what the list asks of jobs; `span`: [oldest, newest] in seconds since 1970. */
  async fetch(asked, [oldest, newest], signal) {
    if (asked.has("algorithm") || asked.getAll("label").some((label) => /^sweep(=|$)/.test(label))) return [];
    const params = new URLSearchParams({ page_size: MOST });
    for (const name of ["state", "label", "user", "project", "archived"])
      for (const value of asked.getAll(name)) params.append(name, value);
    const { sweeps } = await api(`v1/sweeps?${params}`, { signal });
    const name = (asked.get("name") ?? "").toLowerCase();
    const here = sweeps.filter((one) => one.created >= oldest && one.created < newest && one.name.toLowerCase().includes(name));
    return Promise.all(here.map((sweep) => this.#row(sweep, signal)));
  }

  async #row(sweep, signal) {
    const row = { ...sweep, sweep: true };
    if (!this.open.has(sweep.id)) return row;
    const asked = new URLSearchParams({ label: `sweep=${sweep.id}`, page_size: MOST, archived: sweep.archived });
    const { jobs } = await api(`v1/jobs?${asked}`, { signal });
    return { ...row, shown: jobs.map((job) => ({ ...job, trial: true })) };
  }

  /** What opens the row of a sweep. `refresh`: to show it opened, or closed. */
  opener({ id, name }, refresh) {
    const mark = () => (this.open.has(id) ? "▾" : "▸");
    const button = el("button", { type: "button", class: "quiet opener", "aria-label": `Trials of ${name}` }, mark());
    button.setAttribute("aria-expanded", this.open.has(id));
    button.addEventListener("click", () => {
      if (!this.open.delete(id)) this.open.add(id);
      button.setAttribute("aria-expanded", this.open.has(id));
      setText(button, mark());
      refresh();
    });
    return button;
  }
}
