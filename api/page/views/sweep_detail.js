// One sweep: what it says, error against batch size, a heat map, and its trials.

import { Chart, TALL, colour, lineColour } from "../parts/chart.js";
import { announce, el, keyed, link, setText } from "../lib/dom.js";
import { compared, count, word } from "../lib/format.js";
import { api, post, remove } from "../lib/http.js";
import { DEFAULT } from "../lib/project_choice.js";
import { editDialog, labelText } from "../parts/edit_dialog.js";
import { heatMap, method } from "../parts/heat_map.js";
import { tuningReport } from "../parts/tuning.js";
import {
  absent,
  actionButton,
  allow,
  answerList,
  badge,
  confirmed,
  every,
  heading,
  progressBar,
  section,
  setBadge,
  setProgress,
  table,
} from "../parts/widgets.js";
import { ENDED } from "../lib/states.js";
import { countsOf } from "./sweep_list.js";

const REFRESH_MS = 4000;
const ALLOWED = {
  Pause: (state) => !ENDED.includes(state) && state !== "PAUSED",
  Resume: (state) => state === "PAUSED",
  Cancel: (state) => !ENDED.includes(state),
  Edit: () => true,
  Archive: (state) => ENDED.includes(state),
  Delete: (state) => ENDED.includes(state),
};
const NEEDS = {
  Pause: "that goes on",
  Resume: "that is paused",
  Cancel: "that has not ended",
  Archive: "that has ended",
  Delete: "that has ended",
};

/** One sweep. */
export function sweepView(main, { id }, signal) {
  const page = new SweepPage(id, signal);
  main.append(page.element);
  every(REFRESH_MS, signal, () => page.refresh(), () => main.replaceChildren(absent("sweep", id, "sweeps")));
  signal.addEventListener("abort", () => page.close());
  return `Sweep ${id}`;
}

class SweepPage {
  constructor(id, signal) {
    this.path = `v1/sweeps/${encodeURIComponent(id)}`;
    this.signal = signal;
    this.title = el("span", {}, id);
    this.badge = badge();
    this.why = el("p", { class: "why" });
    this.bar = progressBar();
    this.counts = el("p", { class: "note" });
    this.labels = el("p", { class: "note" });
    this.notes = el("p", { class: "notes" });
    this.needs = el("p", { class: "note needs" });
    this.report = el("div");
    this.rows = el("tbody");
    this.trials = el("div", { class: "trials" });
    this.charts = [];
    this.buttons = {
      Pause: actionButton("Pause", "", () => this.#tell("pause")),
      Resume: actionButton("Resume", "", () => this.#tell("resume")),
      Cancel: actionButton("Cancel", "danger", () => this.#cancel()),
      Edit: actionButton("Edit", "", () => this.#edit()),
      Archive: actionButton("Archive", "", () => this.#archive()),
      Delete: actionButton("Delete", "danger", () => this.#delete()),
    };
    for (const button of Object.values(this.buttons)) button.disabled = true; // until there is a sweep to tell
    this.element = el(
      "div",
      { class: "sweep" },
      heading(this.title, this.badge),
      this.why,
      this.bar,
      this.counts,
      this.labels,
      this.notes,
      el(
        "div",
        { class: "buttons", role: "group", "aria-label": "What to do with the sweep" },
        Object.values(this.buttons),
        link(`#/compare?sweep=${encodeURIComponent(id)}`, "Compare its trials"),
      ),
      this.needs,
      this.report,
      section("Trials", this.trials),
    );
  }

  /** Ask how it stands; the report only where a trial's standing has changed. */
  async refresh() {
    const sweep = await api(this.path, { signal: this.signal });
    if (this.sweep && this.sweep.state !== sweep.state) announce(`${sweep.name} is ${sweep.state}: ${sweep.message}`);
    const standing = JSON.stringify(sweep.results.map(({ state, value }) => [state, value]));
    const known = this.standing === standing;
    this.sweep = sweep;
    this.standing = standing;
    document.title = `${sweep.name} ${sweep.state} · Millrace`;
    setText(this.title, sweep.name);
    setBadge(this.badge, sweep.state);
    setText(this.why, sweep.message);
    this.why.title = sweep.reason;
    setText(this.counts, countsOf(sweep, " trials"));
    const project = sweep.project === DEFAULT ? "" : `project ${sweep.project}`;
    const marks = [project, labelText(sweep.labels), sweep.archived && "archived"].filter(Boolean);
    setText(this.labels, marks.join(" · "));
    setText(this.notes, sweep.notes);
    setProgress(this.bar, sweep.progress, sweep.eta_s);
    setText(this.buttons.Archive, sweep.archived ? "Bring back" : "Archive");
    allow(this.buttons, (name) => ALLOWED[name](sweep.state), NEEDS, "sweep", this.needs);
    this.#showTrials(sweep);
    if (!known) this.#showReport(await api(`${this.path}/report`, { signal: this.signal }));
  }

  close() {
    for (const chart of this.charts) chart.close();
    this.charts = [];
  }

  async #tell(verb) {
    await post(`${this.path}/${verb}`);
    await this.refresh();
  }

  async #cancel() {
    const text = "Its trials stop cleanly, each with a checkpoint, and no more are run.";
    if (await confirmed("Cancel the sweep?", text, "Cancel the sweep", () => post(`${this.path}/cancel`)))
      await this.refresh();
  }

  async #edit() {
    if (await editDialog(this.path, this.sweep)) await this.refresh();
  }

  async #archive() {
    await api(this.path, { method: "PATCH", body: { archived: !this.sweep.archived } });
    await this.refresh();
  }

  async #delete() {
    const text = "Its trials, their checkpoints and all their files are removed.";
    if (await confirmed("Delete the sweep?", text, "Delete the sweep", () => remove(this.path)))
      location.hash = "#/sweeps";
  }

  #showTrials(sweep) {
    const axes = Object.keys(sweep.spec.axes);
    const tells = compared(sweep.metric);
    if (this.told !== tells.title) {
      this.told = tells.title; // known from the first evaluation on
      this.trials.replaceChildren();
      this.rows.replaceChildren();
    }
    if (!this.rows.isConnected)
      this.trials.append(table("Trials", ["Trial", ...axes, "State", "Progress", tells.title, "Why"], this.rows));
    keyed(
      this.rows,
      sweep.results,
      (trial) => trial.id,
      (trial) =>
        el(
          "tr",
          { "data-row": true },
          el("td", {}, el("a", { href: `#/jobs/${trial.id}`, "data-open": true }, `trial ${trial.number}`)),
          axes.map((axis) =>
            el("td", { "data-label": axis }, axis in trial.settings ? word(trial.settings[axis]) : "–"),
          ),
          el("td", {}, badge()),
          el("td", {}, progressBar()),
          el("td", { "data-label": tells.title, class: "number" }),
          el("td", { class: "why" }),
        ),
      (line, trial) => update(line, trial, tells),
    );
  }

