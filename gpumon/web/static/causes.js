// What the tokens of a time were lost to: the verdict, what to do, the seconds by cause, and requests to look at.

import {causeColour, chip} from "./colours.js";
import {deeper, firstOf, h, isNarrow, prose, section, table, term} from "./dom.js";
import {called} from "./names.js";
import {clock, count, counted, percent, seconds} from "./units.js";

/** Longest bar, in pixels. */
const BAR = 140;
/** Told at once, on a phone. */
const CAUSES = 5;
const REQUESTS = 5;
const SLOW = "Slow: late by 30 % of what was expected and by 100 ms, at least.";
const KIND =
  "Fault: the same work took longer than it had to; something is broken or badly set up. Load: there was more work " +
  "than usual, and nothing is broken.";

export function verdict(said) {
  return h(
    "div",
    {class: "verdict"},
    said.verdict.map((sentence) => h("p", {}, prose(sentence))),
  );
}

export function period(said) {
  const isLater = said.known_since > said.since && said.known_since < said.until;
  const since = isLater ? said.known_since : said.since;
  return h(
    "p",
    {class: "dim"},
    `${clock(since)} to ${clock(said.until)} UTC: ${counted(said.requests, "request")}, ${count(said.slow_requests)} of them `,
    term("slow", SLOW),
    ".",
  );
}

export function actions(said) {
  if (!said.actions.length) return null;
  return section(
    "What to do",
    h("p", {class: "hint"}, "First what made the worst stretch worse than calm time, then what cost most."),
    h(
      "ol",
      {},
      said.actions.map((each) =>
        h("li", {}, prose(each.text), h("small", {class: "note"}, chip(each.cause), each.reason)),
      ),
    ),
  );
}

export function lostByCause(said) {
  if (!said.causes.length) return null;
  const most = Math.max(...said.causes.map((each) => each.seconds), 1e-9);
  const bar = (row) =>
    h("span", {
      class: "bar",
      style: {width: `${Math.round((BAR * row.seconds) / most)}px`, background: causeColour(row.cause)},
    });
  const columns = [
    {title: "Cause", left: true, value: (row) => h("span", {}, chip(row.cause), called(row.cause))},
    {
      title: "Lost",
      left: true,
      help: "By so much the tokens of all requests together came later than is usual.",
      value: (row) => h("span", {class: "whole"}, bar(row), seconds(row.seconds)),
    },
    {title: "Share", value: (row) => percent(row.share)},
    {
      title: "First token",
      help: "Of that, lost before the first token of requests.",
      value: (row) => seconds(row.first_token_seconds),
    },
    {
      title: "Between tokens",
      help: "Of that, lost after the first token.",
      value: (row) => seconds(row.decode_seconds),
    },
    {title: "Requests", help: "How many it touched.", value: (row) => count(row.requests)},
    {title: "Kind", help: KIND, left: true, value: (row) => row.kind},
    {
      title: "Based on",
      left: true,
      help: "The one figure that tells most; the figures of single requests are on their pages.",
      value: (row) => row.fact || "-",
    },
  ];
  return section(
    "Slow-token seconds by cause",
    ...firstOf(isNarrow() ? CAUSES : said.causes.length, said.causes, (those) =>
      table("The largest first", columns, those),
    ),
  );
}

export function slowest(requests) {
  if (!requests.length) return null;
  const address = (row) =>
    `#/request/${row.trace_id}${row.request_id ? `?id=${encodeURIComponent(row.request_id)}` : ""}`;
  const columns = [
    {
      title: "Request",
      left: true,
      value: (row) => h("a", {href: address(row)}, h("code", {}, row.trace_id.slice(0, 12))),
    },
    {
      title: "Cause",
      left: true,
      value: (row) =>
        row.cause ? h("span", {}, chip(row.cause), `${called(row.cause)} ${percent(row.cause_share)}`) : "-",
    },
    {title: "Late by", value: (row) => seconds(row.excess_seconds)},
    {title: "Began", value: (row) => clock(row.started)},
    {title: "Model", left: true, value: (row) => row.model},
    {title: "Took", value: (row) => seconds(row.duration_seconds)},
    {title: "First token", value: (row) => seconds(row.first_token_seconds)},
    {title: "Longest gap", value: (row) => seconds(row.worst_gap_seconds)},
  ];
  return section(
    "Requests to look at",
    ...firstOf(REQUESTS, requests, (those) => table("The slowest of each cause", columns, those)),
  );
}

export function notes(said) {
  if (!said.notes.length) return null;
  return deeper(
    "Not told",
    "",
    h(
      "ul",
      {},
      said.notes.map((note) => h("li", {}, prose(note))),
    ),
  );
}
