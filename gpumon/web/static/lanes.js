// What lies on the clock of one request: a canvas for its tokens, one for each signal, and the axis below them.

import {causeColour, gpuLine} from "./colours.js";
import {h, say} from "./dom.js";
import {cleared, drawTimes, stroke} from "./lines.js";
import {called} from "./names.js";
import {amount, counted, known, seconds} from "./units.js";

/** Heights of scales, times a power of ten. */
const ROUND = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** The slow gaps, and the time to first token where that was slow. */
export function slowOnes(said) {
  const {first_token: first} = said;
  if (!(first.excess_seconds > 0)) return said.slow_gaps;
  return [
    {
      start_ms: 0,
      start: said.start,
      duration_seconds: first.actual_seconds,
      tokens: 1,
      expected_seconds: first.expected_seconds,
      excess_seconds: first.excess_seconds,
      cause: first.cause,
      shares: first.shares,
    },
    ...said.slow_gaps,
  ];
}

/** Lanes by signal: those of several GPUs are lines of one lane. */
export function lanesOf(line) {
  const found = new Map();
  for (const lane of line?.lanes ?? []) {
    const key = `${lane.scope} ${lane.name}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(lane);
  }
  // What a GPU tells in tenths of a second needs not be told again by the second.
  for (const key of [...found.keys()])
    if (key.startsWith("engine ") && found.has(`gpu ${key.slice(7)}`)) found.delete(key);
  return [...found.values()];
}

function track(kind, name, note) {
  const canvas = h("canvas", {"aria-hidden": "true"});
  const small = h("small", {}, note);
  return {canvas, small, element: h("div", {class: `track ${kind}`}, h("span", {class: "name"}, name, small), canvas)};
}

function upright(pen, x, height, ink) {
  pen.fillStyle = ink.text;
  pen.fillRect(x, 0, 1, height);
}

/** A stem a token, as high as the gap before it; slow gaps filled in the colour of their cause. */
export function tokenTrack(said) {
  const tokens = said.tokens;
  const at = tokens?.ms.map((ms) => said.start + ms / 1e3) ?? [];
  const gap = tokens?.gap_ms.map((ms) => (ms === null ? null : ms / 1e3)) ?? [];
  const most = Math.max(...gap.map((each) => each ?? 0), 1e-3);
  const {canvas, element} = track(
    "tokens",
    "Tokens",
    tokens
      ? `height: time since the one before, up to ${seconds(most)}. ${tokens.note}`
      : "their times are not told, or no longer kept",
  );
  const slow = slowOnes(said);
  function tellAt(moment) {
    const n = at.findIndex((each) => each >= moment);
    const token =
      n < 0
        ? ""
        : gap[n] === null
          ? `First token after ${seconds(said.time_to_first_token_seconds)}.`
          : `Next token ${seconds(gap[n])} after the one before.`;
    return `${token} ${lateAt(slow, moment)}`.trim();
  }
  function draw({from, to}, cursor, ink) {
    const sheet = cleared(canvas);
    if (!sheet) return;
    const {pen, width, height} = sheet;
    const x = (moment) => ((moment - from) / (to - from)) * width;
    for (const each of slow) {
      const left = x(each.start);
      const wide = Math.max(x(each.start + each.duration_seconds) - left, 2);
      pen.fillStyle = causeColour(each.cause);
      pen.globalAlpha = 0.4;
      pen.fillRect(left, 0, wide, height);
      pen.globalAlpha = 1;
      pen.fillRect(left, 0, wide, 4);
    }
    pen.fillStyle = ink.text;
    at.forEach((moment, n) => {
      if (moment < from || moment > to) return;
      const tall = Math.max(((gap[n] ?? 0) / most) * (height - 8), 2);
      pen.fillRect(x(moment) - 0.6, height - tall, 1.2, tall);
    });
    pen.fillStyle = ink.mark;
    pen.fillRect(x(said.start), 0, 1.5, height);
    if (cursor !== null) upright(pen, x(cursor), height, ink);
  }
  return {canvas, element, draw, at: tellAt};
}

/** Of what is slow at a moment the shortest: a gap may lie in a stretch, which is late as a whole. */
function lateAt(slow, moment) {
  const around = slow.filter((each) => each.start <= moment && moment <= each.start + each.duration_seconds);
  if (!around.length) return "";
  const late = around.reduce((one, other) => (other.duration_seconds < one.duration_seconds ? other : one));
  const [by, cause] = [seconds(late.excess_seconds), late.cause ? `, most by ${called(late.cause)}` : ""];
  if (!(late.tokens > 1)) return `That is ${by} late${cause}.`;
  return `In a slow stretch of ${counted(late.tokens, "token")} and ${seconds(late.duration_seconds)}: all of it together ${by} late${cause}.`;
}

function roundUp(value) {
  if (!(value > 0)) return 0;
  const size = 10 ** Math.floor(Math.log10(value));
  return (ROUND.find((each) => each * size >= value * 0.9999) ?? 10) * size;
}

/** Of a scale: from 0, or below it where there is less; up to a round figure. */
function ends(values, unit, bound) {
  const most = roundUp(Math.max(...values, bound ?? 0));
  return [-roundUp(-Math.min(...values, 0)), unit === "ratio" ? Math.max(most, 1) : most || 1];
}

function scaleText(lanes, low, high) {
  const [{unit, bound, gpu, high_is_bad: isHigh}] = lanes;
  return [
    `${low ? amount(low, unit) : 0} to ${amount(high, unit)}`,
    known(bound) ? `unhealthy ${isHigh ? "above" : "below"} ${amount(bound, unit)}` : "",
    // Of several the legend tells.
    lanes.length === 1 && gpu !== null ? `GPU ${gpu}` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/** lookOf: how the line of a GPU looks, by UUID. */
export function laneTrack(lanes, lookOf) {
  const [{title: name, unit, bound}] = lanes;
  const [low, high] = ends(
    lanes.flatMap((lane) => lane.values).filter((value) => value !== null),
    unit,
    bound,
  );
  const {canvas, element, small} = track("lane", name, "");
  const scale = scaleText(lanes, low, high);
  function draw({from, to}, cursor, ink) {
    const sheet = cleared(canvas);
    if (!sheet) return;
    const {pen, width, height} = sheet;
    const x = (moment) => ((moment - from) / (to - from)) * width;
    const y = (value) => height - 2 - ((value - low) / (high - low)) * (height - 4);
    if (known(bound)) {
      pen.fillStyle = ink.band;
      pen.fillRect(0, y(bound), width, 1);
    }
    if (low < 0 && bound !== 0) {
      pen.fillStyle = ink.faint;
      pen.fillRect(0, y(0), width, 1);
    }
    for (const lane of lanes) {
      const at = lane.values.map((_, step) => lane.start + (step + 0.5) * lane.step_seconds);
      const look = lanes.length > 1 ? lookOf[lane.uuid] : {colour: ink.text};
      stroke(pen, {at, values: lane.values, x, y, step: spacing(lane) * lane.step_seconds, ...look});
    }
    if (cursor === null) return say(small, scale);
    upright(pen, x(cursor), height, ink);
    say(small, lanes.map((lane) => valueAt(lane, cursor, lanes.length > 1)).join("  "));
  }
  return {canvas, element, draw};
}

/** Steps from one known value to the next, as a rule: some signals are read less often than lanes have steps. */
function spacing(lane) {
  const known = lane.values.flatMap((value, step) => (value === null ? [] : [step]));
  const between = known.slice(1).map((step, n) => step - known[n]);
  return between.toSorted((one, other) => one - other)[Math.floor(between.length / 2)] ?? 1;
}

/** The last value that is not older than values of this lane are as a rule. */
function valueAt(lane, moment, isOneOfMany) {
  const step = Math.floor((moment - lane.start) / lane.step_seconds);
  const last = lane.values.slice(Math.max(0, step + 1 - spacing(lane)), Math.max(0, step + 1));
  const value = amount(last.findLast((each) => each !== null), lane.unit);
  return isOneOfMany ? `${lane.gpu}: ${value}` : value;
}

/** Times of day below the tracks. */
export function axisTrack() {
  const {canvas, element} = track("axis", "", "");
  return {element, draw: (shown, _cursor, ink) => drawTimes(canvas, shown, ink)};
}

/** The sample of a GPU's line in the legend. */
export function lineSample(n) {
  const {colour, dash} = gpuLine(n);
  const canvas = h("canvas", {class: "sample", width: 22, height: 10, "aria-hidden": "true"});
  const pen = canvas.getContext("2d");
  pen.setLineDash(dash);
  pen.lineWidth = 2;
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(0, 5);
  pen.lineTo(22, 5);
  pen.stroke();
  return canvas;
}
