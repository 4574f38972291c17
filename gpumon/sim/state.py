"""What the simulated node is at a moment: the contract between its physics (``world``) and its faces (the ports).

The physics say what happens; the faces (``nvml``, ``procfs``, ``sysfs``, ``cgroupfs``, ``pages``, ``kmsg``, ``pages of
servers``, spans) say how a driver, a kernel and a server would tell it. A face asks for a moment no older than
``LOOK_BACK_S`` before the newest one anybody asked for.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

LOOK_BACK_S = 30.0


class Rate(IntEnum):
    """What a GPU does, as ratios of time or as quantities per second; each has a gauge and its integral."""

    BUSY = 0
    SM = 1
    OCCUPANCY = 2
    TENSOR = 3
    DRAM = 4
    POWER = 5  # W
    PCIE_TX = 6  # bytes/s
    PCIE_RX = 7  # bytes/s
    NVLINK = 8  # bytes/s in each direction, all links
    POWER_CAPPED = 9  # 1 while the power cap holds clocks down (sw_power_cap)
    THERMAL = 10  # 1 while heat holds clocks down (sw_thermal)
    HW_THERMAL = 11  # 1 while the hardware slows down for heat
    POWER_BRAKE = 12  # 1 while an external power brake is asserted


class GpuMoment(Protocol):
    """One GPU at one moment. Cheap to ask many times."""

    def rate(self, rate: Rate) -> float:
        """The gauge now."""
        ...

    def total(self, rate: Rate) -> float:
        """Integral of the gauge since some fixed time before the world began; never falls, never negative."""
        ...

    def totals(self) -> list[float]:
        """``total`` of every rate, in order, for who wants many of them; not to be changed."""
        ...

    @property
    def temperature_c(self) -> float:
        """Of the die."""
        ...

    @property
    def clock_mhz(self) -> int:
        """Of the SMs; whole steps of the board's clock table."""
        ...

    @property
    def reasons(self) -> int:
        """nvmlDeviceGetCurrentClocksEventReasons: bit mask."""
        ...

    @property
    def performance_state(self) -> int: ...


class Hardware(NamedTuple):
    """What of a GPU changes seldom."""

    present: bool = True
    """False once it fell off the bus: every call answers GPU_IS_LOST."""
    nvlinks_active: int = 18
    nvlink_errors: int = 0
    """CRC flit errors, all links."""
    pcie_generation: int = 5
    pcie_width: int = 16
    pcie_replays: int = 0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    rows_remapped: tuple[int, int] = (0, 0)
    """Correctable, uncorrectable."""
    row_remap_pending: bool = False
    row_remap_failed: bool = False
    recovery_action: int = 0


class TaskTimes(NamedTuple):
    """Counters of one process since it began."""

    user_s: float
    system_s: float
    wait_s: float
    """Ready to run without a CPU, all threads (schedstat)."""
    minor_faults: int
    major_faults: int


class Stalled(NamedTuple):
    """Totals of one pressure file, seconds."""

    some_s: float
    full_s: float


class CgroupTimes(NamedTuple):
    """Of one pod's cgroup, since it began."""

    user_s: float
    system_s: float
    throttled_s: float
    """cpu.stat throttled_usec."""
    cpu: Stalled
    memory: Stalled
    io: Stalled


class HostTotals(NamedTuple):
    """The kernel's own counters since boot, and memory now."""

    minor_faults: int
    major_faults: int
    swap_in_pages: int
    swap_out_pages: int
    oom_kills: int
    cpu: Stalled
    memory: Stalled
    io: Stalled
    used_share: float
    """Of a NUMA node's memory, by programs."""
    numa_hits: int
    """Pages allocated per node as wanted."""
    numa_misses: int
    """Pages from the wrong node, over all nodes."""


class XidEvent(NamedTuple):
    """An error the driver reports."""

    at_s: float
    gpu: int
    xid: int


class ServerState(NamedTuple):
    """What a server would say on its metrics page."""

    kind: str
    """vllm or sglang: which page it writes."""
    model: str
    running: int
    waiting: int
    kv_usage: float
    """Share of the KV blocks in use."""
    kv_capacity_tokens: int
    kv_live_tokens: int
    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    prompt_tokens: int
    generation_tokens: int
    graph_passes: int
    eager_passes: int
    expert_balance: float | None
    """Mean over maximum of the tokens per rank; None for a dense model."""
    allocator_reserved_bytes: int
    allocator_allocated_bytes: int


class FinishedRequest(NamedTuple):
    """A request that has ended: what its server tells in a span, and what only the simulation knows."""

    server: int
    """Index in the scenario."""
    number: int
    """Counts the requests of the server: ids are made from it."""
    start_s: float
    """Arrival, steady seconds."""
    queue_s: float
    prefill_s: float
    token_s: tuple[float, ...]
    """Steady times of the output tokens; empty where it failed before the first."""
    end_s: float
    prompt_tokens: int
    cached_tokens: int
    outcome: str
    """ok, error, aborted."""
    tenant: str
    parameters: tuple[tuple[str, float], ...]
    prompt_group: str
    score: float | None
    """An evaluation's, where the load has evaluations."""
    truth: tuple[tuple[str, float], ...]
    """True excess seconds over all its gaps by cause (docs/EXPLAINING.md), those above zero: for benchmarks alone."""
    first_truth: tuple[tuple[str, float], ...]
    """The same of the time to first token."""


class CollectiveStep(NamedTuple):
    """One collective operation of one server, as its ranks ran it."""

    server: int
    sequence: int
    start_s: tuple[float, ...]
    """By rank: when its kernel began."""
    end_s: float
    """All leave together."""
    size_bytes: int
