// Seconds lost, over time: a row for each cause, on a scale of its own or on one for all, the incidents above them, and
// the response time below. A stretch of it is chosen by dragging.

import {causeColour, chip} from "./colours.js";
import {choice, h, say} from "./dom.js";
import {cleared, drawTimes, inks, stroke} from "./lines.js";
import {drawSpans, spanHeight} from "./spans.js";
import {called} from "./names.js";
import {clock, known, seconds} from "./units.js";

const REST = "the rest";
/** Less than this is a click, in pixels. */
const DRAG = 6;
const SCALES = [
  ["own", "each cause its own"],
  ["one", "one for all"],
];

/** onChoose: called with {from, to} when a stretch was dragged over. */
export function lostChart(context, onChoose) {
  let line = null;
  let incidents = [];
  let scale = SCALES.some(([key]) => key === context.parameters.get("scale")) ? context.parameters.get("scale") : "own";
  let cursor = null;
  let drag = null;
  let rows = [];
  const axis = track("axis", "", "");
  const spans = track("spans", "Incidents", "");
  const place = h("div", {});
  const readout = h("p", {class: "readout", role: "status"});
  const element = h(
    "div",
    {
      class: "tracks losses",
      tabindex: "0",
      role: "group",
      "aria-label": "Seconds lost by cause, over time; arrow keys move the cursor",
      on: {
        pointermove: move,
        pointerdown: press,
        pointerup: release,
        pointercancel: () => look(null, null),
        pointerleave: leave,
        keydown: step,
      },
    },
    place,
  );
  const controls = h(
    "div",
    {class: "controls"},
    choice("Scale", SCALES, scale, (value) => {
      scale = value;
      context.remember({scale: value === "own" ? "" : value});
      draw();
    }),
  );
  context.redraw(draw);

  const span = () => ({from: line.start, to: line.start + line.excess.length * line.step_seconds});
  const cellAt = (moment) =>
    Math.min(Math.max(Math.floor((moment - line.start) / line.step_seconds), 0), line.excess.length - 1);

  function tell(said, held) {
    line = said.timeline;
    incidents = held.map((each) => ({...each, until: each.closed ?? said.until}));
    rows = rowsOf(line);
    place.replaceChildren(spans.element, ...rows.map((row) => row.element), axis.element);
    if (cursor === null) say(readout, hint());
    draw();
  }

  function draw() {
    if (!line || !element.isConnected) return;
    const ink = inks();
    const shown = span();
    spans.element.hidden = !incidents.length;
    const one = Math.max(...line.excess);
    spans.canvas.style.setProperty("height", `${spanHeight(spans.canvas, incidents, shown)}px`);
    drawSpans(spans.canvas, incidents, shown, ink);
    for (const row of rows) {
      const most = row.unit === "lost" && scale === "one" ? one : row.most;
      say(row.small, row.note(most));
      drawRow(row, most, line, shown, ink);
    }
    drawTimes(axis.canvas, shown, ink);
    for (const {canvas} of [spans, ...rows, axis]) mark(canvas, shown, ink);
  }

  /** The cursor, and what is dragged over, on what is drawn. */
  function mark(canvas, {from, to}, ink) {
    const {clientWidth: width, clientHeight: height} = canvas;
    const x = (moment) => ((moment - from) / (to - from)) * width;
    const pen = canvas.getContext("2d");
    if (drag && cursor !== null) {
      pen.fillStyle = ink.text;
      pen.globalAlpha = 0.15;
      pen.fillRect(Math.min(x(drag), x(cursor)), 0, Math.abs(x(cursor) - x(drag)), height);
      pen.globalAlpha = 1;
    }
    if (cursor === null) return;
    pen.fillStyle = ink.text;
    pen.fillRect(x(cursor), 0, 1, height);
  }

  const hint = () =>
    `Bars: lost in ${line.step_seconds} s each. Drag over a stretch, or give two times, to have all of this page of it.`;

  function look(moment, began) {
    cursor = moment;
    drag = began;
    draw();
    if (moment === null) return say(readout, hint());
    if (began !== null && began !== moment) {
      const [from, to] = [began, moment].toSorted((one, other) => one - other);
      return say(readout, `${clock(from)} to ${clock(to)}: let go to look at this stretch alone`);
    }
    const n = cellAt(moment);
    const begin = line.start + n * line.step_seconds;
    const causes = rows.filter((row) => row.cause && row.values[n] >= 0.005);
    const then = incidents.filter((each) => each.since <= begin + line.step_seconds && each.until >= begin);
    const told = [
      `${clock(begin)} to ${clock(begin + line.step_seconds)}: ${seconds(line.excess[n])} lost`,
      causes
        .toSorted((one, other) => other.values[n] - one.values[n])
        .map((row) => `${row.name} ${seconds(row.values[n])}`)
        .join(", "),
      known(line.response_p95[n]) ? `P95 of response time ${seconds(line.response_p95[n])}` : "",
      then.map((each) => called(each.kind)).join(", "),
    ];
    say(readout, told.filter(Boolean).join("; "));
  }

  function at(event) {
    const box = axis.canvas.getBoundingClientRect();
    const {from, to} = span();
    return from + Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * (to - from);
  }

  const onChart = (event) => line && event.clientX >= axis.canvas.getBoundingClientRect().left;

  function press(event) {
    if (event.button || !onChart(event)) return;
    element.setPointerCapture(event.pointerId);
    look(at(event), at(event));
  }

  function move(event) {
    if (drag !== null || onChart(event)) look(at(event), drag);
  }

  function release(event) {
    if (drag === null) return;
    const [from, to] = [drag, at(event)].toSorted((one, other) => one - other);
    const shown = span();
    const wide = ((to - from) / (shown.to - shown.from)) * axis.canvas.clientWidth;
    look(wide >= DRAG ? null : at(event), null);
    if (wide >= DRAG) onChoose({from, to});
  }

  /** A finger leaves as soon as it has said where. */
  function leave(event) {
    if (event.pointerType === "mouse" && drag === null) look(null, null);
  }

  function step(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by || !line) return;
    event.preventDefault();
    const n = cursor === null ? (by > 0 ? 0 : line.excess.length - 1) : cellAt(cursor) + by;
    if (n >= 0 && n < line.excess.length) look(line.start + (n + 0.5) * line.step_seconds, null);
  }

  return {element: h("div", {}, controls, readout, element), tell};
}

