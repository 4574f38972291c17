// Why: what slow tokens were lost to, what to do, the incidents behind it, and what was different meanwhile.

import {ask, askIfThere} from "./api.js";
import {causeColours} from "./colours.js";
import {beforeDuring, correlation, different, surface} from "./different.js";
import {h, section, table} from "./dom.js";
import {incidentCard} from "./incidents.js";
import {dates, plain, plotPlace} from "./plot.js";
import {clock, count, duration, percent, seconds, words} from "./units.js";

export const title = "Why";
export const minutes = "30";
const EVERY_MS = 15_000;
const INCIDENTS = 30;

export function show(place, context) {
  const {signal, parameters, minutes: wanted} = context;
  const lost = plotPlace(context, "Seconds lost by cause, over time, and the 95th percentile of response time");
  const parts = {
    head: h("div", {}),
    lost: section("Seconds lost, over time", lost.element),
    incidents: h("div", {}),
    rest: h("div", {}),
    correlation: h("div", {}),
  };
  const told = {};
  /** Of the correlations that are looked at; null: of those that tell most. */
  const engine = {chosen: null};
  place.append(...Object.values(parts));

  context.every(EVERY_MS, async () => {
    let missing = "";
    const tell = (text) => {
      missing = text;
    };
    const [said, incidents, matrices] = await Promise.all([
      askIfThere(tell, "diagnose", {since: 60 * wanted}, signal),
      ask("incidents", {limit: INCIDENTS}, signal),
      askIfThere(tell, "correlation", {}, signal),
    ]);
    if (signal.aborted) return;
    // What a person reads or has opened stays as it is until it says something else.
    const part = (name, what, make) => {
      const now = JSON.stringify(what);
      if (told[name] === now) return;
      told[name] = now;
      const open = [...parts[name].querySelectorAll("details")].map((each) => each.open);
      parts[name].replaceChildren(...make().filter(Boolean));
      parts[name].querySelectorAll("details").forEach((each, n) => {
        each.open = open[n] ?? each.open;
      });
    };
    part(
      "incidents",
      incidents.map((each) => [each.id, each.state, each.summary, each.requests]),
      () => [
        section(
          "Incidents",
          ...(incidents.length
            ? [
                h(
                  "div",
                  {class: "cards"},
                  incidents.map((each) => incidentCard(each, {isWhole: true})),
                ),
              ]
            : [h("p", {}, "None since gpumon started.")]),
        ),
      ],
    );
    choose(parts.incidents, parameters.get("incident"));
    if (!said) {
      parts.lost.hidden = true;
      part("head", missing, () => [h("p", {}, missing)]);
      return;
    }
    const colours = causeColours([
      ...said.causes.map((each) => each.cause),
      ...Object.keys(said.timeline?.by_cause ?? {}),
    ]);
    part("head", [said.verdict, said.causes, said.actions], () => head(said, colours));
    part("rest", [said.before_during, said.matrix, said.surface, said.slowest], () => [
      beforeDuring(said.before_during),
      different(said.matrix),
      surface(said.surface),
      slowest(said.slowest),
      notes(said),
    ]);
    part("correlation", matrices, () => [correlation(matrices ?? [], engine)]);
    parts.lost.hidden = !said.timeline?.excess.some((each) => each > 0);
    if (!parts.lost.hidden) await drawLost(lost, said.timeline, said.incidents, colours);
  });

  let isChosen = false;
  function choose(list, id) {
    const card = id && list.querySelector(`[data-id="${CSS.escape(id)}"]`);
    if (!card || isChosen) return;
    isChosen = true;
    card.classList.add("chosen");
    card.querySelector("details").open = true;
    card.scrollIntoView({block: "center"});
  }
}

const chip = (colour) => h("span", {class: "chip", style: {background: colour}});

