// The table of projects: what each may have, and what it uses of it; and the button that makes a new one.

import { el, keyed, setText } from "../lib/dom.js";
import { figure, percent } from "../lib/format.js";
import { remove } from "../lib/http.js";
import { DEFAULT } from "../lib/project_choice.js";
import { projectDialog } from "./project_dialog.js";
import { actionButton, confirmed, table } from "../parts/widgets.js";

const GB = 1e9;

const FIGURES = ["Share", "Of the cluster", "Jobs", "CPUs", "GPUs", "Disk, GB", "Waiting", "Members", "Admins"];

/**
 * The table of projects: an element, and what brings it up to date, `update(projects, me)`; `done` is called when one has
 * been changed or deleted.
 */
export function projectTable(done) {
  const body = el("tbody");
  const known = new Map();
  const element = table("Projects", ["Project", ...FIGURES, el("span", { class: "unseen" }, "What to do")], body);
  const update = (projects, me) => {
    for (const project of projects) known.set(project.name, project);
    const isWhole = me.role === "admin";
    const leads = ({ admins }) => isWhole || (me.role === "user" && admins.includes(me.user));
    keyed(
      body,
      projects,
      (project) => `${isWhole} ${leads(project)} ${project.name}`,
      (project) => row(project, leads(project) && editButton(() => known.get(project.name), isWhole, done), isWhole, done),
      fill,
    );
  };
  return { element, update };
}

/** Makes a project, for admins of the service; `done` is called when there is one. */
export const newProjectButton = (done) =>
  actionButton("New project", "", async () => {
    if (await projectDialog(null, true)) await done();
  });

/** Whether there is anything to show of projects. */
export const matter = (projects) =>
  projects.length > 1 || projects.some(({ quota }) => Object.values(quota).some((limit) => limit !== null));

function row({ name }, edit, mayDelete, done) {
  const jobs = el("a", { href: `#/jobs?project=${encodeURIComponent(name)}`, "data-open": true }, name);
  return el(
    "tr",
    { "data-row": true },
    el("td", { class: "named" }, jobs),
    FIGURES.map((label) => el("td", { "data-label": label })),
    el("td", {}, edit, mayDelete && name !== DEFAULT && [" ", deleteButton(name, done)]),
  );
}

function editButton(project, isWhole, done) {
  const button = actionButton("Edit", "quiet", async () => {
    if (await projectDialog(project(), isWhole)) await done();
  });
  button.setAttribute("aria-label", `Edit the project ${project().name}`);
  return button;
}

function deleteButton(name, done) {
  const button = actionButton("Delete", "danger quiet", async () => {
    const text = `The project ${name} is removed with its quotas. Its jobs and sweeps, which have to have ended, stay.`;
    const act = () => remove(`v1/projects/${encodeURIComponent(name)}`);
    if (await confirmed("Delete the project?", text, "Delete the project", act)) await done();
  });
  button.setAttribute("aria-label", `Delete the project ${name}`);
  return button;
}

function fill(line, { share, members, admins, quota, use }) {
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
    admins.join(", "),
  ];
  texts.forEach((text, i) => setText(line.children[i + 1], text));
}

const of = (used, most) => (most === null ? figure(used) : `${figure(used)} of ${figure(most)}`);
