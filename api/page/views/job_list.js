// The list of jobs: newest first, live, with filters in the address.

import { announce, el, keyed, setText } from "../lib/dom.js";
import { metricFormat, moment } from "../lib/format.js";
import { api } from "../lib/http.js";
import { DEFAULT, projectSelect } from "../lib/project_choice.js";
import { filters, turnPage, wanted } from "../parts/pages.js";
import { badge, every, heading, progressBar, setBadge, setProgress, table } from "../parts/widgets.js";

const REFRESH_MS = 2500;

/** All jobs. */
export function jobsView(main, { query }, signal) {
  const chosen = new Set();
  const compare = el("a", { class: "button", href: "#/compare" }, "Compare");
  const body = el("tbody");
  const none = el("p", { class: "note", hidden: true });
  const older = el("p", { class: "pager" });
  const choose = (id, on) => {
    if (on) chosen.add(id);
    else chosen.delete(id);
    setText(compare, chosen.size ? `Compare ${chosen.size}` : "Compare");
    compare.href = `#/compare?jobs=${[...chosen].join(",")}`;
  };
  const seen = new Map();
  main.append(
    heading("Jobs", el("a", { class: "button", href: "#/new" }, "New job"), compare),
    filters("#/jobs", query, projectSelect(query.get("project"), "any project", signal)),
    table("Jobs", ["", "Job", "State", "Progress", "Metric", "Algorithm", "Created"], body),
    none,
    older,
  );
  every(REFRESH_MS, signal, async () => {
    const page = await api(`v1/jobs?${wanted(query)}`, { signal });
    keyed(
      body,
      page.jobs,
      (job) => job.id,
      (job) => row(job, choose),
      update,
    );
    none.hidden = page.jobs.length > 0;
    setText(none, query.size ? "No job is like that." : "No jobs yet. Press n to write one.");
    turnPage(older, "#/jobs", query, page.next_page_token);
    tell(page.jobs, seen);
  });
  return "Jobs";
}

function row(job, choose) {
  const box = el("input", {
    type: "checkbox",
    "aria-label": `Compare ${job.name}`,
    onchange: () => choose(job.id, box.checked),
  });
  const open = el("a", { href: `#/jobs/${job.id}`, "data-open": true }, job.name);
  open.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    box.click();
  });
  const labels = Object.entries(job.labels).map(([key, value]) =>
    el("span", { class: "label" }, value ? `${key}=${value}` : key),
  );
  if (job.project !== DEFAULT) labels.unshift(el("span", { class: "label" }, `project ${job.project}`));
  return el(
    "tr",
    { "data-row": true },
    el("td", { class: "pick" }, box),
    el("td", { class: "named" }, open, el("span", { class: "id" }, job.id), el("span", { class: "labels" }, labels)),
    el("td", {}, badge(), el("span", { class: "why" })),
    el("td", {}, progressBar()),
    el("td", {}),
    el("td", { "data-label": "Algorithm" }, job.algorithm),
    el("td", { "data-label": "Created" }, moment(job.created)),
  );
}

function update(line, job) {
  const [, , state, progress, metric] = line.children;
  setBadge(state.children[0], job.state);
  setText(state.children[1], job.state === "SUCCEEDED" ? "" : job.message);
  setProgress(progress.firstElementChild, job.progress, job.eta_s);
  setText(metric, metricText(job));
}

/** The metric by which runs of its task are compared, as it was measured last. */
function metricText({ headline, headline_value: value }) {
  return headline ? `${headline.replaceAll("_", " ")} ${metricFormat(headline)(value)}` : "";
}

/** Say which jobs have changed their state since the last look. */
function tell(jobs, seen) {
  const changed = jobs.filter((job) => seen.has(job.id) && seen.get(job.id) !== job.state);
  if (changed.length) announce(changed.map((job) => `${job.name} is ${job.state}`).join("; "));
  for (const job of jobs) seen.set(job.id, job.state);
}
