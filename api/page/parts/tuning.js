// What a sweep says that varies no batch: its best settings, which axes matter, and all of them as lines.

import { el, link } from "../lib/dom.js";
import { compared, count, figure, percent, word } from "../lib/format.js";
import { parallelCoordinates } from "./parallel.js";
import { answerList, table } from "./widgets.js";

/** A tuning report. `trials`: those of the sweep, by which the best is found. */
export function tuningReport(report, trials) {
  const tells = compared(report.question.metric);
  const lines = report.combinations
    .filter(({ mean }) => mean !== null)
    .map((one) => ({ settings: one.settings, cost: one.mean, text: inWords(one, tells) }));
  return el(
    "section",
    {},
    el("h2", {}, "What it says"),
    answerList(report.answer),
    report.best && best(report.best, trials),
    report.importances.length > 0 && importances(report.importances),
    lines.length > 1 && [
      el("h3", {}, "All settings"),
      parallelCoordinates(lines, tells.title, (cost) => tells.text(tells.value(cost))),
    ],
  );
}

function best({ trials: ids }, trials) {
  const found = trials.filter(({ id }) => ids.includes(id));
  return el(
    "p",
    { class: "note" },
    found.length > 1 ? "The best trials: " : "The best trial: ",
    found.map(({ id, number }, i) => [i > 0 && ", ", link(`#/jobs/${id}`, `trial ${number}`)]),
  );
}

function importances(found) {
  const frame = table("How much each axis matters", ["Axis", "Share of the differences", "Trials"]);
  frame.querySelector("tbody").append(
    ...found.map(({ axis, share, trials }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, axis),
        el(
          "td",
          { "data-label": "Share of the differences" },
          el("meter", { value: share, min: 0, max: 1, "aria-label": `Share of ${axis}` }),
          ` ${percent(share)}`,
        ),
        el("td", { class: "number", "data-label": "Trials" }, count(trials)),
      ),
    ),
  );
  return [el("h3", {}, "How much each axis matters"), frame];
}

function inWords({ settings, mean, finished, stopped }, tells) {
  const words = Object.entries(settings).map(
    ([axis, value]) => `${axis} ${typeof value === "number" ? figure(value) : word(value)}`,
  );
  const seeds = [finished && `${finished} finished`, stopped && `${stopped} stopped`].filter(Boolean).join(", ");
  return `${words.join(", ")}: ${tells.text(tells.value(mean))} (${seeds})`;
}
