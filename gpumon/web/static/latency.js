// Latency: a heatmap of a quantile by minute and by load; a cell leads to its slowest requests.

import {ask, askIfThere} from "./api.js";
import {choice, h, say, table} from "./dom.js";
import {cellOf, cellText, heatGrid, range, readId, scaleKey, scaleOf, span} from "./heat.js";
import {called, learn} from "./names.js";
import {clock, count, day, known, percent, seconds} from "./units.js";

export const title = "Latency";
export const minutes = "60";
const EVERY_MS = 10_000;
const REQUESTS = 20;
/** Of cells, whatever is shown of it. */
const KEPT_S = 3600;
/** Requests are told when they ended; they are known some seconds later. */
const SOON_S = 90;
const OF = [
  ["inter_token", "between tokens"],
  ["ttft", "first token"],
];
const BY = [
  ["concurrency", "open requests"],
  ["context", "context length, tokens"],
];
/** After a figure. */
const UNITS = {concurrency: "open requests", context: "tokens of context"};
const QUANTILES = [
  ["p99_seconds", "P99"],
  ["p95_seconds", "P95"],
  ["p50_seconds", "P50"],
];
const named = (options, key) => options.find(([each]) => each === key)[1];

export function show(place, context) {
  const {parameters, minutes: wanted, signal} = context;
  const one = (name, options) =>
    options.some(([key]) => key === parameters.get(name)) ? parameters.get(name) : options[0][0];
  const cell = parameters.get("cell") ?? "";
  const asked = {
    // A cell is of one heatmap: that one is shown.
    of: readId(cell)?.of ?? one("of", OF),
    by: readId(cell)?.by ?? one("by", BY),
    quantile: one("quantile", QUANTILES),
    of_model: parameters.get("of_model") ?? "",
    cell,
  };
  const models = h("span", {});
  const legend = h("div", {});
  const map = h("div", {class: "scroll", role: "region", "aria-label": "Heatmap"});
  const why = h("p", {class: "hint"});
  const head = h("div", {"aria-live": "polite"});
  const list = h("div", {});
  let told = "";
  let listed = "";
  let scale = null;
  let heatmap = null;
  let started = null;

  const change = (name) => (value) => {
    asked[name] = value;
    const changes = {[name]: value};
    if (name === "of" || name === "by") changes.cell = asked.cell = "";
    context.remember(changes);
    told = listed = "";
    scale = null;
    list.replaceChildren();
    context.once(heat);
    context.once(requests);
  };
  place.append(
    h(
      "div",
      {class: "controls"},
      choice("Latency of", OF, asked.of, change("of")),
      choice("by", BY, asked.by, change("by")),
      choice("quantile", QUANTILES, asked.quantile, change("quantile")),
      models,
    ),
    legend,
    map,
    why,
    h("section", {}, head, list),
  );

  const whose = () => {
    const [server, model] = asked.of_model.split("\n");
    return {server: server ?? "", model: model ?? ""};
  };

  async function heat() {
    const question = {of: asked.of, by: asked.by, minutes: wanted, ...whose()};
    const [found, node] = await Promise.all([ask("heatmap", question, signal), ask("node", {}, signal)]);
    if (signal.aborted || found.of !== asked.of || found.by !== asked.by) return;
    const now = JSON.stringify([found, asked.quantile]);
    if (now === told) return;
    told = now;
    heatmap = found;
    started = node.started;
    tellModels(found.models);
    draw(found);
    tellCell();
  }

  function tellModels(those) {
    const key = JSON.stringify(those);
    if (models.dataset.told === key) return;
    models.dataset.told = key;
    const options = [
      ["", "all models"],
      ...those.map((each) => [`${each.server}\n${each.model}`, `${each.model} (${each.server})`]),
    ];
    models.replaceChildren(choice("of", options, asked.of_model, change("of_model")));
  }

  const look = () => ({
    name: named(QUANTILES, asked.quantile),
    quantile: asked.quantile,
    rows: named(BY, asked.by),
    unit: UNITS[asked.by],
  });

  function draw(found) {
    if (!found.cells.length) {
      map.replaceChildren();
      legend.replaceChildren(h("p", {class: "hint"}, `No request ended in the last ${wanted} minutes.`));
      say(why, started > found.start ? `gpumon started at ${clock(started)}.` : "");
      return;
    }
    scale = scaleOf(
      found.cells.map((each) => each[asked.quantile]),
      scale,
    );
    const ago = Math.max(0, Math.floor((Math.min(started, found.cells[0].start) - found.start) / found.cell_seconds));
    const begin = found.start + ago * found.cell_seconds;
    legend.replaceChildren(
      h("p", {class: "hint"}, `${look().name} ${named(OF, asked.of)}, a minute a cell. Logarithmic scale:`),
      scaleKey(scale),
    );
    const focused = map.contains(document.activeElement) ? document.activeElement.dataset.cell : null;
    const atEnd = !map.firstChild || map.scrollLeft + map.clientWidth >= map.scrollWidth - 2;
    map.replaceChildren(heatGrid(found, begin, look(), scale, cellOf(found, asked.cell), chosen));
    const before = cellOf(found, focused ?? asked.cell);
    const button = before && map.querySelector(`[data-cell="${before.id}"]`);
    if (focused) button?.focus();
    (button ?? [...map.querySelectorAll("button")].at(-1)).tabIndex = 0;
    if (atEnd) map.scrollLeft = map.scrollWidth;
    say(
      why,
      "Choose a cell for its slowest requests; arrow keys move, Home and End go to the ends of a row. " +
        "Empty: nothing was measured in that minute at that load. The newest minutes still fill." +
        (started > found.start ? ` There is nothing from before ${clock(started)}, when gpumon started.` : ""),
    );
  }

  function chosen(cell) {
    asked.cell = cell.id;
    for (const each of map.querySelectorAll("button"))
      each.setAttribute("aria-pressed", String(each.dataset.cell === cell.id));
    context.remember({cell: cell.id});
    list.replaceChildren();
    listed = "";
    tellCell();
    context.once(requests);
  }

  /** The cell's name and figures, or why it is not known. */
  function tellCell() {
    if (!asked.cell || !heatmap) return head.replaceChildren();
    const cell = cellOf(heatmap, asked.cell);
    const text = cell
      ? `${day(cell.start)} ${cellText(heatmap, cell, look())}.`
      : notKnown(heatmap, asked.cell, started);
    if (head.dataset.told === text && head.firstChild) return;
    head.dataset.told = text;
    head.replaceChildren(h("h2", {}, "Slowest requests of the cell"), h("p", {class: cell ? "cell" : "lost"}, text));
  }

  async function requests() {
    const {cell} = asked;
    tellCell();
    if (!readId(cell)) return;
    const question = {cell, limit: REQUESTS, ...whose()};
    const found = await askIfThere((text) => list.replaceChildren(h("p", {}, text)), "requests", question, signal);
    if (!found || signal.aborted || cell !== asked.cell) return;
    const now = JSON.stringify([cell, found]);
    if (now === listed) return;
    listed = now;
    learn(found.requests);
    list.replaceChildren(
      h("p", {class: "hint"}, howMany(found, readId(cell), heatmap)),
      found.requests.length ? requestTable(found.requests, asked.of) : "",
    );
  }

  context.every(EVERY_MS, heat);
  context.every(EVERY_MS, requests);
}

