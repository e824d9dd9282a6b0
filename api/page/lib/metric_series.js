// What a run's events say over time, as columns ready to be drawn, and several runs brought onto one axis.

import { latencyFigures } from "./latency.js";
import { ENDED } from "./states.js";

/** What a curve may be drawn over. */
export const AXES = {
  epoch: "epochs",
  examples: "examples",
  step: "updates",
  time: "seconds",
};
const STEP = ["loss", "examples_per_s", "learning_rate", "gradient_norm", "noise_scale", "workers", "staleness", "stalest"];
const LATENCIES = Object.keys(latencyFigures({}));
const EVALUATION = ["test_loss", "test_accuracy"];
/** Whether a figure is a metric of the task, by its name in the log. */
export const isMeasured = (name) => /^(test|validation)_/.test(name);
export const MARKS = ["fault", "resize"];
const PAUSED = "PAUSED";

/** Rows of figures, a column each. */
class Columns {
  constructor(names) {
    this.names = [...Object.keys(AXES), ...names];
    for (const name of this.names) this[name] = [];
  }

  /** A figure that was not known until now: nothing so far. */
  add(name) {
    this[name] = this[this.names[0]].map(() => null);
    this.names.push(name);
  }

  push(row) {
    for (const name of this.names) this[name].push(row[name] ?? null);
  }
}

/** The curves of one run. */
export class Curves {
  constructor() {
    this.steps = new Columns([...STEP, ...LATENCIES]);
    this.evaluations = new Columns(EVALUATION);
    this.marks = [];
    this.state = "";
    this.begin = null;
    this.at = { epoch: 0, examples: 0, step: 0, time: 0 };
    this.runEpochs = 0; // that the whole run makes; 0 until it says so
    this.staleness = {};
  }

  /** Take in one more event. */
  add(event) {
    this.begin ??= event.time;
    this.at.time = event.time - this.begin;
    if (event.type === "step") {
      for (const axis of ["epoch", "examples", "step"]) this.at[axis] = event.data[axis];
      this.runEpochs = event.data.run_epochs;
      this.steps.push({ ...event.data, ...this.at, ...this.#stale(event.data.staleness ?? {}), ...latencyFigures(event.data) });
    } else if (event.type === "evaluation") {
      for (const name of Object.keys(event.data))
        if (isMeasured(name) && !this.evaluations.names.includes(name)) this.evaluations.add(name);
      this.evaluations.push({ ...this.at, ...event.data });
    } else if (MARKS.includes(event.type)) {
      this.marks.push({ ...this.at, type: event.type, text: sentence(event) });
    } else if (event.type === "state") {
      const { state, message = "" } = event.data;
      if (state === PAUSED && this.state !== PAUSED) this.marks.push({ ...this.at, type: "pause", text: message });
      const goesOn = this.state === PAUSED && state !== PAUSED && !ENDED.includes(state);
      if (goesOn) this.marks.push({ ...this.at, type: "resume", text: "it goes on" });
      this.state = state;
    }
  }

  /** The metrics of the task that have been measured, by their names in the log. */
  get metrics() {
    const { evaluations } = this;
    return evaluations.names.filter(
      (name) => isMeasured(name) && evaluations[name].some((value) => value !== null),
    );
  }

  /** x and y of one figure, x rising; `from` is `steps` or `evaluations`. */
  line(from, name, axis) {
    const columns = this[from];
    return rising(columns[axis], columns[name]);
  }

  /** Mean and largest staleness of the updates since the last report; the reports count from the beginning. */
  #stale(counts) {
    let updates = 0,
      sum = 0,
      largest = null;
    for (const [key, total] of Object.entries(counts)) {
      const fresh = total - (this.staleness[key] ?? 0);
      if (fresh <= 0) continue;
      updates += fresh;
      sum += fresh * Number(key);
      largest = Math.max(largest ?? 0, Number(key));
    }
    this.staleness = counts;
    return { staleness: updates ? sum / updates : null, stalest: largest };
  }
}

/** What a fault or a resize says, for people. */
export function sentence({ type, data }) {
  if (type === "fault") return `${shortName(data.actor)} ${data.why}`;
  const changes = [
    ["joined", data.joined],
    ["left", data.left],
  ].filter(([, names]) => names?.length);
  return [
    `${data.workers} worker${data.workers === 1 ? "" : "s"}${data.batch ? `, batch ${data.batch}` : ""}`,
    ...changes.map(([what, names]) => `${what}: ${names.map(shortName).join(", ")}`),
  ].join("; ");
}

/** An actor's name within its run: worker/3. */
export const shortName = (name) => String(name).split("/").slice(1).join("/") || String(name);

/** The points that no later one falls behind: what was trained again shows as it was the last time. */
export function rising(xs, ys) {
  let least = Infinity,
    ordered = true;
  const kept = [];
  for (let i = xs.length - 1; i >= 0; i--) {
    if (xs[i] !== null && xs[i] < least) {
      least = xs[i];
      kept.push(i);
    } else ordered = false;
  }
  if (ordered) return [xs, ys];
  kept.reverse();
  return [kept.map((i) => xs[i]), kept.map((i) => ys[i])];
}

/**
 * Several lines [xs, ys] on one axis of `buckets` buckets, as uPlot wants them: [x, y of the first, of the second ...].
 * Of each line a bucket keeps the least and the largest value, in their order, so that no spike is lost.
 */
export function aligned(lines, buckets = 500) {
  const ends = lines.filter(([xs]) => xs.length).flatMap(([xs]) => [xs[0], xs[xs.length - 1]]);
  if (!ends.length) return [[], ...lines.map(() => [])];
  const low = Math.min(...ends),
    span = Math.max(...ends) - low || buckets;
  // Both ends of the axis are points of it: uPlot shows no tick beyond the last one.
  const x = Array.from({ length: 2 * buckets }, (_, i) => low + (i / (2 * buckets - 1)) * span);
  return [x, ...lines.map((line) => bucketed(line, low, span / buckets, buckets))];
}

function bucketed([xs, ys], low, width, buckets) {
  const found = new Array(2 * buckets).fill(null);
  let first = 0;
  while (first < xs.length) {
    const bucket = Math.min(buckets - 1, Math.floor((xs[first] - low) / width));
    let least = -1,
      largest = -1,
      i = first;
    for (; i < xs.length && Math.min(buckets - 1, Math.floor((xs[i] - low) / width)) === bucket; i++) {
      if (ys[i] === null) continue;
      if (least < 0 || ys[i] < ys[least]) least = i;
      if (largest < 0 || ys[i] > ys[largest]) largest = i;
    }
    if (least >= 0) {
      found[2 * bucket] = ys[Math.min(least, largest)];
      found[2 * bucket + 1] = ys[Math.max(least, largest)];
    }
    first = i;
  }
  return found;
}
