// An incident as a card: what, whose, since when, what it cost, what to do, and the evidence to be opened.

import {chip} from "./colours.js";
import {h, prose, table} from "./dom.js";
import {FIGURES} from "./figures.js";
import {called} from "./names.js";
import {amount, clock, counted, duration, known, seconds, words} from "./units.js";

const MARKS = {critical: "▲▲", warning: "▲", info: "●"};
const TRACES = 8;
/** Of causes, servers and tenants that are told. */
const FEW = 3;

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
      ` ${name(incident)} `,
      h("small", {}, lasted),
    ),
    h("p", {}, prose(incident.summary)),
    whose(incident),
    h("p", {class: "action"}, h("b", {}, "What to do: "), prose(incident.action)),
    isWhole
      ? evidence(incident)
      : h(
          "p",
          {},
          h("a", {href: `#/why?incident=${encodeURIComponent(incident.id)}`}, `Evidence of ${name(incident)}`),
        ),
  );
}

const name = (incident) => `${incident.title ?? called(incident.kind)}: ${incident.entity.name}`;

const several = (one, those) => `${one}${those.length > 1 ? "s" : ""} ${those.join(", ")}`;
/** The first of a list, and how many more there are. */
const few = (those, text) =>
  those.slice(0, FEW).map(text).join("; ") + (those.length > FEW ? `; ${those.length - FEW} more` : "");

function served({server, model, gpus, requests}) {
  const where = gpus.length ? ` on ${several("GPU", gpus)}` : "";
  return `${[server, model].filter(Boolean).join(", ")}${where}${requests ? `: ${counted(requests, "request")}` : ""}`;
}

/** Whom it concerns, and what it cost them. */
function whose(incident) {
  const {gpus, process, rank, servers, tenants} = incident;
  const told = [
    ["Server", few(servers, served)],
    ["GPU", gpus.length ? gpus.join(", ") : ""],
    ["Process", process ? `${process.name}, pid ${process.pid}` : ""],
    ["Rank", rank ? `${rank.rank} of ${rank.communicator}` : ""],
    ["Cost", known(incident.cost_seconds) ? `${seconds(incident.cost_seconds)} lost to it` : ""],
    ["Lost meanwhile", late(incident)],
    ["Of tenants", few(tenants, tenant)],
  ].filter(([, text]) => text);
  return told.length
    ? h(
        "dl",
        {class: "facts"},
        told.map(([title, text]) => h("div", {}, h("dt", {}, title), h("dd", {}, text))),
      )
    : null;
}

const tenant = ({tenant: name, late_seconds}) =>
  `${name || "none named"}${known(late_seconds) ? ` ${seconds(late_seconds)}` : ""}`;

/** All causes together, and the first of them. */
function late({causes, late_seconds}) {
  if (!(late_seconds > 0)) return "";
  const parts = Object.entries(causes);
  const first = parts
    .slice(0, FEW)
    .map(([cause, each], n) => [n ? ", " : "", chip(cause), `${called(cause)} ${seconds(each)}`]);
  return h("span", {}, `${seconds(late_seconds)}: `, first.flat(), parts.length > FEW ? ", …" : "");
}

function evidence(incident) {
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
          `Evidence of ${name(incident)}`,
          [
            {
              title: "Figure",
              left: true,
              value: (row) =>
                Object.hasOwn(FIGURES, row.name)
                  ? h("span", {}, words(row.name), h("small", {class: "note"}, FIGURES[row.name]))
                  : words(row.name),
            },
            {title: "While it held", help: "As last seen.", value: (row) => amount(row.observed, row.unit)},
            {
              title: "Usual",
              help: "What it was before, or is elsewhere: on the other GPUs, ranks or tenants.",
              value: (row) => amount(row.baseline, row.unit),
            },
          ],
          incident.evidence,
        )
      : null,
    requestsOf(incident),
    recordingOf(incident),
  );
}

/** Links to those whose page has something to tell. */
function requestsOf({traces, detailed_traces: kept}) {
  if (!traces.length) return null;
  if (!kept.length) return h("p", {}, "Of the requests meanwhile, none is kept with its tokens any more.");
  return h(
    "p",
    {},
    "Requests meanwhile: ",
    kept
      .slice(0, TRACES)
      .flatMap((trace) => [h("a", {href: `#/request/${trace}`}, h("code", {}, trace.slice(0, 8))), " "]),
    kept.length < traces.length ? `(of ${counted(traces.length - kept.length, "other")}, tokens are not kept)` : "",
  );
}

function recordingOf({recording, recording_shared_with: others}) {
  if (!recording) return null;
  return h(
    "p",
    {},
    "Flight recording, in state.folder: ",
    h("code", {}, recording),
    others.length
      ? `, which holds ${counted(others.length, "other incident")} too; it bears the name of the first`
      : "",
  );
}