/** Why a cell that an address names is not in the heatmap. */
function notKnown(heatmap, id, started) {
  const cell = readId(id);
  if (!cell) return "The address names a cell that cannot be read: choose one above.";
  const rows = range(cell.by, heatmap.buckets, cell.position);
  const name = `The cell of ${day(cell.start)} ${span(cell, heatmap.cell_seconds)}, ${rows} ${UNITS[cell.by]},`;
  const lost =
    cell.start + heatmap.cell_seconds <= heatmap.end - KEPT_S
      ? "is no longer known: cells are kept for an hour"
      : cell.start + heatmap.cell_seconds <= started
        ? `is no longer known: gpumon has started since, at ${clock(started)}, and remembers nothing from before`
        : cell.start < heatmap.start
          ? "is older than the time that is shown"
          : "holds nothing that was measured";
  return `${name} ${lost}.`;
}

function howMany(found, cell, heatmap) {
  if (found.matched > found.requests.length)
    return `The ${found.requests.length} slowest of ${count(found.matched)} that can have been in it.`;
  if (found.matched) return "";
  if (found.kept_from > cell.start) return "None is known any more: the newest 16,384 requests are kept.";
  if (heatmap && cell.start > heatmap.end - SOON_S)
    return "None is known yet: requests are some seconds after they ended.";
  return "None is known.";
}

const requestAddress = (row) =>
  `#/request/${row.trace_id}${row.request_id ? `?id=${encodeURIComponent(row.request_id)}` : ""}`;

const GONE = "Its tokens are no longer kept: others took their place.";

/** The request's address; none where gpumon no longer has what it would show. */
function requestLink(row) {
  const id = h("code", {}, row.trace_id.slice(0, 12));
  return row.detailed
    ? h("a", {href: requestAddress(row), title: row.trace_id}, id)
    : h("span", {class: "gone", title: `${row.trace_id}. ${GONE}`}, id, h("small", {}, " not kept"));
}

/** A table whose first column leads to the requests. */
function requestTable(rows, by) {
  const strong = (is, text) => (is ? h("b", {}, text) : text);
  const columns = [
    {title: "Request", left: true, value: requestLink},
    {
      title: "Cause",
      left: true,
      value: (row) =>
        row.cause
          ? `${called(row.cause)} ${percent(row.causes[row.cause] / row.late_seconds)}`
          : known(row.late_seconds)
            ? "on time"
            : "-",
    },
    {title: "Late by", value: (row) => seconds(row.late_seconds)},
    {title: "Began", value: (row) => clock(row.start)},
    {title: "Model", left: true, value: (row) => row.model},
    {title: "Took", value: (row) => seconds(row.duration_seconds)},
    {title: "First token", value: (row) => strong(by === "ttft", seconds(row.time_to_first_token_seconds))},
    {title: "Longest gap", value: (row) => strong(by === "inter_token", seconds(row.gap_max_seconds))},
    {title: "Tokens in", value: (row) => count(row.prompt_tokens)},
    {title: "Tokens out", value: (row) => count(row.completion_tokens)},
  ];
  const shown = table("Requests that ended", columns, rows, {key: (row) => row.trace_id});
  if (rows.every((row) => row.detailed)) return shown;
  return h("div", {}, shown, h("p", {class: "hint"}, `Where it says “not kept” there is no link. ${GONE}`));
}
