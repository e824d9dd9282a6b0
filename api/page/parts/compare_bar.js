// What can be chosen of a comparison: the figure, its axes, how it is smoothed and grouped.

import { el, setText } from "../lib/dom.js";
import { AXES } from "../lib/metric_series.js";

const SMOOTHEST = 0.99;

/**
 * `looks`: of the comparison, as the address says them; `names`: figure -> its title. `go(changes)`: another figure or axis
 * is wanted; `change(changes)`: another look of the same lines.
 */
export class CompareBar {
  constructor(looks, names, { go, change }) {
    this.looks = looks;
    this.figures = select("Figure", Object.entries(names), looks.figure, (figure) => go({ figure }));
    this.groups = select("Group by", [["", "each run by itself"]], "", (group) => change({ group }));
    const over = select("Over", Object.entries(AXES), looks.over, (value) => go({ over: value }));
    const weight = el("output", { class: "number" }, String(looks.smooth));
    const smooth = el("input", {
      type: "range", min: 0, max: SMOOTHEST, step: 0.01, value: looks.smooth, "aria-label": "Smoothing",
      oninput: () => {
        setText(weight, smooth.value);
        change({ smooth: Number(smooth.value) });
      },
    });
    const log = (key, label) => {
      const box = el("input", { type: "checkbox", checked: looks[key], onchange: () => change({ [key]: box.checked }) });
      return el("label", { class: "check" }, box, label);
    };
    this.element = el(
      "div",
      { class: "filters", role: "group", "aria-label": "What is drawn" },
      this.figures,
      el("label", { class: "check" }, "over", over),
      log("logX", "log x"),
      log("logY", "log y"),
      el("label", { class: "check" }, "smoothed", smooth, weight),
      el("label", { class: "check" }, "grouped by", this.groups),
    );
  }

  /** Offer the metrics that the runs have measured, too: [name, title], those of validation sets first. */
  offerFigures(pairs) {
    const known = new Set([...this.figures.options].map(({ value }) => value));
    const before = this.figures.querySelector("option[value=test_loss]");
    for (const [value, title] of pairs) {
      if (known.has(value)) continue;
      known.add(value);
      if (value.startsWith("validation_")) before.before(el("option", { value }, title));
      else this.figures.append(el("option", { value }, title));
    }
  }

  /** Offer the fields in which the runs differ. */
  offerGroups(fields) {
    this.groups.append(...fields.map((name) => el("option", { value: name, selected: name === this.looks.group }, name)));
  }
}

function select(label, pairs, now, chosen) {
  const options = pairs.map(([value, text]) => el("option", { value, selected: value === now }, text));
  return el("select", { "aria-label": label, onchange: (event) => chosen(event.target.value) }, options);
}
