// Colours that those who see red and green alike tell apart (Okabe and Ito, Tol), and scales that grow in lightness.

import {h} from "./dom.js";

const LOAD = new Set(["queueing", "kv_pressure", "prefill_interference", "batch_growth", "long_context"]);
const WARM = ["#d55e00", "#cc79a7", "#f0e442", "#882255", "#e69f00", "#6e2c00"];
const COLD = ["#0072b2", "#56b4e9", "#009e73", "#332288", "#88ccee"];
const GREY = "#8a8a8a";
export const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#8a8a8a"];
export const STATES = {compute: "#d55e00", memory: "#0072b2", balanced: "#009e73", starved: "#cc79a7", idle: "#b0b0b0"};

/** By cause, those that cost most first: faults are warm, load is cold, what is not known is grey. */
export function causeColours(causes) {
  const found = {};
  let warm = 0;
  let cold = 0;
  for (const cause of causes) {
    if (found[cause]) continue;
    if (cause === "unexplained" || !cause) found[cause] = GREY;
    else found[cause] = LOAD.has(cause) ? COLD[cold++ % COLD.length] : WARM[warm++ % WARM.length];
  }
  return found;
}

const CIVIDIS = [
  [0, 34, 78],
  [53, 69, 108],
  [102, 105, 112],
  [148, 142, 119],
  [200, 184, 102],
  [254, 232, 56],
];
const DIVERGING = [
  [33, 102, 172],
  [146, 197, 222],
  [247, 247, 247],
  [244, 165, 130],
  [178, 24, 43],
];

function between(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const mixed = stops[low].map((part, n) => Math.round(part + (stops[low + 1][n] - part) * (place - low)));
  // As WCAG measures luminance: from here on black has more contrast than white.
  const [red, green, blue] = mixed.map((part) => (part / 255) ** 2.2);
  const isLight = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
  return {background: `rgb(${mixed.join(" ")})`, color: isLight ? "#000" : "#fff"};
}

/** Dark to light by 0 to 1; with the colour of text on it. */
export const sequential = (share) => between(CIVIDIS, share);
/** The scale as a strip. */
export function scaleBar() {
  const stops = Array.from({length: 9}, (_, n) => sequential(n / 8).background).join(", ");
  return h("span", {class: "scale", style: {background: `linear-gradient(to right, ${stops})`}});
}

/** Blue over white to red by -1 to 1. */
export const diverging = (value) => between(DIVERGING, (value + 1) / 2);

/** The share of a value between the least and the most, in ratios: twice as much is as far anywhere. */
export function logShare(value, least, most) {
  return most > least ? Math.log(value / least) / Math.log(most / least) : 0;
}
