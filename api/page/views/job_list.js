// The list of jobs: newest first, live, with filters in the address.

import { announce, el, keyed, link, setText } from "../lib/dom.js";
import { metricFormat, moment } from "../lib/format.js";
import { api } from "../lib/http.js";
import { badge, every, heading, progressBar, setBadge, setProgress, table } from "../parts/widgets.js";
import { STATES } from "../lib/states.js";

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
    filters(query),
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
    turnPage(older, query, page.next_page_token);
    tell(page.jobs, seen);
  });
  return "Jobs";
}

/** The filters; what they say is in the address, so that it can be kept and sent. */
function filters(query) {
  const states = el(
    "select",
    { "aria-label": "State" },
    el("option", { value: "" }, "any state"),
    STATES.map((state) => el("option", { value: state, selected: query.get("state") === state }, state)),
  );
  const label = el("input", {
    type: "search",
    "aria-label": "Label",
    placeholder: "label, as team=blue",
    value: query.get("label") ?? "",
    "data-filter": true,
    "aria-keyshortcuts": "/",
  });
  const apply = (event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    if (states.value) next.set("state", states.value);
    if (label.value.trim()) next.set("label", label.value.trim());
    location.hash = `#/jobs${next.size ? `?${next}` : ""}`;
  };
  return el(
    "form",
    { class: "filters", role: "search", onsubmit: apply, onchange: apply },
    states,
    label,
    el("button", { type: "submit", class: "quiet" }, "Filter"),
  );
}

function wanted(query) {
  const params = new URLSearchParams({ page_size: "50" });
  for (const name of ["state", "label", "page_token"]) if (query.get(name)) params.set(name, query.get(name));
  return params;
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

function turnPage(node, query, next) {
  const first = new URLSearchParams(query);
  first.delete("page_token");
  const further = new URLSearchParams(first);
  if (next) further.set("page_token", next);
  node.replaceChildren(
    ...(query.get("page_token") ? [link(`#/jobs?${first}`, "Newest")] : []),
    ...(next ? [link(`#/jobs?${further}`, "Older")] : []),
  );
}

/** Say which jobs have changed their state since the last look. */
function tell(jobs, seen) {
  const changed = jobs.filter((job) => seen.has(job.id) && seen.get(job.id) !== job.state);
  if (changed.length) announce(changed.map((job) => `${job.name} is ${job.state}`).join("; "));
  for (const job of jobs) seen.set(job.id, job.state);
}
