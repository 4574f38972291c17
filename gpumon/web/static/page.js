// The shell: which view is shown (by the address after #/), time range, pause, dark and light, keys.

import {Live} from "./live.js";
import {Refused, ask} from "./api.js";
import {h, say} from "./dom.js";
import {since, stamp, tellNode, tellRestart, tellState} from "./frame.js";

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
const tools = document.querySelector(".tools");
const dark = matchMedia("(prefers-color-scheme: dark)");
const live = new Live((text, state) => tellState(live, text, state));
let paused = false;
let leaving = new AbortController();
/** Whether a view was shown before. */
let shown = false;

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
  const isKept = tools.contains(document.activeElement);
  const isFirst = !shown;
  shown = true;
  mark(name, id, parameters);
  tellRestart(parameters);
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
  const lost = wrong ? [h("p", {class: "lost", role: "status"}, wrong)] : [];
  const heading = h("h1", {tabindex: "-1"}, view.title);
  main.replaceChildren(heading, ...lost, problem, place);
  main.dataset.view = name;
  // What had the focus is gone, or was the way to here. The first view leaves it where browsers put it.
  if (!isFirst && !isKept) heading.focus({preventScroll: true});
  view.show(place, context(name, id, parameters, minutes, signal, problem, place));
  if (name === "why" && parameters.has("incident")) tellUnknown(heading, parameters.get("incident"), signal);
}

/** An address that is shown gets the run of gpumon that it is of, unless it has one. */
function mark(name, id, parameters) {
  if (stamp(id, parameters)) history.replaceState(history.state, "", address(name, id, parameters));
}

/** That an incident is not there any more, or never was: the view only shows those that are. */
async function tellUnknown(heading, id, signal) {
  try {
    await ask(`incidents/${encodeURIComponent(id)}`, {}, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refused)) throw error;
    if (error.status !== 404 && error.status !== 422) return; // the view asks the same, and tells
    const known = `known are those that are open, and the last that closed since gpumon started${since()}`;
    heading.after(h("p", {class: "lost", role: "status"}, `No incident has the id ${id.slice(0, 60)}: ${known}.`));
  }
}

/** What a view has: its part of the address, the live node, and work that is done again and again. */
function context(name, id, parameters, minutes, signal, problem, place) {
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
      if (changes.cell) parameters.delete("run");
      stamp(id, parameters);
      history.pushState(null, "", address(name, id, parameters));
    },
    /** Once at once, then so long after each time, not while paused or unseen. What it cannot have is told. */
    every(ms, work) {
      let done = false;
      let timer = 0;
      const run = async () => {
        timer = 0;
        if (!done || !(paused || document.hidden)) done = (await attempt(work, signal, problem, place)) || done;
        if (!signal.aborted) timer = setTimeout(run, ms);
      };
      const atOnce = () => {
        if (!timer) return;
        clearTimeout(timer);
        run();
      };
      addEventListener("again", atOnce, {signal});
      signal.addEventListener("abort", () => clearTimeout(timer));
      run();
    },
    once: (work) => attempt(work, signal, problem, place),
    /** There is something under the headings. */
    answered: () => answered(place),
    /** Calls on every change of dark and light, and of the window's width. */
    redraw(draw) {
      addEventListener("resize", draw, {signal});
      addEventListener("theme", draw, {signal});
    },
  };
}

async function attempt(work, signal, problem, place) {
  try {
    await work();
  } catch (error) {
    if (signal.aborted) return false;
    const isSilent = error.status === 0;
    problem.classList.toggle("silence", isSilent && isAnswered(place));
    // Before the first answer there is nothing under the headings.
    if (isSilent && !isAnswered(place)) place.classList.add("unanswered");
    if (!(error instanceof Refused)) globalThis.tellTrouble(error.stack ?? error);
    say(problem, error.message);
    problem.hidden = false;
    return false;
  }
  answered(place);
  problem.hidden = true;
  return true;
}

const isAnswered = (place) => place.dataset.answered === "yes";

function answered(place) {
  place.dataset.answered = "yes";
  place.classList.remove("unanswered");
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

async function askNode() {
  await tellNode();
  const {name, id, parameters} = route();
  mark(name, id, parameters);
  tellRestart(parameters);
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
    parameters.delete("run");
    location.hash = address(name, id, parameters);
  });
  pauseButton.addEventListener("click", pause);
  themeButton.addEventListener("click", switchTheme);
  dark.addEventListener("change", () => stored() ?? setTheme(dark.matches ? "dark" : "light"));
  addEventListener("keydown", key);
  addEventListener("hashchange", show);
  setTheme(stored() ?? (dark.matches ? "dark" : "light"));
  live.begin();
  const node = () => askNode().catch((error) => say(document.getElementById("node"), error.message));
  const again = () => node().then(() => setTimeout(again, NODE_MS));
  again();
  addEventListener("again", node);
  return show().then(fetchViews);
}

await begin();
