// Asks the service for plans.

import { api } from "./http.js";

const YAML = "application/yaml";

const inner = (text) =>
  text
    .split("\n")
    .map((line) => `  ${line}`)
    .join("\n");

/** The plan of a spec's text (YAML or JSON), with other fields of the request, as texts of YAML; empty ones are left out. */
export async function planOf(spec, asked, signal) {
  const others = Object.entries(asked).filter(([, text]) => text.trim());
  const body = [["spec", spec.trim() ? spec : "{}"], ...others].map(([name, text]) => `${name}:\n${inner(text)}\n`).join("");
  return api("v1/plans", { method: "POST", body, type: YAML, signal });
}

/** Whether we may ask for plans: viewers may not, and each refusal would stand in the audit. */
export async function mayPlan(signal) {
  return (await api("v1/me", { signal })).role !== "viewer";
}
