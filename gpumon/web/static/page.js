// The shell: which view is shown (by the address after #/), time range, pause, dark and light, keys.

import {Live} from "./live.js";
import {Refused, ask} from "./api.js";
import {h, say} from "./dom.js";
import {duration} from "./units.js";

const VIEWS = [
  ["now", "Now"],
  ["latency", "Latency"],
  ["bound", "Bound"],
  ["why", "Why"],
];
const NAMES = new Set([...VIEWS.map(([name]) => name), "request"]);
const MINUTES = ["5", "10", "15", "30", "60"];
const NODE_MS = 10_000;

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const rangeLabel = document.getElementById("range");
const range = rangeLabel.querySelector("select");
const pauseButton = document.getElementById("pause");
const themeButton = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const live = new Live((text, state) => {
  const place = document.getElementById("live");
  say(place, text);
  place.dataset.state = state;
});
let paused = false;
let leaving = new AbortController();

/** What an address says: #/view/id?parameters. One that cannot be read is that of Now; wrong says so. */
function route() {
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [name, coded = ""] = path.split("/");
  const id = decoded(coded);
  if (id !== null && (NAMES.has(name) || !name)) {
    return {name: name || "now", id, parameters: new URLSearchParams(query), wrong: ""};
  }
  const wrong = `There is no view at the address ${location.hash.slice(0, 80)}: this is what happens now.`;
  return {name: "now", id: "", parameters: new URLSearchParams(), wrong};
}

/** Null where it is cut in the middle of a character, or no such text at all. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (error instanceof URIError) return null;
    throw error;
  }
}

function address(name, id, parameters) {
  const query = parameters.toString();
  return `#/${name}${id ? `/${encodeURIComponent(id)}` : ""}${query ? `?${query}` : ""}`;
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const {signal} = leaving;
  const {name, id, parameters, wrong} = route();
  main.replaceChildren(); // the old view is not of this address, whatever comes of it
  const view = await import(`./${name}.js`);
  if (signal.aborted) return;
  for (const link of nav.querySelectorAll("a")) {
    const isShown = link.dataset.view === (name === "request" ? "latency" : name);
    if (isShown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · gpumon`;
  rangeLabel.hidden = !view.minutes;
  const minutes = MINUTES.includes(parameters.get("minutes")) ? parameters.get("minutes") : (view.minutes ?? "");
  range.value = minutes;
  const problem = h("p", {class: "problem", role: "status", hidden: true});
  const place = h("div", {class: `view ${name}`});
  const lost = wrong ? h("p", {class: "lost", role: "status"}, wrong) : null;
  main.replaceChildren(...[h("h1", {}, view.title), lost, problem, place].filter(Boolean));
  main.dataset.view = name;
  view.show(place, context(name, id, parameters, minutes, signal, problem));
}

/** What a view has: its part of the address, the live node, and work that is done again and again. */
function context(name, id, parameters, minutes, signal, problem) {
  return {
    id,
    parameters,
    minutes: Number(minutes),
    signal,
    live,
    /** Remember in the address, without showing anew. */
    remember(changes) {
      for (const [key, value] of Object.entries(changes)) {
        if (value) parameters.set(key, value);
        else parameters.delete(key);
      }
      history.pushState(null, "", address(name, id, parameters));
    },
    /** Once at once, then so long after each time, not while paused or unseen. What it cannot have is told. */
    every(ms, work) {
      let done = false;
      let timer = 0;
      const run = async () => {
        if (!done || !(paused || document.hidden)) done = (await attempt(work, signal, problem)) || done;
        if (!signal.aborted) timer = setTimeout(run, ms);
      };
      signal.addEventListener("abort", () => clearTimeout(timer));
      run();
    },
    once: (work) => attempt(work, signal, problem),
    /** Calls on every change of dark and light, and of the window's width. */
    redraw(draw) {
      addEventListener("resize", draw, {signal});
      addEventListener("theme", draw, {signal});
    },
  };
}

async function attempt(work, signal, problem) {
  try {
    await work();
  } catch (error) {
    if (signal.aborted) return false;
    if (!(error instanceof Refused)) globalThis.tellTrouble(error.stack ?? error);
    say(problem, error.message);
    problem.hidden = false;
    return false;
  }
  problem.hidden = true;
  return true;
}

function pause() {
  paused = !paused;
  pauseButton.setAttribute("aria-pressed", String(paused));
  say(pauseButton, paused ? "Resume" : "Pause");
  live.pause(paused);
}

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // no storage here: as the system says
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  say(themeButton, theme === "dark" ? "Light" : "Dark");
  themeButton.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"}`);
  dispatchEvent(new Event("theme"));
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // for this visit only, then
  }
  setTheme(theme);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = `#/${view[0]}`;
  else if (event.key === "p") pause();
  else if (event.key === "t") switchTheme();
}

/** All of them, soon: a browser never asks again for a module that it once asked for in vain. */
async function fetchViews() {
  await Promise.all([...NAMES].map((name) => import(`./${name}.js`)));
}

async function tellNode() {
  const node = await ask("node");
  const off = node.off.map((each) => `${each.part} (${each.why})`);
  const down = node.sources.filter((each) => !each.up).map((each) => each.source);
  say(
    document.getElementById("node"),
    [
      `${node.name}, gpumon ${node.version}${node.demo ? ", simulated node" : ""}, up ${duration(node.uptime_seconds)}`,
      `NVML ${node.nvml.state}${node.nvml.error ? `: ${node.nvml.error}` : ""}`,
      ...(node.nvml.driver_version ? [`driver ${node.nvml.driver_version}`] : []),
      ...(down.length ? [`down: ${down.join(", ")}`] : []),
      ...(off.length ? [`off: ${off.join("; ")}`] : []),
    ].join(" · "),
  );
}

function begin() {
  nav.append(
    ...VIEWS.map(([name, title], number) =>
      h("a", {href: `#/${name}`, "data-view": name, "aria-keyshortcuts": String(number + 1)}, title),
    ),
  );
  range.append(...MINUTES.map((minutes) => h("option", {value: minutes}, `last ${minutes} minutes`)));
  range.addEventListener("change", () => {
    const {name, id, parameters} = route();
    parameters.set("minutes", range.value);
    parameters.delete("cell");
    location.hash = address(name, id, parameters);
  });
  pauseButton.addEventListener("click", pause);
  themeButton.addEventListener("click", switchTheme);
  dark.addEventListener("change", () => stored() ?? setTheme(dark.matches ? "dark" : "light"));
  addEventListener("keydown", key);
  addEventListener("hashchange", show);
  setTheme(stored() ?? (dark.matches ? "dark" : "light"));
  live.begin();
  const node = () =>
    tellNode()
      .catch((error) => say(document.getElementById("node"), error.message))
      .then(() => setTimeout(node, NODE_MS));
  node();
  return show().then(fetchViews);
}

await begin();
