// The tracks of one request: its tokens, and lanes of what went on meanwhile, on one clock, with a cursor through all.

import {LINES} from "./colours.js";
import {h, say} from "./dom.js";
import {cleared, inks, stroke} from "./lines.js";
import {amount, clock, counted, known, seconds, words} from "./units.js";

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
function lanesOf(line) {
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

export function tracks(said, line, colours, context) {
  const wanted = [
    ...FIRST.slice(0, 4),
    ...said.causes.flatMap((each) => OF_CAUSE[each.cause] ?? []),
    ...FIRST.slice(4),
  ];
  const all = lanesOf(line);
  const place = (lanes) => wanted.indexOf(lanes[0].name);
  const first = all.filter((lanes) => place(lanes) >= 0).sort((one, other) => place(one) - place(other));
  const rest = all.filter((lanes) => place(lanes) < 0);
  const full = {from: said.start - 0.3, to: said.start + said.duration_seconds + 0.3};
  let shown = full;
  let cursor = null;
  const readout = h("p", {class: "readout", role: "status"});
  const more = h("details", {}, h("summary", {}, counted(rest.length, "further signal")));
  const everything = h("button", {type: "button", on: {click: () => zoom(full)}, disabled: true}, "Whole request");
  const gpus = [...new Map((line?.lanes ?? []).filter((lane) => lane.uuid).map((lane) => [lane.uuid, lane.gpu]))];
  const colourOf = Object.fromEntries(gpus.map(([uuid], n) => [uuid, LINES[n % LINES.length]]));
  const key = gpus.map(([uuid, gpu]) => [
    h("span", {class: "chip", style: {background: colourOf[uuid]}}),
    `GPU ${gpu ?? uuid} `,
  ]);
  const made = [tokenTrack(said, colours), ...first.map((lanes) => laneTrack(lanes, colourOf))];
  const hidden = rest.map((lanes) => laneTrack(lanes, colourOf));
  const axis = axisTrack();
  more.append(...hidden.map((each) => each.element));
  more.addEventListener("toggle", draw);
  const element = h(
    "div",
    {
      class: "tracks",
      tabindex: "0",
      role: "group",
      "aria-label": "Tracks; arrow keys move the cursor",
      on: {pointermove: point, pointerleave: () => set(null), keydown: step},
    },
    h("div", {class: "controls"}, everything, gpus.length > 1 ? h("span", {}, key.flat()) : ""),
    readout,
    made.map((each) => each.element),
    axis.element,
    rest.length ? more : "",
    line ? "" : h("p", {class: "dim"}, "What GPUs and host did meanwhile is forgotten: it is kept for minutes."),
  );

  function zoom(to) {
    shown = to;
    everything.disabled = to === full;
    draw();
  }

  function set(moment) {
    cursor = moment;
    draw();
    say(
      readout,
      moment === null
        ? ""
        : `${clock(moment)}.${String(Math.floor((moment % 1) * 1000)).padStart(3, "0")}, ${seconds(moment - said.start)} after its start. ${made[0].at(moment)}`,
    );
  }

  function point(event) {
    const box = made[0].canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    if (share >= 0 && share <= 1) set(shown.from + share * (shown.to - shown.from));
  }

  function step(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by) return;
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
    look(gap) {
      const around = Math.max(gap.duration_seconds, 0.2);
      zoom({from: gap.start - around, to: gap.start + gap.duration_seconds + around});
      set(gap.start + gap.duration_seconds / 2);
      element.scrollIntoView({block: "nearest"});
    },
  };
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
function tokenTrack(said, colours) {
  const tokens = said.tokens;
  const at = tokens?.ms.map((ms) => said.start + ms / 1e3) ?? [];
  const gap = tokens?.gap_ms.map((ms) => (ms === null ? null : ms / 1e3)) ?? [];
  const most = Math.max(...gap.map((each) => each ?? 0), 1e-3);
  const {canvas, element} = track(
    "tokens",
    "Tokens",
    tokens
      ? `height: time since the one before, up to ${seconds(most)}; filled: late, by cause. ${tokens.note}`
      : "their times are not told, or no longer kept",
  );
  const slow = slowOnes(said);
  const tellAt = (moment) => {
    const n = at.findIndex((each) => each >= moment);
    if (n < 0) return "";
    const late = slow.find((each) => each.start <= moment && moment <= each.start + each.duration_seconds);
    const before =
      gap[n] === null
        ? `First token after ${seconds(said.time_to_first_token_seconds)}`
        : `Next token ${seconds(gap[n])} after the one before`;
    return `${before}${late ? `; ${seconds(late.excess_seconds)} late, most by ${words(late.cause)}` : ""}.`;
  };
  function draw({from, to}, cursor, ink) {
    const sheet = cleared(canvas);
    if (!sheet) return;
    const {pen, width, height} = sheet;
    const x = (moment) => ((moment - from) / (to - from)) * width;
    for (const each of slow) {
      const left = x(each.start);
      const wide = Math.max(x(each.start + each.duration_seconds) - left, 2);
      pen.fillStyle = colours[each.cause] ?? "#8a8a8a";
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

function laneTrack(lanes, colourOf) {
  const [{title: name, unit, bound}] = lanes;
  const all = lanes.flatMap((lane) => lane.values).filter((value) => value !== null);
  const most = unit === "ratio" ? Math.max(1, ...all) : Math.max(...all, bound ?? 0) * 1.05 || 1;
  const {canvas, element, small} = track("lane", name, "");
  const scale = `0 to ${amount(most, unit)}${lanes.length > 1 ? `, GPU ${lanes.map((lane) => lane.gpu).join(", ")}` : lanes[0].gpu !== null ? `, GPU ${lanes[0].gpu}` : ""}`;
  function draw({from, to}, cursor, ink) {
    const sheet = cleared(canvas);
    if (!sheet) return;
    const {pen, width, height} = sheet;
    const x = (moment) => ((moment - from) / (to - from)) * width;
    const y = (value) => height - 2 - (value / most) * (height - 4);
    if (known(bound)) {
      pen.fillStyle = ink.band;
      pen.fillRect(0, y(bound), width, 1);
    }
    lanes.forEach((lane) => {
      const at = lane.values.map((_, step) => lane.start + (step + 0.5) * lane.step_seconds);
      stroke(pen, {
        at,
        values: lane.values,
        x,
        y,
        colour: lanes.length > 1 ? colourOf[lane.uuid] : ink.line,
        step: lane.step_seconds,
      });
    });
    if (cursor === null) return say(small, scale);
    upright(pen, x(cursor), height, ink);
    say(
      small,
      lanes
        .map((lane) => {
          const value = amount(lane.values[Math.floor((cursor - lane.start) / lane.step_seconds)] ?? null, unit);
          return lanes.length > 1 ? `${lane.gpu}: ${value}` : value;
        })
        .join("  "),
    );
  }
  return {canvas, element, draw};
}

function axisTrack() {
  const {canvas, element} = track("axis", "", "");
  function draw({from, to}, _cursor, ink) {
    const sheet = cleared(canvas);
    if (!sheet) return;
    const {pen, width} = sheet;
    const step =
      [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600].find(
        (each) => (each * width) / (to - from) > 90,
      ) ?? 3600;
    pen.fillStyle = ink.text;
    pen.font = "11px system-ui, sans-serif";
    for (let tick = Math.ceil(from / step) * step; tick < to; tick += step) {
      const x = ((tick - from) / (to - from)) * width;
      pen.fillRect(x, 0, 1, 4);
      pen.fillText(
        `${clock(tick)}${step < 1 ? `.${String(Math.round((tick % 1) * 100)).padStart(2, "0")}` : ""}`,
        Math.min(x + 2, width - 62),
        14,
      );
    }
  }
  return {canvas, element, draw};
}
