// Plots by plotly, whose script is loaded when the first one is drawn.

import {inks} from "./lines.js";

let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "static/plotly.js";
    // Its maps write a style sheet into the page as it is loaded, which the page's policy refuses with an error. They
    // are not used here: what they write is kept from being one.
    const make = document.createElement;
    document.createElement = (name, options) => make.call(document, name === "style" ? "template" : name, options);
    script.addEventListener("load", () => {
      document.createElement = make;
      resolve(globalThis.Plotly);
    });
    script.addEventListener("error", () => {
      document.createElement = make;
      loading = null;
      reject(new Error("plots cannot be drawn: static/plotly.js was not loaded"));
    });
    document.head.append(script);
  });
  return loading;
}

/** Text as plotly shows it as it is: it takes tags in texts for its own. */
export const plain = (text) =>
  String(text).replace(/[&<>]/g, (sign) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[sign]);

/** Moments as plotly's dates, UTC. */
export const dates = (moments) =>
  moments.map((unix) => new Date(1000 * unix).toISOString().slice(0, 23).replace("T", " "));

/** A place for one plot; drawn anew as often as told, in the colours of the page. Freed when the view is left. */
export function plotPlace(context, label) {
  const element = document.createElement("div");
  element.className = "plot";
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  let last = null;
  const redraw = async () => {
    if (!last || context.signal.aborted) return;
    const library = await plotly();
    if (context.signal.aborted || !element.isConnected) return;
    const {text, faint} = inks();
    const axis = {gridcolor: faint, linecolor: faint, zerolinecolor: faint, automargin: true};
    const layout = {
      autosize: true,
      margin: {l: 55, r: 15, t: 10, b: 40},
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: "system-ui, sans-serif", size: 13, color: text},
      legend: {orientation: "h", y: -0.2},
      ...last.layout,
    };
    for (const name of ["xaxis", "yaxis"]) if (layout[name]) layout[name] = {...axis, ...layout[name]};
    await library.react(element, last.data, layout, {displayModeBar: false, responsive: true});
  };
  addEventListener("theme", () => redraw().catch(globalThis.tellTrouble), {signal: context.signal});
  context.signal.addEventListener("abort", () => globalThis.Plotly?.purge(element));
  return {
    element,
    draw(data, layout) {
      last = {data, layout};
      return redraw();
    },
  };
}
