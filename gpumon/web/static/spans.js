// Incidents along the time: a bar each as long as it held, its name above it, none over another.

import {cleared} from "./lines.js";
import {called} from "./names.js";

const TEXT = "11px system-ui, sans-serif";
const LANE = 18;
/** Where there are more, the last ones have no name, only their bar. */
const LANES = 10;
/** On less there is no room for names of what they are of. */
const NARROW = 500;
const THICK = {critical: 5, warning: 3};

/** By their begin, each in the first lane that is free there: {incident, lane, left, right, text}. */
function placed(canvas, incidents, {from, to}) {
  const width = canvas.clientWidth;
  const pen = canvas.getContext("2d");
  pen.font = TEXT;
  const x = (moment) => ((moment - from) / (to - from)) * width;
  const free = [];
  return incidents
    .toSorted((one, other) => one.since - other.since)
    .map((incident) => {
      const left = Math.max(0, Math.min(x(incident.since), width - 3));
      const right = Math.min(width, Math.max(x(incident.until), left + 3));
      const text = width < NARROW ? called(incident.kind) : `${called(incident.kind)}, ${incident.entity.name}`;
      const long = pen.measureText(text).width;
      // From its begin on, or up to its end where there is no room to the right.
      const at = left + long <= width ? left : Math.max(0, right - long);
      const [begin, end] = [Math.min(left, at), Math.max(right, at + long)];
      let lane = free.findIndex((taken) => taken <= begin);
      if (lane < 0 && free.length < LANES) lane = free.push(0) - 1;
      if (lane >= 0) free[lane] = end + 8;
      return {incident, lane, left, right, text: lane >= 0 ? text : "", at};
    });
}

/** In pixels; the canvas must have its width. */
export function spanHeight(canvas, incidents, shown) {
  const lanes = placed(canvas, incidents, shown).map((each) => each.lane);
  return LANE * (Math.max(0, ...lanes) + 1) + (lanes.includes(-1) ? 5 : 0);
}

export function drawSpans(canvas, incidents, shown, ink) {
  const all = placed(canvas, incidents, shown);
  const sheet = cleared(canvas);
  if (!sheet) return;
  const {pen, height} = sheet;
  pen.font = TEXT;
  pen.fillStyle = ink.text;
  for (const {incident, lane, left, right, text, at} of all) {
    const thick = THICK[incident.severity] ?? 2;
    const bottom = lane < 0 ? height : (lane + 1) * LANE;
    pen.fillRect(left, bottom - thick, right - left, thick);
    pen.fillText(text, at, bottom - 6);
  }
}
