// Name, notes, labels and priority of a job or a sweep, as a dialog that sends what has changed.

import { dialog, el } from "../lib/dom.js";
import { api } from "../lib/http.js";
import { ENDED } from "../lib/states.js";

const WAITING = { job: "Priority ", sweep: "Priority of the trials that wait " };

/** Ask for changes of the `kind`, job or sweep, that lies at `path`; whether some were made. */
export async function editDialog(path, shown, kind = "sweep") {
  const name = el("input", { type: "text", value: shown.name, required: true, maxlength: 63 });
  const labels = el("input", { type: "text", value: labelText(shown.labels), placeholder: "team=blue, draft=yes" });
  const priority = el("input", { type: "number", value: shown.priority, min: -100, max: 100 });
  const notes = el("textarea", { rows: 5, maxlength: 10000 });
  notes.value = shown.notes;
  const fields = [
    el("label", {}, "Name ", name),
    el("label", {}, "Labels ", labels),
    !ENDED.includes(shown.state) && el("label", {}, WAITING[kind], priority),
    el("label", {}, "Notes ", notes),
  ];
  const send = async () => {
    const wanted = { name: name.value, notes: notes.value, priority: Number(priority.value) };
    const body = Object.fromEntries(Object.entries(wanted).filter(([field, value]) => value !== shown[field]));
    const changed = changedLabels(shown.labels, labels.value);
    if (Object.keys(changed).length) body.labels = changed;
    if (Object.keys(body).length) await api(path, { method: "PATCH", body });
    return true;
  };
  return dialog(`Change the ${kind}`, fields, [{ label: "Change", action: send }]);
}

/** Labels as they are written. */
export const labelText = (labels) =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(", ");

/** What is to be set, and with null what is to be taken away. */
export function changedLabels(before, text) {
  const pairs = text
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean)
    .map((one) => {
      const [key, ...rest] = one.split("=");
      return [key.trim(), rest.join("=").trim()];
    });
  const after = Object.fromEntries(pairs);
  const gone = Object.keys(before).filter((key) => !(key in after));
  return Object.fromEntries([
    ...pairs.filter(([key, value]) => before[key] !== value),
    ...gone.map((key) => [key, null]),
  ]);
}
