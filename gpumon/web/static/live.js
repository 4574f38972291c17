// The node as it is now, by the API's stream, and its GPUs' last two minutes. Bounded: older points are dropped.

import {ask} from "./api.js";

export const WINDOW_S = 120;
const POINTS_MAX = 240;
const SERVERS_MS = 5_000;
const AGAIN_MS = 5_000;
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

  /** listener: called after each snapshot, until the signal. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    if (this.#snapshot) listener();
  }

  begin() {
    this.#open();
  }

  pause(paused) {
    this.#paused = paused;
    this.#close();
    if (paused) this.#tell("paused", "paused");
    else this.#open();
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
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }

  #open() {
    this.#tell("connecting", "waiting");
    const source = new EventSource("api/v1/stream");
    this.#source = source;
    source.addEventListener("open", () => {
      this.#incidents.clear();
      this.#seed().catch((error) => this.#tell(error.message, "waiting"));
    });
    source.addEventListener("node", (event) => this.#take(JSON.parse(event.data)));
    source.addEventListener("incident", (event) => this.#incident(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      this.#tell("gpumon does not answer; trying again", "waiting");
      // The browser comes again by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED && source === this.#source) {
        this.#close();
        this.#later(AGAIN_MS, () => this.#open());
      }
    });
    const servers = () => {
      const again = () => this.#source === source && this.#later(SERVERS_MS, servers);
      // Where it fails the stream fails as well, and tells.
      this.#seedServers().then(again, again);
    };
    servers();
  }

  async #seed() {
    const {gpus} = await ask("gpus", {history: WINDOW_S});
    this.#past = new Map(gpus.map((gpu) => [gpu.uuid, gpu.history ?? {at: [], signals: {}}]));
  }

  async #seedServers() {
    const {servers} = await ask("servers", {history: WINDOW_S});
    this.#servers = new Map(servers.map((each) => [`${each.server}\n${each.model}`, each.history]));
  }

  #take(snapshot) {
    if (this.#paused) return;
    this.#snapshot = snapshot;
    this.#tell("live", "live");
    for (const gpu of snapshot.gpus) this.#append(gpu, snapshot.at);
    const there = new Set(snapshot.gpus.map((gpu) => gpu.uuid));
    for (const uuid of this.#past.keys()) if (!there.has(uuid)) this.#past.delete(uuid);
    for (const listener of this.#listeners) listener();
  }

  #append(gpu, at) {
    let past = this.#past.get(gpu.uuid);
    if (!past) this.#past.set(gpu.uuid, (past = {at: [], signals: {}}));
    if (past.at.length && at <= past.at.at(-1)) return;
    const known = past.at.length;
    past.at.push(at);
    const held = gpu.throttled_by?.some((reason) => reason !== "low_utilization");
    const values = {...Object.fromEntries(SIGNALS.map((name) => [name, gpu[name]])), throttled: held ? 1 : 0};
    for (const [name, value] of Object.entries(values)) {
      (past.signals[name] ??= new Array(known).fill(null)).push(value);
    }
    for (const list of Object.values(past.signals)) while (list.length < past.at.length) list.push(null);
    const old = Math.max(
      past.at.findIndex((moment) => moment >= at - WINDOW_S),
      past.at.length - POINTS_MAX,
    );
    if (old > 0) for (const list of [past.at, ...Object.values(past.signals)]) list.splice(0, old);
  }

  #incident(incident) {
    if (incident.state === "open") this.#incidents.set(incident.id, incident);
    else this.#incidents.delete(incident.id);
    if (this.#incidents.size > INCIDENTS_MAX) this.#incidents.delete(this.#incidents.keys().next().value);
  }
}
