// The list of sweeps, newest first.

import { el, keyed, setText } from "../lib/dom.js";
import { moment } from "../lib/format.js";
import { api } from "../lib/http.js";
import { DEFAULT, projectSelect } from "../lib/project_choice.js";
import { filters, turnPage, wanted } from "../parts/pages.js";
import { badge, every, heading, progressBar, setBadge, setProgress, table } from "../parts/widgets.js";

const REFRESH_MS = 3000;

/** All sweeps. */
export function sweepsView(main, { query }, signal) {
  const body = el("tbody");
  const none = el("p", { class: "note", hidden: true });
  const older = el("p", { class: "pager" });
  main.append(
    heading("Sweeps", el("a", { class: "button", href: "#/new?kind=sweep" }, "New sweep")),
    filters("#/sweeps", query, null, projectSelect(query.get("project"), "any project", signal)),
    table("Sweeps", ["Sweep", "State", "Progress", "Trials", "Created"], body),
    none,
    older,
  );
  every(REFRESH_MS, signal, async () => {
    const { sweeps, next_page_token: next } = await api(`v1/sweeps?${wanted(query)}`, { signal });
    none.hidden = sweeps.length > 0;
    setText(none, query.size ? "No sweeps match these filters." : "No sweeps yet. Press New sweep to write one: it is a spec with axes.");
    turnPage(older, "#/sweeps", query, next);
    keyed(body, sweeps, (sweep) => sweep.id, row, update);
  });
  return "Sweeps";
}

function row(sweep) {
  return el(
    "tr",
    { "data-row": true },
    el(
      "td",
      { class: "named" },
      el("a", { href: `#/sweeps/${sweep.id}`, "data-open": true }, sweep.name),
      el("span", { class: "id" }, sweep.id),
      sweep.project === DEFAULT ? null : el("span", { class: "labels" }, el("span", { class: "label" }, `project ${sweep.project}`)),
    ),
    el("td", {}, badge(), el("span", { class: "why" })),
    el("td", {}, progressBar()),
    el("td", { "data-label": "Trials" }),
    el("td", { "data-label": "Created" }, moment(sweep.created)),
  );
}

function update(line, sweep) {
  const [, state, progress, trials] = line.children;
  setBadge(state.children[0], sweep.state);
  setText(state.children[1], sweep.message);
  setProgress(progress.firstElementChild, sweep.progress, sweep.eta_s);
  setText(trials, countsOf(sweep));
}

/** How many trials there are, with what they are called, and how many are how. */
export function countsOf({ trials }, called = "") {
  const some = Object.entries(trials).filter(([state, number]) => state !== "total" && number > 0);
  if (some.length === 1) return `${some[0][1]} of ${trials.total}${called} ${some[0][0]}`;
  return `${trials.total}${called}: ${some.map(([state, number]) => `${number} ${state}`).join(", ") || "none yet"}`;
}
