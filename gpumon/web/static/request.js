// One request: its tokens and what GPUs, processes, server and host did meanwhile; the cause of each slow gap.

import {askIfThere} from "./api.js";
import {causeColour, chip} from "./colours.js";
import {choice, firstOf, h, table} from "./dom.js";
import {slowOnes} from "./lanes.js";
import {called, learn} from "./names.js";
import {tracks} from "./tracks.js";
import {clock, count, counted, day, known, percent, seconds} from "./units.js";
import {gpuNames, idToCopy, processesNow, whereHeld} from "./whose.js";

export const title = "One request";
export const minutes = null;
/** Slow gaps that are told at once. */
const GAPS = 12;

export function show(place, context) {
  context.once(async () => {
    let lost = "";
    const [trace, line, gpus] = await Promise.all([
      askIfThere((text) => (lost = text), "explain", {trace_id: context.id}, context.signal),
      askIfThere(() => {}, "timeline", {trace_id: context.id}, context.signal),
      askIfThere(() => {}, "gpus", {}, context.signal),
    ]);
    if (context.signal.aborted) return;
    if (trace) tell(place, context, trace, line, gpus?.gpus);
    else place.append(...notKnown(context.id, lost));
  });
}

function notKnown(id, text) {
  // The API ends with an address of its own; here it is the page's that help.
  const reason = text.replace(/;[^;]*\/api\/[^;]*$/, ".");
  return [
    h("p", {class: "dim"}, "Trace ", h("code", {}, id)),
    h(
      "div",
      {class: "lost", role: "status"},
      h("p", {}, reason),
      h(
        "p",
        {},
        "Look for requests that are known: ",
        h("a", {href: "#/latency"}, "the slowest of each minute"),
        " in Latency, or ",
        h("a", {href: "#/why"}, "those of each cause"),
        " in Why.",
      ),
    ),
  ];
}

function tell(place, context, trace, line, gpus) {
  const {requests} = trace;
  learn(requests.flatMap((each) => each.causes));
  learn(line?.incidents ?? []);
  // Lists tell the first part of a long name.
  const wanted = context.parameters.get("id");
  let chosen = wanted ? requests.findIndex((each) => each.request_id.startsWith(wanted)) : -1;
  if (chosen < 0)
    chosen = requests.indexOf(requests.toSorted((one, other) => other.excess_seconds - one.excess_seconds)[0]);
  const body = h("div", {});
  const draw = () => body.replaceChildren(...whole(requests[chosen], line, gpus, context));
  const options = requests.map((each, n) => [
    String(n),
    `${n + 1} of ${requests.length}: ${clock(each.start)}, ${seconds(each.duration_seconds)}`,
  ]);
  place.append(
    h(
      "p",
      {class: "dim"},
      "Trace ",
      idToCopy(trace.trace_id),
      trace.left_out ? `; ${trace.left_out} more requests of it are not told` : "",
    ),
    requests.length > 1
      ? h(
          "div",
          {class: "controls"},
          choice("Request", options, String(chosen), (value) => {
            chosen = Number(value);
            context.remember({id: requests[chosen].request_id, gap: ""});
            draw();
          }),
        )
      : "",
    body,
  );
  draw();
}

function whole(said, line, gpus, context) {
  const clockwork = tracks(said, line, context);
  const told = h("div", {role: "status"});
  const gap = context.parameters.get("gap");
  if (gap) {
    // As soon as the tracks have a size.
    requestAnimationFrame(() => {
      if (clockwork.look(Number(gap))) return;
      told.append(h("p", {class: "lost"}, "The address names no slow gap of this request: it is shown whole."));
    });
  }
  const look = (row) => {
    context.remember({gap: String(row.start_ms)});
    clockwork.look(row.start_ms);
  };
  return [
    facts(said, line, gpus),
    told,
    h("section", {}, h("h2", {}, verdict(said)), causes(said, line)),
    h(
      "section",
      {},
      h("h2", {}, "Tokens, GPUs and host on one clock ", h("small", {}, `${day(said.start)}, UTC`)),
      clockwork.element,
    ),
    h("section", {}, h("h2", {}, "Slow gaps, and the cause of each"), gaps(said, look)),
    incidents(line),
  ];
}

