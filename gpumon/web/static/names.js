// What people call causes and kinds of incident: the title that the API gave, else its label in words.

import {words} from "./units.js";

/** As catalogue.TITLES has them: where seconds are told by cause, no title stands beside. */
const CAUSES = {
  thermal_throttle: "GPU too hot",
  power_throttle: "power cap",
  hw_slowdown: "hardware slowdown",
  memory_bandwidth: "memory bandwidth taken",
  pcie: "PCIe slow",
  nvlink: "NVLink slow",
  page_faults: "major page faults",
  memory_pressure: "memory pressure",
  numa_remote: "memory on the wrong socket",
  cpu_starvation: "waiting for a CPU",
  queueing: "waiting in the queue",
  kv_pressure: "KV cache full",
  prefill_interference: "prefill of others",
  batch_growth: "larger batch",
  long_context: "long context",
  straggler: "one slow rank",
  moe_imbalance: "uneven experts",
  gpu_contention: "another process on the GPU",
  graph_fallback: "no CUDA graphs",
  process_stopped: "process stopped",
  gpu_error: "GPU error or restart",
  unexplained: "unexplained",
};
const titles = new Map(Object.entries(CAUSES));
/** There are some sixty names. */
const MOST = 500;

/** those: of an answer, {cause or kind, title}. */
export function learn(those) {
  for (const {cause, kind, title} of those) {
    const name = cause ?? kind;
    if (name && title && (titles.has(name) || titles.size < MOST)) titles.set(name, title);
  }
}

export const called = (name) => titles.get(name) ?? words(name);
