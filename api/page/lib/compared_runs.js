// Which runs are compared, and what the service knows of each.

import { count, duration, figure, metricFormat, metricTitle } from "./format.js";
import { api } from "./http.js";
import { isMeasured } from "./metric_series.js";
import { ENDED } from "./states.js";

export const RECENT = 12;
const MOST_READ = 60; // runs of which all is read; a job in full takes a request

/** The runs that the address names: `jobs`, ids with commas between, or else the last jobs; `sweep`: all trials of one. */
export async function chosen(query, signal) {
  if (query.get("sweep")) {
    const sweep = await api(`v1/sweeps/${encodeURIComponent(query.get("sweep"))}`, { signal });
    return sweep.results.filter(({ starts }) => starts > 0).map((trial) => ofTrial(trial, sweep.metric));
  }
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean);
  const { jobs } = await api(`v1/jobs?page_size=${ids.length ? 200 : RECENT}`, { signal });
  if (!ids.length) return jobs;
  const known = new Map(jobs.map((job) => [job.id, job]));
  return Promise.all(ids.map((id) => known.get(id) ?? api(`v1/jobs/${encodeURIComponent(id)}`, { signal })));
}

function ofTrial({ id, number, settings, state, value }, { name, measured_on: set = "test" }) {
  const ended = [...ENDED, "STOPPED"].includes(state);
  const metrics = [`${set}_${name === "error" ? "accuracy" : name}`];
  const facts = [{ title: metricTitle(`${set}_${name}`), value, show: metricFormat(name, 2) }];
  return { id, name: `trial ${number}`, isTrial: true, state, finished: ended ? 0 : null, metrics, spec: settings, facts };
}

/** The runs with all that is known of them: `spec`, `metrics` that they have measured, `facts` [{ title, value, show }] for a table. */
export async function told(runs, signal) {
  return Promise.all(runs.map((run, i) => (run.spec || i >= MOST_READ ? { facts: [], metrics: [], ...run } : read(run, signal))));
}

/** A job as it is now; what was known of it, if it has been removed since. */
export async function read(run, signal) {
  const job = await api(`v1/jobs/${encodeURIComponent(run.id)}`, { signal }).catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  });
  if (!job) return { facts: [], metrics: [], ...run, finished: run.finished ?? 0 };
  if (run.isTrial) return { ...run, state: job.state, finished: job.finished };
  const judged = Object.keys(job.result.validation ?? {}).map((name) => `validation_${name}`);
  const last = Object.keys(job.evaluation ?? {}).filter((name) => isMeasured(name) && !name.endsWith("_error_median"));
  return { ...job, spec: withLabels(job), metrics: [...judged, ...last], facts: factsOf(job) };
}

function withLabels({ spec, labels }) {
  const given = Object.entries(labels).map(([key, value]) => [`label ${key}`, value]);
  return { ...spec, ...Object.fromEntries(given) };
}

function factsOf({ result, headline, headline_value: value }) {
  return [
    ...(headline ? [{ title: `Evaluated ${headline.replaceAll("_", " ")}`, value, show: metricFormat(headline, 2) }] : []),
    { title: "Epochs", value: result.epochs, show: figure },
    { title: "Examples", value: result.examples, show: count },
    { title: "Took", value: result.wall_s, show: duration },
  ];
}
