// Colours: one for each cause for ever, others for GPUs and bound states, and scales that grow in lightness.

import {h} from "./dom.js";

/**
 * The same wherever a cause is told, whatever else is shown. Faults are warm, load is blue, what is not known is grey; no
 * cause is green. Those who see red and green, or blue and yellow, alike tell them apart by lightness: any two are over
 * 0.06 apart in OKLab as they see them. A name stands beside each, too.
 */
export const CAUSES = {
  thermal_throttle: "#d2002d",
  power_throttle: "#ff693c",
  hw_slowdown: "#ff78b4",
  memory_bandwidth: "#784b69",
  pcie: "#b469c3",
  nvlink: "#e196ff",
  page_faults: "#ffa51e",
  memory_pressure: "#d2e15a",
  numa_remote: "#784bc3",
  cpu_starvation: "#c3c396",
  queueing: "#2db4d2",
  kv_pressure: "#0000d2",
  prefill_interference: "#8787ff",
  batch_growth: "#87e1ff",
  long_context: "#2d3c69",
  straggler: "#c31e96",
  moe_imbalance: "#780096",
  gpu_contention: "#a500ff",
  graph_fallback: "#f0c3d2",
  process_stopped: "#78004b",
  gpu_error: "#4b3c00",
  unexplained: "#878787",
};
/** Of a cause that this page does not know yet, too. */
const GREY = CAUSES.unexplained;
/** Of GPUs: greens, which no cause has. */
const LINES = ["#4ba500", "#4b785a", "#78b478", "#1e6900"];
/** Where there are more GPUs than greens. */
const DASHES = [[], [6, 3], [2, 2]];
export const STATES = {compute: "#d55e00", memory: "#0072b2", balanced: "#009e73", starved: "#cc79a7", idle: "#b0b0b0"};

export const causeColour = (cause) => (Object.hasOwn(CAUSES, cause) ? CAUSES[cause] : GREY);
/** How the line of the nth GPU of a lane looks. */
export const gpuLine = (n) => ({
  colour: LINES[n % LINES.length],
  dash: DASHES[Math.floor(n / LINES.length) % DASHES.length],
});

/** The colour of a cause beside its name. */
export const chip = (cause) => h("span", {class: "chip", style: {background: causeColour(cause)}});

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
