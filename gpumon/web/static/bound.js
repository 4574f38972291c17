// Bound: what limits each GPU: SM against DRAM activity, and the share of time by state.

import {ask} from "./api.js";
import {STATES, scaleBar, sequential} from "./colours.js";
import {choice, h, table} from "./dom.js";
import {clock, known, percent, seconds} from "./units.js";
import {inks} from "./lines.js";
import {dates, plain, plotPlace} from "./plot.js";

export const title = "Bound";
export const minutes = "10";
const EVERY_MS = 10_000;
/** As gpumon_gpu_bound_seconds_total is counted: docs/ARCHITECTURE.md. */
const LOW = 0.3;
const HIGH = 0.6;
const MEANINGS = {
  compute: "the SMs are busy and the DRAM is not: prefill, large batches",
  memory: "reading weights and KV cache limits: decoding",
  balanced: "neither is at its limit, or both",
  starved: "little goes on though requests are open: the GPU waits for its host",
  idle: "nothing to do",
};
const SCALE = Array.from({length: 9}, (_, n) => [n / 8, sequential(n / 8).background.replaceAll(" ", ",")]);
const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up", "star", "hexagon", "x"];

export function show(place, context) {
  const {parameters, signal, minutes: wanted} = context;
  let colour = parameters.get("colour") === "latency" ? "latency" : "time";
  let gpu = parameters.get("gpu") ?? "";
  const gpuChoice = h("span", {});
  const scatter = plotPlace(context, "SM against DRAM activity, a point for each GPU and some seconds");
  const over = plotPlace(context, "Share of time by bound state, over time");
  const legend = h("p", {class: "hint"});
  const overTitle = h("h2", {}, "Over time");
  const shares = h("div", {});
  const nothing = h(
    "p",
    {hidden: true},
    "No GPU here tells its SM and DRAM activity: that needs GPM, on Hopper and newer.",
  );
  const change = (set, name) => (value) => {
    set(value);
    context.remember({[name]: value});
    context.once(tell);
  };
  place.append(
    h(
      "div",
      {class: "controls"},
      choice(
        "Coloured by",
        [
          ["time", "time"],
          ["latency", "latency between tokens, P95"],
        ],
        colour,
        change((value) => {
          colour = value;
        }, "colour"),
      ),
      gpuChoice,
    ),
    nothing,
    h("section", {}, h("h2", {}, "SM against DRAM activity"), legend, scatter.element),
    h("section", {}, overTitle, over.element),
    h("section", {}, h("h2", {}, "Share of this time"), shares),
  );
  context.every(EVERY_MS, tell);

  async function tell() {
    const [points, states] = await Promise.all([
      ask("scatter", {minutes: wanted}, signal),
      ask("bound", {minutes: wanted}, signal),
    ]);
    if (signal.aborted) return;
    nothing.hidden = points.gpus.length > 0;
    tellGpus(points.gpus);
    const chosen = (each) => !gpu || each.gpu === gpu;
    await Promise.all([drawPoints(points.gpus.filter(chosen), points), drawStates(states.gpus.filter(chosen), states)]);
    shares.replaceChildren(shareTable(states));
  }

  function tellGpus(gpus) {
    const key = gpus.map((each) => each.gpu).join();
    if (gpuChoice.dataset.told === key) return;
    gpuChoice.dataset.told = key;
    gpuChoice.replaceChildren(
      choice(
        "GPU",
        [["", "all"], ...gpus.map((each) => [each.gpu, `GPU ${each.gpu}`])],
        gpu,
        change((value) => {
          gpu = value;
        }, "gpu"),
      ),
    );
  }

  function drawPoints(gpus, {start, end, step_seconds: step}) {
    const {faint, text: dark} = inks();
    const of = (each) =>
      colour === "time"
        ? each.at.map((at) => (at - end) / 60)
        : each.inter_token_p95_seconds.map((value) => (known(value) ? 1e3 * value : null));
    const all = gpus.flatMap(of).filter((value) => value !== null);
    const [cmin, cmax] = colour === "time" ? [(start - end) / 60, 0] : [Math.min(...all), Math.max(...all)];
    // A scale of our own: plotly's would set styles that the page's policy refuses.
    const [low, high] =
      colour === "time" ? [`${Math.round(-cmin)} minutes ago`, "now"] : [seconds(cmin / 1e3), seconds(cmax / 1e3)];
    legend.replaceChildren(
      ...(all.length
        ? [colour === "time" ? "Colour: " : "Colour: P95 between tokens, ", `${low} `, scaleBar(), ` ${high}`]
        : ["Colour: no latency is known of this time"]),
    );
    const data = gpus.map((each, n) => ({
      type: "scatter",
      mode: "markers",
      name: `GPU ${plain(each.gpu)}`,
      x: each.sm_active,
      y: each.dram_active,
      hoverinfo: "text",
      text: each.at.map(
        (at, k) =>
          `GPU ${plain(each.gpu)}, ${clock(at)}: SM ${percent(each.sm_active[k])}, DRAM ${percent(each.dram_active[k])}, P95 ${seconds(each.inter_token_p95_seconds[k])}`,
      ),
      marker: {
        size: 7,
        symbol: SYMBOLS[n % SYMBOLS.length],
        color: of(each),
        cmin,
        cmax,
        colorscale: SCALE,
        showscale: false,
        line: {width: 0.5, color: dark},
      },
    }));
    const line = {color: dark, width: 1, dash: "dot"};
    const shapes = [
      [HIGH, 0, HIGH, HIGH],
      [0, HIGH, HIGH, HIGH],
      [HIGH, HIGH, 1, 1],
      [LOW, 0, LOW, LOW],
      [0, LOW, LOW, LOW],
    ].map(([x0, y0, x1, y1]) => ({type: "line", x0, y0, x1, y1, line}));
    const named = [
      ["memory bound", 0.3, 0.97],
      ["compute bound", 0.8, 0.04],
      ["balanced", 0.45, 0.45],
      ["idle or starved", 0.15, 0.04],
    ];
    const annotations = named.map(([text, x, y]) => ({
      text,
      x,
      y,
      showarrow: false,
      font: {size: 12},
      bgcolor: faint,
      opacity: 0.8,
    }));
    const axis = (text) => ({title: {text}, range: [0, 1.02], tickformat: ".0%"});
    return scatter.draw(data, {
      height: 460,
      xaxis: axis("SM activity"),
      yaxis: axis(`DRAM bandwidth used, means over ${step} s`),
      shapes,
      annotations,
    });
  }

  function drawStates(gpus, {start, end, states, step_seconds: step}) {
    overTitle.textContent = gpu ? `Over time, GPU ${gpu}` : "Over time, mean of all GPUs";
    const moments = [...new Set(gpus.flatMap((each) => each.at))].sort((one, other) => one - other);
    const data = states.map((state) => {
      const sums = new Map();
      for (const each of gpus)
        each.at.forEach((at, n) => sums.set(at, (sums.get(at) ?? []).concat(each.shares[state][n])));
      return {
        type: "bar",
        name: state,
        x: dates(moments.map((at) => at + step / 2)),
        y: moments.map((at) => sums.get(at).reduce((sum, share) => sum + share, 0) / sums.get(at).length),
        hovertemplate: `${state} %{y:.0%}<extra></extra>`,
        marker: {color: STATES[state], line: {width: 0}},
      };
    });
    return over.draw(data, {
      height: 300,
      barmode: "stack",
      bargap: 0,
      xaxis: {type: "date", range: dates([start, end]), tickformat: "%H:%M"},
      yaxis: {title: {text: "share of time"}, range: [0, 1], tickformat: ".0%"},
    });
  }
}

function shareTable({gpus, states}) {
  const mean = (each, state) =>
    each.at.length ? each.shares[state].reduce((sum, share) => sum + share, 0) / each.at.length : null;
  return h(
    "div",
    {},
    table(
      "By GPU",
      [
        {title: "GPU", left: true, value: (row) => `GPU ${row.gpu}`},
        ...states.map((state) => ({title: state, value: (row) => percent(mean(row, state))})),
      ],
      gpus,
    ),
    h(
      "dl",
      {class: "facts"},
      states.map((state) =>
        h(
          "div",
          {},
          h("dt", {}, h("span", {class: "chip", style: {background: STATES[state]}}), state),
          h("dd", {}, MEANINGS[state] ?? ""),
        ),
      ),
    ),
  );
}
