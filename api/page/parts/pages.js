// Lists that come in pages, with filters in the address: of jobs and of sweeps.

import { el, link } from "../lib/dom.js";
import { STATES } from "../lib/states.js";

/**
 * The filters of the list at the address `base`; what they say is in the address, so that it can be kept and sent.
 * `project`: a select of projects, where the list has one.
 */
export function filters(base, query, project = null) {
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
  const archived = el("input", { type: "checkbox", checked: query.get("archived") === "true" });
  const apply = (event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    if (states.value) next.set("state", states.value);
    if (label.value.trim()) next.set("label", label.value.trim());
    if (project?.value) next.set("project", project.value);
    if (archived.checked) next.set("archived", "true");
    location.hash = `${base}${next.size ? `?${next}` : ""}`;
  };
  return el(
    "form",
    { class: "filters", role: "search", onsubmit: apply, onchange: apply },
    states,
    project,
    label,
    el("label", { class: "check" }, archived, " archived"),
    el("button", { type: "submit", class: "quiet" }, "Filter"),
  );
}

/** What is asked of the service for the page in the address. */
export function wanted(query) {
  const params = new URLSearchParams({ page_size: "50" });
  for (const name of ["state", "label", "project", "archived", "page_token"]) if (query.get(name)) params.set(name, query.get(name));
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
