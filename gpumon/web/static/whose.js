// Where a request ran: its GPUs and the processes on them, which of them was held down, and its trace id to be copied.

import {h, say} from "./dom.js";
import {amount, percent} from "./units.js";

/** Causes that are of single GPUs: the others of a tensor-parallel group wait for the one that is held down. */
const HELD = new Set(["thermal_throttle", "power_throttle", "hw_slowdown"]);
/** Of the time: less is not worth a name. */
const HELD_LEAST = 0.05;
const COPIED_MS = 2_000;

const several = (names) => `GPU${names.length > 1 ? "s" : ""} ${names.join(", ")}`;

/** GPUs by their index, those that are gone by their UUID. */
export function gpuNames(said, gpus, line) {
  const lanes = (line?.lanes ?? []).filter((lane) => lane.uuid);
  const names = new Map([...lanes, ...(gpus ?? [])].map((each) => [each.uuid, each.gpu]));
  const numeric = (one, other) => one.localeCompare(other, "en", {numeric: true});
  return said.gpus.map((uuid) => names.get(uuid) ?? uuid).sort(numeric);
}

/** By name, with pids: VLLM::Worker_TP 41216, 41217. Those on its GPUs now: they were not asked for at its time. */
export function processesNow(said, gpus) {
  const found = new Map();
  for (const gpu of gpus ?? []) {
    if (!said.gpus.includes(gpu.uuid)) continue;
    for (const {process, pid} of gpu.processes ?? []) {
      if (!found.has(process)) found.set(process, new Set());
      found.get(process).add(pid);
    }
  }
  return [...found].map(([process, pids]) => `${process} ${[...pids].join(", ")}`).join("; ");
}

/** Which of its GPUs a cause is of, as far as their clocks tell, or an incident that held meanwhile; else "". */
export function whereHeld(cause, said, line) {
  if (!HELD.has(cause)) return "";
  const lanes = (name) => (line?.lanes ?? []).filter((lane) => lane.scope === "gpu" && lane.name === name);
  const held = lanes("throttled")
    .map((lane) => ({...lane, share: mean(during(lane, said))}))
    .filter(({share}) => share >= HELD_LEAST);
  if (!held.length) return ofIncident(cause, line);
  const most = Math.max(...held.map(({share}) => share));
  const worst = held.filter(({share}) => share >= most / 2);
  const uuids = new Set(worst.map((lane) => lane.uuid));
  const degrees = lanes("temperature")
    .filter((lane) => uuids.has(lane.uuid))
    .flatMap((lane) => during(lane, said));
  const hot = degrees.length ? `, up to ${amount(Math.max(...degrees), "celsius")}` : "";
  return `${several(worst.map((lane) => lane.gpu ?? lane.uuid))} held down ${percent(most)} of this time${hot}`;
}

/** What single GPUs did is kept for minutes, incidents for longer. */
function ofIncident(cause, line) {
  const those = (line?.incidents ?? []).filter(({kind, entity}) => kind === cause && entity.startsWith("gpu "));
  const names = [...new Set(those.map(({entity}) => entity.slice("gpu ".length)))];
  return names.length ? `${several(names)} by the incident meanwhile` : "";
}

/** Values of a lane while the request ran that are known. */
function during(lane, said) {
  const end = said.start + said.duration_seconds;
  return lane.values.filter((value, step) => {
    const at = lane.start + step * lane.step_seconds;
    return value !== null && at + lane.step_seconds > said.start && at < end;
  });
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

/** An id, whole, and a button that copies it. Where the browser forbids that (no HTTPS), the id is selected. */
export function idToCopy(id) {
  const code = h("code", {class: "id"}, id);
  const button = h("button", {type: "button", on: {click: copy}}, "Copy");
  const told = h("span", {role: "status"});
  async function copy() {
    try {
      await navigator.clipboard.writeText(id);
      say(told, " copied");
    } catch (error) {
      if (!(error instanceof DOMException || error instanceof TypeError)) throw error;
      getSelection().selectAllChildren(code);
      say(told, " selected: copy it with the keyboard or the menu");
    }
    setTimeout(() => say(told, ""), COPIED_MS);
  }
  return [code, " ", button, told];
}
