"""The figure behind a cause as text. Every name that a fact can have stands here once, as people say it.

A figure that reads the same as what is usual explains nothing, and is not told.
"""

from __future__ import annotations

from typing import Final

from gpumon.explain.signs import Fact
from gpumon.shown import shown

PHRASES: Final[dict[str, str]] = {
    "context_tokens": "tokens of context in the batch",
    "cpu_pressure": "tasks of its cgroup waiting for a CPU",
    "cpus": "CPUs given to it",
    "dram_active": "DRAM busy",
    "eager_share": "decode passes without CUDA graphs",
    "expert_balance": "mean over busiest rank's expert load",
    "gpu_present": "GPUs there",
    "kv_usage": "KV cache in use",
    "local_cpus": "CPUs near its GPU",
    "local_pages": "memory near its GPU",
    "major_faults_per_second": "major page faults per second",
    "memory_pressure": "time waited for memory",
    "nvlink_errors_per_second": "NVLink errors per second",
    "nvlinks_active": "NVLinks active",
    "others_sm": "SMs busy with other processes",
    "pcie_capacity_bytes_per_second": "PCIe can carry, per second,",
    "pcie_used": "PCIe in use",
    "prompt_tokens": "prompt tokens",
    "prompt_tokens_of_others": "prompt tokens of other requests meanwhile",
    "prompt_tokens_per_second": "prompt tokens computed per second",
    "queue": "time in the queue",
    "requests_decoding": "requests decoding at a time",
    "requests_waiting": "requests waiting",
    "runqueue_wait": "threads waiting for a CPU",
    "server_processes": "processes of the server",
    "sm_clock": "SM clock",
    "step_pauses": "pauses among the gaps between steps",
    "stopped": "time stopped",
    "swapped_in_per_second": "pages swapped in per second",
    "throttled_seconds_per_second": "seconds per second held back by the CPU quota",
    "wait_share": "time that the other ranks waited for it",
    "xid": "XID",
}


GONE: Final[dict[str, str]] = {
    "gpu_present": "the GPU was gone",
    "server_processes": "the server's process on the GPU was gone",
}
"""Of what should be there: what is said of none."""


def fact_text(fact: Fact | None) -> str:
    """``SM clock 1,005 MHz, usually 1,410 MHz``; empty for none, and for one that is as usual. A name that is not known
    is told as it is."""
    return "" if fact is None else observed_text(fact.name, fact.observed, fact.unit, fact.usual)


def observed_text(name: str, observed: float | None, unit: str, usual: float | None) -> str:
    """The same of a fact in parts. unit: base unit, as ``model.Unit`` spells it; others are left out."""
    if observed == 0 and usual and name in GONE:
        return GONE[name]
    if usual is not None and shown(observed, unit) == shown(usual, unit):
        return ""
    told = f"{PHRASES.get(name) or name.replace('_', ' ')} {shown(observed, unit)}"
    return told if usual is None else f"{told}, usually {shown(usual, unit)}"
