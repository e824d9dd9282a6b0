// Who one is to the service, and the way out.

import { dialog, el } from "./dom.js";
import { api, forgetToken, remove, showsToken } from "./http.js";

/** The name of who looks at the page, as a button that signs out; nothing where nobody has signed in. */
export async function showAccount(place) {
  const { user, role } = await api("v1/me");
  if (!showsToken()) return;
  place.append(
    el(
      "button",
      { type: "button", class: "quiet", title: `${user}, ${role}`, "aria-haspopup": "dialog", onclick: () => leave(user) },
      "Sign out ",
      el("span", { class: "who" }, user),
    ),
  );
}

function leave(user) {
  const end = el("input", { type: "checkbox" });
  const action = async () => {
    if (end.checked) await remove("v1/me/token");
    forgetToken();
    location.reload();
    return true;
  };
  const content = [
    el("p", {}, `This browser forgets the token of ${user}.`),
    el("label", { class: "check" }, end, " End the token too: nobody comes in with it any more"),
  ];
  return dialog("Sign out?", content, [{ label: "Sign out", action }]);
}
