"""The signals an engineer looks at when tokens are slow: what each one is, what is healthy, and how it is read.

Bounds are those of the detectors of the same thing (docs/DETECTORS.md), or left out where what is normal depends on
the machine and the load. Of several GPUs the mean counts where it is about how much work they do, the worst where one
holds up the others; a server's processes add up what they do, and of what they share (their cgroup) the worst counts.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.scene import Labels
from gpumon.explain.dimension_readings import (
    GPU,
    GPU_PROCESS,
    HOST,
    MIG,
    PAGE,
    PROCESS,
    Over,
    Reader,
    Scope,
    eager_share,
    either,
    hardware_throttled,
    level,
    mean,
    power_over_limit,
    rate,
    ratio,
)
from gpumon.model import Metric
from gpumon.shown import shown

RATIO, CELSIUS = "ratio", "celsius"


class Dimension(NamedTuple):
    """One signal, for people."""

    name: str
    """Snake case, without the unit; a label value."""
    title: str
    unit: str
    """As people write it: ``ratio``, ``celsius``, ``bytes/s``."""
    healthy: str
    """As people read it, shares in percent: ``< 95 %``, ``< 85 °C``; empty where there is no such bound."""
    bound: float | None
    """The same as a number, in ``unit``; None where there is none."""
    high_is_bad: bool
    source: str
    """Of which families, and of which of a group's parts."""


class Repeat(NamedTuple):
    """Read by ``dimension_readings.Repeated``."""

    metric: Metric
    tail: tuple[str, ...] = ()
    """Labels after those of the workload."""


class Others(NamedTuple):
    """Read by ``dimension_readings.others_share``."""


class Rule(NamedTuple):
    """How a dimension is read."""

    scope: Scope
    is_level: bool
    over: Over
    read: Reader | Repeat | Others


Entry = tuple[Dimension, Rule]


def _entry(name: str, title: str, unit: str, bad: str, rule: Rule, *metrics: Metric) -> Entry:
    """bad: ``> 0.95``, what is not healthy any more; empty where there is no such bound. metrics: of the figures."""
    sign, _, bound = bad.partition(" ")
    healthy = "" if not bad else "0" if bad == "> 0" else f"{'<' if sign == '>' else '>'} {_told(float(bound), unit)}"
    source = f"{', '.join(metric.name for metric in metrics)}; {_parts(rule)}"
    return Dimension(name, title, unit, healthy, float(bound) if bad else None, sign != "<", source), rule


def _told(bound: float, unit: str) -> str:
    base, per_second = unit.removesuffix("/s"), unit.endswith("/s")
    if base == "s":
        return shown(bound, RATIO)  # of seconds in a second
    return f"{shown(bound, base)}{'/s' if per_second else ''}"


def _parts(rule: Rule) -> str:
    over = {mean: "mean over", max: "highest of", min: "lowest of", sum: "sum over"}[rule.over]
    return f"of {rule.scope.parts}" if rule.scope is HOST else f"{over} {rule.scope.parts}"


def _level(
    name: str,
    title: str,
    unit: str,
    bad: str,
    scope: Scope,
    over: Over,
    metric: Metric,
    *tail: str,
    read: Reader | None = None,
) -> Entry:
    """A gauge; read: where it is not read as it is."""
    return _entry(name, title, unit, bad, Rule(scope, True, over, read or level(scope, metric, *tail)), metric)


def _rate(
    name: str,
    title: str,
    unit: str,
    bad: str,
    scope: Scope,
    over: Over,
    metric: Metric,
    *tails: Labels,
    add: bool = False,
    read: Reader | None = None,
) -> Entry:
    """A counter's growth; read: where it is not of the series with these last labels alone."""
    read = read or rate(scope, metric, *tails, add=add, most=1.0 if unit == RATIO else math.inf)
    return _entry(name, title, unit, bad, Rule(scope, False, over, read), metric)


