// What limits a GPU, as gpumon_gpu_bound_seconds_total counts it (docs/ARCHITECTURE.md), in words.

/** Activity of SMs and DRAM, as shares of what they can do. */
export const LOW = 0.3;
export const HIGH = 0.6;

export const MEANINGS = {
  compute: "the SMs are busy (60 % or more) and the DRAM is not: prefill, large batches",
  memory: "the DRAM is busy (60 % or more), reading weights and KV cache: decoding",
  balanced: "neither of them limits alone: both work, neither at 60 %, or both beyond it",
  starved: "both are below 30 % though requests are open: the GPU waits for its host",
  idle: "both are below 30 %, and no request is known to be open",
};
