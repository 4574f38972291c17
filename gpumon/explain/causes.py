"""Every cause a slow token can have: what it says, whether it is a fault or load, and what to do about it.

The names are the closed list ``catalogue.CAUSES``. *Load* is what the users of a server bring: the tokens are slow
because there is more work, and nothing is broken. Everything else but ``unexplained`` is a *fault*: the same work took
longer than it had to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpumon.catalogue import CAUSES

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
    """A few words: ``GPU too hot``."""
    meaning: str
    """What it says of a token."""
    action: str
    """What to do."""


def is_fault(cause: str) -> bool:
    """Whether it is something broken or badly set up, rather than load or unknown."""
    return cause not in LOAD and cause != UNEXPLAINED


TABLE: Final[dict[str, Cause]] = {
    "thermal_throttle": Cause(
        "GPU too hot",
        "The driver or the hardware held the SM clock down because of heat.",
        "Look at fans, air flow and the neighbours in the rack; lower the power limit until it is repaired.",
    ),
    "power_throttle": Cause(
        "power cap",
        "The clocks were below what they usually are because the board was at its power limit.",
        "Raise the power limit, or see who lowered it; spread work over more GPUs.",
    ),
    "hw_slowdown": Cause(
        "hardware slowdown",
        "The hardware halved the clocks by itself: power brake or its own protection.",
        "Look at power supplies and cables; the BMC's log names the cause of a power brake.",
    ),
    "memory_bandwidth": Cause(
        "memory bandwidth taken",
        "DRAM was busier than the server's own work explains, so reading weights and KV cache took longer.",
        "Find the other client of the GPU's memory: copies, KV offload, another process.",
    ),
    "pcie": Cause(
        "PCIe slow",
        "Copies to or from the host took longer: the link trained down, sends again, or is full.",
        "Reseat the board or the riser where the link is degraded; move offload traffic away where it is full.",
    ),
    "nvlink": Cause(
        "NVLink slow",
        "All-reduces took longer: links are inactive or count errors.",
        "Reset the GPUs; if links stay away, the fabric manager and the hardware are to be looked at.",
    ),
    "page_faults": Cause(
        "major page faults",
        "The process waited for pages from disk.",
        "More memory for the pod, no swap, weights and KV offload locked; look what fills the page cache.",
    ),
    "memory_pressure": Cause(
        "memory pressure",
        "Tasks waited for the kernel to find memory: reclaim, swap, or the OOM killer.",
        "Raise the pod's memory limit or move what else fills the host's memory.",
    ),
    "numa_remote": Cause(
        "memory on the wrong socket",
        "Host work and copies went over the link between the sockets.",
        "Pin the process to the CPUs and memory of its GPU's node: topology manager, numactl.",
    ),
    "cpu_starvation": Cause(
        "no CPU",
        "Threads of the server were ready to run and got no CPU: quota, or others on the same cores.",
        "Raise or drop the CPU limit, request whole CPUs, move what else keeps them busy.",
    ),
    "queueing": Cause(
        "waiting in the queue",
        "The request waited for a place in the batch, or the scheduler held the batch back.",
        "More replicas, a larger batch, or admission control at the gateway.",
    ),
    "kv_pressure": Cause(
        "KV cache full",
        "The request was preempted, or waited for blocks of the KV cache.",
        "More KV cache (fewer other users of the memory, FP8), shorter contexts, fewer requests at a time.",
    ),
    "prefill_interference": Cause(
        "prefill of others",
        "A prompt of another request was computed between this one's tokens.",
        "Smaller prefill chunks, or prefill on servers of its own (disaggregation).",
    ),
    "batch_growth": Cause(
        "larger batch",
        "More requests than usual shared each step.",
        "More replicas if the latency matters more than the throughput.",
    ),
    "long_context": Cause(
        "long context",
        "The request, or those in its batch, had more context than usual.",
        "Route long prompts to servers of their own; limit the context.",
    ),
    "straggler": Cause(
        "one slow rank",
        "The ranks of a tensor-parallel group waited for one of them, and nothing else explains that one.",
        "Look at that rank's GPU, host and links; if nothing is found, replace the board.",
    ),
    "moe_imbalance": Cause(
        "uneven experts",
        "The rank with the busiest experts held up the others.",
        "Rebalance or replicate experts (EPLB); look whether one kind of prompt causes it.",
    ),
    "gpu_contention": Cause(
        "another process on the GPU",
        "A process that is no part of the server computed on its GPU.",
        "Move it to another GPU, or give each a part of it (MIG).",
    ),
    "graph_fallback": Cause(
        "no CUDA graphs",
        "Decode passes were launched kernel by kernel.",
        "Capture graphs for the batch sizes that occur; look for features that turn them off.",
    ),
    "process_stopped": Cause(
        "process stopped",
        "The server's process was stopped or frozen.",
        "See who sends SIGSTOP or freezes the cgroup: debuggers, checkpoints, a suspended container.",
    ),
    "gpu_error": Cause(
        "GPU error or restart",
        "The driver reported an error, a GPU was gone, or the server started anew.",
        "See the XID in docs/DETECTORS.md and the kernel log; drain the node where it comes again.",
    ),
    UNEXPLAINED: Cause(
        "unexplained",
        "Nothing that was watched says why.",
        "See what is not watched: `gpumon doctor`; look at the server's own log for that moment.",
    ),
}

assert tuple(TABLE) == CAUSES