def _repeat(name: str, title: str, unit: str, bad: str, over: Over, metric: Metric, *tail: str) -> Entry:
    """A counter of processes that is published more often than it is read."""
    return _entry(name, title, unit, bad, Rule(PROCESS, False, over, Repeat(metric, tail)), metric)


def _activity(name: str, title: str, bad: str, metric: Metric, of_mig: Metric | None = None) -> Entry:
    """A busy-time integral of GPUs and, where there is one, of MIG instances."""
    read = rate(GPU, metric, most=1.0)
    read = read if of_mig is None else either(read, rate(MIG, of_mig, most=1.0))
    return _rate(name, title, RATIO, bad, GPU, mean, metric, read=read)


_STATES: Final = [(state,) for state in catalogue.GPU_MEMORY.values]
_MEMORY_USED: Final = either(
    ratio(GPU, catalogue.GPU_MEMORY, ("used",), catalogue.GPU_MEMORY, _STATES),
    ratio(MIG, catalogue.MIG_MEMORY, ("used",), catalogue.MIG_MEMORY, _STATES),
)
_CLOCK: Final = ratio(GPU, catalogue.GPU_CLOCK, ("sm",), catalogue.GPU_CLOCK_MAX, [("sm",)])
_LOCAL: Final = level(GPU_PROCESS, catalogue.PROCESS_NUMA_LOCAL)
_THROTTLED: Final = catalogue.GPU_THROTTLED_SECONDS
_STALLED: Final = catalogue.PROCESS_PRESSURE
_OTHERS: Final = Rule(GPU, True, max, Others())

