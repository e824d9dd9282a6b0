// What can be done with a job: buttons that say so, and say why not.

import { announce, dialog, el, setText } from "../lib/dom.js";
import { api, newKey, post } from "../lib/http.js";
import { editDialog } from "./edit_dialog.js";
import { actionButton, allow, confirmed } from "./widgets.js";
import { ENDED } from "../lib/states.js";
import { traceFields } from "./traces.js";

const ALLOWED = {
  Pause: (job) => ["QUEUED", "STARTING", "RUNNING"].includes(job.state),
  Resume: (job) => job.state === "PAUSED",
  Scale: (job) => ["QUEUED", "RUNNING", "PAUSED"].includes(job.state),
  Cancel: (job) => !ENDED.includes(job.state),
  Delete: (job) => ENDED.includes(job.state),
  Fork: () => true,
  Trace: (job) => job.state === "RUNNING",
  Edit: () => true,
  Archive: (job) => ENDED.includes(job.state),
};
const NEEDS = {
  Pause: "that waits, starts or runs",
  Resume: "that is paused",
  Scale: "that waits, runs or is paused",
  Cancel: "that has not ended",
  Delete: "that has ended",
  Trace: "that runs",
  Archive: "that has ended",
};

/** The buttons of a job; `done` is called when one has worked, `record(steps, worker)` has a trace made. */
export function verbs(id, done, record) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  let job = null;
  const simply = async (verb) => {
    job = await post(`${path}/${verb}`);
    announce(`${job.name} is ${job.state}: ${job.message}`);
    await done();
  };
  const buttons = {
    Pause: actionButton("Pause", "", () => simply("pause")),
    Resume: actionButton("Resume", "", () => simply("resume")),
    Scale: actionButton("Scale", "", async () => {
      if (await scale(path, job)) await done();
    }),
    Cancel: actionButton("Cancel", "danger", async () => {
      const text = `${job.name} stops cleanly, with a checkpoint. A fork can go on from there.`;
      if (await confirmed("Cancel the job?", text, "Cancel the job", () => post(`${path}/cancel`))) await done();
    }),
    Delete: actionButton("Delete", "danger", async () => {
      const text = `${job.name} is removed with its log, its checkpoints and its model, for good.`;
      const act = () => api(path, { method: "DELETE" });
      if (await confirmed("Delete the job?", text, "Delete the job", act)) location.hash = "#/jobs";
    }),
    Fork: actionButton("Fork", "", () => fork(path, job)),
    Trace: actionButton("Trace", "", () => trace(record)),
    Edit: actionButton("Edit", "", async () => {
      if (await editDialog(path, job, "job")) await done();
    }),
    Archive: actionButton("Archive", "", async () => {
      await api(path, { method: "PATCH", body: { archived: !job.archived } });
      await done();
    }),
  };
  for (const button of Object.values(buttons)) button.disabled = true; // until there is a job to do it with
  const needs = el("p", { class: "note needs" });
  const group = el(
    "div",
    { class: "buttons", role: "group", "aria-label": "What to do with the job" },
    Object.values(buttons),
  );
  return {
    element: el("div", {}, group, needs),
    update(found) {
      job = found;
      setText(buttons.Archive, job.archived ? "Bring back" : "Archive");
      allow(buttons, (name) => ALLOWED[name](job), NEEDS, "job", needs);
    },
  };
}

function scale(path, job) {
  const workers = el("input", {
    type: "number",
    min: 1,
    max: 4096,
    required: true,
    value: job.workers || job.spec.workers.count,
    "aria-label": "Workers",
  });
  const action = async () => {
    await post(`${path}/scale`, { workers: Number(workers.value) });
    announce(`Scaling to ${workers.value} workers`);
    return true;
  };
  return dialog("How many workers?", [el("p", {}, job.if_scaled), el("label", {}, "Workers ", workers)], [{ label: "Scale", action }]);
}

function trace(record) {
  const { content, values } = traceFields();
  const action = async () => {
    await record(...values());
    return true;
  };
  return dialog("Record some steps", content, [{ label: "Record", action }]);
}

async function fork(path, job) {
  const found = await api(`${path}/checkpoints`).catch(() => ({ checkpoints: [] }));
  const choice = el(
    "select",
    { "aria-label": "Checkpoint" },
    el("option", { value: "" }, "the last checkpoint"),
    (found.checkpoints ?? []).map(({ step }) => el("option", { value: step }, `after ${step} examples`)),
  );
  const changes = el("textarea", {
    rows: 5,
    spellcheck: "false",
    "aria-label": "Changes",
    placeholder: "epochs: 40\noptimizer: {lr: 0.01}",
  });
  const key = newKey();
  const action = async () => {
    const query = choice.value ? `?checkpoint=${encodeURIComponent(choice.value)}` : "";
    const options = {
      method: "POST",
      headers: { "Idempotency-Key": key },
      body: changes.value,
      type: "application/yaml",
    };
    const made = await api(`${path}/fork${query}`, options);
    location.hash = `#/jobs/${made.id}`;
    return true;
  };
  const text =
    "A new job from a checkpoint of this one. What changes in its spec, as YAML. Leave it empty to go on as it was.";
  await dialog(`Fork ${job.name}`, [el("p", {}, text), el("label", {}, "Checkpoint ", choice), el("label", {}, "Changes ", changes)], [{ label: "Fork", action }]);
}
