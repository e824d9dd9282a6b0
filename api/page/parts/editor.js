// A field for YAML that shows its lines' numbers, and what is wrong at the line where it is wrong.

import { el } from "../lib/dom.js";

const INDENT = "  ";

/** An editor. `changed` is called as one types; `submitted` on Ctrl-Enter. */
export class Editor {
  constructor(text, changed, submitted) {
    this.field = el("textarea", {
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      wrap: "off",
      rows: 22,
      "aria-label": "Spec, as YAML or JSON",
      "aria-describedby": "problems",
      "aria-keyshortcuts": "Control+Enter",
    });
    this.field.value = text;
    this.behind = el("div", { class: "behind", "aria-hidden": "true" });
    this.element = el("div", { class: "editor" }, this.behind, this.field);
    this.errors = [];
    this.field.addEventListener("input", () => {
      this.show([]);
      changed();
    });
    this.field.addEventListener("scroll", () => this.#scroll());
    this.field.addEventListener("keydown", (event) => this.#key(event, submitted));
    this.show([]);
  }

  get text() {
    return this.field.value;
  }

  set text(text) {
    this.field.value = text;
    this.show([]);
  }

  /** Show errors [{ line, message }] at their lines. */
  show(errors) {
    this.field.setAttribute("aria-invalid", String(errors.length > 0));
    this.behind.replaceChildren(
      ...this.text.split("\n").map((line, i) => {
        const here = errors.filter((error) => error.line === i + 1);
        const notes = here.length ? el("span", { class: "errors" }, here.map(({ message }) => message).join("; ")) : null;
        return el(
          "div",
          { class: here.length ? "line wrong" : "line" },
          el("span", { class: "of" }, line || "\u200b"),
          notes,
        );
      }),
    );
    this.#scroll();
  }

  /** Go to a line. */
  go(line) {
    const begin = this.text
      .split("\n")
      .slice(0, line - 1)
      .reduce((sum, one) => sum + one.length + 1, 0);
    const end = this.text.indexOf("\n", begin);
    this.field.focus();
    this.field.setSelectionRange(begin, end < 0 ? this.text.length : end);
    this.field.scrollTop = Math.max(0, (line - 5) * parseFloat(getComputedStyle(this.field).lineHeight));
  }

  #scroll() {
    this.behind.scrollTop = this.field.scrollTop;
    this.behind.scrollLeft = this.field.scrollLeft;
  }

  /** A new line begins where the one above did. Tab leaves the field, as everywhere. */
  #key(event, submitted) {
    if (event.key !== "Enter") return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      submitted();
      return;
    }
    if (event.shiftKey || event.isComposing) return;
    const { selectionStart: at, selectionEnd: end } = this.field;
    const line = this.text.slice(0, at).split("\n").pop();
    const indent = /^ */.exec(line)[0] + (/:\s*$/.test(line) ? INDENT : "");
    if (!indent) return;
    event.preventDefault();
    this.field.setRangeText(`\n${indent}`, at, end, "end");
    this.field.dispatchEvent(new Event("input"));
  }
}
