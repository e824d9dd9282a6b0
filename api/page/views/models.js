// Registered models: the newest version of each name, or all of one.

import { announce, el, keyed, link, setText } from "../lib/dom.js";
import { moment } from "../lib/format.js";
import { api, remove } from "../lib/http.js";
import { turnPage } from "../parts/pages.js";
import { fetchVersion, metricsOf } from "../parts/registered.js";
import { actionButton, confirmed, every, heading, table } from "../parts/widgets.js";

const REFRESH_MS = 5000;

/** All of them, or the versions of the name in the address. */
export function modelsView(main, { query }, signal) {
  const name = query.get("name");
  const body = el("tbody");
  const none = el("p", { class: "note", hidden: true });
  const older = el("p", { class: "pager" });
  const columns = ["Model", "Of", "Metrics", "Job", "Registered", ""];
  main.append(
    heading(name ?? "Models", ...(name ? [link("#/models", "All models")] : [])),
    table("Models", columns, body),
    none,
    older,
  );
  const look = async () => {
    const asked = new URLSearchParams({ page_size: "50", ...(name ? { name } : { latest: "true" }) });
    if (query.get("page_token")) asked.set("page_token", query.get("page_token"));
    const { versions, next_page_token: next } = await api(`v1/registry?${asked}`, { signal });
    none.hidden = versions.length > 0;
    setText(none, "No model is registered. Open a job that has ended to register its model.");
    turnPage(older, "#/models", query, next);
    keyed(
      body,
      versions,
      (one) => one.id,
      (one) => row(one, name, look),
      () => {},
    );
  };
  every(REFRESH_MS, signal, look);
  return name ?? "Models";
}

function row(one, name, look) {
  const fetch = actionButton("Download", "quiet", () => fetchVersion(one));
  const drop = actionButton("Remove", "danger quiet", async () => {
    const act = () => remove(`v1/registry/${encodeURIComponent(one.id)}`);
    if (!(await confirmed(`Remove ${one.id}?`, "Its file is removed for good, unless another version has it.", "Remove", act)))
      return;
    announce(`${one.id} is removed`);
    await look();
  });
  const { facts } = one;
  return el(
    "tr",
    { "data-row": true },
    el(
      "td",
      { class: "named" },
      el("a", { href: `#/models?name=${encodeURIComponent(one.name)}`, "data-open": true }, one.id),
      el("span", { class: "why" }, one.notes),
    ),
    el("td", { "data-label": "Of" }, `${facts.model} on ${facts.data}`),
    el("td", { "data-label": "Metrics" }, metricsOf(one) || "–"),
    el("td", { "data-label": "Job" }, link(`#/jobs/${one.job}`, facts.job_name || one.job)),
    el("td", { "data-label": "Registered" }, `${moment(one.created)} by ${one.user}`),
    el("td", {}, el("div", { class: "buttons" }, fetch, ...(name ? [drop] : []))),
  );
}
