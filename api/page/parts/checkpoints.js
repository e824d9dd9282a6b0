// A run's checkpoints, as its log tells of them; where the service hands them out, with their files.

import { el } from "../lib/dom.js";
import { count, figure } from "../lib/format.js";
import { api, download } from "../lib/http.js";
import { registeredPart } from "./registered.js";
import { actionButton, table } from "./widgets.js";

const MOST = 50;
const LOOK_AFTER_MS = 1000; // for many checkpoints that come at once
const SUFFIX = { safetensors: ".safetensors", "torch.save": ".pt", "torch.export": ".pt2", onnx: ".onnx" };

/** A table that is filled by `checkpoint` events. */
export function checkpointsPanel(id) {
  const body = el("tbody");
  const format = el(
    "select",
    { "aria-label": "Format" },
    Object.keys(SUFFIX).map((name) => el("option", { value: name }, name)),
  );
  const fetches = (label, which) =>
    actionButton(label, "quiet", () =>
      download(
        `v1/jobs/${encodeURIComponent(id)}/model?which=${which}&format=${format.value}`,
        `${id}-${which}${SUFFIX[format.value]}`,
      ),
    );
  const best = fetches("Best model", "best");
  const registered = registeredPart(id);
  const finished = fetches("Finished model", "model");
  const model = el("div", { class: "buttons" }, finished, best, format, registered.button, registered.named);
  model.hidden = true;
  const none = el("p", { class: "note" }, "None yet.");
  let looking = null;
  const dropOld = async () => {
    looking = null;
    const { checkpoints } = await api(`v1/jobs/${encodeURIComponent(id)}/checkpoints`);
    const kept = new Set(checkpoints.map(({ step }) => Number(step)));
    if (kept.size) for (const line of [...body.children]) if (!kept.has(Number(line.dataset.step))) line.remove();
  };
  return {
    element: el("div", {}, model, none, table("Checkpoints", ["Epoch", "Examples", "Folder", ""], body)),
    /** The run has left its model. result: Its event's data. */
    finish(result) {
      model.hidden = false;
      best.hidden = !result.best;
      registered.look().catch(() => {});
    },
    add({ data }) {
      none.hidden = true;
      const name = /[^/]*$/.exec(data.path ?? "")[0];
      const fetch = actionButton("Files", "quiet", () => files(id, name, fetch.parentElement));
      body.prepend(
        el(
          "tr",
          { "data-step": name },
          el("td", { "data-label": "Epoch" }, figure(data.epoch)),
          el("td", { "data-label": "Examples" }, count(data.examples)),
          el("td", { "data-label": "Folder" }, el("code", { title: data.path }, name)),
          el("td", {}, fetch),
        ),
      );
      if (body.children.length > MOST) body.lastElementChild.remove();
      looking ??= setTimeout(() => dropOld().catch(() => {}), LOOK_AFTER_MS);
    },
  };
}

/** What can be fetched of one checkpoint, in place of the button that asked. */
async function files(id, name, cell) {
  const path = `v1/jobs/${encodeURIComponent(id)}/checkpoints`;
  const { checkpoints } = await api(path);
  const found = checkpoints.find((one) => Number(one.step) === Number(name));
  if (!found) {
    cell.replaceChildren(el("span", { class: "note" }, "not kept"));
    return;
  }
  cell.replaceChildren(
    ...found.files.map((file) => {
      const label = file.name ?? file;
      return actionButton(label, "quiet", () =>
        download(`${path}/${encodeURIComponent(found.step)}/${encodeURIComponent(label)}`, label),
      );
    }),
  );
}
