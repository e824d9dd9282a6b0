// Talks to the service: REST with problems as errors, and event streams that are taken up again where they broke.

import { dialog, el } from "./dom.js";
import { pathOf } from "./format.js";
import { signInLink, ways, whyNot } from "./sign_in.js";
import { ENDED } from "./states.js";

const AGAIN_MS = 1000;
const SILENT_MS = 45000; // three pings
const TOKEN = "millrace-token";

/** The service says no, and what to change. */
export class Problem extends Error {
  constructor(status, problem) {
    const fields = problem.detail?.startsWith("/") ? problem.errors ?? [] : [];
    const told = fields.map(({ pointer, message }) => `${pathOf(pointer)}: ${message}`).join("; ");
    super(told || (problem.detail ?? `the service answers ${status}`));
    this.status = status;
    this.errors = problem.errors ?? [];
  }
}

/** No service answers. */
export class Unreachable extends Error {
  constructor() {
    super("The service does not answer. What you see may be old; the page tries again by itself.");
  }
}

/** JSON from the service. `body`: a text with its media `type`, or anything else to be sent as JSON. */
export async function api(path, { method = "GET", body, type, headers = {}, signal } = {}) {
  const options = { method, signal, headers: { Accept: "application/json", ...headers } };
  if (body !== undefined) {
    options.body = type ? body : JSON.stringify(body);
    options.headers["Content-Type"] = type ?? "application/json";
  }
  const answer = await ask(path, options);
  return answer.status === 204 ? null : answer.json();
}

/** Who looks at the page; null where nobody has signed in. Does not ask for a token. */
export async function who() {
  const answer = await send("v1/me", { headers: { Accept: "application/json" } });
  return answer.ok ? answer.json() : null;
}

/** POST with nothing or an object in the body. */
export const post = (path, body) => api(path, { method: "POST", ...(body === undefined ? {} : { body }) });

/** DELETE; mostly there is nothing in the answer. */
export const remove = (path) => api(path, { method: "DELETE" });

/** Fetch a file and give it to the browser to keep; a plain link could not carry the token. */
export async function download(path, name) {
  keep(await blob(path), name);
}

/** The content of a file. */
export async function blob(path) {
  return (await ask(path, {})).blob();
}

/** Give what the page has made to the browser to keep. */
export function keep(blob, name) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60000);
}

/** A key that makes a request safe to repeat. (`crypto.randomUUID` exists only where the page came by HTTPS.) */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * The events of a log above the number `after`, in batches, as they come, to the terminal one. Each comes once: a
 * connection that breaks is taken up again with `Last-Event-ID`. `onAnswer(ok)` is called with whether the service answers.
 */
export async function* events(path, after, signal, onAnswer = () => {}) {
  let ended = false;
  while (!ended && !signal.aborted) {
    try {
      const response = await ask(path, { signal, headers: { Accept: "text/event-stream", "Last-Event-ID": after } });
      onAnswer(true);
      for await (const batch of parsed(response.body, signal)) {
        const fresh = batch.filter((event) => event.seq > after);
        if (!fresh.length) continue;
        const last = fresh[fresh.length - 1];
        after = last.seq;
        ended = last.type === "state" && ENDED.includes(last.data.state);
        yield fresh;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem) throw error;
      onAnswer(false);
    }
    if (!ended) await sleep(AGAIN_MS, signal);
  }
}

/** Wait, or less where the signal comes first. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}

/** The batches of events of a stream's body: all that one chunk of it completes. */
async function* parsed(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await within(reader.read(), SILENT_MS, signal);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const batch = blocks.flatMap(data);
      if (batch.length) yield batch;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function data(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data: "));
  return lines.length ? [JSON.parse(lines.map((line) => line.slice(6)).join("\n"))] : [];
}

async function within(promise, ms, signal) {
  const stop = new AbortController();
  signal.addEventListener("abort", () => stop.abort(), { once: true, signal: stop.signal });
  const late = sleep(ms, stop.signal).then(() => {
    throw new Unreachable();
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    late.catch(() => {});
    stop.abort();
  }
}

async function ask(path, options) {
  let shown = token(),
    response = await send(path, options);
  while (response.status === 401) {
    if (shown === token()) await askForToken(); // else one was given while this was on its way
    shown = token();
    response = await send(path, options);
  }
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  return response;
}

const token = () => sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN);

/** Whether a token is shown with each request. */
export const showsToken = () => token() !== null;

/** Show none any more. */
export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
  localStorage.removeItem(TOKEN);
}

async function send(path, options) {
  const shown = token();
  const headers = { ...options.headers, ...(shown ? { Authorization: `Bearer ${shown}` } : {}) };
  try {
    return await fetch(new URL(path, document.baseURI), { cache: "no-store", ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable();
  }
}

let asking = null;

/** One dialog, however many requests wait for its token. */
function askForToken() {
  asking ??= tokenDialog().finally(() => {
    asking = null;
  });
  return asking;
}

async function tokenDialog() {
  const field = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": "Token", placeholder: "token" });
  const keep = el("input", { type: "checkbox" });
  const link = signInLink(await ways(), "main", forgetToken);
  const content = [
    whyNot() && el("p", { class: "trouble", role: "alert" }, whyNot()),
    link && el("div", { class: "buttons" }, link),
    el(
      "p",
      {},
      link ? "Or show a token. An administrator makes one with " : "This service wants a token. An administrator makes one with ",
      el("code", {}, "millrace token create"),
      ".",
    ),
    field,
    el("label", { class: "check" }, keep, " Keep it in this browser"),
  ];
  const save = () => {
    forgetToken();
    (keep.checked ? localStorage : sessionStorage).setItem(TOKEN, field.value.trim());
    return true;
  };
  if (!(await dialog("Sign in", content, [{ label: "Sign in", action: save }]))) {
    throw new Problem(401, { detail: "The service wants to know who you are; reload the page to sign in." });
  }
}
