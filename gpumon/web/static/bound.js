// Bound: what limits each GPU: SM against DRAM activity, and the share of time by state.

import {ask} from "./api.js";
import {STATES, scaleBar, sequential} from "./colours.js";
import {choice, h, table} from "./dom.js";
import {clock, known, percent, seconds} from "./units.js";
import {inks} from "./lines.js";
import {dates, plain, plotPlace} from "./plot.js";
import {labelled, together} from "./points.js";
import {HIGH, LOW, MEANINGS} from "./states.js";

export const title = "Bound";
export const minutes = "10";
const EVERY_MS = 10_000;
const SCALE = Array.from({length: 9}, (_, n) => [n / 8, sequential(n / 8).background.replaceAll(" ", ",")]);
/** Of less than this, times need their seconds. */
const SHORT_S = 400;
const HEIGHT = 460;
const MARGINS = {l: 60, r: 15, t: 10, b: 45};
/** Ticks of a share. */
const SHARES = {tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1], ticktext: ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]};

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
  /** Of the plots, as they were answered last. */
  let told = null;
  context.every(EVERY_MS, tell);
  // Colours are of dark or light, and labels of the width.
  context.redraw(() => told && draw().catch(globalThis.tellTrouble));

  async function tell() {
    const [points, states] = await Promise.all([
      ask("scatter", {minutes: wanted}, signal),
      ask("bound", {minutes: wanted}, signal),
    ]);
    if (signal.aborted) return;
    nothing.hidden = points.gpus.length > 0;
    tellGpus(points.gpus);
    told = {points, states};
    await draw();
    if (signal.aborted) return;
    shares.replaceChildren(shareTable(states));
  }

  function draw() {
    const {points, states} = told;
    const chosen = (each) => !gpu || each.gpu === gpu;
    return Promise.all([
      drawPoints(points.gpus.filter(chosen), points),
      drawStates(states.gpus.filter(chosen), states),
    ]);
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
    const {text: dark} = inks();
    const points = together(gpus);
    const inUnit = ({at, worst}) => (colour === "time" ? (at - end) / 60 : known(worst) ? 1e3 * worst : null);
    const all = points.map(inUnit).filter((value) => value !== null);
    const [cmin, cmax] = colour === "time" ? [(start - end) / 60, 0] : [Math.min(...all), Math.max(...all)];
    // A scale of our own: plotly's would set styles that the page's policy refuses.
    const [low, high] =
      colour === "time" ? [`${Math.round(-cmin)} minutes ago`, "now"] : [seconds(cmin / 1e3), seconds(cmax / 1e3)];
    legend.replaceChildren(
      ...(all.length
        ? [colour === "time" ? "Colour: " : "Colour: P95 between tokens, ", `${low} `, scaleBar(), ` ${high}. `]
        : ["Colour: no latency is known of this time. "]),
      "Figures beside points: GPUs, several where they do the same.",
    );
    const width = Math.max(100, scatter.element.clientWidth - MARGINS.l - MARGINS.r);
    const labels = labelled(points, width / 1.02, (HEIGHT - MARGINS.t - MARGINS.b) / 1.02);
    const data = [
      {
        type: "scatter",
        mode: "markers+text",
        x: points.map(({x}) => x),
        y: points.map(({y}) => y),
        text: labels.map(({text}) => plain(text)),
        textposition: labels.map(({side}) => side),
        textfont: {size: 12, color: dark},
        hoverinfo: "text",
        hovertext: points.map(
          ({at, x, y, worst, name}) =>
            `GPU ${plain(name)}, ${clock(at)}: SM ${percent(x)}, DRAM ${percent(y)}, P95 ${seconds(worst)}`,
        ),
        marker: {
          size: 7,
          color: points.map(inUnit),
          cmin,
          cmax,
          colorscale: SCALE,
          showscale: false,
          line: {width: 0.5, color: dark},
        },
      },
    ];
    const line = {color: dark, width: 1, dash: "dot"};
    const shapes = [
      [HIGH, 0, HIGH, HIGH],
      [0, HIGH, 1, HIGH],
      [HIGH, HIGH, 1, 1],
      [LOW, 0, LOW, LOW],
      [0, LOW, LOW, LOW],
    ].map(([x0, y0, x1, y1]) => ({type: "line", x0, y0, x1, y1, line}));
    const named = [
      ["memory bound", 0.3, 0.97],
      ["compute bound", 0.8, 0.04],
      ["balanced", 0.45, 0.04],
      ["balanced", 0.88, 0.66],
      ["idle or starved", 0.15, 0.04],
    ];
    const annotations = named.map(([text, x, y]) => ({text, x, y, showarrow: false, font: {size: 12, color: dark}}));
    const axis = (text) => ({title: {text}, range: [0, 1.02], ...SHARES});
    return scatter.draw(data, {
      height: HEIGHT,
      margin: MARGINS,
      showlegend: false,
      xaxis: axis("SM activity"),
      yaxis: axis(`DRAM bandwidth used, means over ${step} s`),
      shapes,
      annotations,
    });
  }

  function drawStates(gpus, {start, end, states, step_seconds: step}) {
    const moments = [...new Set(gpus.flatMap((each) => each.at))].sort((one, other) => one - other);
    // What is not known is not drawn as if nothing had been.
    const begin = Math.max(start, (moments[0] ?? start) - step);
    const from = begin > start + step ? `, known since ${clock(moments[0])}` : "";
    overTitle.replaceChildren("Over time ", h("small", {}, gpu ? `GPU ${gpu}` : "mean of all GPUs", from));
    const data = states.map((state) => {
      const sums = new Map();
      for (const each of gpus)
        each.at.forEach((at, n) => sums.set(at, (sums.get(at) ?? []).concat(each.shares[state][n])));
      return {
        type: "bar",
        name: state,
        x: dates(moments.map((at) => at + step / 2)),
        y: moments.map((at) => mean(sums.get(at))),
        customdata: moments.map((at) => percent(mean(sums.get(at)))),
        hovertemplate: `${state} %{customdata}<extra></extra>`,
        marker: {color: STATES[state], line: {width: 0}},
      };
    });
    return over.draw(data, {
      height: 300,
      barmode: "stack",
      bargap: 0,
      xaxis: {
        type: "date",
        range: dates([begin, end]),
        tickformat: end - begin < SHORT_S ? "%H:%M:%S" : "%H:%M",
        nticks: 5,
      },
      yaxis: {title: {text: "share of time"}, range: [0, 1], ...SHARES},
    });
  }
}

const mean = (shares) => (shares.length ? shares.reduce((sum, share) => sum + share, 0) / shares.length : null);

function shareTable({gpus, states}) {
  return h(
    "div",
    {},
    table(
      "By GPU",
      [
        {title: "GPU", left: true, value: (row) => `GPU ${row.gpu}`},
        ...states.map((state) => ({title: state, value: (row) => percent(mean(row.shares[state]))})),
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
