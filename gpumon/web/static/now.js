// Now: every GPU as a strip of its last two minutes, the servers, and the incidents that are open or closed lately.

import {h, say, term} from "./dom.js";
import {incidentCard} from "./incidents.js";
import {drawLine, inks, stretches} from "./lines.js";
import {WINDOW_S} from "./live.js";
import {called, learn} from "./names.js";
import {askRecent, recentList} from "./recent.js";
import {MEANINGS} from "./states.js";
import {amount, clock, count, counted, known, percent, rate, seconds, words} from "./units.js";

export const title = "Now";
export const minutes = null;
/** Servers' pages are read so often, or less. */
const PAGES_S = 3;
const RECENT_MS = 10_000;
const SERVER_WORDS = {
  "tokens late by":
    "how much later the tokens of all its requests came than is usual under the load that there was, added up: 2 s " +
    "each second is as if two requests stood still all the time",
  "TTFT P99": "time to first token: of 100 requests 99 had their first token sooner",
  "Between tokens P99": "from one token of a request to its next: 99 of 100 were shorter",
  Queue: "requests that the server has taken and not begun",
  "KV cache": "how much of the memory for the contexts of requests is in use",
};

const total = (gpu) => gpu.memory_total_bytes;
/** What a strip shows: title, signal of the history, text, and the top of its scale. */
const GPU_STATS = [
  ["SM", "sm_active", (gpu) => percent(gpu.sm_active ?? gpu.utilization), () => 1, "ratio"],
  ["DRAM bandwidth", "dram_active", (gpu) => percent(gpu.dram_active), () => 1, "ratio"],
  [
    "Power",
    "power_watts",
    (gpu) => of(gpu.power_watts, gpu.power_limit_watts, "watts"),
    (gpu) => gpu.power_limit_watts,
    "watts",
  ],
  [
    "SM clock",
    "sm_clock_hertz",
    (gpu) => of(gpu.sm_clock_hertz, gpu.sm_clock_max_hertz, "hertz"),
    (gpu) => gpu.sm_clock_max_hertz,
    "hertz",
  ],
  [
    "Temperature",
    "temperature_celsius",
    (gpu) => `${amount(gpu.temperature_celsius, "celsius")}${toLimit(gpu.temperature_margin_celsius)}`,
    () => 100,
    "celsius",
  ],
  ["Memory", "memory_used_bytes", (gpu) => of(gpu.memory_used_bytes, total(gpu), "bytes"), total, "bytes"],
];
const SERVER_STATS = [
  [
    "Tokens",
    "tokens_per_second",
    (each) => rate(pick(each.tokens_per_second, sum(each, "tokens_per_second")), "tokens"),
    "tokens/s",
  ],
  ["TTFT P99", "time_to_first_token_p95_seconds", (each) => seconds(each.time_to_first_token.p99_seconds), "seconds"],
  ["Between tokens P99", "inter_token_p95_seconds", (each) => seconds(each.inter_token.p99_seconds), "seconds"],
  ["Requests open", "requests_open", (each) => count(pick(each.requests_open, each.running)), ""],
  ["Queue", "waiting", (each) => (known(each.waiting) ? `${count(each.waiting)} waiting` : "-"), ""],
  ["KV cache", "kv_usage", (each) => percent(each.kv_usage), "ratio"],
];

const pick = (...values) => values.find(known) ?? null;
const sum = (each, name) => (each.pages.length ? each.pages.reduce((all, page) => all + (page[name] ?? 0), 0) : null);

/** 375 of 700 W. */
function of(value, limit, unit) {
  const [figure, whole] = [amount(value, unit), amount(limit, unit)];
  if (!known(limit)) return figure;
  const [number, name] = figure.split(" ");
  return whole.endsWith(` ${name}`) ? `${number} of ${whole}` : `${figure} of ${whole}`;
}

function toLimit(margin) {
  if (!known(margin)) return "";
  if (margin === 0) return ", at its limit";
  return margin > 0 ? `, ${count(margin)} °C to limit` : `, ${count(-margin)} °C over limit`;
}

