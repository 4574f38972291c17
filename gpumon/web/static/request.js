// One request: its tokens and what GPUs, processes, server and host did meanwhile; the cause of each slow gap.

import {ask, askIfThere} from "./api.js";
import {causeColours} from "./colours.js";
import {choice, h, table} from "./dom.js";
import {slowOnes, tracks} from "./tracks.js";
import {amount, clock, count, counted, day, known, percent, seconds, words} from "./units.js";

export const title = "One request";
export const minutes = null;
/** Slow gaps that are told at once. */
const GAPS = 12;

export function show(place, context) {
  context.once(async () => {
    const [trace, line] = await Promise.all([
      ask("explain", {trace_id: context.id}, context.signal),
      askIfThere(() => {}, "timeline", {trace_id: context.id}, context.signal),
    ]);
    if (!context.signal.aborted) tell(place, context, trace, line);
  });
}

function tell(place, context, trace, line) {
  const {requests} = trace;
  // Lists tell the first part of a long name.
  const wanted = context.parameters.get("id");
  let chosen = wanted ? requests.findIndex((each) => each.request_id.startsWith(wanted)) : -1;
  if (chosen < 0)
    chosen = requests.indexOf(requests.toSorted((one, other) => other.excess_seconds - one.excess_seconds)[0]);
  const body = h("div", {});
  const draw = () => body.replaceChildren(...whole(requests[chosen], line, context));
  const options = requests.map((each, n) => [
    String(n),
    `${n + 1} of ${requests.length}: ${clock(each.start)}, ${seconds(each.duration_seconds)}`,
  ]);
  place.append(
    h(
      "p",
      {class: "dim"},
      "Trace ",
      h("code", {}, trace.trace_id),
      trace.left_out ? `; ${trace.left_out} more requests of it are not told` : "",
    ),
    requests.length > 1
      ? h(
          "div",
          {class: "controls"},
          choice("Request", options, String(chosen), (value) => {
            chosen = Number(value);
            context.remember({id: requests[chosen].request_id});
            draw();
          }),
        )
      : "",
    body,
  );
  draw();
}

function whole(said, line, context) {
  const colours = causeColours(said.causes.map((each) => each.cause));
  const clockwork = tracks(said, line, colours, context);
  return [
    facts(said),
    h("section", {}, h("h2", {}, verdict(said)), causes(said, colours)),
    h(
      "section",
      {},
      h("h2", {}, "Tokens, GPUs and host on one clock ", h("small", {}, `${day(said.start)}, UTC`)),
      clockwork.element,
    ),
    h("section", {}, h("h2", {}, "Slow gaps, and the cause of each"), gaps(said, colours, clockwork.look)),
    incidents(line),
  ];
}

function facts(said) {
  const told = [
    ["Server", `${said.server}, ${said.model}`],
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
    ["GPUs", said.gpus.length ? "" : said.unbound || "not known"],
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

function causes(said, colours) {
  if (!said.causes.length)
    return h("p", {}, usual("The first token", said.first_token), usual("The tokens after it", said.decode));
  const fact = (cause) =>
    [...said.decode.shares, ...said.first_token.shares].find((each) => each.cause === cause && each.fact)?.fact;
  return table(
    "What it was late by",
    [
      {title: "Cause", left: true, value: (row) => h("span", {}, chip(colours[row.cause]), row.title)},
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
              style: {width: `${Math.round(90 * row.share)}px`, background: colours[row.cause]},
            }),
            percent(row.share),
          ),
      },
      {title: "Based on", left: true, value: (row) => factText(fact(row.cause))},
    ],
    said.causes,
  );
}

const chip = (colour) => h("span", {class: "chip", style: {background: colour}});

function factText(fact) {
  if (!fact || !known(fact.observed)) return "-";
  return `${words(fact.name)} ${amount(fact.observed, fact.unit)}${known(fact.usual) ? `, usually ${amount(fact.usual, fact.unit)}` : ""}`;
}

function gaps(said, colours, look) {
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
      value: (row) =>
        h(
          "span",
          {},
          chip(colours[row.cause] ?? causeColours([row.cause])[row.cause]),
          row.cause ? words(row.cause) : "not told",
        ),
    },
    {title: "At", value: (row) => clock(row.start)},
    {title: "Lasted", value: (row) => seconds(row.duration_seconds)},
    {title: "Expected", value: (row) => seconds(row.expected_seconds)},
    {title: "Tokens", value: (row) => count(row.tokens)},
    {
      title: "Made up of",
      left: true,
      value: (row) => row.shares.map((each) => `${words(each.cause)} ${seconds(each.seconds)}`).join(", ") || "-",
    },
    {title: "Based on", left: true, value: (row) => factText(row.shares.find((each) => each.fact)?.fact)},
  ];
  const rest = told.slice(GAPS);
  return h(
    "div",
    {},
    table("The slowest first. Choose one to look at it above", columns, told.slice(0, GAPS)),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), table("The others", columns, rest)) : "",
  );
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
          h("a", {href: `#/why?incident=${encodeURIComponent(each.id)}`}, `${words(each.kind)}, ${each.entity}`),
          ` ${clock(each.since)}: ${each.summary}`,
        ),
      ),
    ),
  );
}
