// Share, quotas, members and admins of a project, as a dialog that sends what has changed; and its name, of a new one.

import { dialog, el } from "../lib/dom.js";
import { api } from "../lib/http.js";

const GB = 1e9;
const LIMITS = [
  ["jobs", "Jobs that run at once ", 1, 1],
  ["cpus", "CPUs ", "any", 1],
  ["gpus", "GPUs ", "any", 1],
  ["disk_bytes", "Disk, GB ", "any", GB],
];
const EVERYBODY = "everybody";
const NAME = "[A-Za-z0-9][A-Za-z0-9._\\-]*";
const NAMED = "Only letters, digits, dots, dashes and underscores, and a letter or a digit first.";
/** As the service makes it, where nothing but a name is sent. */
const NEW = { share: 1, members: ["*"], admins: [], quota: Object.fromEntries(LIMITS.map(([name]) => [name, null])) };

/**
 * Ask for changes of a project, or, with null, for a new one; whether there is something new. `isWhole`: also of what is
 * for admins of the service.
 */
export async function projectDialog(changed, isWhole) {
  const project = changed ?? NEW;
  const name = changed ? null : el("input", { type: "text", required: true, maxlength: 63, pattern: NAME, title: NAMED, autocomplete: "off" });
  const share = el("input", { type: "number", min: 0.001, max: 1000, step: "any", required: true, value: project.share });
  const limits = LIMITS.map(([name, label, step, unit]) => {
    const limit = project.quota[name];
    const value = limit === null ? "" : limit / unit;
    return { name, unit, label, field: el("input", { type: "number", min: step === 1 ? 1 : 0, step, value, placeholder: "no limit" }) };
  });
  const members = el("textarea", { rows: 3, placeholder: `${EVERYBODY}, or names with commas between` });
  members.value = project.members.map((name) => (name === "*" ? EVERYBODY : name)).join(", ");
  const admins = el("textarea", { rows: 2, placeholder: "names with commas between" });
  admins.value = project.admins.join(", ");
  const fields = [
    name && el("label", {}, "Name ", name),
    isWhole && el("label", {}, "Share, where projects compete ", share),
    isWhole && limits.map(({ label, field }) => el("label", {}, label, field)),
    el("label", {}, "Members, who submit into it ", members),
    el("label", {}, "Its own admins ", admins),
    !isWhole && el("p", { class: "note" }, "What the project may have is for admins of the service."),
  ];
  const send = async () => {
    for (const field of [name, share, ...limits.map((limit) => limit.field)])
      if (field && !field.validity.valid) throw wrong(field);
    const body = changes(project, {
      share: Number(share.value),
      members: names(members.value).map((name) => (name === EVERYBODY ? "*" : name)),
      admins: names(admins.value),
    });
    const quota = limits.map(({ name, field, unit }) => [name, field.value === "" ? null : unit === GB ? Math.round(field.value * GB) : Number(field.value)]);
    const other = Object.fromEntries(quota.filter(([name, limit]) => limit !== project.quota[name]));
    if (Object.keys(other).length) body.quota = other;
    if (name) await api("v1/projects", { method: "POST", body: { name: name.value, ...body } });
    else if (Object.keys(body).length) await api(`v1/projects/${encodeURIComponent(project.name)}`, { method: "PATCH", body });
    return true;
  };
  const title = changed ? `Change the project ${project.name}` : "New project";
  return dialog(title, fields, [{ label: changed ? "Change" : "Create", action: send }]);
}

function wrong(field) {
  const why = field.validity.patternMismatch ? field.title : field.validationMessage;
  return new Error(`${field.parentElement.firstChild.textContent.trim()}: ${why}`);
}

const names = (text) => [...new Set(text.split(",").map((name) => name.trim()).filter(Boolean))];

const changes = (before, after) =>
  Object.fromEntries(Object.entries(after).filter(([name, value]) => String(value) !== String(before[name])));
