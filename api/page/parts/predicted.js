// What was predicted of a job beside what is measured, part by part.

import { partsOf } from "./stack.js";
import { table } from "./widgets.js";
import { el, setText } from "../lib/dom.js";
import { count, figure, percent } from "../lib/format.js";
import { mayPlan, planOf } from "../lib/planning.js";

const MEASURED = { computing: "compute_s", data: "wait_data_s", "exchanges and waits": "wait_communication_s" };

const HEADINGS = ["ms of a worker for an example", "predicted", "measured", "measured to predicted"];

/** The panel. It is hidden where no profile of the job's step is kept. */
export function predictedPanel(signal) {
  const body = el("tbody");
  const said = el("p", { class: "note" });
  const frame = table("Predicted and measured", HEADINGS, body);
  const element = el("section", { hidden: true }, el("h2", {}, "Predicted and measured"), said, frame);
  const sums = { examples: 0, seconds: 0, compute_s: 0, wait_data_s: 0, wait_communication_s: 0 };
  let predicted = null,
    last = null,
    ended = null; // what the run itself says once it is over

  function measured() {
    if (ended) return { rate: ended.measured_per_s, part: (name) => 1000 * ended.parts[name].measured_s };
    const rate = sums.seconds ? sums.examples / sums.seconds : null;
    return { rate, part: (name) => (1000 * sums[MEASURED[name]]) / sums.examples };
  }

  function draw() {
    if (!predicted || !(ended || sums.examples)) return;
    const { rate, part } = measured();
    const rows = Object.keys(MEASURED).map((name) => [name, predicted.parts[name], part(name)]);
    const off = rows.toSorted((a, b) => Math.abs(b[2] - b[1]) - Math.abs(a[2] - a[1]))[0];
    const told = rate === null ? "" : `, ${count(rate)} measured (${percent(predicted.rate / rate - 1)} off)`;
    setText(said, `${count(predicted.rate)} examples a second predicted from ${predicted.basis}${told}. Furthest off: ${off[0]}.`);
    body.replaceChildren(
      ...rows.map(([name, before, after]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          [figure(before), figure(after), before > 0 ? percent(after / before) : "–"].map((text, i) =>
            el("td", { class: "number", "data-label": HEADINGS[i + 1] }, text),
          ),
        ),
      ),
    );
    element.hidden = false;
  }

  return {
    element,
    /** Ask for the prediction, once. */
    async ask(spec) {
      try {
        if (!(await mayPlan(signal))) return;
        const plan = await planOf(JSON.stringify(spec), { workers: `[${spec.workers.count}]` }, signal);
        const [found] = plan.candidates;
        const scale = (1000 * found.workers) / (found.examples_per_s * found.step_s);
        const [[, computing], [, data], ...others] = partsOf(found);
        const rest = others.reduce((sum, [, seconds]) => sum + seconds, 0);
        const parts = { computing: scale * computing, data: scale * data, "exchanges and waits": scale * rest };
        predicted ??= { rate: found.examples_per_s, basis: plan.basis, parts };
        draw();
      } catch {
        // nothing is known of this minibatch here, or the plan does not cover the job: then there is nothing to compare
      }
    },
    /** Take in a step of the log; the first one only begins the time. */
    add({ time, data }) {
      if (last) {
        sums.seconds += time - last.time;
        sums.examples += data.examples - last.examples;
        for (const name of Object.values(MEASURED)) sums[name] += data[name] ?? 0;
      }
      last = { time, examples: data.examples };
    },
    /** Take in what the result of the run says. */
    end({ predicted: told }) {
      if (!told) return;
      ended = told;
      const parts = Object.entries(told.parts).map(([name, { predicted_s }]) => [name, 1000 * predicted_s]);
      predicted = { rate: told.predicted_per_s, basis: told.basis, parts: Object.fromEntries(parts) };
      draw();
    },
    draw,
  };
}