function head(said, colours) {
  const most = Math.max(...said.causes.map((each) => each.seconds), 1e-9);
  const since = said.known_since && said.known_since > said.since ? said.known_since : said.since;
  return [
    h(
      "div",
      {class: "verdict"},
      said.verdict.map((sentence) => h("p", {}, sentence)),
    ),
    h(
      "p",
      {class: "dim"},
      `${clock(since)} to ${clock(said.until)}: ${count(said.requests)} requests, ${count(said.slow_requests)} of them slow; ${duration(said.excess_seconds)} lost of ${duration(said.token_seconds)}`,
    ),
    said.actions.length
      ? section(
          "What to do",
          h(
            "ol",
            {},
            said.actions.map((each) =>
              h("li", {}, `${each.text} (${words(each.cause)}, ${seconds(each.seconds)} lost)`),
            ),
          ),
        )
      : null,
    said.causes.length
      ? section(
          "Slow-token seconds by cause",
          table(
            "The largest first",
            [
              {title: "Cause", left: true, value: (row) => h("span", {}, chip(colours[row.cause]), row.title)},
              {
                title: "Lost",
                left: true,
                value: (row) =>
                  h(
                    "span",
                    {class: "whole"},
                    h("span", {
                      class: "bar",
                      style: {width: `${Math.round((140 * row.seconds) / most)}px`, background: colours[row.cause]},
                    }),
                    seconds(row.seconds),
                  ),
              },
              {title: "Share", value: (row) => percent(row.share)},
              {title: "First token", value: (row) => seconds(row.first_token_seconds)},
              {title: "Between tokens", value: (row) => seconds(row.decode_seconds)},
              {title: "Requests", value: (row) => count(row.requests)},
              {title: "Kind", left: true, value: (row) => row.kind},
              {title: "Based on", left: true, value: (row) => row.fact || "-"},
            ],
            said.causes,
          ),
        )
      : null,
  ];
}

function drawLost(place, line, incidents, colours) {
  const x = dates(line.excess.map((_, n) => line.start + (n + 0.5) * line.step_seconds));
  let left = [...line.excess];
  const data = Object.entries(line.by_cause).map(([cause, values]) => {
    left = left.map((whole, n) => Math.max(0, whole - values[n]));
    return {
      type: "bar",
      name: plain(words(cause)),
      x,
      y: values,
      marker: {color: colours[cause]},
      hovertemplate: `${plain(words(cause))} %{y:.2f} s<extra></extra>`,
    };
  });
  data.push({
    type: "bar",
    name: "the rest",
    x,
    y: left,
    marker: {color: "#d0d0d0"},
    hovertemplate: "the rest %{y:.2f} s<extra></extra>",
  });
  data.push({
    type: "scatter",
    mode: "lines",
    name: "P95 of response time",
    x,
    y: line.response_p95,
    yaxis: "y2",
    line: {color: "#888", width: 1.5},
    hovertemplate: "P95 %{y:.2f} s<extra></extra>",
  });
  const end = line.start + line.excess.length * line.step_seconds;
  const opened = incidents.filter((each) => each.opened >= line.start && each.opened <= end);
  const shapes = opened.map((each) => ({
    type: "line",
    xref: "x",
    yref: "paper",
    x0: dates([each.opened])[0],
    x1: dates([each.opened])[0],
    y0: 0,
    y1: 1,
    line: {color: "#888", width: 1, dash: "dot"},
  }));
  const annotations = opened.slice(0, 12).map((each, n) => ({
    xref: "x",
    yref: "paper",
    x: dates([each.opened])[0],
    y: 1,
    yshift: 8 + 13 * (n % 3),
    text: plain(words(each.kind)),
    showarrow: false,
    xanchor: each.opened > end - (end - line.start) / 5 ? "right" : "left",
    font: {size: 11},
  }));
  return place.draw(data, {
    height: 380,
    barmode: "stack",
    bargap: 0,
    margin: {l: 55, r: 55, t: 55, b: 40},
    shapes,
    annotations,
    xaxis: {type: "date", tickformat: "%H:%M:%S", nticks: 7, tickangle: 0},
    yaxis: {title: {text: `seconds lost in ${line.step_seconds} s`}},
    yaxis2: {title: {text: "P95, s"}, overlaying: "y", side: "right", rangemode: "tozero", showgrid: false},
  });
}

function slowest(requests) {
  if (!requests.length) return null;
  return section(
    "Requests to look at",
    table(
      "The slowest of each cause",
      [
        {
          title: "Request",
          left: true,
          value: (row) =>
            h(
              "a",
              {href: `#/request/${row.trace_id}${row.request_id ? `?id=${encodeURIComponent(row.request_id)}` : ""}`},
              h("code", {}, row.trace_id.slice(0, 12)),
            ),
        },
        {title: "Began", value: (row) => clock(row.started)},
        {title: "Model", left: true, value: (row) => row.model},
        {title: "Took", value: (row) => seconds(row.duration_seconds)},
        {title: "First token", value: (row) => seconds(row.first_token_seconds)},
        {title: "Longest gap", value: (row) => seconds(row.worst_gap_seconds)},
        {title: "Late by", value: (row) => seconds(row.excess_seconds)},
        {
          title: "Cause",
          left: true,
          value: (row) => (row.cause ? `${words(row.cause)} ${percent(row.cause_share)}` : "-"),
        },
      ],
      requests,
    ),
  );
}

function notes(said) {
  return said.notes.length
    ? section(
        "Not told",
        h(
          "ul",
          {},
          said.notes.map((note) => h("li", {}, note)),
        ),
      )
    : null;
}
