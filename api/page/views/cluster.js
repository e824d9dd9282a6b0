// The cluster: what it has, what of it is free, who holds it, and who waits for it.

import { el, keyed, link, setText } from "../lib/dom.js";
import { duration, figure } from "../lib/format.js";
import { api } from "../lib/http.js";
import { badge, every, facts, heading, progressBar, section, setBadge, setProgress, table } from "../parts/widgets.js";
import { BUSY } from "../lib/states.js";
import { matter, newProjectButton, projectTable } from "./project_table.js";

const REFRESH_MS = 3000;

/** Cluster and queue. */
export function clusterView(main, _, signal) {
  const amounts = el("div", { class: "amounts" });
  const details = el("div");
  const running = el("tbody"),
    waiting = el("tbody");
  const idle = el("p", { class: "note", hidden: true }, "Nothing runs."),
    empty = el("p", { class: "note", hidden: true }, "Nobody waits.");
  const projects = projectTable(() => refresh());
  const create = newProjectButton(() => refresh());
  create.hidden = true; // until the service has said whose page this is
  const shared = section("Projects", projects.element);
  shared.hidden = true;
  main.append(
    heading("Cluster", create),
    amounts,
    details,
    shared,
    section("Running", table("Running", ["Job", "State", "Progress", "Priority"], running), idle),
    section("Queue", table("Queue", ["Place", "Job", "Priority", "Waiting", "Starts in", "Why"], waiting), empty),
  );
  const refresh = async () => {
    const [cluster, busy, queued, listed, me] = await Promise.all([
      api("v1/cluster", { signal }),
      api(`v1/jobs?page_size=200&${BUSY.map((state) => `state=${state}`).join("&")}`, { signal }),
      api("v1/jobs?page_size=200&state=QUEUED", { signal }),
      api("v1/projects", { signal }),
      api("v1/me", { signal }),
    ]);
    create.hidden = me.role !== "admin";
    shared.hidden = !matter(listed.projects);
    projects.update(listed.projects, me);
    amounts.replaceChildren(
      amount("CPUs", cluster.total.cpus, cluster.available.cpus),
      ...(cluster.total.gpus ? [amount("GPUs", cluster.total.gpus, cluster.available.gpus)] : []),
    );
    details.replaceChildren(
      facts([
        ["Address", el("code", {}, cluster.address)],
        ...(cluster.grows_to ? [["May grow to", capacity(cluster.grows_to)]] : []),
        ["Waiting", String(cluster.queued)],
        ["Ray's dashboard", cluster.dashboard_url ? link(cluster.dashboard_url, cluster.dashboard_url) : "none"],
      ]),
    );
    keyed(
      running,
      busy.jobs,
      (job) => job.id,
      runningRow,
      (row, job) => {
        setBadge(row.children[1].firstElementChild, job.state);
        setProgress(row.children[2].firstElementChild, job.progress, job.eta_s);
      },
    );
    const last = Number.MAX_SAFE_INTEGER; // a job that has only just come has no place yet
    const inOrder = queued.jobs.toSorted(
      (a, b) => (a.place ?? last) - (b.place ?? last) || b.priority - a.priority || (a.id < b.id ? -1 : 1),
    );
    keyed(
      waiting,
      inOrder.map((job, i) => ({ ...job, place: job.place ?? i + 1 })),
      (job) => job.id,
      waitingRow,
      (row, job) => {
        setText(row.children[0], String(job.place));
        setText(row.children[3], duration(Date.now() / 1000 - job.created));
        setText(row.children[4], duration(job.starts_in_s));
        setText(row.children[5], job.message);
      },
    );
    idle.hidden = busy.jobs.length > 0;
    empty.hidden = queued.jobs.length > 0;
  };
  every(REFRESH_MS, signal, refresh);
  return "Cluster";
}

function capacity({ cpus, gpus }) {
  return `${figure(cpus)} CPUs${gpus ? ` and ${figure(gpus)} GPUs` : ""}`;
}

function amount(label, total, free) {
  const held = total - free;
  return el(
    "div",
    { class: "amount" },
    el("span", { id: `amount-${label}` }, label),
    el("meter", { min: 0, max: total || 1, value: held, "aria-labelledby": `amount-${label}` }),
    el("span", {}, `${figure(held)} of ${figure(total)} held, ${figure(free)} free`),
  );
}

function runningRow(job) {
  return el(
    "tr",
    { "data-row": true },
    el("td", { class: "named" }, opened(job), el("span", { class: "id" }, job.id)),
    el("td", {}, badge()),
    el("td", {}, progressBar()),
    el("td", { "data-label": "Priority" }, String(job.priority)),
  );
}

function waitingRow(job) {
  return el(
    "tr",
    { "data-row": true },
    el("td", { "data-label": "Place" }),
    el("td", { class: "named" }, opened(job), el("span", { class: "id" }, job.id)),
    el("td", { "data-label": "Priority" }, String(job.priority)),
    el("td", { "data-label": "Waiting" }),
    el("td", { "data-label": "Starts in" }),
    el("td", { class: "why" }),
  );
}

const opened = (job) => el("a", { href: `#/jobs/${job.id}`, "data-open": true }, job.name);
