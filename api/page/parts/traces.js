// The traces of a run: what is being recorded, what was, and one of them drawn.

import { announce, el, setText } from "../lib/dom.js";
import { count, figure, microseconds, moment, percent } from "../lib/format.js";
import { blob, download, post } from "../lib/http.js";
import { readTrace } from "../lib/trace.js";
import { FlameChart } from "./flame.js";
import { actionButton, table } from "./widgets.js";

const KEPT = 5;
const MOST_STEPS = 100;
const COLUMNS = ["Worker", "Steps", "KB", "Recorded", ""];
const SHARES = ["Time a step", "Share", "Times a step"];

/** A panel that is filled by `trace` events. `record(steps, worker)` has one made, and draws it when it is there. */
export function tracesPanel(id) {
  const path = `v1/jobs/${encodeURIComponent(id)}/traces`;
  const body = el("tbody"),
    drawn = el("div"),
    none = el("p", { class: "note" }, "None yet. A trace shows what a worker does in a step. The button Trace takes one while the job runs."),
    now = el("p", { class: "number", hidden: true });
  const list = table("Traces", COLUMNS, body);
  list.hidden = true;
  let chart = null,
    last = null, // the last one that is there: the number of its event, and how it is drawn
    wanted = Infinity; // the number of the event that began the trace that is to be drawn

  async function draw(name) {
    const trace = await readTrace(await blob(`${path}/${encodeURIComponent(name)}`));
    chart?.close();
    chart = new FlameChart(trace);
    drawn.replaceChildren(el("h3", {}, `${name.replace(".json.gz", "")}`), chart.element, shares(trace));
    chart.draw();
    announce(`The trace of ${trace.steps.length} steps is drawn`);
  }

  function add(event) {
    const { worker, steps, asked, file, bytes, why } = event.data;
    const isOver = file !== undefined || why !== undefined;
    now.hidden = isOver && !why;
    none.hidden = true;
    setText(now, isOver ? `worker/${worker}: ${steps} of ${asked} steps, ${why}` : `worker/${worker} records: ${steps} of ${asked} steps`);
    if (file === undefined) return;
    list.hidden = false;
    const buttons = [
      actionButton("Draw", "quiet", () => draw(file)),
      actionButton("Download", "quiet", () => download(`${path}/${encodeURIComponent(file)}`, `${id}-${file}`)),
    ];
    const cells = [`worker/${worker}`, count(steps), count(bytes / 1000), moment(event.time), el("span", { class: "buttons" }, buttons)];
    body.prepend(el("tr", {}, cells.map((cell, i) => el("td", labelled(COLUMNS[i]), cell))));
    if (body.children.length > KEPT) body.lastElementChild.remove();
    last = { seq: event.seq, button: buttons[0] };
    drawWanted();
  }

  /** Draw the trace that was asked for here, if it is there: the stream may tell of it before its request is answered. */
  function drawWanted() {
    if (!last || last.seq < wanted) return;
    wanted = Infinity;
    last.button.click();
  }

  async function record(steps, worker) {
    wanted = (await post(path, { steps, worker })).event;
    announce(`${steps} steps are recorded`);
    drawWanted();
  }

  return { element: el("div", {}, now, none, list, drawn), add, record, isEmpty: () => !none.hidden, close: () => chart?.close() };
}

/** What is to be recorded, for a dialog: the fields, and what they say. */
export function traceFields() {
  const number = { type: "number", max: MOST_STEPS, min: 1 };
  const steps = el("input", { ...number, value: 10, required: true });
  const worker = el("input", { ...number, min: 0, max: 1e9, placeholder: "the first" });
  return {
    content: [
      el("p", {}, "One worker records its next steps while the job trains. The result stays the same."),
      el("label", { class: "check" }, "Steps ", steps),
      el("label", { class: "check" }, "Worker ", worker),
    ],
    values: () => [Number(steps.value), worker.value === "" ? null : Number(worker.value)],
  };
}

/** What a cell is called where the screen has no room for the head of its table. */
const labelled = (name) => (name ? { "data-label": name } : {});

function shares(trace) {
  const rows = (found) =>
    found.map(({ name, us, share, times }) =>
      el(
        "tr",
        {},
        el("td", {}, name),
        [microseconds(us), percent(share, 1), figure(times)].map((cell, i) =>
          el("td", { class: "number", ...labelled(SHARES[i]) }, cell),
        ),
      ),
    );
  const titled = (title, first, found) =>
    el("div", {}, el("h3", {}, title), table(title, [first, ...SHARES], el("tbody", {}, rows(found))));
  return el(
    "div",
    { class: "columns" },
    titled("Parts of a step", "Part", trace.parts),
    titled("Operators", "Operator", trace.operators),
  );
}
