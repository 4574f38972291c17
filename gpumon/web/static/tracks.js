// The tracks of one request: its tokens, and lanes of what went on meanwhile, on one clock, with a cursor through all.

import {chip, gpuLine} from "./colours.js";
import {h, say} from "./dom.js";
import {axisTrack, laneTrack, lanesOf, lineSample, slowOnes, tokenTrack} from "./lanes.js";
import {inks} from "./lines.js";
import {called} from "./names.js";
import {clock, counted, seconds} from "./units.js";

const FIRST = [
  "sm_active",
  "dram_active",
  "sm_clock",
  "throttled",
  "temperature",
  "power",
  "pcie_received",
  "major_faults",
  "runqueue_wait",
  "requests_running",
  "requests_waiting",
  "kv_cache_usage",
];
/** Lanes that a cause is read from: shown first when it is among the request's. */
const OF_CAUSE = {
  page_faults: ["major_faults"],
  memory_pressure: ["host_memory_stalled", "cgroup_memory_stalled"],
  cpu_starvation: ["runqueue_wait", "cgroup_cpu_throttled"],
  numa_remote: ["numa_local"],
  nvlink: ["nvlink"],
  kv_pressure: ["kv_cache_usage", "preemptions"],
  gpu_contention: ["other_sm"],
  graph_fallback: ["eager_passes"],
  moe_imbalance: ["expert_balance"],
  process_stopped: ["stopped"],
  pcie: ["pcie_received", "pcie_sent"],
};
/** On both sides of a request. */
const MARGIN_S = 0.3;
const NEAR_MS = 0.5;

/** context.remember is given the gap that is looked at; look: at one of the slow ones, whose beginning is given. */
export function tracks(said, line, context) {
  const wanted = [
    ...FIRST.slice(0, 4),
    ...said.causes.flatMap((each) => OF_CAUSE[each.cause] ?? []),
    ...FIRST.slice(4),
  ];
  const all = lanesOf(line);
  const place = (lanes) => wanted.indexOf(lanes[0].name);
  const first = all.filter((lanes) => place(lanes) >= 0).sort((one, other) => place(one) - place(other));
  const rest = all.filter((lanes) => place(lanes) < 0);
  const full = {from: said.start - MARGIN_S, to: said.start + said.duration_seconds + MARGIN_S};
  let shown = full;
  let cursor = null;
  const readout = h("p", {class: "readout", role: "status"});
  const more = h("details", {}, h("summary", {}, counted(rest.length, "further signal")));
  const everything = h("button", {type: "button", on: {click: whole}, disabled: true}, "Whole request");
  const gpus = [...new Map((line?.lanes ?? []).filter((lane) => lane.uuid).map((lane) => [lane.uuid, lane.gpu]))];
  const lookOf = Object.fromEntries(gpus.map(([uuid], n) => [uuid, gpuLine(n)]));
  const made = [tokenTrack(said), ...first.map((lanes) => laneTrack(lanes, lookOf))];
  const hidden = rest.map((lanes) => laneTrack(lanes, lookOf));
  const axis = axisTrack();
  more.append(...hidden.map((each) => each.element));
  more.addEventListener("toggle", draw);
  const element = h(
    "div",
    {
      class: "tracks",
      tabindex: "0",
      role: "group",
      "aria-label": "Tracks; arrow keys move the cursor, Home and End lead to the ends",
      on: {pointermove: point, pointerleave: () => set(null), keydown: step},
    },
    h("div", {class: "controls"}, everything),
    legend(said, gpus, all),
    readout,
    made.map((each) => each.element),
    axis.element,
    rest.length ? more : "",
    forgotten(line, said.gpus.length),
  );

  function zoom(to) {
    shown = to;
    everything.disabled = to === full;
    draw();
  }

  function whole() {
    context.remember({gap: ""});
    zoom(full);
  }

  function set(moment) {
    cursor = moment;
    draw();
    if (moment === null) return say(readout, "");
    const ms = String(Math.floor((moment % 1) * 1000)).padStart(3, "0");
    say(readout, `${clock(moment)}.${ms}, ${seconds(moment - said.start)} after its start. ${made[0].at(moment)}`);
  }

  function point(event) {
    const box = made[0].canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    if (share >= 0 && share <= 1) set(shown.from + share * (shown.to - shown.from));
  }

  function step(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1, Home: -100, End: 100}[event.key];
    if (!by || event.target !== element) return;
    event.preventDefault();
    const now = cursor ?? said.start;
    set(Math.min(Math.max(now + (by * (shown.to - shown.from)) / 100, shown.from), shown.to));
  }

  function draw() {
    const ink = inks();
    for (const each of [...made, axis, ...(more.open ? hidden : [])]) each.draw(shown, cursor, ink);
  }

  context.redraw(draw);
  requestAnimationFrame(draw);
  return {
    element,
    /** start_ms: of the gap. False where no slow one begins there. */
    look(start_ms) {
      const gap = slowOnes(said).find((each) => Math.abs(each.start_ms - start_ms) < NEAR_MS);
      if (!gap) return false;
      const around = Math.max(gap.duration_seconds, 0.2);
      zoom({from: gap.start - around, to: gap.start + gap.duration_seconds + around});
      set(gap.start + gap.duration_seconds / 2);
      element.scrollIntoView({block: "nearest"});
      return true;
    },
  };
}

/** What is kept for minutes, and gone. */
function forgotten(line, gpus) {
  const told = (text) => h("p", {class: "dim"}, `${text} is forgotten: it is kept for minutes.`);
  if (!line) return told("What GPUs and host did meanwhile");
  return gpus && !line.lanes.some((lane) => lane.scope === "gpu") ? told("What each GPU did by itself") : "";
}

/** What fills, lines and stripes mean. */
function legend(said, gpus, lanes) {
  const causes = [...new Set(slowOnes(said).map((each) => each.cause))];
  const hasBound = lanes.some(([lane]) => lane.bound !== null);
  const parts = [
    causes.length
      ? ["Filled: late by ", causes.map((cause) => [chip(cause), `${cause ? called(cause) : "what is not told"} `])]
      : "",
    gpus.length > 1 ? gpus.map(([uuid, gpu], n) => [lineSample(n), ` GPU ${gpu ?? uuid} `]) : "",
    hasBound ? [h("span", {class: "key bound"}), " from here on unhealthy"] : "",
  ];
  return h(
    "p",
    {class: "legend"},
    parts.filter(Boolean).map((part) => h("span", {}, part.flat(2))),
  );
}