TABLE: Final[tuple[Entry, ...]] = (
    _activity("sm_active", "SM activity", "> 0.95", catalogue.GPU_SM_ACTIVE_SECONDS, catalogue.MIG_SM_ACTIVE_SECONDS),
    _activity(
        "dram_active", "DRAM activity", "> 0.9", catalogue.GPU_DRAM_ACTIVE_SECONDS, catalogue.MIG_DRAM_ACTIVE_SECONDS
    ),
    _activity("tensor_active", "tensor pipe activity", "", catalogue.GPU_TENSOR_ACTIVE_SECONDS),
    _level("gpu_utilization", "GPU utilization", RATIO, "", GPU, mean, catalogue.GPU_UTILIZATION),
    _level("sm_clock", "SM clock over its maximum", RATIO, "< 0.7", GPU, min, catalogue.GPU_CLOCK, read=_CLOCK),
    # Highest operating temperatures that nvidia-smi tells of data centre boards: 85 to 87, memory 95.
    _level("temperature", "GPU temperature", CELSIUS, "> 85", GPU, max, catalogue.GPU_TEMPERATURE, "gpu"),
    _level("memory_temperature", "memory temperature", CELSIUS, "> 95", GPU, max, catalogue.GPU_TEMPERATURE, "memory"),
    _level("temperature_margin", "margin to thermal limit", CELSIUS, "< 0", GPU, min, catalogue.GPU_TEMPERATURE_MARGIN),
    _level("power", "power over its limit", RATIO, "> 0.95", GPU, max, catalogue.GPU_POWER, read=power_over_limit),
    _rate(
        "thermal_throttled",
        "held down by heat",
        RATIO,
        "> 0.05",
        GPU,
        max,
        _THROTTLED,
        ("sw_thermal",),
        ("hw_thermal",),
    ),
    _rate("power_throttled", "held down by power limit", RATIO, "> 0.5", GPU, max, _THROTTLED, ("sw_power_cap",)),
    _rate("hardware_throttled", "slowed by hardware", RATIO, "> 0.05", GPU, max, _THROTTLED, read=hardware_throttled),
    _level("gpu_memory_used", "GPU memory in use", RATIO, "> 0.98", GPU, max, catalogue.GPU_MEMORY, read=_MEMORY_USED),
    _entry("other_sm", "SM share of other processes", RATIO, "> 0.05", _OTHERS, catalogue.PROCESS_GPU_SM),
    _rate("pcie_received", "PCIe to GPU", "bytes/s", "", GPU, max, catalogue.GPU_PCIE_BYTES, ("rx",)),
    _rate("pcie_sent", "PCIe from GPU", "bytes/s", "", GPU, max, catalogue.GPU_PCIE_BYTES, ("tx",)),
    _rate("nvlink", "NVLink, both ways", "bytes/s", "", GPU, mean, catalogue.GPU_NVLINK_BYTES, add=True),
    _rate(
        "major_faults", "major page faults", "faults/s", "> 50", PROCESS, sum, catalogue.PROCESS_PAGE_FAULTS, ("major",)
    ),
    _rate("minor_faults", "minor page faults", "faults/s", "", PROCESS, sum, catalogue.PROCESS_PAGE_FAULTS, ("minor",)),
    _rate("cpu", "CPU time", "s/s", "", PROCESS, sum, catalogue.PROCESS_CPU_SECONDS),
    _repeat("runqueue_wait", "waiting for a CPU", "s/s", "", sum, catalogue.PROCESS_RUNQUEUE_SECONDS),
    _repeat("cgroup_cpu_throttled", "CPU quota used up", "s/s", "> 0.1", max, catalogue.PROCESS_CPU_THROTTLED),
    _repeat("cgroup_cpu_stalled", "cgroup stalled for CPU", "s/s", "> 0.3", max, _STALLED, "cpu", "some"),
    _repeat("cgroup_memory_stalled", "cgroup stalled for memory", "s/s", "> 0.15", max, _STALLED, "memory", "some"),
    _repeat("cgroup_io_stalled", "cgroup stalled for I/O", "s/s", "", max, _STALLED, "io", "some"),
    _level(
        "numa_local",
        "memory on the GPU's node",
        RATIO,
        "< 0.7",
        PROCESS,
        min,
        catalogue.PROCESS_NUMA_LOCAL,
        read=_LOCAL,
    ),
    _rate("stopped", "process stopped", RATIO, "> 0", PROCESS, max, catalogue.PROCESS_STOPPED_SECONDS),
    _rate("host_cpu_stalled", "host stalled for CPU", "s/s", "", HOST, max, catalogue.HOST_PRESSURE, ("cpu", "some")),
    _rate(
        "host_memory_stalled",
        "host stalled for memory",
        "s/s",
        "> 0.15",
        HOST,
        max,
        catalogue.HOST_PRESSURE,
        ("memory", "some"),
    ),
    _rate("host_io_stalled", "host stalled for I/O", "s/s", "", HOST, max, catalogue.HOST_PRESSURE, ("io", "some")),
    _rate(
        "host_major_faults",
        "major faults, host",
        "faults/s",
        "> 200",
        HOST,
        max,
        catalogue.HOST_PAGE_FAULTS,
        ("major",),
    ),
    _rate("host_swap", "swap, in and out", "pages/s", "> 256", HOST, max, catalogue.HOST_SWAP_PAGES, add=True),
    _level("requests_running", "requests running", "", "", PAGE, mean, catalogue.SERVER_RUNNING),
    _level("requests_waiting", "requests waiting", "", "> 4", PAGE, mean, catalogue.SERVER_WAITING),
    _level("kv_cache_usage", "KV cache in use", RATIO, "> 0.95", PAGE, mean, catalogue.SERVER_KV_USAGE),
    _rate("preemptions", "preemptions", "preemptions/s", "> 0", PAGE, mean, catalogue.SERVER_PREEMPTIONS),
    _rate("generated_tokens", "tokens generated", "tokens/s", "", PAGE, mean, catalogue.SERVER_TOKENS, ("generation",)),
    _rate(
        "eager_passes",
        "decode passes without CUDA graph",
        RATIO,
        "> 0.2",
        PAGE,
        mean,
        catalogue.SERVER_GRAPH_PASSES,
        read=eager_share,
    ),
    _level("expert_balance", "balance of experts", RATIO, "< 0.5", PAGE, mean, catalogue.SERVER_EXPERT_BALANCE),
)
