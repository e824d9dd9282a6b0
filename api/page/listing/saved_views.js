// Views of a list that somebody keeps: an address under a name, in this browser.

import { dialog, el, setText } from "../lib/dom.js";

const KEPT = "millrace.views";

/** A choice of the views that are kept of the list at `base`, and what keeps this one and forgets it. */
export class SavedViews {
  constructor(base, query) {
    this.base = base;
    this.query = query;
    this.choice = el("select", { "aria-label": "View", onchange: () => this.#open(this.choice.value) });
    this.act = el("button", { type: "button", class: "quiet", onclick: () => this.#press() });
    this.element = el("span", { class: "views" }, this.choice, this.act);
    this.show();
  }

  /** Show which of them the list is now. */
  show() {
    const views = kept(),
      now = addressOf(this.query);
    const mine = Object.keys(views).find((name) => views[name] === now);
    const options = [["", "all jobs"], ...Object.keys(views).map((name) => [name, name])];
    if (now && mine === undefined) options.push([null, "unsaved view"]);
    this.choice.replaceChildren(
      ...options.map(([value, text]) =>
        el("option", { value: value ?? "\0", selected: value === (mine ?? (now ? null : "")) }, text),
      ),
    );
    this.mine = mine;
    this.act.hidden = !now;
    setText(this.act, mine === undefined ? "Keep view" : "Forget view");
  }

  #open(name) {
    const address = kept()[name] ?? "";
    location.hash = `${this.base}${address ? `?${address}` : ""}`;
  }

  async #press() {
    const views = kept();
    if (this.mine !== undefined) delete views[this.mine];
    else {
      const name = el("input", { id: "view-name", required: true, maxlength: 40 });
      const label = el("label", { for: "view-name" }, "Name of the view ", name);
      const given = await dialog("Keep view", el("p", {}, label), [{ label: "Keep", kind: "main", action: () => named(name.value) }]);
      if (given === null) return;
      views[given] = addressOf(this.query);
    }
    localStorage.setItem(KEPT, JSON.stringify(views));
    this.show();
  }
}

function named(text) {
  if (!text.trim()) throw new Error("A view needs a name.");
  return text.trim();
}

/** The address's part after `?`, without the page. */
function addressOf(query) {
  const params = new URLSearchParams(query);
  params.delete("page_token");
  params.sort();
  return String(params);
}

/** Name -> address. What another program has written there is not read. */
function kept() {
  try {
    const found = Object.entries(JSON.parse(localStorage.getItem(KEPT)) ?? {});
    return Object.fromEntries(found.filter(([, address]) => typeof address === "string"));
  } catch {
    return {};
  }
}
