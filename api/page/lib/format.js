// Figures as people read them.

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A whole number: 28,740. */
export const count = (value) => (value === null || value === undefined ? "–" : COUNT.format(value));

/** Four digits that count: 0.0342, 19.12; "–" where there is none. */
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0 || (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6)) return String(Number(value.toPrecision(4)));
  return value.toExponential(2);
}

/** 0.5 as 50 %. */
export const percent = (value, digits = 0) =>
  value === null || value === undefined ? "–" : `${(value * 100).toFixed(digits)} %`;

/** Seconds in the two largest units: 2 h 5 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Microseconds as they are read: 340 µs, 12.3 ms, 1.2 s. `step`: between two of them, where they stand on an axis. */
export function microseconds(value, step = 0) {
  const [by, unit] = Math.max(value, step) < 1000 ? [1, "µs"] : Math.max(value, step) < 1e6 ? [1000, "ms"] : [1e6, "s"];
  return `${Number((value / by).toPrecision(step ? 6 : 3))} ${unit}`;
}

/** A moment, from seconds since 1970, on one line. */
export const moment = (seconds) => WHEN.format(new Date(seconds * 1000)).replaceAll(" ", "\u00a0");

/** Hours, minutes and seconds of a moment. */
export const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

/** Any JSON value in a table's cell. */
export const word = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** `test_bits_per_byte` as people read it. */
export function metricTitle(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

/** How values of a task's metric are written: shares of the test examples in percent. */
export const metricFormat =
  (name, digits = 1) =>
  (value) =>
    name.endsWith("accuracy") || name === "error" || name.endsWith("_error_median")
      ? percent(value, digits)
      : figure(value);

/** What a sweep compares: its words, and how values, costs (of which less is better) and gaps are written. */
export function compared({ name, higher_is_better, measured_on = "test" } = { name: "error" }) {
  const text = metricFormat(name, 2);
  return {
    name,
    title: metricTitle(`${measured_on}_${name}`),
    text,
    gap: text,
    value: (cost) => (cost === null || !higher_is_better ? cost : -cost),
  };
}

/** A JSON pointer as people, and `--set`, write it: `workers.count`, `axes.batch[0]`. */
export const pathOf = (pointer) =>
  pointer
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"))
    .map((part, i) => (/^\d+$/.test(part) ? `[${part}]` : i ? `.${part}` : part))
    .join("");

/** A sentence of a report as several: what stands between semicolons is one. */
export const sentences = (text) =>
  text
    .split("; ")
    .map((part) => part.trim())
    .filter(Boolean)
    .map((part) => part[0].toUpperCase() + part.slice(1))
    .map((part) => (/[.?!]$/.test(part) ? part : `${part}.`));
