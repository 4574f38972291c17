"""Every fault a scenario may inject, as data: whom it strikes, what its strength means, and which cause it truly is.

``KINDS`` is the whole list; ``physics``, ``engine`` and ``world`` do what it says. ``cause`` is the one of
docs/EXPLAINING.md that explains the tokens it slows; None for what slows none, or what no cause of the list explains
(``quality_drop``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from gpumon.catalogue import CAUSES

__all__ = ["CAUSES", "KINDS", "FaultKind", "Target"]


class Target(StrEnum):
    """Whom a fault strikes: the key that must stand in it."""

    GPU = "gpu"
    SERVER = "server"
    TENANT = "tenant"
    NODE = "node"  # no key


class FaultKind(NamedTuple):
    """One row of the table."""

    target: Target
    cause: str | None
    usual: float
    """Strength when none is given."""
    low: float
    high: float
    strength: str
    """What the number means."""
    effect: str


KINDS: Final[dict[str, FaultKind]] = {
    # --- what slows a GPU ---------------------------------------------------------------------------------------------
    "thermal_throttle": FaultKind(
        Target.GPU,
        "thermal_throttle",
        *(0.29, 0.02, 0.8),
        "share of the SM clock lost once the die is hot; over 0.5 it is the hardware's own slowdown (hw_thermal)",
        "cooling degrades: the die heats to its limit in about ten seconds, then clocks fall in steps to hold it there",
    ),
    "power_throttle": FaultKind(
        Target.GPU,
        "power_throttle",
        *(0.4, 0.05, 0.7),
        "share of the board's power limit taken away",
        "the power cap is lowered: clocks fall until the work fits under it",
    ),
    "power_brake": FaultKind(
        Target.GPU,
        "hw_slowdown",
        *(0.5, 0.05, 0.8),
        "share of the SM clock lost",
        "an external power brake is asserted: the hardware slows down",
    ),
    "memory_bandwidth": FaultKind(
        Target.GPU,
        "memory_bandwidth",
        *(0.35, 0.05, 0.9),
        "share of the DRAM bandwidth that another client takes",
        "copies of another client eat memory bandwidth: memory-bound steps take longer, DRAM stays busy, SMs do not",
    ),
    "pcie_degraded": FaultKind(
        Target.GPU,
        "pcie",
        *(4.0, 1.0, 8.0),
        "halvings of the link's speed: first the generation falls to 1, then the width",
        "the link trains down and sends packets again: copies to and from the host take longer",
    ),
    "pcie_saturated": FaultKind(
        Target.GPU,
        "pcie",
        *(0.92, 0.3, 0.98),
        "share of the link that another transfer takes, towards the GPU",
        "copies of the server queue behind another transfer",
    ),
    "nvlink_degraded": FaultKind(
        Target.GPU,
        "nvlink",
        *(9.0, 1.0, 17.0),
        "links that are inactive, one always stays",
        "all-reduce takes as much longer as links are missing; the remaining ones count errors",
    ),
    "gpu_contention": FaultKind(
        Target.GPU,
        "gpu_contention",
        *(0.35, 0.05, 0.9),
        "share of the GPU's time that another process takes",
        "another process computes on the GPU: the server's kernels wait for their turn",
    ),
    "straggler": FaultKind(
        Target.GPU,
        "straggler",
        *(4.0, 1.1, 12.0),
        "how many times as long this rank takes to reach the collective",
        "one rank of a tensor-parallel server is late at every collective; the others wait in it",
    ),
    # --- the host and the processes -----------------------------------------------------------------------------------
    "page_faults": FaultKind(
        Target.SERVER,
        "page_faults",
        *(3000.0, 0.5, 60_000.0),
        "major faults per second of running inside a burst, at a mean context of 4,096 tokens; grows with context^1.5",
        "the first worker faults in bursts, one in ten seconds, of 0.8 s at a context of 4,096 tokens and longer in "
        "proportion; each fault stalls the step for 58 us and counts as memory and I/O pressure",
    ),
    "memory_pressure": FaultKind(
        Target.SERVER,
        "memory_pressure",
        *(0.5, 0.05, 1.0),
        "share of time in which the processes wait for memory; from 0.9 on the kernel kills the server halfway",
        "reclaim and swap stall the engine: PSI memory, swapped pages, some major faults",
    ),
    "numa_remote": FaultKind(
        Target.SERVER,
        "numa_remote",
        *(0.8, 0.1, 1.0),
        "share of the workers' pages on the other NUMA node",
        "host work and host copies of every step take longer; pages are allocated on the wrong node",
    ),
    "cpu_starvation": FaultKind(
        Target.SERVER,
        "cpu_starvation",
        *(0.7, 0.1, 0.97),
        "share of the CPU time wanted that is not given",
        "host work of every step takes longer: run-queue wait, cgroup throttling, PSI cpu",
    ),
    "process_stopped": FaultKind(
        Target.SERVER,
        "process_stopped",
        *(1.0, 0.1, 1.0),
        "share of each second in which the processes are stopped",
        "SIGSTOP: nothing runs, requests wait",
    ),
    "graph_fallback": FaultKind(
        Target.SERVER,
        "graph_fallback",
        *(1.0, 0.05, 1.0),
        "share of decode passes that run without a CUDA graph",
        "every kernel of such a pass is launched by the host",
    ),
    "allocator_leak": FaultKind(
        Target.SERVER,
        None,
        *(64.0, 1.0, 4096.0),
        "MiB per second by which reserved device memory grows over what is allocated",
        "fragmentation: slows nothing until the memory is gone",
    ),
    # --- load and scheduling ------------------------------------------------------------------------------------------
    "queue_surge": FaultKind(
        Target.SERVER, "queueing", *(4.0, 1.1, 50.0), "arrivals, times this", "more arrivals than the server bears"
    ),
    "batch_growth": FaultKind(
        Target.SERVER,
        "batch_growth",
        *(1.8, 1.1, 8.0),
        "arrivals, times this",
        "more requests at a time, within what the server bears: each step does more work",
    ),
    "tenant_flood": FaultKind(
        Target.TENANT, "queueing", *(6.0, 1.1, 100.0), "the tenant's arrivals, times this", "one tenant floods a server"
    ),
    "context_jump": FaultKind(
        Target.SERVER,
        "long_context",
        *(4.0, 1.1, 32.0),
        "length of new prompts, times this",
        "prompts grow: prefill takes longer, every decode step reads more KV cache",
    ),
    "long_prompts": FaultKind(
        Target.SERVER,
        "prefill_interference",
        *(6.0, 1.5, 64.0),
        "length of one prompt in four, times this; nothing of these is cached",
        "long prefills run between the decode steps of the others",
    ),
    "kv_shrink": FaultKind(
        Target.SERVER,
        "kv_pressure",
        *(0.4, 0.05, 0.95),
        "share of the KV cache's capacity that stays",
        "the cache runs full: requests are preempted and computed again, others wait",
    ),
    "kv_over_reserved": FaultKind(
        Target.SERVER,
        "kv_pressure",
        *(0.85, 0.5, 0.98),
        "share of the KV cache in use that holds no token",
        "blocks are reserved for the longest possible answer: the cache looks full while it holds little",
    ),
    "batch_jitter": FaultKind(
        Target.SERVER,
        "queueing",
        *(3.0, 0.5, 20.0),
        "mean pause before a step, in steps; one step in ten",
        "the scheduler holds small batches back and waits for more requests: uneven spacing, low fill",
    ),
    "moe_imbalance": FaultKind(
        Target.SERVER,
        "moe_imbalance",
        *(2.5, 1.3, 16.0),
        "tokens on the hottest rank over the mean",
        "the step waits for the rank with the busiest experts",
    ),
    "quality_drop": FaultKind(
        Target.SERVER,
        None,
        *(0.4, 0.05, 0.9),
        "share of the score lost; the token rate falls by the same share",
        "answers of the first prompt group are scored lower while the server is slower, for no cause of the list",
    ),
    # --- hardware and driver ------------------------------------------------------------------------------------------
    "xid": FaultKind(
        Target.GPU,
        "gpu_error",
        *(31.0, 1.0, 200.0),
        "number of the XID",
        "the driver reports an error; those that end the process restart the server",
    ),
    "ecc_corrected": FaultKind(
        Target.GPU, None, *(0.5, 0.001, 1000.0), "errors per second", "corrected memory errors, which cost nothing"
    ),
    "ecc_uncorrected": FaultKind(
        Target.GPU,
        "gpu_error",
        *(1.0, 1.0, 100.0),
        "errors, all at once",
        "XID 48 and 94: the server on the GPU is killed and starts anew",
    ),
    "row_remap_pending": FaultKind(
        Target.GPU, None, *(1.0, 1.0, 100.0), "rows", "XID 63: rows wait for a reset to be remapped"
    ),
    "row_remap_failed": FaultKind(
        Target.GPU, None, *(1.0, 1.0, 100.0), "rows", "XID 64: no spare rows are left, the board is to be replaced"
    ),
    "gpu_lost": FaultKind(
        Target.GPU,
        "gpu_error",
        *(1.0, 1.0, 1.0),
        "none",
        "XID 79: the GPU falls off the bus, its server is gone until it is back",
    ),
    "driver_mismatch": FaultKind(
        Target.NODE, None, *(1.0, 1.0, 1.0), "none", "the library was upgraded under the loaded driver"
    ),
    # --- what only looks like a fault ---------------------------------------------------------------------------------
    "driver_restart": FaultKind(
        Target.NODE, "gpu_error", *(1.0, 1.0, 1.0), "none", "the driver is unloaded meanwhile; all servers start anew"
    ),
    "idle": FaultKind(
        Target.SERVER, None, *(1.0, 0.1, 1.0), "share of the arrivals that stay away", "GPUs idle and clock down"
    ),
    "warm_up": FaultKind(
        Target.SERVER,
        "gpu_error",
        *(1.0, 1.0, 1.0),
        "none",
        "the server starts: weights are paged in first",
    ),
    "short_job": FaultKind(
        Target.GPU,
        "gpu_contention",
        *(0.03, 0.005, 0.1),
        "share of the GPU's time that it takes",
        "another process looks in on the GPU for a moment",
    ),
}