export function show(place, {live, signal, redraw, every, once, answered}) {
  const incidents = h("div", {class: "cards"});
  const recent = h("div", {});
  const gpus = h("div", {class: "strips"});
  const servers = h("div", {class: "strips"});
  const moment = h("small", {});
  place.append(
    h("section", {"aria-labelledby": "incidents-title"}, h("h2", {id: "incidents-title"}, "Open incidents"), incidents),
    recent,
    h(
      "section",
      {"aria-labelledby": "gpus-title"},
      h("h2", {id: "gpus-title"}, "GPUs ", moment),
      h(
        "p",
        {class: "hint"},
        "Lines: the last two minutes. ",
        h("span", {class: "key band"}),
        " clocks held down ",
        h("span", {class: "key mark"}),
        " incident began",
      ),
      terms("What limits a GPU: ", MEANINGS),
      gpus,
    ),
    h(
      "section",
      {"aria-labelledby": "servers-title"},
      h("h2", {id: "servers-title"}, "Servers"),
      h("p", {class: "hint"}, "Figures: the last one to two minutes. Lines: the last two minutes; of latencies, P95."),
      terms("What is ", SERVER_WORDS),
      servers,
    ),
  );
  const strips = new Map();
  let closed = [];
  let open = new Set();
  let told = null;
  const askClosed = async () => {
    closed = await askRecent(signal);
    update();
  };
  const update = () => {
    if (document.hidden || !live.snapshot || signal.aborted) return;
    const {snapshot} = live;
    answered();
    say(moment, `at ${clock(snapshot.at)}`);
    learn(live.incidents);
    if (!isTold(told, live.incidents)) tellIncidents(incidents, (told = live.incidents));
    const before = open;
    open = new Set(live.incidents.map((each) => each.id));
    const over = closed.filter((each) => !open.has(each.id));
    recentList(recent, over, snapshot.at);
    if ([...before].some((id) => !open.has(id))) once(askClosed);
    const ink = inks();
    keep(
      gpus,
      strips,
      snapshot.gpus,
      (gpu) => gpu.uuid,
      gpuStrip,
      (strip, gpu) => setGpu(strip, gpu, snapshot, live, ink),
      `No GPU is known: NVML ${snapshot.nvml.state}${snapshot.nvml.error ? `, ${snapshot.nvml.error}` : ""}.`,
    );
    keep(
      servers,
      strips,
      snapshot.servers,
      (each) => `${each.server}\n${each.model}`,
      serverStrip,
      (strip, each) => setServer(strip, each, snapshot.at, live, ink),
      "No server has sent traces or is scraped yet.",
    );
  };
  live.listen(update, signal);
  redraw(update);
  every(RECENT_MS, askClosed);
}

/** Words, each of which tells what it means. */
function terms(before, meanings) {
  const all = Object.entries(meanings).flatMap(([word, meaning], n) => [n ? ", " : before, term(word, meaning)]);
  return h("p", {class: "hint"}, all);
}

/** One element for each thing that there is, in its order; those of things that are gone are dropped. */
function keep(place, strips, things, key, make, set, nothing) {
  const wanted = things.map((thing) => {
    let strip = strips.get(key(thing));
    if (!strip) strips.set(key(thing), (strip = make(thing)));
    return strip;
  });
  const elements = wanted.map((strip) => strip.element);
  if (!elements.length) elements.push(h("p", {}, nothing));
  if (elements.length !== place.children.length || elements.some((element, n) => element !== place.children[n])) {
    if (things.length || place.textContent !== nothing) place.replaceChildren(...elements);
    for (const [name, strip] of strips) if (!strip.element.isConnected) strips.delete(name);
  }
  things.forEach((thing, n) => set(wanted[n], thing));
}

/** Told anew, an incident is another object. */
const isTold = (told, open) => told?.length === open.length && open.every((each, n) => each === told[n]);

function tellIncidents(place, open) {
  place.replaceChildren(...(open.length ? open.map((each) => incidentCard(each)) : [h("p", {}, "None.")]));
}

/** Models whose servers are on this GPU. */
const modelsOn = (uuid, servers) =>
  servers.filter((each) => each.gpus.some((gpu) => gpu.uuid === uuid)).map((each) => each.model || each.server);

function stat(name) {
  const value = h("span", {class: "value"}, "-");
  const canvas = h("canvas", {"aria-hidden": "true"});
  return {element: h("div", {class: "stat"}, h("span", {class: "name"}, name), value, canvas), value, canvas};
}

function makeStrip(heading, names, label) {
  const badges = h("span", {class: "badges"});
  const note = h("span", {class: "note"});
  const stats = names.map(stat);
  const element = h(
    "article",
    {class: "strip", "aria-label": label},
    h("div", {class: "of"}, h("h3", {}, heading), note, badges),
    ...stats.map((each) => each.element),
  );
  return {element, badges, note, stats};
}

