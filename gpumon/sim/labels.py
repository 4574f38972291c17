"""What a scenario's faults should make a watcher find, and what it may find besides: the key to a simulation.

Decides which incidents are right, for benchmarks and tests; nothing that watches reads it. A fault has kinds of
incidents that must be found, and consequences that are as true: a slower server has a latency shift, perhaps a queue.
What is found and is neither is false.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpumon.sim.faults import KINDS, Target
from gpumon.sim.scenario import Fault, Scenario

AFTER_S: Final = 30.0
"""How long after its end a fault may still explain what is found: queues drain, requests that it slowed still end."""

EARLY_S: Final = 1.0
"""What the story tells for a moment may be seen at the look before it."""

_SLOWER: Final = frozenset({"latency_shift", "queue_buildup", "kv_pressure"})
"""True of any server that does less than before under the same load."""
_GONE: Final = _SLOWER | {"xid", "starved_gpu", "gpu_lost", "straggler"}
"""True of servers whose GPU or process was away, and that start anew."""

REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "thermal_throttle": ("thermal_throttle",),
    "power_throttle": ("power_throttle",),
    "power_brake": ("hw_slowdown",),
    "memory_bandwidth": ("memory_bound",),
    "pcie_degraded": ("pcie_degraded",),
    "pcie_saturated": ("pcie_saturated",),
    "nvlink_degraded": ("nvlink_degraded",),
    "gpu_contention": ("gpu_contention",),
    "straggler": ("straggler",),
    "page_faults": ("page_fault_burst",),
    "memory_pressure": ("memory_pressure",),
    "numa_remote": ("numa_remote",),
    "cpu_starvation": ("cpu_starvation",),
    "process_stopped": ("process_stopped",),
    "graph_fallback": ("graph_fallback",),
    "allocator_leak": ("allocator_gap",),
    "queue_surge": ("queue_buildup",),
    "tenant_flood": ("tenant_interference",),
    "context_jump": ("latency_shift",),
    "long_prompts": ("latency_shift",),
    "kv_shrink": ("kv_pressure",),
    "kv_over_reserved": ("kv_mismatch",),
    "batch_jitter": ("batch_jitter",),
    "moe_imbalance": ("moe_imbalance",),
    "quality_drop": ("quality_drop",),
    "xid": ("xid",),
    "ecc_corrected": ("ecc",),
    "ecc_uncorrected": ("ecc",),
    "row_remap_pending": ("row_remap",),
    "row_remap_failed": ("row_remap",),
    "gpu_lost": ("gpu_lost",),
    "driver_mismatch": ("driver_mismatch",),
    "batch_growth": (),
    "driver_restart": (),
    "idle": (),
    "warm_up": (),
    "short_job": (),
}
"""By kind of fault, the kinds of incidents of which each must be found."""

ALSO: Final[dict[str, frozenset[str]]] = {
    # A slow GPU is late at every collective of its server: to its peers it is a straggler.
    "thermal_throttle": _SLOWER | {"straggler"},
    "power_throttle": _SLOWER | {"straggler"},
    "power_brake": _SLOWER | {"straggler"},
    "memory_bandwidth": _SLOWER | {"straggler", "gpu_contention"},
    "pcie_degraded": _SLOWER | {"straggler", "pcie_saturated"},
    "pcie_saturated": _SLOWER | {"straggler"},
    "nvlink_degraded": _SLOWER,
    "gpu_contention": _SLOWER | {"straggler"},
    "straggler": _SLOWER,
    "page_faults": _SLOWER | {"memory_pressure", "straggler"},
    "memory_pressure": _GONE | {"page_fault_burst"},
    "numa_remote": _SLOWER,
    "cpu_starvation": _SLOWER | {"starved_gpu"},
    "process_stopped": _SLOWER | {"starved_gpu"},
    "graph_fallback": _SLOWER | {"starved_gpu"},
    "allocator_leak": frozenset(),
    "queue_surge": _SLOWER | {"memory_bound", "tenant_interference"},
    "tenant_flood": _SLOWER | {"memory_bound"},
    "context_jump": _SLOWER | {"context_cliff", "memory_bound"},
    "long_prompts": _SLOWER | {"context_cliff"},
    "kv_shrink": _SLOWER,
    "kv_over_reserved": _SLOWER,
    "batch_jitter": _SLOWER | {"starved_gpu"},
    "moe_imbalance": _SLOWER,
    "quality_drop": _SLOWER,
    "xid": _GONE,
    "ecc_corrected": frozenset(),
    "ecc_uncorrected": _GONE,
    "row_remap_pending": frozenset({"xid"}),
    "row_remap_failed": frozenset({"xid"}),
    "gpu_lost": _GONE,
    "driver_mismatch": _GONE,
    "batch_growth": _SLOWER | {"memory_bound"},
    "driver_restart": _SLOWER,
    "idle": frozenset(),
    "warm_up": _SLOWER,
    "short_job": frozenset(),
}
"""By kind of fault, what is a true consequence of it."""

assert set(KINDS) == set(REQUIRED) == set(ALSO)


class Label(NamedTuple):
    """One incident that must be found."""

    kind: str
    fault: Fault
    begins_s: float
    """Of the story, each time it is told."""
    ends_s: float


def labels(scenario: Scenario, duration_s: float) -> list[Label]:
    """What must be found in the first ``duration_s`` of the story; it repeats where the scenario says so."""
    found = []
    for shift_s in _shifts(scenario, duration_s):
        for fault in scenario.faults:
            begins_s = shift_s + fault.at_s
            if begins_s < duration_s:
                found += [Label(kind, fault, begins_s, begins_s + fault.for_s) for kind in REQUIRED[fault.kind]]
    return sorted(found, key=lambda label: (label.begins_s, label.kind))


def explaining(scenario: Scenario, kind: str, opened_s: float) -> list[Fault]:
    """Faults at work when an incident of this kind opened, or over for no longer than AFTER_S, that make it true.

    As what they are or as a consequence. Whom they strike is for the caller to compare (``strikes``).
    """
    return [
        fault
        for shift_s in _shifts(scenario, opened_s)
        for fault in scenario.faults
        if kind in (*REQUIRED[fault.kind], *ALSO[fault.kind])
        and shift_s + fault.at_s - EARLY_S <= opened_s <= shift_s + fault.at_s + fault.for_s + AFTER_S
    ]


def strikes(scenario: Scenario, fault: Fault) -> tuple[frozenset[str], frozenset[str]]:
    """GPUs (indices, as text) and models that a fault strikes; both empty where it strikes the node."""
    if fault.what.target is Target.GPU:
        held = [server.model for server in scenario.servers if fault.gpu in server.gpus]
        return frozenset({str(fault.gpu)}), frozenset(held)
    if fault.what.target is Target.NODE:
        return frozenset(), frozenset()
    if fault.server is not None:
        struck = [server for server in scenario.servers if server.name == fault.server]
    else:
        names = {load.server for load in scenario.load if fault.tenant in load.tenants}
        struck = [server for server in scenario.servers if server.name in names]
    gpus = frozenset(str(gpu) for server in struck for gpu in server.gpus)
    return gpus, frozenset(server.model for server in struck)


def _shifts(scenario: Scenario, until_s: float) -> list[float]:
    times = int(until_s // scenario.duration_s) + 1 if scenario.repeat else 1
    return [number * scenario.duration_s for number in range(times)]