function facts(said, line, gpus) {
  const names = gpuNames(said, gpus, line);
  const told = [
    ["Began", `${day(said.start)} ${clock(said.start)} UTC`],
    ["Server", `${said.server}, ${said.model}`],
    ["GPUs", names.length ? names.join(", ") : said.unbound || "not known"],
    ["Processes on them now", processesNow(said, gpus)],
    ["Tenant", said.tenant],
    ["Outcome", said.outcome],
    ["Took", seconds(said.duration_seconds)],
    ["First token after", seconds(said.time_to_first_token_seconds)],
    ["In the queue", seconds(said.queue_seconds)],
    [
      "Tokens in",
      known(said.cached_tokens)
        ? `${count(said.prompt_tokens)}, ${count(said.cached_tokens)} of them cached`
        : count(said.prompt_tokens),
    ],
    ["Tokens out", count(said.completion_tokens)],
    ["Rate", known(said.tokens_per_second) ? `${count(said.tokens_per_second)} tokens/s` : ""],
    ["Open on arrival", counted(said.concurrency, "request")],
  ];
  return h(
    "dl",
    {class: "facts"},
    told.filter(([, text]) => text).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))),
  );
}

function verdict(said) {
  if (said.excess_seconds > 0) return `Late by ${seconds(said.excess_seconds)}`;
  const accounts = [said.first_token, said.decode];
  return accounts.some((each) => known(each.expected_seconds)) ? "Not late" : "Too little is known yet to say";
}

/** What it took, and what that usually takes. */
function usual(name, {actual_seconds, expected_seconds}) {
  if (!known(expected_seconds)) return "";
  return `${name} took ${seconds(actual_seconds)}, usually ${seconds(expected_seconds)}. `;
}

function causes(said, line) {
  if (!said.causes.length)
    return h("p", {}, usual("The first token", said.first_token), usual("The tokens after it", said.decode));
  const fact = (cause) =>
    [...said.decode.shares, ...said.first_token.shares].find((each) => each.cause === cause && each.fact)?.fact;
  const basis = (cause) => [fact(cause)?.text, whereHeld(cause, said, line)].filter(Boolean).join("; ") || "-";
  return table(
    "What it was late by",
    [
      {title: "Cause", left: true, value: (row) => h("span", {}, chip(row.cause), row.title)},
      {title: "Lost", value: (row) => seconds(row.seconds)},
      {
        title: "Share",
        left: true,
        value: (row) =>
          h(
            "span",
            {},
            h("span", {
              class: "bar",
              style: {width: `${Math.round(90 * row.share)}px`, background: causeColour(row.cause)},
            }),
            percent(row.share),
          ),
      },
      {title: "Based on", left: true, value: (row) => basis(row.cause)},
    ],
    said.causes,
  );
}

function gaps(said, look) {
  const slow = slowOnes(said);
  if (!slow.length) return h("p", {}, "None.");
  const told = slow.toSorted((one, other) => other.excess_seconds - one.excess_seconds);
  const columns = [
    {
      title: "After",
      value: (row) =>
        h(
          "button",
          {
            type: "button",
            on: {click: () => look(row)},
            "aria-label": `Look at the gap after ${seconds(row.start_ms / 1e3)}`,
          },
          row.start_ms ? seconds(row.start_ms / 1e3) : "first token",
        ),
    },
    {
      title: "Cause",
      left: true,
      value: (row) => h("span", {}, chip(row.cause), row.cause ? called(row.cause) : "not told"),
    },
    {title: "At", value: (row) => clock(row.start)},
    {title: "Lasted", value: (row) => seconds(row.duration_seconds)},
    {title: "Expected", value: (row) => seconds(row.expected_seconds)},
    {title: "Tokens", value: (row) => count(row.tokens)},
    {
      title: "Made up of",
      left: true,
      value: (row) => row.shares.map((each) => `${called(each.cause)} ${seconds(each.seconds)}`).join(", ") || "-",
    },
    {title: "Based on", left: true, value: (row) => row.shares.find((each) => each.fact)?.fact.text || "-"},
  ];
  const make = (rows) => table("The slowest first. Choose one to look at it above", columns, rows);
  return h("div", {}, firstOf(GAPS, told, make));
}

function incidents(line) {
  if (!line?.incidents.length) return "";
  return h(
    "section",
    {},
    h("h2", {}, "Incidents meanwhile"),
    h(
      "ul",
      {},
      line.incidents.map((each) =>
        h(
          "li",
          {},
          h("a", {href: `#/why?incident=${encodeURIComponent(each.id)}`}, `${called(each.kind)}, ${each.entity}`),
          ` ${clock(each.since)}: ${each.summary}`,
        ),
      ),
    ),
  );
}