  #showReport(report) {
    this.close();
    if (report.kind === "tuning") return this.report.replaceChildren(tuningReport(report, this.sweep.results));
    const variants = report.variants.filter(({ cells }) => cells.length);
    this.report.replaceChildren(...variants.map((variant) => this.#variant(variant, report.question)));
    for (const { chart, data } of this.drawn ?? []) chart.draw(data);
    this.drawn = [];
    return undefined;
  }

  #variant(variant, question) {
    const name = Object.entries(variant.variant)
      .map(([axis, value]) => `${axis} ${value}`)
      .join(", ");
    const tells = compared(question.metric);
    const { chart, data } = errorChart(variant.cells, tells);
    this.charts.push(chart);
    (this.drawn ??= []).push({ chart, data });
    return el(
      "section",
      {},
      el("h2", {}, name || "What it says"),
      answerList(variant.answer),
      chart.element,
      el("h3", {}, `${tells.title} by method and batch`),
      heatMap(variant.cells, question),
    );
  }
}

function update(line, trial, tells) {
  const [why, error, progress, state] = [...line.children].reverse();
  setBadge(state.firstElementChild, trial.state);
  setProgress(progress.firstElementChild, trial.progress, null);
  setText(error, tells.text(trial.value));
  setText(why, trial.state === "SUCCEEDED" ? "" : trial.message);
}

/** Paper 4's figure 1: a line a method, with a bar of one standard deviation up and down. */
function errorChart(cells, tells) {
  const batches = [...new Set(cells.map(({ batch }) => batch))].sort((a, b) => a - b);
  const base = cells.filter(({ batch, mean }) => batch === batches[0] && mean !== null);
  const methods = [...new Set(cells.filter(({ batch }) => batch > batches[0] || batches.length === 1).map(method))];
  const at = (name, batch) =>
    cells.find((cell) => cell.batch === batch && method(cell) === name) ?? (batch === batches[0] ? base[0] : undefined);
  const table = methods.map((name) => batches.map((batch) => at(name, batch)));
  const chart = new Chart({
    title: `${tells.title} against batch size`,
    height: TALL,
    logX: 2,
    xLabel: () => "examples an update",
    xFormat: count,
    xSplits: batches,
    lines: methods.map((label) => ({ label, format: tells.text, dots: true, gaps: true })),
    after: (plot) => bars(plot, batches, table, tells),
  });
  return { chart, data: [batches, ...table.map((row) => row.map((cell) => tells.value(cell?.mean ?? null)))] };
}

function bars(plot, batches, table, tells) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = devicePixelRatio;
  table.forEach((row, i) => {
    ctx.strokeStyle = lineColour(i);
    row.forEach((cell, j) => {
      if (!cell?.mean || !cell.std) return;
      const left = plot.valToPos(batches[j], "x", true);
      ctx.beginPath();
      ctx.moveTo(left, plot.valToPos(tells.value(cell.mean) - cell.std, "y", true));
      ctx.lineTo(left, plot.valToPos(tells.value(cell.mean) + cell.std, "y", true));
      ctx.stroke();
    });
  });
  ctx.fillStyle = colour("fault");
  ctx.font = `${12 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "center";
  batches.forEach((batch, j) => {
    // what has no error because it broke
    const broken = table.reduce(
      (sum, row) => sum + (row[j] && row[j].mean === null ? row[j].diverged : 0),
      0,
    );
    if (broken) ctx.fillText("✕", plot.valToPos(batch, "x", true), bbox.top + 12 * devicePixelRatio);
  });
  ctx.restore();
}