function track(kind, name, note) {
  const canvas = h("canvas", {"aria-hidden": "true"});
  const small = h("small", {}, note);
  return {canvas, small, element: h("div", {class: `track ${kind}`}, h("span", {class: "name"}, name, small), canvas)};
}

/** All of it, each cause, what is left of it, and the response time. */
function rowsOf(line) {
  const causes = Object.entries(line.by_cause).map(([cause, values]) => ({cause, name: called(cause), values}));
  const left = line.excess.map((all, n) =>
    Math.max(
      0,
      causes.reduce((rest, each) => rest - each.values[n], all),
    ),
  );
  const whole = sum(line.excess);
  if (sum(left) > 0.001 * whole) causes.push({cause: REST, name: REST, values: left});
  const lost = [{cause: null, name: "All causes", values: line.excess, stack: causes}, ...causes];
  return [
    ...lost.map((row) => {
      const total = sum(row.values);
      const note = (most) => `${seconds(total)}, scale to ${seconds(most)}`;
      const made = track("bars", [row.cause ? mark(row.cause) : null, row.name], "");
      return {...row, ...made, note, unit: "lost", most: Math.max(...row.values, 1e-9)};
    }),
    responseRow(line),
  ];
}

const sum = (values) => values.reduce((all, each) => all + each, 0);
const mark = (cause) => (cause === REST ? h("span", {class: "chip"}) : chip(cause));

function responseRow(line) {
  const most = Math.max(...line.response_p95.map((each) => each ?? 0), 1e-9);
  return {
    ...track("bars", "Response time, P95", ""),
    values: line.response_p95,
    note: () => `scale to ${seconds(most)}`,
    unit: "seconds",
    most,
  };
}

function drawRow(row, most, line, {from, to}, ink) {
  const sheet = cleared(row.canvas);
  if (!sheet) return;
  const {pen, width, height} = sheet;
  const x = (n) => (n / line.excess.length) * width;
  const tall = (value) => (value / most) * (height - 3);
  pen.fillStyle = ink.faint;
  pen.fillRect(0, height - 1, width, 1);
  if (row.unit === "seconds") {
    const at = row.values.map((_, n) => line.start + (n + 0.5) * line.step_seconds);
    const y = (value) => height - 1.5 - tall(value);
    const place = (moment) => ((moment - from) / (to - from)) * width;
    stroke(pen, {at, values: row.values, x: place, y, colour: ink.line, step: line.step_seconds});
    return;
  }
  row.values.forEach((_, n) => {
    let y = height - 1;
    for (const {cause, values} of row.stack ?? [row]) {
      const up = tall(values[n]);
      if (!(up > 0)) continue;
      pen.fillStyle = cause === REST ? ink.faint : causeColour(cause);
      const wide = Math.max(x(n + 1) - x(n) - 0.5, 0.5);
      pen.fillRect(x(n), y - up, wide, Math.max(up, 0.75));
      // An edge: some colours are near to the page's.
      pen.fillStyle = ink.text;
      pen.globalAlpha = 0.45;
      pen.fillRect(x(n), y - up, wide, 0.75);
      pen.globalAlpha = 1;
      y -= up;
    }
  });
}
