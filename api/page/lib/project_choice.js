// A choice among the projects that there are, and the project that a spec names. With the default one alone there is
// nothing to choose.

import { el } from "./dom.js";
import { api } from "./http.js";

export const DEFAULT = "default";

/**
 * A select of the projects that there are, hidden where there is one; `chosen` is there from the first. `named` tells
 * which one a text names that may have been written before the list has come.
 */
export function projectSelect(chosen, none, signal, changed, named) {
  const select = el("select", { "aria-label": "Project", hidden: !chosen, onchange: changed });
  const fill = (names) => {
    const all = [...new Set(chosen ? [...names, chosen] : names)];
    select.replaceChildren(
      ...(none ? [el("option", { value: "" }, none)] : []),
      ...all.map((name) => el("option", { value: name, selected: name === chosen }, none ? name : `project ${name}`)),
    );
    select.hidden = all.length < 2 && !chosen;
  };
  fill([]);
  api("v1/projects", { signal }).then(
    ({ projects }) => {
      chosen = select.value;
      fill(projects.map(({ name }) => name));
      if (named) select.value = named();
    },
    () => {}, // without the list there is no choice
  );
  return select;
}

/** The spec with another project in it, as YAML in block style; of a sweep in its `job`. */
export function withProject(text, name) {
  if (/^\s*\{/.test(text)) return text; // JSON is left as it is written
  const isSweep = /^job\s*:\s*$/m.test(text);
  const indent = isSweep ? "  " : "";
  const line = name === DEFAULT ? "" : `${indent}project: ${name}\n`;
  const there = new RegExp(`^${indent}project\\s*:.*\\n?`, "m");
  if (there.test(text)) return text.replace(there, line);
  if (isSweep) return text.replace(/^job\s*:\s*\n/m, (job) => job + line);
  return text.replace(/^(name\s*:.*\n)?/, (head) => head + line);
}

/** The project that a spec in block style names. */
export function projectOf(text) {
  const found = /^(?: {2})?project\s*:\s*["']?([A-Za-z0-9._-]+)/m.exec(text);
  return found ? found[1] : DEFAULT;
}
