// What the page says of gpumon itself: that it does not answer, that it has started anew, and which node it is of.
//
// A link to an incident, a request or a cell carries the run of gpumon that it was made in (run=…): what another run
// had seen is gone. A run is known by when it began on its node's steady clock, which nobody sets.

import {ask} from "./api.js";
import {h, say} from "./dom.js";
import {clock, day, duration} from "./units.js";

/** Of one try to come back nothing is said. */
const GRACE_MS = 4_000;
/** Moments of one run, told twice, differ by rounding. */
const SAME_S = 2;

const place = (id) => document.getElementById(id);

let waiting = 0;
/** Whether it was there before. */
let wasThere = false;

/**
 * state: of the stream, one of live, waiting, paused. Where it is long awaited, all figures are old, and look so. When
 * it is there again, the event "again" says so to whoever asks only every few seconds.
 */
export function tellState(live, text, state) {
  say(place("live"), text);
  place("live").dataset.state = state;
  if (state === "waiting") {
    waiting ||= setTimeout(tellSilence, GRACE_MS, live);
    return;
  }
  if (state === "live" && waiting && wasThere) dispatchEvent(new Event("again"));
  wasThere ||= state === "live";
  clearTimeout(waiting);
  waiting = 0;
  place("silence").hidden = true;
  document.body.classList.remove("silent");
}

function tellSilence({snapshot}) {
  const last = snapshot
    ? `, last heard ${clock(snapshot.at)} UTC. What is shown is of then, not of now.`
    : ": nothing is known yet.";
  say(place("silence"), `gpumon does not answer${last} It is asked again and again.`);
  place("silence").hidden = false;
  document.body.classList.add("silent");
}

/** Of gpumon as it last answered: {run, started}; null before. */
let now = null;
/** The run that the page has shown, until somebody has read that it is another. */
let shown = null;
/** The run of a link of which that was read. */
let read = null;

const isOther = (run) => run !== null && now !== null && Math.abs(run - now.run) > SAME_S;
const ofLink = (parameters) => (parameters.has("run") ? Number(parameters.get("run")) : null);
const isOld = (run) => isOther(run) && run !== read;

/** Makes an address to what gpumon has seen tell in which run; true where it did not before. */
export function stamp(id, parameters) {
  const isOfRun = id || parameters.has("incident") || parameters.has("cell");
  if (!isOfRun) parameters.delete("run");
  if (!isOfRun || !now || parameters.has("run")) return false;
  parameters.set("run", Math.round(now.run));
  return true;
}

/** parameters: of the address that is shown. */
export function tellRestart(parameters) {
  const after = isOther(shown) ? "this page was opened" : isOld(ofLink(parameters)) ? "this link was made" : "";
  place("restart").hidden = !after;
  if (!after) return;
  const moment = `${day(now.started)} ${clock(now.started)} UTC`;
  const gone = "What it had seen before is gone: incidents, requests, history.";
  const text = `gpumon started anew at ${moment}, after ${after}. ${gone}`;
  const dismiss = () => {
    shown = now.run;
    read = ofLink(parameters);
    place("restart").hidden = true;
  };
  if (place("restart").textContent.startsWith(text)) return;
  place("restart").replaceChildren(`${text} `, h("button", {type: "button", on: {click: dismiss}}, "Dismiss"));
}

/** When gpumon started, or nothing where that is not known yet. */
export const since = () => (now ? ` at ${clock(now.started)} UTC` : "");

/** Asks, and tells of it at the foot of the page. */
export async function tellNode() {
  const node = await ask("node");
  now = {run: node.started - node.clock_offset_seconds, started: node.started};
  shown ??= now.run;
  const off = node.off.map((each) => `${each.part} (${each.why})`);
  const down = node.sources.filter((each) => !each.up).map((each) => each.source);
  say(
    place("node"),
    [
      `${node.name}, gpumon ${node.version}${node.demo ? ", simulated node" : ""}, up ${duration(node.uptime_seconds)}`,
      `NVML ${node.nvml.state}${node.nvml.error ? `: ${node.nvml.error}` : ""}`,
      ...(node.nvml.driver_version ? [`driver ${node.nvml.driver_version}`] : []),
      ...(down.length ? [`down: ${down.join(", ")}`] : []),
      ...(off.length ? [`off: ${off.join("; ")}`] : []),
    ].join(" · "),
  );
}
