// The page: which view the address asks for, the sections, and the keys.

import { clusterView } from "./views/cluster.js";
import { compareView } from "./views/compare.js";
import { el, dialog } from "./lib/dom.js";
import { jobView } from "./views/job_detail.js";
import { jobsView } from "./views/job_list.js";
import { modelsView } from "./views/models.js";
import { planView } from "./views/plan.js";
import { showAccount } from "./lib/account.js";
import { comeBack, whyNot } from "./lib/sign_in.js";
import { heading, refusal, trouble } from "./parts/widgets.js";
import { submitView } from "./views/submit.js";
import { sweepView } from "./views/sweep_detail.js";
import { sweepsView } from "./views/sweep_list.js";

const SECTIONS = [
  { key: "j", path: "jobs", label: "Jobs" },
  { key: "s", path: "sweeps", label: "Sweeps" },
  { key: "o", path: "compare", label: "Compare" },
  { key: "m", path: "models", label: "Models" },
  { key: "c", path: "cluster", label: "Cluster" },
  { key: "p", path: "plan", label: "Plan" },
  { key: "n", path: "new", label: "New" },
];
const VIEWS = [
  [/^jobs$/, jobsView],
  [/^jobs\/([^/]+)$/, jobView],
  [/^sweeps$/, sweepsView],
  [/^sweeps\/([^/]+)$/, sweepView],
  [/^compare$/, compareView],
  [/^models$/, modelsView],
  [/^cluster$/, clusterView],
  [/^plan$/, planView],
  [/^new$/, submitView],
];
const KEYS = [
  ["j  s  o  m  c  p  n", "Jobs, Sweeps, Compare, Models, Cluster, Plan, New"],
  ["↓  ↑", "the next or the previous row of a list"],
  ["Enter", "open the row"],
  ["Space", "take the row into the comparison"],
  ["/", "to the filter"],
  ["←  →", "move the cursor of the chart that has the focus"],
  ["Ctrl Enter", "submit the spec"],
  ["?", "this help"],
];

const main = document.getElementById("main");
let open = new AbortController();
let shown = null; // the path of the view

/** Show the view that the address names, and let go of the one before; `moved`: the event that led here. */
function show(moved) {
  open.abort();
  open = new AbortController();
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const found = VIEWS.map(([pattern, view]) => [pattern.exec(path || "jobs"), view]).find(([match]) => match);
  trouble("");
  refusal("");
  const at = path === shown ? filtersOf(main).indexOf(document.activeElement) : -1;
  shown = path;
  main.replaceChildren();
  for (const one of document.querySelectorAll("#sections a")) {
    const here = (path || "jobs").split("/")[0] === one.dataset.path;
    if (here) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  if (!found) {
    main.append(heading("Not found"), el("p", {}, "There is nothing at ", el("code", {}, path), ". ", el("a", { href: "#/jobs" }, "All jobs")));
    document.title = "Not found · Millrace";
    return;
  }
  const [match, view] = found;
  const title = view(
    main,
    { id: match[1] && decodeURIComponent(match[1]), query: new URLSearchParams(query) },
    open.signal,
  );
  document.title = `${title} · Millrace`;
  if (moved) {
    // The first view leaves the focus at the page's top, before the link that skips the sections. A list that is
    // filtered otherwise leaves it at the same filter, from which a Tab may go on.
    (filtersOf(main)[at] ?? main).focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

const filtersOf = (view) => [...(view.querySelector("form.filters")?.elements ?? [])];

function help() {
  if (document.querySelector("dialog")) return;
  const rows = KEYS.map(([key, what]) =>
    el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, what)),
  );
  const api = el("a", { href: "docs" }, "The API");
  dialog(
    "Keys",
    [el("table", { class: "keys" }, el("tbody", {}, rows)), el("p", {}, api, " can be tried out in the browser.")],
    [],
  );
}

function pressed(event) {
  const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  const section = SECTIONS.find(({ key }) => key === event.key);
  const filter = main.querySelector("[data-filter]");
  if (section) location.hash = `#/${section.path}`;
  else if (event.key === "?") help();
  else if (event.key === "/" && filter) filter.focus();
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (!step(event.key === "ArrowDown" ? 1 : -1)) return;
  } else return;
  event.preventDefault();
}

/** Move the focus among the rows of a list. Returns whether there is one. */
function step(by) {
  const rows = [...main.querySelectorAll("[data-row] a[data-open]")];
  if (!rows.length) return false;
  const at = rows.findIndex((row) => row.closest("[data-row]").contains(document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, at + by))].focus();
  return true;
}

document
  .getElementById("sections")
  .append(
    ...SECTIONS.map(({ key, path, label }) =>
      el("a", { href: `#/${path}`, "data-path": path, "aria-keyshortcuts": key }, label),
    ),
  );
document.getElementById("help").addEventListener("click", help);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
comeBack();
showAccount(document.getElementById("account")).catch(() => {}); // the view says what is amiss
window.addEventListener("hashchange", show);
document.addEventListener("keydown", pressed);
show(null);
if (whyNot()) refusal(whyNot());
