// Incidents that closed lately, a line for each: who comes a minute late still finds the way to their evidence.

import {ask} from "./api.js";
import {h, prose} from "./dom.js";
import {called, learn} from "./names.js";
import {clock, count, duration} from "./units.js";

const RECENT_S = 900;
const ASKED = 100;
const MOST = 8;
/** Of what it concerned. */
const FEW = 3;

export const askRecent = (signal) => ask("incidents", {state: "closed", limit: ASKED}, signal);

/** closed: incidents, in any order. at: now. Made anew only where it says something else. */
export function recentList(place, closed, at) {
  learn(closed);
  const lately = closed.filter((each) => each.closed >= at - RECENT_S).sort((one, other) => other.closed - one.closed);
  const told = lately.map((each) => each.id + each.summary).join();
  if (place.dataset.told === told) return;
  place.dataset.told = told;
  if (!lately.length) {
    place.replaceChildren();
    return;
  }
  const more = lately.length - MOST;
  place.replaceChildren(
    h(
      "section",
      {"aria-labelledby": "closed-title"},
      h("h2", {id: "closed-title"}, "Closed ", h("small", {}, `in the last ${RECENT_S / 60} minutes`)),
      h("ul", {class: "closed"}, lately.slice(0, MOST).map(line)),
      more > 0 ? h("p", {class: "hint"}, `${count(more)} more `, h("a", {href: "#/why"}, "on Why")) : null,
    ),
  );
}

function line(incident) {
  const what = `${called(incident.kind)}: ${incident.entity.name}`;
  const address = `#/why?incident=${encodeURIComponent(incident.id)}`;
  const gpus = incident.entity.scope !== "gpu" && incident.gpus.length ? [`GPU ${incident.gpus.join(", ")}`] : [];
  const models = incident.entity.scope === "server" ? [] : incident.servers.map((each) => each.model || each.server);
  const where = [...gpus, ...new Set(models)].slice(0, FEW).join(", ");
  return h(
    "li",
    {},
    h("span", {class: "when"}, `${clock(incident.since)}, ${duration(incident.duration_seconds)}`),
    h("b", {}, what),
    where ? ` (${where})` : "",
    " ",
    ...prose(incident.summary),
    " ",
    h("a", {href: address, "aria-label": `Evidence of ${what}`}, "Evidence"),
  );
}
