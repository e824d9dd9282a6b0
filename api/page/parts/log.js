// A run's log for people, as it grows.

import { el } from "../lib/dom.js";
import { clock, count } from "../lib/format.js";
import { MARKS, sentence } from "../lib/metric_series.js";

const MOST = 500;
const NEAR_PX = 40;

/** A log that shows its last lines, and follows its end as long as the reader is there. */
export function logPanel() {
  const list = el("ol");
  const frame = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: 0 }, list);
  const search = el("input", { type: "search", "aria-label": "Search the log", placeholder: "worker 2, or a text" });
  const show = (line) => (line.hidden = !line.textContent.toLowerCase().includes(search.value.toLowerCase()));
  search.addEventListener("input", () => [...list.children].forEach(show));
  return {
    element: el("div", {}, search, frame),
    add(event) {
      const line = sentenceOf(event);
      if (!line) return;
      const atEnd = frame.scrollHeight - frame.scrollTop - frame.clientHeight < NEAR_PX;
      list.append(el("li", { "data-level": line.level }, el("time", {}, clock(event.time)), " ", line.text));
      show(list.lastElementChild);
      if (list.children.length > MOST) list.firstElementChild.remove();
      if (atEnd) frame.scrollTop = frame.scrollHeight;
    },
  };
}

function audit({ epoch, trained, lost, duplicated }) {
  const text = `epoch ${epoch}: ${count(trained)} examples trained, ${count(lost)} lost, ${count(duplicated)} twice`;
  return { level: lost || duplicated ? "error" : "info", text };
}

function request({ action, by, ...asked }) {
  const what = Object.entries(asked).map(([name, value]) => `, ${name} ${value}`);
  return `REQUEST ${action}${what.join("")}, by ${by.user} from ${by.address || "this machine"}`;
}

/** What became of a trace; nothing while it is recorded. */
function traced({ worker, steps, asked, file, why }) {
  if (file === undefined && why === undefined) return null;
  const text = `worker/${worker}, ${steps} of ${asked} steps${file ? ` in traces/${file}` : ""}${why ? `: ${why}` : ""}`;
  return { level: file ? "info" : "warning", text: `TRACE ${text}` };
}

function sentenceOf({ type, data }) {
  if (type === "log" && data.actor)
    return { level: data.level, text: `${data.actor.replace("/", " ")} | ${data.message}` };
  if (type === "log") return { level: data.level ?? "info", text: data.message ?? "" };
  if (type === "warning") return { level: "warning", text: data.message };
  if (type === "state")
    return {
      level: data.state === "FAILED" ? "error" : "state",
      text: `${data.state} ${data.message || data.reason || ""}`,
    };
  if (type === "request") return { level: "info", text: request(data) };
  if (MARKS.includes(type)) return { level: "warning", text: `${type.toUpperCase()} ${sentence({ type, data })}` };
  if (type === "epoch_audit") return audit(data);
  if (type === "trace") return traced(data);
  return null;
}
