"""Every cause a slow token can have: what it says, whether it is a fault or load, and what to do about it.

The names are the closed list ``catalogue.CAUSES``. *Load* is what the users of a server bring: the tokens are slow
because there is more work, and nothing is broken. Everything else but ``unexplained`` is a *fault*: the same work took
longer than it had to. Titles stand in ``catalogue.TITLES``, beside those of incidents. All texts are plain, without
markup: terminals and pages show them as they are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpumon.catalogue import CAUSES, TITLES

UNEXPLAINED: Final = "unexplained"
LOAD: Final = frozenset({"queueing", "kv_pressure", "prefill_interference", "batch_growth", "long_context"})
"""Causes that are load. They grow behind a fault, too, and are then the fault's."""
SLOWING: Final = frozenset(
    {
        *("thermal_throttle", "power_throttle", "hw_slowdown", "memory_bandwidth", "pcie", "nvlink", "numa_remote"),
        *("straggler", "moe_imbalance", "gpu_contention", "graph_fallback"),
    }
)
"""Causes that make the work itself longer, by a factor. The others add time in which nothing goes on."""
PROVEN: Final = frozenset({"process_stopped", "gpu_error", "kv_pressure"})
"""Causes whose condition is proof where it counts: a process that was stopped did not work, and between tokens a full
cache counts only for a request that waited while the others went on. Their lift decides nothing."""
INDEX: Final = {cause: position for position, cause in enumerate(CAUSES)}


class Cause(NamedTuple):
    """One cause, for people."""

    title: str
    """A few words: ``GPU too hot``; ``catalogue.TITLES``."""
    meaning: str
    """What it says of a token."""
    action: str
    """What to do."""


def is_fault(cause: str) -> bool:
    """Whether it is something broken or badly set up, rather than load or unknown."""
    return cause not in LOAD and cause != UNEXPLAINED


class _Text(NamedTuple):
    meaning: str
    action: str


_TEXTS: Final = {
    "thermal_throttle": _Text(
        "The driver or the hardware held the SM clock down because of heat.",
        "Look at fans, air flow and the neighbours in the rack; lower the power limit until it is repaired.",
    ),
    "power_throttle": _Text(
        "The clocks were below what they usually are because the board was at its power limit.",
        "Raise the power limit, or see who lowered it; spread work over more GPUs.",
    ),
    "hw_slowdown": _Text(
        "The hardware halved the clocks by itself: power brake or its own protection.",
        "Look at power supplies and cables; the BMC's log names the cause of a power brake.",
    ),
    "memory_bandwidth": _Text(
        "DRAM was busier than the server's own work explains, so reading weights and KV cache took longer.",
        "Find the other client of the GPU's memory: copies, KV offload, another process.",
    ),
    "pcie": _Text(
        "Copies to or from the host took longer: the link trained down, sends again, or is full.",
        "Reseat the board or the riser where the link is degraded; move offload traffic away where it is full.",
    ),
    "nvlink": _Text(
        "All-reduces took longer: links are inactive or count errors.",
        "Reset the GPUs; if links stay away, the fabric manager and the hardware are to be looked at.",
    ),
    "page_faults": _Text(
        "The process waited for pages from disk.",
        "More memory for the pod, no swap, weights and KV offload locked; look what fills the page cache.",
    ),
    "memory_pressure": _Text(
        "Tasks waited for the kernel to find memory: reclaim, swap, or the OOM killer.",
        "Raise the pod's memory limit or move what else fills the host's memory.",
    ),
    "numa_remote": _Text(
        "Host work and copies went over the link between the sockets.",
        "Pin the process to the CPUs and memory of its GPU's node: topology manager, numactl.",
    ),
    "cpu_starvation": _Text(
        "Threads of the server were ready to run and got no CPU: quota, or others on the same cores.",
        "Raise or drop the CPU limit, request whole CPUs, move what else keeps them busy.",
    ),
    "queueing": _Text(
        "The request waited for a place in the batch, or the scheduler held the batch back.",
        "More replicas, a larger batch, or admission control at the gateway.",
    ),
    "kv_pressure": _Text(
        "The request was preempted, or waited for blocks of the KV cache.",
        "More KV cache (fewer other users of the memory, FP8), shorter contexts, fewer requests at a time.",
    ),
    "prefill_interference": _Text(
        "A prompt of another request was computed between this one's tokens.",
        "Smaller prefill chunks, or prefill on servers of its own (disaggregation).",
    ),
    "batch_growth": _Text(
        "More requests than usual shared each step.",
        "More replicas if the latency matters more than the throughput.",
    ),
    "long_context": _Text(
        "The request, or those in its batch, had more context than usual.",
        "Route long prompts to servers of their own; limit the context.",
    ),
    "straggler": _Text(
        "The ranks of a tensor-parallel group waited for one of them, and nothing else explains that one.",
        "Look at that rank's GPU, host and links; if nothing is found, replace the board.",
    ),
    "moe_imbalance": _Text(
        "The rank with the busiest experts held up the others.",
        "Rebalance or replicate experts (EPLB); look whether one kind of prompt causes it.",
    ),
    "gpu_contention": _Text(
        "A process that is no part of the server computed on its GPU.",
        "Move it to another GPU, or give each a part of it (MIG).",
    ),
    "graph_fallback": _Text(
        "Decode passes were launched kernel by kernel.",
        "Capture graphs for the batch sizes that occur; look for features that turn them off.",
    ),
    "process_stopped": _Text(
        "The server's process was stopped or frozen.",
        "See who sends SIGSTOP or freezes the cgroup: debuggers, checkpoints, a suspended container.",
    ),
    "gpu_error": _Text(
        "The driver reported an error, a GPU was gone, or the server started anew.",
        "See the XID in docs/DETECTORS.md and the kernel log; drain the node where it comes again.",
    ),
    UNEXPLAINED: _Text(
        "Nothing that was watched says why.",
        "Let gpumon doctor say what is not watched; look at the server's own log for that moment.",
    ),
}

TABLE: Final = {cause: Cause(TITLES[cause], *_TEXTS[cause]) for cause in CAUSES}

assert tuple(_TEXTS) == CAUSES
