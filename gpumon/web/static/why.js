// Why: what slow tokens were lost to, what to do, the incidents behind it, and what was different meanwhile; of the last
// minutes, or of a stretch that was chosen.

import {ask, askIfThere} from "./api.js";
import {actions, lostByCause, notes, period, slowest, verdict} from "./causes.js";
import {beforeDuring, correlation, different, surface, tenants} from "./different.js";
import {h, isNarrow, section} from "./dom.js";
import {incidentCard} from "./incidents.js";
import {lostChart} from "./lost.js";
import {learn} from "./names.js";
import {rounded, stretchControls, stretchOf} from "./stretch.js";

export const title = "Why";
export const minutes = "30";
const EVERY_MS = 15_000;
/** That are asked for, and that are told at once, on a desk and on a phone. */
const INCIDENTS = 200;
const CARDS = [6, 3];
const FOCUSABLE = "a, button, summary, select, input, [tabindex]";

export function show(place, context) {
  const {signal, parameters, minutes: wanted} = context;
  let stretch = stretchOf(parameters);
  const range = document.getElementById("range");
  const controls = stretchControls(wanted, () => context.live.snapshot?.at, choose);
  const lost = lostChart(context, (found) => choose(rounded(found)));
  const chart = section("Seconds lost, over time", lost.element);
  const parts = {
    controls: controls.element,
    period: h("div", {}),
    head: h("div", {}),
    lost: chart,
    incidents: h("div", {}),
    rest: h("div", {}),
    correlation: h("div", {}),
  };
  const told = {};
  /** Of the correlations that are looked at; null: of those that tell most. */
  const engine = {chosen: null};
  const incident = parameters.get("incident");
  let isFound = !incident;
  chart.hidden = true;
  range.hidden = Boolean(stretch);
  if (stretch) controls.tell(stretch, {since: stretch.from, until: stretch.to});
  else controls.element.hidden = true;
  place.append(...Object.values(parts));

  function choose(found) {
    stretch = found;
    range.hidden = Boolean(stretch);
    context.remember({from: stretch ? String(stretch.from) : "", to: stretch ? String(stretch.to) : ""});
    context.once(tell);
  }

  async function tell() {
    const asked = stretch;
    let missing = "";
    const [said, known, matrices] = await Promise.all([
      askIfThere((text) => (missing = text), "diagnose", asked ?? {since: 60 * wanted}, signal),
      ask("incidents", {limit: INCIDENTS}, signal),
      askIfThere(() => {}, "correlation", {}, signal),
    ]);
    if (signal.aborted || asked !== stretch) return;
    learn([...known, ...(said ? [...said.incidents, ...said.causes] : [])]);
    const held = known.filter(
      (each) => each.id === incident || !said || (each.since <= said.until && (each.closed ?? Infinity) >= said.since),
    );
    part("incidents", held.map(changing), () => [incidentCards(held, known.length)]);
    chart.hidden = !said?.timeline;
    controls.element.hidden = !said;
    if (!said) {
      part("head", missing, () => [h("p", {}, missing)]);
    } else {
      part("period", [said.since, said.until, said.requests], () => [period(said)]);
      part("head", [said.verdict, said.causes, said.actions], () => [verdict(said), actions(said), lostByCause(said)]);
      part("rest", [said.before_during, said.matrix, said.surface, said.slowest, said.tenants], () => [
        slowest(said.slowest),
        beforeDuring(said.before_during),
        different(said.matrix),
        tenants(said.tenants),
        surface(said.surface),
        notes(said),
      ]);
      part("correlation", stretch ? null : matrices, () => (stretch ? [] : [correlation(matrices ?? [], engine)]));
      controls.tell(stretch, said);
      if (said.timeline) lost.tell(said, held);
    }
    find();
  }

  /** What a person reads, has opened or is at stays as it is until it says something else. */
  function part(name, what, make) {
    const now = JSON.stringify(what);
    if (told[name] === now) return;
    told[name] = now;
    const all = (selector) => [...parts[name].querySelectorAll(selector)];
    const open = all("details").map((each) => each.open);
    const at = all(FOCUSABLE).indexOf(document.activeElement);
    parts[name].replaceChildren(...make().filter(Boolean));
    all("details").forEach((each, n) => {
      each.open = open[n] ?? each.open;
    });
    if (at >= 0) all(FOCUSABLE)[at]?.focus({preventScroll: true});
  }

  /** The incident that the address names, once: when all that stands above it is there. */
  function find() {
    const card = !isFound && parts.incidents.querySelector(`[data-id="${CSS.escape(incident)}"]`);
    if (!card) return;
    isFound = true;
    card.classList.add("chosen");
    const hidden = card.closest("section > details");
    if (hidden) hidden.open = true;
    card.querySelector("details").open = true;
    card.scrollIntoView({block: "start"});
  }

  context.every(EVERY_MS, tell);
}

const changing = (each) => [each.id, each.state, each.severity, each.summary, each.requests, each.causes];

function incidentCards(held, known) {
  const cards = (those) =>
    h(
      "div",
      {class: "cards"},
      those.map((each) => incidentCard(each, {isWhole: true})),
    );
  const first = CARDS[Number(isNarrow())];
  const rest = held.slice(first);
  return section(
    "Incidents",
    held.length ? cards(held.slice(0, first)) : h("p", {}, known ? "None in this time." : "None since gpumon started."),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), cards(rest)) : null,
  );
}
