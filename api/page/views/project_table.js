// The table of projects: what each may have, and what it uses of it.

import { el, keyed, setText } from "../lib/dom.js";
import { figure, percent } from "../lib/format.js";
import { table } from "../parts/widgets.js";

const GB = 1e9;

/** The table of projects: an element, and what brings it up to date. */
export function projectTable() {
  const body = el("tbody");
  const columns = ["Project", "Share", "Of the cluster", "Jobs", "CPUs", "GPUs", "Disk, GB", "Waiting", "Members"];
  const element = table("Projects", columns, body);
  const update = (projects) => keyed(body, projects, ({ name }) => name, row, fill);
  return { element, update };
}

/** Whether there is anything to show of projects. */
export const matter = (projects) =>
  projects.length > 1 || projects.some(({ quota }) => Object.values(quota).some((limit) => limit !== null));

function row({ name }) {
  const jobs = el("a", { href: `#/jobs?project=${encodeURIComponent(name)}`, "data-open": true }, name);
  const cells = ["Share", "Of the cluster", "Jobs", "CPUs", "GPUs", "Disk, GB", "Waiting", "Members"];
  return el(
    "tr",
    { "data-row": true },
    el("td", { class: "named" }, jobs),
    cells.map((label) => el("td", { "data-label": label })),
  );
}

function fill(line, { share, members, quota, use }) {
  const disk = quota.disk_bytes === null ? null : quota.disk_bytes / GB;
  const texts = [
    figure(share),
    percent(use.of_cluster),
    of(use.jobs, quota.jobs),
    of(use.cpus, quota.cpus),
    of(use.gpus, quota.gpus),
    of(Math.round((use.disk_bytes / GB) * 100) / 100, disk),
    String(use.waiting),
    members.map((name) => (name === "*" ? "everybody" : name)).join(", ") || "admins only",
  ];
  texts.forEach((text, i) => setText(line.children[i + 1], text));
}

const of = (used, most) => (most === null ? figure(used) : `${figure(used)} of ${figure(most)}`);
