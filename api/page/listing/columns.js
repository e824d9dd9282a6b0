// The columns that a list of jobs may have. A sweep in the list has some of them.

import { el, setText } from "../lib/dom.js";
import { count, duration, figure, metricFormat, metricTitle, moment } from "../lib/format.js";
import { badge, progressBar, setBadge, setProgress } from "../parts/widgets.js";
import { sparkLine } from "./spark.js";

/**
 * A column by its name in the address. `title`; `value(job)`: what rows are sorted by; `make()`: what a cell begins with;
 * `fill(cell, job)`: brings it up to date. Without the last two it shows `text(job)`, under its title on a phone.
 */
const KNOWN = {
  state: {
    title: "State",
    value: ({ state }) => state,
    make: () => [badge(), el("span", { class: "why" })],
    fill: (cell, job) => {
      setBadge(cell.children[0], job.state);
      setText(cell.children[1], job.state === "SUCCEEDED" ? "" : job.message);
    },
  },
  progress: {
    title: "Progress",
    value: ({ progress }) => progress,
    make: () => [progressBar()],
    fill: (cell, job) => setProgress(cell.firstElementChild, job.progress, job.eta_s),
  },
  metric: {
    title: "Metric",
    value: ({ headline_value: value }) => value,
    fill: (cell, job) => setText(cell, metricText(job)),
  },
  curve: {
    title: "Curve",
    value: ({ headline_value: value }) => value,
    fill: (cell, { curve = [], headline }) => {
      const now = JSON.stringify(curve);
      if (!headline || cell.dataset.drawn === now) return;
      cell.dataset.drawn = now;
      const [first, last] = [curve[0], curve.at(-1)].map(metricFormat(headline));
      const picture = sparkLine(curve, `${metricTitle(headline)} from ${first} to ${last}`);
      cell.replaceChildren(...(picture ? [picture] : []));
    },
  },
  loss: { title: "Loss", value: ({ loss }) => loss, text: ({ loss }) => figure(loss) },
  rate: { title: "Examples/s", value: (job) => job.examples_per_s, text: (job) => count(job.examples_per_s) },
  workers: { title: "Workers", value: (job) => job.num_workers, text: (job) => String(job.num_workers) },
  duration: { title: "Duration", value: (job) => job.wall_s, text: (job) => duration(job.wall_s) },
  algorithm: { title: "Algorithm", value: ({ algorithm }) => algorithm, text: ({ algorithm }) => algorithm },
  user: { title: "User", value: ({ user }) => user, text: ({ user }) => user },
  project: { title: "Project", value: ({ project }) => project, text: ({ project }) => project },
  priority: { title: "Priority", value: ({ priority }) => priority, text: ({ priority }) => String(priority) },
  created: { title: "Created", value: ({ created }) => created, text: ({ created }) => moment(created) },
  ended: { title: "Ended", value: ({ finished }) => finished, text: ({ finished }) => moment(finished) },
};
export const DEFAULT = ["state", "progress", "metric", "curve", "algorithm", "created"];

/** A column by its name, also of a metric that some job has measured, as `test_loss`. */
export function columnOf(name) {
  const known = KNOWN[name] ?? {
    title: metricTitle(name),
    value: ({ measured = {} }) => measured[name],
    text: ({ measured = {} }) => metricFormat(name)(measured[name]),
  };
  return { name, make: () => [], fill: (cell, job) => setText(cell, has(known.value(job)) ? known.text(job) : ""), ...known };
}

/** The names of all columns, those of what these jobs have measured among them. */
export const offered = (jobs) => [
  ...Object.keys(KNOWN),
  ...new Set(jobs.flatMap(({ measured = {} }) => Object.keys(measured)).sort()),
];

/** Whether a column's name may stand in the address: of a column, or as a metric is named. */
export const isColumn = (name) => Object.hasOwn(KNOWN, name) || /^(test|validation)_\w+$/.test(name);

/** The rows by one column, those without a value last; as they are without one. `sort`: its name, after `-` downwards. */
export function sorted(rows, sort) {
  if (!sort) return rows;
  const down = sort.startsWith("-"),
    { value } = columnOf(sort.replace(/^-/, ""));
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  return rows.toSorted((one, other) => {
    const a = value(one),
      b = value(other);
    if (!has(a) || !has(b)) return Number(!has(a)) - Number(!has(b));
    return (down ? -1 : 1) * compare(a, b);
  });
}

const has = (value) => value !== null && value !== undefined;

/** The metric by which runs of its task are compared, as it was measured last. */
function metricText({ headline, headline_value: value }) {
  return headline ? `${headline.replaceAll("_", " ")} ${metricFormat(headline)(value)}` : "";
}
