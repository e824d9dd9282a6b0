// Small parts that several views share.

import { announce, dialog, el, setText } from "../lib/dom.js";
import { duration, pathOf, percent, sentences } from "../lib/format.js";
import { sleep } from "../lib/http.js";

/** A state: a word, its colour being only a help. */
export function badge(state = "") {
  return el("span", { class: "badge", "data-state": state }, state);
}

/** Bring a badge up to date. */
export function setBadge(node, state) {
  node.dataset.state = state;
  setText(node, state);
}

/** Progress with its figure and what is left. */
export function progressBar() {
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Progress" });
  return el("span", { class: "progress" }, bar, el("span", { class: "share" }), el("span", { class: "left" }));
}

/** Bring a progress bar up to date. */
export function setProgress(node, share, etaS) {
  const [bar, figure, left] = node.children;
  bar.value = share;
  setText(figure, percent(share));
  setText(left, etaS === null || etaS === undefined ? "" : `${duration(etaS)} left`);
}

/** A heading with what stands beside it. */
export const heading = (title, ...beside) => el("div", { class: "heading" }, el("h1", {}, title), ...beside);

/** A section with its title. */
export function section(title, ...content) {
  return el("section", {}, el("h2", {}, title), ...content);
}

/** A table in a frame that scrolls by itself where the screen is narrow. */
export function table(label, columns, body = el("tbody")) {
  const head = el(
    "thead",
    {},
    el(
      "tr",
      {},
      columns.map((name) => el("th", { scope: "col" }, name)),
    ),
  );
  return el("div", { class: "frame", tabindex: 0, role: "region", "aria-label": label }, el("table", {}, head, body));
}

/** Labelled values, as a list of definitions. */
export function facts(pairs) {
  return el(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** A path, which breaks behind its slashes. */
export const folder = (path) => el("code", {}, path.split(/(?<=\/)/).flatMap((part) => [part, el("wbr")]));

/** Call `fn` now and again after each `ms`, until the signal comes; not while nobody looks. What there is not: `isGone`. */
export async function every(ms, signal, fn, isGone = null) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await fn();
        trouble("");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404 && isGone) return isGone();
        trouble(error.message);
        if (error.status === 404) return;
      }
    }
    await sleep(ms, signal);
  }
}

/** In a view's place where there is no `kind` of this id: says so, and leads back to the list at `list`. */
export function absent(kind, id, list) {
  document.title = `No such ${kind} · Millrace`;
  const back = el("a", { href: `#/${list}` }, `All ${list}`);
  return el("div", {}, heading(`No such ${kind}`), el("p", {}, `There is no ${kind} ${id}, or it has been deleted. `, back));
}

/** What keeps the page from showing what there is, at its top; nothing where all is well. */
export function trouble(text) {
  tell("trouble", text);
}

/** What the service did not do, and why; it stands until something else is done. */
export function refusal(text) {
  tell("refusal", text);
}

function tell(id, text) {
  const node = document.getElementById(id);
  node.hidden = text === "";
  setText(node, text);
}

/** A button whose work may be refused: then the reason stands at the page's top. */
export function actionButton(label, kind, work) {
  const button = el("button", { type: "button", class: kind }, label);
  button.addEventListener("click", async () => {
    button.dataset.busy = "";
    try {
      refusal("");
      await work();
    } catch (error) {
      refusal(error.message);
    } finally {
      delete button.dataset.busy;
    }
  });
  return button;
}

/** Ask before something that cannot be taken back; then say what has become of it. */
export async function confirmed(title, text, label, work) {
  const done = await dialog(title, el("p", {}, text), [
    { label, kind: "danger", action: async () => (await work()) ?? true },
  ]);
  if (done) announce(`${label}: done`);
  return done;
}

/** What is wrong with one field, as an item of a list; `beside`: what stands before it. */
export function problemItem({ pointer, message }, beside = null) {
  const sentence = /[.?!]$/.test(message) ? message : `${message}.`;
  return el("li", {}, beside, pointer ? el("code", {}, pathOf(pointer)) : null, el("span", {}, sentence));
}

/** What a report says, a line for each of its points: its first sentence, and below it the others. */
export function answerList(lines) {
  const point = ([first, ...others]) => el("li", {}, el("strong", {}, first), others.map((one) => el("p", {}, one)));
  return el("ul", { class: "answer" }, lines.map(sentences).map(point));
}

/**
 * Let those `buttons` be pressed for which `may` says so. `note` tells what the others wait for; needs: by name, as in
 * "a job `that is paused`".
 */
export function allow(buttons, may, needs, kind, note) {
  const waiting = new Map();
  for (const [name, button] of Object.entries(buttons)) {
    button.disabled = !may(name);
    if (!button.disabled) button.removeAttribute("title");
    else {
      button.title = `For a ${kind} ${needs[name]}`;
      waiting.set(needs[name], [...(waiting.get(needs[name]) ?? []), button.textContent]);
    }
  }
  const told = [...waiting].map(([need, names]) => `${names.join(", ")}: for a ${kind} ${need}.`);
  setText(note, told.join(" "));
}
