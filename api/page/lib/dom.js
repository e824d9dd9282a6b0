// Elements are built here and nowhere else. What users wrote becomes text nodes and attributes, never markup.

/**
 * An element. `props`: `class`, attributes by name, `onclick` and its like as functions; null and false leave one out,
 * true sets it empty. Children: nodes and texts, nested as you like; null and false are left out.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A link. Addresses that are neither of this page nor http are shown as text: no `javascript:` gets through. */
export function link(href, ...children) {
  const inside = href.startsWith("#/");
  if (!inside && !/^https?:\/\//i.test(href)) return el("span", {}, ...children);
  return el("a", inside ? { href } : { href, rel: "noreferrer", target: "_blank" }, ...children);
}

/** Replace what is in a node, only where the text differs: a reader's selection and a screen reader's place stay. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Make a node's children those of `items`, one each and in their order. A child stays the same element as long as its
 * key does, so that focus stays where it was. `make(item)` builds one, `update(child, item)` brings it up to date.
 */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update(child, item);
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
  }
  for (const child of old.values()) child.remove();
}

/** Say something to those who listen to the page instead of looking at it. */
export function announce(text) {
  setText(document.getElementById("announcements"), text);
}

/** A dialog that is gone once it is closed; resolves to what the button that closed it returns, or null. */
export function dialog(title, content, buttons) {
  return new Promise((resolve) => {
    const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
    const box = el("dialog", { "aria-labelledby": "dialog-title" });
    let result = null;
    const press = async (button, action) => {
      button.disabled = true;
      try {
        result = await action();
        box.close();
      } catch (error) {
        trouble.hidden = false;
        setText(trouble, error.message);
      } finally {
        button.disabled = false;
      }
    };
    const row = buttons.map(({ label, action, kind }) => {
      const button = el("button", { type: "submit", class: kind ?? "main" }, label);
      button.addEventListener("click", (event) => {
        event.preventDefault();
        press(button, action);
      });
      return button;
    });
    const leave = el("button", { type: "button", class: "quiet", onclick: () => box.close() }, "Close");
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", { id: "dialog-title" }, title),
      content,
      trouble,
      el("div", { class: "buttons" }, row, leave),
    );
    box.append(form);
    box.addEventListener("close", () => {
      box.remove();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
  });
}
