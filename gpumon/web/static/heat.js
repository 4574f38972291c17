// The heatmap's grid: a button a cell, in colours of a scale that does not move with every answer, and keys through it.

import {scaleBar, sequential} from "./colours.js";
import {h} from "./dom.js";
import {clock, count, day, seconds} from "./units.js";

/** Of the scale, each about twice the one before: 20 ms, 50 ms, 100 ms, … */
const STEPS = 5;
/** The API tells of microseconds: less is none, and has no logarithm. */
const LEAST_S = 1e-6;
const HALF_A_CELL_S = 30;
const ID = /^(ttft|inter_token)\.(concurrency|context)\.(\d{1,2})\.(\d{1,16})$/;
const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]};
const ENDS = {Home: 0, End: -1};

/** What a cell's id says; null where it is none. start: unix seconds. */
export function readId(id) {
  const [, of, by, position, start] = ID.exec(id) ?? [];
  return of ? {of, by, position: Number(position), start: Number(start) / 1e3} : null;
}

/** The cell that an id means: the wall clock may have been set a little since. */
export function cellOf(found, id) {
  const wanted = readId(id);
  if (!wanted || wanted.of !== found.of || wanted.by !== found.by) return null;
  const bucket = found.buckets[wanted.position];
  return (
    found.cells.find((cell) => cell.bucket === bucket && Math.abs(cell.start - wanted.start) < HALF_A_CELL_S) ?? null
  );
}

/** A bucket as a range: that of contexts is named by its least. */
export function range(by, buckets, position) {
  const name = buckets[position] ?? "";
  const next = buckets[position + 1];
  if (by === "concurrency" || name.startsWith("<") || !next) return name.replace("-", "–");
  return `${name}–${next.replace("+", "")}`;
}

const atMinute = (unix) => clock(unix).slice(0, Math.round(unix) % 60 ? 8 : 5);
/** Cells are a minute long and begin where gpumon's own clock says, which is seldom at a full minute. */
export const span = (cell, length) => `${atMinute(cell.start)}–${atMinute(cell.start + length)}`;

const nice = (n) => [1, 2, 5][((n % 3) + 3) % 3] * 10 ** Math.floor(n / 3);

/**
 * A scale about what is usual: half of the cells are below it. Its least is 1, 2 or 5 of something, below the usual, so
 * that calm times are dark; before: the scale until now, which stays while the usual is near its place.
 */
export function scaleOf(values, before = null) {
  const usual = Math.max(values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)], LEAST_S);
  let lowest = before?.lowest;
  if (!before || usual < 1.2 * nice(lowest) || usual > 5 * nice(lowest)) {
    lowest = 3 * Math.floor(Math.log10(usual / 1.5));
    while (nice(lowest + 1) <= usual / 1.5) lowest += 1;
  }
  const ticks = Array.from({length: STEPS + 1}, (_, n) => nice(lowest + n));
  const share = (value) => Math.log(value / ticks[0]) / Math.log(ticks.at(-1) / ticks[0]);
  return {lowest, usual, ticks, share: (value) => Math.min(Math.max(share(value), 0), 1)};
}

/** The scale with its figures. */
export function scaleKey({ticks, share, usual}) {
  const at = (value) => ({left: `${(100 * share(value)).toFixed(2)}%`});
  const [least, most] = [seconds(ticks[0]), seconds(ticks.at(-1))];
  const told = `Colours: ${least} or less is dark, ${most} or more is bright; the scale is logarithmic. Half of the cells are below ${seconds(usual)}.`;
  return h(
    "div",
    {class: "heat-scale", role: "img", "aria-label": told},
    h("span", {class: "usual", style: at(usual)}, `▾ usual ${seconds(usual)}`),
    scaleBar(),
    ticks.map((tick, n) =>
      h("span", {class: "tick", style: at(tick)}, `${{0: "≤ ", [STEPS]: "≥ "}[n] ?? ""}${seconds(tick)}`),
    ),
  );
}

