// How long the fetches and pushes of a job took: percentiles, and a histogram.

import { Chart } from "../parts/chart.js";
import { section, table } from "../parts/widgets.js";
import { el } from "../lib/dom.js";
import { count, microseconds } from "../lib/format.js";
import { decades, histogram, KINDS, quantile, SHARES, total } from "../lib/latency.js";

const COLUMNS = ["calls", "number", ...SHARES.map((share) => `p${100 * share}`)];
const MEANING =
  "A fetch takes from asking to the last shard's answer, a push until the worker hears that all shards have applied it.";

/** The panel; hidden while nothing was fetched or pushed. */
export function latencyPanel() {
  const totals = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, {}]));
  const body = el("tbody");
  const numbers = () => Object.values(totals).map(total);
  const ticks = []; // filled before it is drawn
  const chart = new Chart({
    title: "How long a call took",
    lines: Object.values(KINDS).map((label) => ({ label, format: count, stepped: true })),
    zero: true,
    logX: 10,
    xSplits: ticks,
    xFormat: (us) => microseconds(us),
    atRest: (i) => `${count(numbers()[i])} in all`,
  });
  const element = section("Fetches and pushes", el("p", { class: "note" }, MEANING), table("Latency", COLUMNS, body), chart.element);
  element.hidden = true;

  function row(kind) {
    const counts = totals[kind];
    const told = SHARES.map((share) => quantile(counts, share)).map((us) => (us === null ? "–" : microseconds(us)));
    const cells = [count(total(counts)), ...told];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, KINDS[kind]),
      cells.map((text, i) => el("td", { class: "number", "data-label": COLUMNS[i + 1] }, text)),
    );
  }

  return {
    element,
    /** Take in a step of the log. */
    add({ data }) {
      for (const [kind, counts] of Object.entries(totals))
        for (const [bucket, number] of Object.entries(data[`${kind}_latency`] ?? {}))
          counts[bucket] = (counts[bucket] ?? 0) + number;
    },
    /** Show what there is. */
    draw() {
      if (numbers().every((number) => number === 0)) return;
      element.hidden = false;
      body.replaceChildren(...Object.keys(KINDS).map(row));
      const columns = histogram(Object.values(totals));
      ticks.splice(0, ticks.length, ...decades(columns[0][0], columns[0].at(-1)));
      chart.draw(columns);
    },
    close: () => chart.close(),
  };
}
