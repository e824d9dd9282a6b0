// Models by name: what a job's model is registered as, and how it is registered and fetched.

import { announce, dialog, el, link } from "../lib/dom.js";
import { metricFormat } from "../lib/format.js";
import { api, download, post } from "../lib/http.js";
import { actionButton } from "./widgets.js";

/** What the model of a job is registered as, with a button that registers it. */
export function registeredPart(id) {
  const named = el("span", { class: "labels" });
  const look = async () => {
    const { versions } = await api(`v1/registry?job=${encodeURIComponent(id)}`);
    named.replaceChildren(
      ...(versions.length ? ["Registered as "] : []),
      ...versions.flatMap((one, i) => [...(i ? [", "] : []), link(`#/models?name=${one.name}`, one.id)]),
    );
  };
  const button = actionButton("Register", "quiet", async () => {
    if (await register(id)) await look();
  });
  return { button, named, look };
}

function register(id) {
  const name = el("input", { required: true, maxlength: 50, "aria-label": "Name", placeholder: "digits" });
  const which = el(
    "select",
    { "aria-label": "Which" },
    [
      ["model", "the finished model"],
      ["best", "the best so far"],
      ["raw", "the one without ema"],
    ].map(([value, label]) => el("option", { value }, label)),
  );
  const notes = el("textarea", { rows: 3, maxlength: 10000, "aria-label": "Notes" });
  const action = async () => {
    const made = await post("v1/registry", { name: name.value.trim(), job: id, which: which.value, notes: notes.value });
    announce(`Registered as ${made.id}`);
    return true;
  };
  const text = "It becomes the next version of this name, with a file of its own that stays when the job is removed.";
  const fields = [el("label", {}, "Name ", name), el("label", {}, "Which ", which), el("label", {}, "Notes ", notes)];
  return dialog("Register the model", [el("p", {}, text), ...fields], [{ label: "Register", action }]);
}

/** The metrics of a version, as text. */
export const metricsOf = ({ facts }) =>
  Object.entries(facts.metrics)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${metricFormat(name, 2)(value)}`)
    .join(", ");

/** Fetch the file of a version. */
export const fetchVersion = ({ id, name, version }) =>
  download(`v1/registry/${encodeURIComponent(id)}/model`, `${name}-${version}.safetensors`);
