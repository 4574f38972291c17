// The node as it is now, by the API's stream, and its GPUs' last two minutes. Bounded: older points are dropped.
//
// The stream is listened to while the page is seen: a browser has six connections for all of its tabs. What a tab missed
// it asks for when it is looked at again. Who does not answer, or is silent, is tried again after 3 s, 6 s and so on.

import {ask} from "./api.js";
import {clock, known} from "./units.js";

export const WINDOW_S = 120;
const POINTS_MAX = 240;
const SERVERS_MS = 5_000;
const AGAIN_MS = 3_000;
const AGAIN_MOST_MS = 24_000;
/** A connection on which nothing comes any more breaks nowhere: news are due each second. */
const SILENCE_MS = 20_000;
/** gpumon's clock was set back if a moment is so much older than the last one. */
const BACK_S = 5;
const INCIDENTS_MAX = 200;
const SIGNALS = [
  "utilization",
  "sm_active",
  "dram_active",
  "power_watts",
  "sm_clock_hertz",
  "temperature_celsius",
  "memory_used_bytes",
];

export class Live {
  #tell;
  #source = null;
  #listeners = new Set();
  #paused = false;
  #timers = new Set();
  #silence = 0;
  #againMs = AGAIN_MS;
  #due = false;
  #snapshot = null;
  #servers = new Map();
  #incidents = new Map();
  /** By UUID: {at, signals}, ascending. */
  #past = new Map();

  /** tell: of the state of the connection, a text and one of live, waiting, paused. */
  constructor(tell) {
    this.#tell = tell;
  }

  get snapshot() {
    return this.#snapshot;
  }

  past(uuid) {
    return this.#past.get(uuid);
  }

  serverPast(server) {
    return this.#servers.get(`${server.server}\n${server.model}`);
  }

  get incidents() {
    return [...this.#incidents.values()].sort((one, other) => other.since - one.since);
  }

  /** listener: called when something changed, once for each frame at most and not while unseen, until the signal. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    if (this.#snapshot) listener();
  }

  begin() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#anew()));
    this.#open();
  }

  pause(paused) {
    this.#paused = paused;
    if (paused) {
      this.#close();
      this.#tell("paused", "paused");
    } else this.#anew();
  }

  #later(ms, work) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      work();
    }, ms);
    this.#timers.add(timer);
  }

  #close() {
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#silence);
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }

  /** Now, however long it would have waited. */
  #anew() {
    this.#close();
    this.#againMs = AGAIN_MS;
    this.#open();
  }

  #open() {
    if (this.#paused || document.hidden) return;
    if (this.#againMs === AGAIN_MS) this.#tell("connecting", "waiting");
    const source = new EventSource("api/v1/stream");
    this.#source = source;
    this.#heard();
    source.addEventListener("open", () => {
      this.#incidents.clear();
      this.#seed().catch((error) => source === this.#source && this.#tell(error.message, "waiting"));
    });
    source.addEventListener("node", (event) => this.#take(JSON.parse(event.data)));
    source.addEventListener("incident", (event) => this.#incident(JSON.parse(event.data)));
    // The browser by itself would try for ever at the same pace, and not at all after a refusal.
    source.addEventListener("error", () => source === this.#source && this.#lost());
    const servers = () => {
      const again = () => this.#source === source && this.#later(SERVERS_MS, servers);
      // Where it fails the stream fails as well, and tells.
      this.#seedServers().then(again, again);
    };
    servers();
  }

  #lost() {
    this.#close();
    const since = this.#snapshot ? ` since ${clock(this.#snapshot.at)}` : "";
    this.#tell(`not connected${since}; trying again`, "waiting");
    this.#later(this.#againMs, () => this.#open());
    this.#againMs = Math.min(2 * this.#againMs, AGAIN_MOST_MS);
  }

  #heard() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  /** What comes at once, such as a snapshot and all incidents at the beginning, is shown at once. */
  #changed() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      this.#due = false;
      if (this.#snapshot) for (const listener of this.#listeners) listener();
    });
  }

  async #seed() {
    const {gpus} = await ask("gpus", {history: WINDOW_S});
    this.#past = new Map(gpus.map((gpu) => [gpu.uuid, gpu.history ?? {at: [], signals: {}}]));
    this.#changed();
  }

  async #seedServers() {
    const {servers} = await ask("servers", {history: WINDOW_S});
    this.#servers = new Map(servers.map((each) => [`${each.server}\n${each.model}`, each.history]));
  }

  #take(snapshot) {
    if (this.#paused) return;
    this.#heard();
    if (!known(snapshot?.at) || !Array.isArray(snapshot.gpus) || !Array.isArray(snapshot.servers))
      throw new TypeError(`the stream told what is no node: ${JSON.stringify(snapshot).slice(0, 80)}`);
    this.#snapshot = snapshot;
    this.#againMs = AGAIN_MS;
    this.#tell("live", "live");
    for (const gpu of snapshot.gpus) this.#append(gpu, snapshot.at);
    const there = new Set(snapshot.gpus.map((gpu) => gpu.uuid));
    for (const uuid of this.#past.keys()) if (!there.has(uuid)) this.#past.delete(uuid);
    this.#changed();
  }

  #append(gpu, at) {
    let past = this.#past.get(gpu.uuid);
    if (!past || past.at.at(-1) - at > BACK_S) this.#past.set(gpu.uuid, (past = {at: [], signals: {}}));
    if (past.at.length && at <= past.at.at(-1)) return;
    const before = past.at.length;
    past.at.push(at);
    const held = gpu.throttled_by?.some((reason) => reason !== "low_utilization");
    const values = {...Object.fromEntries(SIGNALS.map((name) => [name, gpu[name]])), throttled: held ? 1 : 0};
    for (const [name, value] of Object.entries(values)) {
      (past.signals[name] ??= new Array(before).fill(null)).push(value);
    }
    for (const list of Object.values(past.signals)) while (list.length < past.at.length) list.push(null);
    const old = Math.max(
      past.at.findIndex((moment) => moment >= at - WINDOW_S),
      past.at.length - POINTS_MAX,
    );
    if (old > 0) for (const list of [past.at, ...Object.values(past.signals)]) list.splice(0, old);
  }

  #incident(incident) {
    if (!known(incident?.since))
      throw new TypeError(`the stream told what is no incident: ${JSON.stringify(incident).slice(0, 80)}`);
    if (incident.state === "open") this.#incidents.set(incident.id, incident);
    else this.#incidents.delete(incident.id);
    if (this.#incidents.size > INCIDENTS_MAX) this.#incidents.delete(this.#incidents.keys().next().value);
    this.#changed();
  }
}
