// A line on a canvas: values over the time, with stretches and moments marked in it; and the times under it.

import {clock} from "./units.js";

/** The canvas at the size it has on the page, cleared; null where it has none. */
export function cleared(canvas) {
  const {clientWidth: width, clientHeight: height} = canvas;
  if (!width || !height) return null;
  const fine = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * fine) || canvas.height !== Math.round(height * fine)) {
    canvas.width = Math.round(width * fine);
    canvas.height = Math.round(height * fine);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(fine, 0, 0, fine, 0, 0);
  pen.clearRect(0, 0, width, height);
  return {pen, width, height};
}

/** Colours of the page as it is now, dark or light. */
export function inks() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  const isDark = document.documentElement.dataset.theme === "dark";
  return {
    line: named(isDark ? "--line-dark" : "--line-light"),
    band: named("--band"),
    mark: named("--mark"),
    text: isDark ? "#e6e6e6" : "#222",
    faint: isDark ? "#444" : "#d5d5d5",
  };
}

/**
 * at, values: lists as long as each other. step: seconds between two values; where none is known for longer than three
 * of them, the line breaks.
 * bands: [from, to]; marks: moments. low, high: of the whole height.
 */
export function drawLine(canvas, {at, values, from, to, low = 0, high, bands = [], marks = [], step = 1, ink}) {
  const sheet = cleared(canvas);
  if (!sheet) return;
  const {pen, width, height} = sheet;
  const x = (moment) => ((moment - from) / (to - from)) * width;
  pen.fillStyle = ink.band;
  for (const [begin, end] of bands) {
    const left = x(Math.max(begin, from));
    pen.fillRect(left, 0, Math.max(x(Math.min(end, to)) - left, 2), height);
  }
  pen.fillStyle = ink.mark;
  for (const moment of marks) if (moment >= from && moment <= to) pen.fillRect(x(moment) - 1, 0, 2, height);
  pen.strokeStyle = ink.faint;
  pen.strokeRect(0, height - 0.5, width, 0);
  stroke(pen, {
    at,
    values,
    x,
    y: (value) => height - 1.5 - ((value - low) / (high - low || 1)) * (height - 3),
    colour: ink.line,
    step,
  });
}

/** One line in a frame that is there. dash: as of a canvas, [] of a line without gaps. */
export function stroke(pen, {at, values, x, y, colour, step = 1, dash = []}) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.setLineDash(dash);
  pen.beginPath();
  let before = null;
  values.forEach((value, n) => {
    if (value === null || value === undefined) return;
    if (before !== null && at[n] - before <= 3.5 * step) pen.lineTo(x(at[n]), y(value));
    else {
      pen.moveTo(x(at[n]) - 0.75, y(value));
      pen.lineTo(x(at[n]) + 0.75, y(value));
    }
    before = at[n];
  });
  pen.stroke();
  pen.setLineDash([]);
}

const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600];
const TEXT = "11px system-ui, sans-serif";

/** Times of day along a canvas: each whole, none over another. */
export function drawTimes(canvas, {from, to}, ink) {
  const sheet = cleared(canvas);
  if (!sheet) return;
  const {pen, width} = sheet;
  pen.font = TEXT;
  pen.fillStyle = ink.text;
  const needed = pen.measureText("00:00:00.00").width + 16;
  const step = STEPS.find((each) => (each * width) / (to - from) >= needed) ?? 7200;
  for (let n = Math.ceil(from / step); n * step <= to; n += 1) {
    const x = ((n * step - from) / (to - from)) * width;
    const text = step < 1 ? `${clock(n * step)}.${hundredths(n * step)}` : clock(n * step);
    pen.fillRect(Math.min(x, width - 1), 0, 1, 4);
    if (x + 3 + pen.measureText(text).width <= width) pen.fillText(text, x + 3, 13);
  }
}

const hundredths = (moment) => String(Math.floor((moment % 1) * 100 + 0.5) % 100).padStart(2, "0");

/** Stretches in which a signal was above 0. */
export function stretches(at, values) {
  const found = [];
  values?.forEach((value, n) => {
    if (!(value > 0)) return;
    const begin = at[n - 1] ?? at[n] - 1;
    if (found.length && begin - found.at(-1)[1] < 0.1) found.at(-1)[1] = at[n];
    else found.push([begin, at[n]]);
  });
  return found;
}
