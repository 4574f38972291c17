// An incident as a card: what, where, since when, what to do, and the evidence to be opened.

import {h, table} from "./dom.js";
import {amount, clock, counted, duration, seconds, words} from "./units.js";

const MARKS = {critical: "▲▲", warning: "▲", info: "●"};

/** isWhole: with evidence and requests. */
export function incidentCard(incident, {isWhole = false} = {}) {
  const lasted =
    incident.state === "open"
      ? `open since ${clock(incident.since)}`
      : `${clock(incident.since)}, ${duration(incident.duration_seconds)}`;
  return h(
    "article",
    {class: `incident ${incident.severity}`, "data-id": incident.id},
    h(
      "h3",
      {},
      h("span", {class: "severity"}, `${MARKS[incident.severity] ?? ""} ${incident.severity}`),
      ` ${words(incident.kind)}: ${incident.entity.name} `,
      h("small", {}, lasted),
    ),
    h("p", {}, incident.summary),
    h("p", {class: "action"}, h("b", {}, "What to do: "), incident.action),
    isWhole
      ? evidence(incident)
      : h(
          "p",
          {},
          h(
            "a",
            {href: `#/why?incident=${encodeURIComponent(incident.id)}`},
            `Evidence of ${words(incident.kind)}, ${incident.entity.name}`,
          ),
        ),
  );
}

function evidence(incident) {
  const causes = Object.entries(incident.causes);
  return h(
    "details",
    {},
    h(
      "summary",
      {},
      `Evidence: ${counted(incident.evidence.length, "figure")}, ${counted(incident.requests, "request")}`,
    ),
    incident.evidence.length
      ? table(
          `Evidence of ${words(incident.kind)}, ${incident.entity.name}`,
          [
            {title: "Figure", left: true, value: (row) => words(row.name)},
            {title: "Observed", value: (row) => amount(row.observed, row.unit)},
            {title: "Before, or elsewhere", value: (row) => amount(row.baseline, row.unit)},
          ],
          incident.evidence,
        )
      : null,
    causes.length
      ? h(
          "p",
          {},
          "Tokens of these requests were late by ",
          causes.map(([cause, late]) => `${words(cause)} ${seconds(late)}`).join(", "),
          ".",
        )
      : null,
    incident.traces.length
      ? h(
          "p",
          {},
          "Requests meanwhile: ",
          incident.traces
            .slice(0, 8)
            .flatMap((trace) => [h("a", {href: `#/request/${trace}`}, h("code", {}, trace.slice(0, 8))), " "]),
        )
      : null,
    incident.recording ? h("p", {}, "Flight recording in state.folder: ", h("code", {}, incident.recording)) : null,
  );
}