/** A cell in words. look: the quantile's {name, quantile}, the latter its key; what {rows} are by, and their {unit}. */
export function cellText(found, cell, {name, quantile, unit}) {
  const rows = range(found.by, found.buckets, found.buckets.indexOf(cell.bucket));
  return (
    `${span(cell, found.cell_seconds)}, ${rows} ${unit}: ${name} ${seconds(cell[quantile])}, ` +
    `P50 ${seconds(cell.p50_seconds)}, ${count(cell.count)} ${found.of === "ttft" ? "first tokens" : "gaps"}`
  );
}

/** begin: start of the first column. chosen: the cell that is, or null. choose: called with a cell. */
export function heatGrid(found, begin, look, scale, chosen, choose) {
  const starts = [];
  for (let start = begin; start < found.end - 1; start += found.cell_seconds) starts.push(start);
  const column = (cell) => Math.round((cell.start - begin) / found.cell_seconds);
  const cells = new Map(found.cells.map((cell) => [`${column(cell)} ${cell.bucket}`, cell]));
  const used = found.buckets.map((bucket) => found.cells.some((cell) => cell.bucket === bucket));
  const rows = found.buckets.map((bucket, y) => y).slice(used.indexOf(true), used.lastIndexOf(true) + 1);
  const button = (cell, x, y) => {
    const label = cellText(found, cell, look);
    return h("button", {
      type: "button",
      "data-cell": cell.id,
      "data-x": x,
      "data-y": y,
      title: label,
      "aria-label": label,
      "aria-pressed": String(cell === chosen),
      tabindex: "-1",
      style: {background: sequential(scale.share(cell[look.quantile])).background},
      on: {click: () => choose(cell)},
    });
  };
  const row = (y) =>
    h(
      "tr",
      {},
      h("th", {scope: "row"}, range(found.by, found.buckets, y)),
      starts.map((_, x) => {
        const cell = cells.get(`${x} ${found.buckets[y]}`);
        return h("td", {}, cell ? button(cell, x, y) : null);
      }),
    );
  return h(
    "table",
    {class: "heat", style: {"--columns": String(starts.length)}, on: {keydown: moved}},
    h("caption", {}, h("span", {}, `Rows: ${look.rows}. Columns: minutes of ${day(found.start)}, UTC.`)),
    h("colgroup", {}, h("col")),
    h("thead", {}, h("tr", {}, h("th", {scope: "col"}, look.rows), h("td", {colspan: starts.length}))),
    h("tbody", {}, rows.map(row).reverse()),
    h("tfoot", {}, h("tr", {}, h("td", {}), times(starts))),
  );
}

/** As many as there is room for, on a phone too. */
function times(starts) {
  const columns = starts.length;
  const every = columns <= 4 ? 1 : columns <= 12 ? 3 : Math.max(4, Math.ceil(columns / 12));
  const found = [];
  for (let n = 0; n < columns; n += every) {
    const wide = Math.min(every, columns - n);
    found.push(wide === every ? h("th", {scope: "col", colspan: wide}, atMinute(starts[n])) : h("td", {colspan: wide}));
  }
  return found;
}

/** Arrows lead to the nearest cell that there is in this direction; Home and End to the first and last of the row. */
function moved(event) {
  const from = event.target.closest("button");
  if (!from || event.ctrlKey || event.altKey || event.metaKey) return;
  const all = [...event.currentTarget.querySelectorAll("button")];
  const [dx, dy] = MOVES[event.key] ?? [0, 0];
  const place = (button) => [Number(button.dataset.x), Number(button.dataset.y)];
  const [x, y] = place(from);
  let to = null;
  if (event.key in ENDS) {
    to = all.filter((button) => place(button)[1] === y).at(ENDS[event.key]);
  } else if (dx || dy) {
    const far = all.map((button) => {
      const [by, up] = [place(button)[0] - x, place(button)[1] - y];
      return {button, along: by * dx + up * dy, aside: Math.abs(dx ? up : by)};
    });
    const ahead = far.filter(({along}) => along > 0);
    to = ahead.toSorted((one, other) => one.along + 3 * one.aside - other.along - 3 * other.aside)[0]?.button;
  } else return;
  event.preventDefault();
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}