const gpuStrip = (gpu) =>
  makeStrip(
    `GPU ${gpu.gpu}`,
    GPU_STATS.map(([name]) => name),
    `GPU ${gpu.gpu}, ${gpu.name}`,
  );
const serverStrip = (each) =>
  makeStrip(
    each.model || "no model named",
    SERVER_STATS.map(([name]) => name),
    `Server ${each.server}, ${each.model}`,
  );

function setGpu({element, badges, note, stats}, gpu, {at, servers}, live, ink) {
  const past = live.past(gpu.uuid) ?? {at: [], signals: {}};
  const frame = {
    from: at - WINDOW_S,
    to: at,
    at: past.at,
    ink,
    marks: gpu.incidents.map((each) => each.since),
    bands: stretches(past.at, past.signals.throttled),
  };
  GPU_STATS.forEach(([, signal, text, top, unit], n) => {
    say(stats[n].value, text(gpu));
    const values = past.signals[signal] ?? (signal === "sm_active" ? past.signals.utilization : null) ?? [];
    const high = top(gpu) ?? Math.max(...values, 1);
    stats[n].element.title = `the line's scale: 0 to ${amount(high, unit)}`;
    drawLine(stats[n].canvas, {...frame, at: past.at, values, high});
  });
  const parts = [gpu.name, ...modelsOn(gpu.uuid, servers), gpu.bound ? mostly(gpu.bound) : ""];
  say(note, parts.filter(Boolean).join(" · "));
  const held = (gpu.throttled_by ?? []).filter((reason) => reason !== "low_utilization");
  setBadges(badges, [
    ...(gpu.present ? [] : [["bad", "lost or not answering"]]),
    ...(held.length ? [["bad", `held down: ${held.map(words).join(", ")}`]] : []),
    ...gpu.xids.map((each) => ["warn", `XID ${each.xid}, ${counted(each.count, "time")}`]),
    ...gpu.incidents.map((each) => ["bad", called(each.kind), `#/why?incident=${encodeURIComponent(each.id)}`]),
  ]);
  element.classList.toggle("held", held.length > 0);
}

function mostly(bound) {
  const [state, share] = Object.entries(bound).sort((one, other) => other[1] - one[1])[0];
  return `${state === "compute" || state === "memory" ? `${state} bound` : state} ${percent(share)} of the last minute`;
}

function setServer({badges, note, stats}, each, at, live, ink) {
  const past = live.serverPast(each);
  SERVER_STATS.forEach(([, signal, text, unit], n) => {
    say(stats[n].value, text(each));
    const values = past?.signals[signal] ?? past?.signals[signal === "requests_open" ? "running" : ""] ?? [];
    const high = unit === "ratio" ? 1 : Math.max(...values.map((value) => value ?? 0), 1e-9);
    stats[n].element.title = `the line's scale: 0 to ${amount(high, unit)}`;
    drawLine(stats[n].canvas, {
      from: at - WINDOW_S,
      to: at,
      at: past?.at ?? [],
      values,
      high,
      ink,
      step: PAGES_S,
      marks: each.incidents.map((incident) => incident.since),
    });
  });
  const cause = Object.entries(each.causes ?? {})[0];
  say(
    note,
    [
      each.server,
      each.gpus.length ? `GPU ${each.gpus.map((gpu) => gpu.gpu ?? gpu.uuid).join(", ")}` : "",
      cause && each.late_seconds_per_second >= 0.001
        ? `tokens late by ${seconds(each.late_seconds_per_second)} each second, all requests together, ` +
          `most by ${called(cause[0])}`
        : "",
    ]
      .filter(Boolean)
      .join(" · "),
  );
  setBadges(badges, [
    ...each.pages.filter((page) => !page.up).map((page) => ["warn", `no page at ${page.endpoint}`]),
    ...(each.errors_per_second > 0 ? [["warn", rate(each.errors_per_second, "errors")]] : []),
    ...each.incidents.map((incident) => [
      "bad",
      called(incident.kind),
      `#/why?incident=${encodeURIComponent(incident.id)}`,
    ]),
  ]);
}

/** wanted: [class, text, address]. */
function setBadges(place, wanted) {
  const told = JSON.stringify(wanted);
  if (place.dataset.told === told) return;
  place.dataset.told = told;
  place.replaceChildren(
    ...wanted.map(([kind, text, address]) =>
      address ? h("a", {class: `badge ${kind}`, href: address}, text) : h("span", {class: `badge ${kind}`}, text),
    ),
  );
}
