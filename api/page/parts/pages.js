// Lists that come in pages, with filters in the address: of jobs and of sweeps.

import { el, link } from "../lib/dom.js";
import { STATES } from "../lib/states.js";

/** What can be looked for by writing `user:anna` instead of a part of the name. */
const FIELDS = ["user", "algorithm"];

/**
 * The filters of the list at the address `base`; what they say is in the address, so that it can be kept and sent.
 * `beside`: what stands with them in a list that can be searched by name, too; `project`: a select of projects.
 */
export function filters(base, query, beside = null, project = null) {
  const search = beside && el("input", {
    type: "search",
    class: "search",
    "aria-label": "Search",
    placeholder: "name, user:anna, algorithm:sync",
    value: searched(query),
  });
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
  });
  const first = search ?? label;
  first.dataset.filter = "";
  first.setAttribute("aria-keyshortcuts", "/");
  const archived = el("input", { type: "checkbox", checked: query.get("archived") === "true" });
  const apply = (event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    for (const kept of ["columns", "sort"]) if (query.has(kept)) next.set(kept, query.get(kept));
    if (search) look(next, search.value);
    if (states.value) next.set("state", states.value);
    if (label.value.trim()) next.set("label", label.value.trim());
    if (project?.value) next.set("project", project.value);
    if (archived.checked) next.set("archived", "true");
    location.hash = `${base}${next.size ? `?${next}` : ""}`;
  };
  return el(
    "form",
    { class: "filters", role: "search", onsubmit: apply, onchange: (event) => beside?.contains(event.target) || apply(event) },
    search,
    states,
    project,
    label,
    el("label", { class: "check" }, archived, " archived"),
    el("button", { type: "submit", class: "quiet" }, "Filter"),
    beside,
  );
}

/** What somebody searches for, as the address has it. */
function searched(query) {
  const fields = FIELDS.filter((field) => query.get(field)).map((field) => `${field}:${query.get(field)}`);
  return [query.get("name"), ...fields].filter(Boolean).join(" ");
}

/** Put what somebody searches for into the address: words are a part of the name. */
function look(params, text) {
  const name = [];
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const [field, value] = word.split(/:(.*)/s);
    if (FIELDS.includes(field) && value) params.set(field, value);
    else name.push(word);
  }
  if (name.length) params.set("name", name.join(" "));
}

/** What is asked of the service for the page in the address. */
export function wanted(query) {
  const params = new URLSearchParams({ page_size: "50" });
  for (const name of ["state", "label", "project", "name", ...FIELDS, "archived", "page_token"])
    if (query.get(name)) params.set(name, query.get(name));
  return params;
}

/** Links to the newest ones and to the next page. */
export function turnPage(node, base, query, next) {
  const first = new URLSearchParams(query);
  first.delete("page_token");
  const further = new URLSearchParams(first);
  if (next) further.set("page_token", next);
  node.replaceChildren(
    ...(query.get("page_token") ? [link(`${base}?${first}`, "Newest")] : []),
    ...(next ? [link(`${base}?${further}`, "Older")] : []),
  );
}
