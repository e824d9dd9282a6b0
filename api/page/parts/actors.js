// A run's actors, each with its link into Ray's dashboard.

import { el, link } from "../lib/dom.js";
import { api } from "../lib/http.js";
import { table } from "./widgets.js";
import { shortName } from "../lib/metric_series.js";

const KINDS = ["coordinator", "workers", "shards"];
let cluster = null;

/** What Ray's dashboard is reached at; asked once. */
export function dashboard() {
  cluster ??= api("v1/cluster").catch((error) => {
    cluster = null;
    throw error;
  });
  return cluster.then(({ dashboard_url: url }) => (url ? url.replace(/\/$/, "") : null));
}

/** A table that is filled by the `actors` event. */
export function actorsPanel() {
  let actors = [];
  const body = el("tbody");
  const none = el("p", { class: "note" }, "None yet.");
  return {
    element: el("div", {}, none, table("Actors", ["Actor", "Node", "Process", "Ray's dashboard"], body)),
    /** All that there are; later who joined and who left. */
    async show(event) {
      if (event.type === "actors") actors = KINDS.flatMap((kind) => event.data[kind] ?? []);
      else
        actors = actors
          .filter(({ name }) => !event.data.left.includes(name))
          .concat(event.data.joined.map((name) => ({ name })));
      const base = await dashboard().catch(() => null);
      none.hidden = actors.length > 0;
      body.replaceChildren(...actors.map((actor) => row(actor, base)));
    },
  };
}

function row(actor, base) {
  return el(
    "tr",
    {},
    el("td", {}, el("code", { title: actor.name }, shortName(actor.name))),
    el("td", { "data-label": "Node" }, actor.node_ip ?? "–"),
    el("td", { "data-label": "Process" }, actor.pid ?? "–"),
    el("td", { "data-label": "Ray's dashboard" }, base ? place(actor, base) : "–"),
  );
}

/** The actor's own page; where the log does not tell it, its node's, or the list of all. */
function place(actor, base) {
  if (actor.actor_id) return link(`${base}/#/actors/${encodeURIComponent(actor.actor_id)}`, "actor");
  if (actor.node_id) return link(`${base}/#/cluster/nodes/${encodeURIComponent(actor.node_id)}`, "node");
  return link(`${base}/#/actors`, "actors");
}
