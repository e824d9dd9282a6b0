// Sign-in through a provider: the link that leads there, and what the page does when it is back.

import { el } from "./dom.js";

const PLACE = "millrace-place"; // where in the page one was
const BACK = /^#\/sign-in\?why=([a-z]+)$/;
const WHY = {
  denied: "The sign-in provider did not let you in.",
  expired: "That took too long, or was begun in another browser. Sign in again.",
  token: "What the sign-in provider says of you could not be proven. Sign in again, or ask whoever runs this service.",
  name: "The sign-in provider gives you no name that can be used here. Ask whoever runs this service.",
  role: "You are in none of the groups that may use this service. Ask whoever runs it.",
  taken: "Somebody else has your name here. Ask whoever runs this service.",
  provider: "The sign-in provider does not answer. Try again in a minute, or use a token.",
};

let asked = null;
let trouble = "";

/** `{ provider, url }`, both null where a token is the only way in. Asked for once. */
export function ways() {
  const none = { provider: null, url: null };
  asked ??= fetch(new URL("v1/sign-in", document.baseURI), { cache: "no-store" })
    .then((answer) => (answer.ok ? answer.json() : none))
    .then((found) => (/^https?:\/\//.test(found.url ?? "") ? found : none))
    .catch(() => none);
  return asked;
}

/** A link to the provider, or null. `before` is called when it is followed. */
export function signInLink({ provider, url }, kind, before) {
  const leave = () => {
    before();
    sessionStorage.setItem(PLACE, location.hash);
  };
  return provider && el("a", { class: `button ${kind}`, href: url, onclick: leave }, `Sign in with ${provider}`);
}

/** Whether the page comes back from the provider: the address is the one from which one left, and no other's link. */
export function comeBack() {
  const place = sessionStorage.getItem(PLACE);
  const failed = BACK.exec(location.hash);
  if (failed) trouble = WHY[failed[1]] ?? WHY.token;
  if (failed || (place && !location.hash)) history.replaceState(null, "", place || "#/jobs");
  sessionStorage.removeItem(PLACE);
}

/** Why one is not in, in a sentence; empty where one has not tried. */
export const whyNot = () => trouble;
