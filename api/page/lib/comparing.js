// What several runs have in common and what not: their curves smoothed and grouped, and how their specs differ.

import { word } from "./format.js";

const UNTOLD = new Set(["name", "labels"]); // they stand beside it

/** A line [xs, ys] with its values averaged exponentially, as TensorBoard smooths: weight 0 leaves it as it is. */
export function smoothed([xs, ys], weight) {
  if (!weight) return [xs, ys];
  let sum = 0,
    share = 0;
  return [
    xs,
    ys.map((y) => {
      if (y === null) return null;
      sum = weight * sum + (1 - weight) * y;
      share = weight * share + (1 - weight);
      return sum / share;
    }),
  ];
}

/** A line without the points that a logarithmic axis has no place for. */
export function positive([xs, ys], { logX, logY }) {
  if (!logX && !logY) return [xs, ys];
  const kept = xs.map((x, i) => i).filter((i) => (!logX || xs[i] > 0) && (!logY || ys[i] === null || ys[i] > 0));
  return [kept.map((i) => xs[i]), kept.map((i) => ys[i])];
}

/** The values between the first and the last, those that are missing taken from their neighbours. */
export function filled(ys) {
  const found = ys.slice();
  let last = -1;
  for (let i = 0; i < ys.length; i++) {
    if (ys[i] === null) continue;
    if (last >= 0) {
      for (let k = last + 1; k < i; k++) found[k] = ys[last] + ((ys[i] - ys[last]) * (k - last)) / (i - last);
    }
    last = i;
  }
  return found;
}

/** Mean, least and largest value of some lines at each place, each column [values]; null where none has one. */
export function spread(lines) {
  const whole = lines.map(filled);
  const at = (fn) =>
    (lines[0] ?? []).map((_, i) => {
      const values = whole.map((ys) => ys[i]).filter((y) => y !== null);
      return values.length ? fn(values) : null;
    });
  return {
    mean: at((values) => values.reduce((a, b) => a + b) / values.length),
    low: at((values) => Math.min(...values)),
    high: at((values) => Math.max(...values)),
  };
}

/** The fields in which specs differ: `optimizer.lr` -> what each says, as a text. null: nothing is known of a run. */
export function differences(specs) {
  const flat = specs.map((spec) => spec && new Map(leaves(spec)));
  const known = flat.filter(Boolean);
  const names = new Set(known.flatMap((fields) => [...fields.keys()]));
  const found = new Map();
  for (const name of names) {
    const told = flat.map((fields) => (fields ? (fields.get(name) ?? "–") : ""));
    if (new Set(told.filter((_, i) => flat[i])).size > 1) found.set(name, told);
  }
  return found;
}

function* leaves(value, path = "") {
  for (const [key, inner] of Object.entries(value)) {
    if (!path && UNTOLD.has(key)) continue;
    const name = path ? `${path}.${key}` : key;
    if (inner !== null && typeof inner === "object" && !Array.isArray(inner)) yield* leaves(inner, name);
    else yield [name, word(inner)];
  }
}

/** Runs by what they say: [{ label, members }], in the order in which they come. */
export function groups(told) {
  const found = new Map();
  told.forEach((text, i) => found.set(text, [...(found.get(text) ?? []), i]));
  return [...found].map(([label, members]) => ({ label, members }));
}

/** Rows as CSV (RFC 4180). A text that a spreadsheet would compute is given an apostrophe. */
export function csv(rows) {
  const cell = (value) => {
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value ?? "") ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}
