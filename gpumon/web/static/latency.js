// Latency: a heatmap of a quantile by minute and by load; a cell leads to its slowest requests.

import {ask, askIfThere} from "./api.js";
import {logShare, scaleBar, sequential} from "./colours.js";
import {choice, h, say, table} from "./dom.js";
import {clock, count, day, known, percent, seconds, words} from "./units.js";

export const title = "Latency";
export const minutes = "60";
const EVERY_MS = 10_000;
const REQUESTS = 20;
/** Columns that there are at least. */
const FEWEST = 20;
const OF = [
  ["inter_token", "between tokens"],
  ["ttft", "first token"],
];
const BY = [
  ["concurrency", "open requests"],
  ["context", "context length, tokens"],
];
const QUANTILES = [
  ["p99_seconds", "P99"],
  ["p95_seconds", "P95"],
  ["p50_seconds", "P50"],
];
const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]};

export function show(place, context) {
  const {parameters, minutes: wanted, signal} = context;
  const one = (name, options) =>
    options.some(([key]) => key === parameters.get(name)) ? parameters.get(name) : options[0][0];
  const asked = {
    of: one("of", OF),
    by: one("by", BY),
    quantile: one("quantile", QUANTILES),
    of_model: parameters.get("of_model") ?? "",
    cell: parameters.get("cell") ?? "",
  };
  const models = h("span", {});
  const map = h("div", {class: "scroll", role: "region", "aria-label": "Heatmap", tabindex: "0"});
  const legend = h("p", {class: "hint"});
  const below = h("section", {"aria-live": "polite"});
  let told = "";
  let listed = "";

  const change = (name) => (value) => {
    asked[name] = value;
    const changes = {[name]: value};
    if (name === "of" || name === "by") changes.cell = asked.cell = "";
    context.remember(changes);
    if (!asked.cell) below.replaceChildren();
    told = listed = "";
    context.once(heat);
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
    below,
  );

  async function heat() {
    const [server, model] = asked.of_model.split("\n");
    const found = await ask(
      "heatmap",
      {of: asked.of, by: asked.by, minutes: wanted, server: server ?? "", model: model ?? ""},
      signal,
    );
    if (signal.aborted) return;
    const now = JSON.stringify([found, asked.quantile]);
    if (now === told) return;
    told = now;
    tellModels(found.models);
    draw(found);
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

  function draw(found) {
    const name = QUANTILES.find(([key]) => key === asked.quantile)[1];
    const values = found.cells.map((cell) => cell[asked.quantile]);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    if (!found.cells.length) {
      map.replaceChildren();
      legend.replaceChildren(`No request ended in the last ${wanted} minutes.`);
      return;
    }
    legend.replaceChildren(
      `${name} ${OF.find(([key]) => key === asked.of)[1]}, one cell a minute: ${seconds(least)} `,
      scaleBar(),
      ` ${seconds(most)}. `,
      "Choose a cell for its slowest requests; arrow keys move. The newest minutes still fill.",
    );
    const focused = map.contains(document.activeElement) ? document.activeElement.dataset.cell : null;
    map.replaceChildren(grid(found, name, least, most));
    const button = map.querySelector(`[data-cell="${CSS.escape(focused ?? asked.cell)}"]`);
    if (focused) button?.focus();
    (button ?? map.querySelector("button:last-of-type")).tabIndex = 0;
    map.scrollLeft = map.scrollWidth;
  }

  function grid(found, name, least, most) {
    const starts = [];
    // Of the time before the first request a little is left out.
    const begin = Math.max(found.start, Math.min(found.cells[0].start, found.end - FEWEST * found.cell_seconds));
    for (let start = begin; start < found.end - 1; start += found.cell_seconds) starts.push(start);
    const cells = new Map(
      found.cells.map((cell) => [`${Math.round((cell.start - begin) / found.cell_seconds)} ${cell.bucket}`, cell]),
    );
    const used = found.buckets.map((bucket) => found.cells.some((cell) => cell.bucket === bucket));
    const buckets = found.buckets.slice(used.indexOf(true), used.lastIndexOf(true) + 1);
    const every = Math.max(1, Math.ceil(starts.length / 8));
    const what = BY.find(([key]) => key === asked.by)[1];
    const row = (bucket, y) =>
      h(
        "tr",
        {},
        h("th", {scope: "row"}, bucket),
        starts.map((start, x) => {
          const cell = cells.get(`${x} ${bucket}`);
          if (!cell) return h("td", {});
          const value = cell[asked.quantile];
          const label =
            `${clock(cell.start).slice(0, 5)}, ${bucket} ${what}: ${name} ${seconds(value)}, P50 ${seconds(cell.p50_seconds)}, ` +
            `${count(cell.count)} ${asked.of === "ttft" ? "first tokens" : "gaps"}`;
          return h(
            "td",
            {},
            h("button", {
              type: "button",
              "data-cell": cell.id,
              "data-x": x,
              "data-y": y,
              title: label,
              "aria-label": label,
              "aria-pressed": String(cell.id === asked.cell),
              tabindex: "-1",
              style: {background: sequential(logShare(value, least, most)).background},
            }),
          );
        }),
      );
    return h(
      "table",
      {class: "heat", on: {click: chosen, keydown: moved}},
      h("caption", {}, `By ${what}, ${day(found.start)}`),
      h("colgroup", {}, h("col")),
      h("tbody", {}, buckets.map(row).reverse()),
      h(
        "tfoot",
        {},
        h(
          "tr",
          {},
          h("td", {}),
          starts.map((start, n) =>
            n % every
              ? null
              : h(
                  "th",
                  {scope: "col", class: "left", colspan: Math.min(every, starts.length - n)},
                  clock(start).slice(0, 5),
                ),
          ),
        ),
      ),
    );
  }

  function chosen(event) {
    const button = event.target.closest("button");
    if (!button) return;
    asked.cell = button.dataset.cell;
    for (const each of map.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
    context.remember({cell: asked.cell});
    context.once(requests);
  }

  function moved(event) {
    const [dx, dy] = MOVES[event.key] ?? [0, 0];
    const from = event.target.closest("button");
    if (!from || (!dx && !dy)) return;
    event.preventDefault();
    const [x, y] = [Number(from.dataset.x), Number(from.dataset.y)];
    // To the nearest cell that there is in this direction.
    const there = [...map.querySelectorAll("button")]
      .map((button) => {
        const [by, up] = [Number(button.dataset.x) - x, Number(button.dataset.y) - y];
        return {button, along: by * dx + up * dy, aside: Math.abs(dx ? up : by)};
      })
      .filter(({along}) => along > 0)
      .sort((one, other) => one.along + 3 * one.aside - other.along - 3 * other.aside);
    if (!there.length) return;
    from.tabIndex = -1;
    there[0].button.tabIndex = 0;
    there[0].button.focus();
  }

  async function requests() {
    const {cell} = asked;
    if (!cell) return;
    const found = await askIfThere(
      (text) => below.replaceChildren(h("p", {}, text)),
      "requests",
      {cell, limit: REQUESTS},
      signal,
    );
    if (!found) return;
    const now = JSON.stringify([cell, found]);
    if (signal.aborted || cell !== asked.cell || now === listed) return;
    listed = now;
    const heading = h("h2", {}, "Slowest requests of the cell");
    const few = h("p", {class: "hint"});
    say(
      few,
      found.matched > found.requests.length
        ? `The ${found.requests.length} slowest of ${count(found.matched)} that can have been in it.`
        : found.matched
          ? ""
          : found.kept_from
            ? "None is known: requests are a few seconds after they ended, and the newest 16,384 are kept."
            : "None is known yet: requests are a few seconds after they ended.",
    );
    below.replaceChildren(heading, few, found.requests.length ? requestTable(found.requests, asked.of) : "");
  }

  context.every(EVERY_MS, heat);
  context.every(EVERY_MS, requests);
}

const requestAddress = (row) =>
  `#/request/${row.trace_id}${row.request_id ? `?id=${encodeURIComponent(row.request_id)}` : ""}`;

/** A table whose first column leads to the requests. */
export function requestTable(rows, by = "") {
  const strong = (is, text) => (is ? h("b", {}, text) : text);
  return table(
    "Requests that ended",
    [
      {
        title: "Request",
        left: true,
        value: (row) => h("a", {href: requestAddress(row)}, h("code", {}, row.trace_id.slice(0, 12))),
      },
      {
        title: "Cause",
        left: true,
        value: (row) =>
          row.cause
            ? `${words(row.cause)} ${percent(row.causes[row.cause] / row.late_seconds)}`
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
    ],
    rows,
    {key: (row) => row.trace_id},
  );
}
