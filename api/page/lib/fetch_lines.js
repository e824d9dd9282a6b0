// One figure of several runs, thinned out by the service.

import { api } from "./http.js";
import { rising } from "./metric_series.js";

const POINTS = 400;
const TOGETHER = 200;

/** For each run x and y of the figure over an axis; null of one that is not there any more. */
export async function fetchLines(ids, name, axis, signal) {
  const found = [];
  for (let first = 0; first < ids.length; first += TOGETHER) {
    const query = new URLSearchParams({ name, x: axis, points: POINTS });
    for (const id of ids.slice(first, first + TOGETHER)) query.append("job", id);
    found.push(...(await api(`v1/metrics?${query}`, { signal })).lines);
  }
  return found.map(
    (line) =>
      line &&
      rising(
        line.points.map(([x]) => x),
        line.points.map(([, y]) => y),
      ),
  );
}
