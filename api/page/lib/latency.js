// How long fetches and pushes took, from counts by bucket as the log has them.

import { microseconds } from "./format.js";

const PER_OCTAVE = 4; // as in trainers/latency.py: bucket i ends at 2^((i + 1) / 4) microseconds
export const SHARES = [0.5, 0.9, 0.99];
/** What calls are called. */
export const KINDS = { fetch: "fetches", push: "pushes" };

/** The upper bound of a bucket, microseconds. */
const bound = (bucket) => 2 ** ((bucket + 1) / PER_OCTAVE);

/** Buckets with their counts, from the shortest times to the longest. */
function ordered(counts) {
  return Object.entries(counts)
    .map(([bucket, number]) => [Number(bucket), number])
    .sort(([one], [other]) => one - other);
}

/** Within how many microseconds a share of the calls was over; null where there were none. */
export function quantile(counts, share) {
  const buckets = ordered(counts ?? {});
  const wanted = share * total(counts ?? {});
  let before = 0;
  for (const [bucket, number] of buckets) {
    if (before + number >= wanted) return bound(bucket) * 2 ** (((wanted - before) / number - 1) / PER_OCTAVE);
    before += number;
  }
  return null;
}

/** The percentiles of a step event as figures of it, seconds. */
export function latencyFigures(data) {
  const found = {};
  for (const kind of Object.keys(KINDS)) {
    for (const share of SHARES) {
      const us = quantile(data[`${kind}_latency`], share);
      found[`${kind}_p${100 * share}_s`] = us === null ? null : us / 1e6;
    }
  }
  return found;
}

/** Seconds as they are read: 340 µs, 12.3 ms. */
export const secondsText = (value) => (value === null || value === undefined ? "–" : microseconds(value * 1e6));

/** How many calls were counted. */
export const total = (counts) => Object.values(counts).reduce((sum, number) => sum + number, 0);

/** Where an axis from one time to another has its ticks: 1, 10, 100 ..., and of a short one 2 and 5 times that too. */
export function decades(low, high) {
  const steps = high / low > 300 ? [1] : [1, 2, 5];
  const powers = Array.from({ length: 12 }, (_, i) => 10 ** i);
  return powers.flatMap((power) => steps.map((step) => step * power)).filter((tick) => tick >= low && tick <= high);
}

/** Columns for uPlot: where each bucket begins, microseconds, and how many calls of each kind are in it. */
export function histogram(kinds) {
  const known = kinds.flatMap((counts) => Object.keys(counts).map(Number));
  const first = Math.min(...known),
    width = known.length ? Math.max(...known) - first + 2 : 0; // an empty one at the end, where the last step falls
  const buckets = Array.from({ length: width }, (_, i) => first + i);
  return [buckets.map((bucket) => bound(bucket - 1)), ...kinds.map((counts) => buckets.map((bucket) => counts[bucket] ?? 0))];
}
