// What a sweep compares by method and batch, as a table whose cells are coloured: the figures stay readable, also aloud.

import { el } from "../lib/dom.js";
import { compared, count, figure } from "../lib/format.js";

const SIGNS = { within: " ✓", beyond: " ✗" };

/** How a cell's rate followed the batch, in words. */
export function method({ rule, warmup, multiple }) {
  const gently = warmup === "none" ? "" : `, ${warmup} warm-up`;
  return `${rule}${gently}${multiple === 1 ? "" : `, ${figure(multiple)} × rate`}`;
}

/** A heat map of a report's cells: a row a method, a column a batch. */
export function heatMap(cells, question) {
  const batches = [...new Set(cells.map(({ batch }) => batch))].sort((a, b) => a - b);
  const methods = [...new Set(cells.map(method))];
  const means = cells.map(({ mean }) => mean).filter((mean) => mean !== null);
  const low = Math.min(...means),
    high = Math.max(...means);
  const tells = compared(question.metric);
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, "Rule for the learning rate"),
    batches.map((batch) => el("th", { scope: "col" }, `batch ${count(batch)}`)),
  );
  const rows = methods.map((name) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      batches.map((batch) => {
        const cell = cells.find((one) => one.batch === batch && method(one) === name);
        return cell ? filled(cell, (cell.mean - low) / (high - low || 1), tells) : el("td", { class: "void" }, "");
      }),
    ),
  );
  const base = `Base batch ${count(question.base_batch)} at rate ${figure(question.base_lr)}`;
  const signs = `; ✓ is within ${tells.gap(question.tolerance)} of its ${tells.name}, ✗ beyond, with 95 % confidence`;
  const note = `${base}${cells.some(({ mean, verdict }) => mean !== null && SIGNS[verdict]) ? signs : ""}.`;
  return el(
    "div",
    { class: "frame", tabindex: 0, role: "region", "aria-label": "Heat map" },
    el("table", { class: "heat" }, el("thead", {}, head), el("tbody", {}, rows)),
    el("p", { class: "note" }, note),
  );
}

function filled(cell, share, tells) {
  const sign = SIGNS[cell.verdict] ?? "";
  const lost = [
    ["diverged", cell.diverged],
    ["stopped", cell.stopped],
    ["missing", cell.missing],
    ["to come", cell.unfinished],
  ]
    .filter(([, number]) => number > 0)
    .map(([what, number]) => `${number} ${what}`)
    .join(", ");
  const spread = cell.std === null ? "" : ` ± ${tells.gap(cell.std)}`;
  const title = `rate ${figure(cell.lr)}, ${cell.finished} seeds${spread}${lost ? `; ${lost}` : ""}`;
  const node = el("td", { title }, cell.mean === null ? lost || "–" : `${tells.text(tells.value(cell.mean))}${sign}`);
  if (cell.mean === null) node.className = cell.diverged ? "broken" : "void";
  else
    node.style.backgroundColor = `color-mix(in oklab, var(--hot) ${Math.round(share * 100)}%, var(--cool))`;
  return node;
}
