// Who one is to the service, and the way out.

import { dialog, el } from "./dom.js";
import { api, forgetToken, remove, showsToken, who } from "./http.js";
import { signInLink, ways } from "./sign_in.js";

/** The name of who looks at the page, as a button that signs out; until then, where there is a provider, the way to it. */
export async function showAccount(place) {
  if ((await who()) === null) {
    const link = signInLink(await ways(), "quiet", forgetToken);
    if (link) place.append(link);
  }
  const { user, role, session } = await api("v1/me"); // which waits for a token
  place.replaceChildren();
  if (!showsToken() && !session) return;
  place.append(
    el(
      "button",
      {
        type: "button",
        class: "quiet",
        title: `${user}, ${role}`,
        "aria-haspopup": "dialog",
        onclick: () => leave(user, session),
      },
      "Sign out ",
      el("span", { class: "who" }, user),
    ),
  );
}

function leave(user, session) {
  const end = el("input", { type: "checkbox" });
  const action = async () => {
    const elsewhere = session || end.checked ? await remove("v1/me/token") : null;
    forgetToken();
    if (elsewhere && /^https?:\/\//.test(elsewhere.url)) location.assign(elsewhere.url); // and from there back to here
    else location.reload();
    return true;
  };
  const content = session
    ? [el("p", {}, `The session of ${user} in this browser ends, and at the sign-in provider where it can be ended from here.`)]
    : [
        el("p", {}, `This browser forgets the token of ${user}.`),
        el("label", { class: "check" }, end, " End the token too: nobody comes in with it any more"),
      ];
  return dialog("Sign out?", content, [{ label: "Sign out", action }]);
}
