"""The signals that Explain compares before and now: what users felt, the load, the servers, the GPUs, the host.

One table holds them all, so that what changed most stands first. Grafana has one unit for a column, so each row names
its own, and its figure is scaled to it.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumon import catalogue as c
from gpumon.model import Metric
from grafana import queries as q

RANGE = "$__range"
_AGAINST_WORK = 'reason!~"low_utilization|base_clocks"'
"""Reasons that hold clocks down while there is work: a GPU with nothing to do has low ones by itself."""
_SM = 'domain="sm"'
_DIE = 'sensor="gpu"'
_MAJOR = 'kind="major"'


class Signal(NamedTuple):
    """One row: over the dashboard's time, in which every selector has the window ``[$__range]``."""

    of: str
    name: str
    unit: str
    expr: str


def _rate(metric: Metric, *matchers: str, suffix: str = "") -> str:
    return q.rate(metric, *matchers, suffix=suffix, window=RANGE)


def _mean(metric: Metric, *matchers: str) -> str:
    """Of a gauge, over the time. Of servers' pages: their ``server`` need not be that of the traces."""
    return f"avg_over_time({q.select(metric, *matchers, without=('server',))}[{RANGE}])"


def _page_rate(metric: Metric, *matchers: str) -> str:
    return q.rate(metric, *matchers, window=RANGE, without=("server",))


def _p99(metric: Metric) -> str:
    return f"1000 * {q.quantile(0.99, metric, window=RANGE)}"


_MADE = _rate(c.TOKENS, 'kind="completion"')
_PROMPT = _rate(c.TOKENS, 'kind="prompt"')
_CACHED = _rate(c.TOKENS, 'kind="cached"')
_ENDED = _rate(c.REQUESTS)

SIGNALS = (
    Signal("felt", "time to first token, P99", "ms", _p99(c.REQUEST_FIRST_TOKEN)),
    Signal("felt", "inter-token latency, P99", "ms", _p99(c.INTER_TOKEN)),
    Signal("felt", "time in the queue, P99", "ms", _p99(c.REQUEST_QUEUE)),
    Signal("felt", "tokens made", "per s", f"sum({_MADE})"),
    Signal("felt", "late by, for each token", "ms", f"1000 * sum({_rate(c.TOKEN_EXCESS)}) / sum({_MADE})"),
    Signal("load", "requests ended", "per s", f"sum({_ENDED})"),
    Signal("load", "prompt tokens not cached", "per request", f"(sum({_PROMPT}) - sum({_CACHED})) / sum({_ENDED})"),
    Signal("load", "tokens made", "per request", f"sum({_MADE}) / sum({_ENDED})"),
    Signal("server", "requests running", "mean", f"sum({_mean(c.SERVER_RUNNING)})"),
    Signal("server", "requests waiting", "mean", f"sum({_mean(c.SERVER_WAITING)})"),
    Signal("server", "KV cache used, fullest server", "%", f"100 * max({_mean(c.SERVER_KV_USAGE)})"),
    Signal("server", "preemptions", "per min", f"60 * sum({_page_rate(c.SERVER_PREEMPTIONS)})"),
    Signal("GPU", "SM activity", "%", f"100 * avg({_rate(c.GPU_SM_ACTIVE_SECONDS)})"),
    Signal("GPU", "DRAM activity", "%", f"100 * avg({_rate(c.GPU_DRAM_ACTIVE_SECONDS)})"),
    Signal("GPU", "SM clock, slowest GPU", "MHz", f"min({_mean(c.GPU_CLOCK, _SM)}) / 1e6"),
    Signal(
        "GPU", "throttled, worst GPU and reason", "%", f"100 * max({_rate(c.GPU_THROTTLED_SECONDS, _AGAINST_WORK)})"
    ),
    Signal("GPU", "power, all GPUs", "W", f"sum({_rate(c.GPU_ENERGY)})"),
    Signal("GPU", "temperature, hottest GPU", "°C", f"max({_mean(c.GPU_TEMPERATURE, _DIE)})"),
    Signal("host", "major page faults of servers", "per s", f"sum({_rate(c.PROCESS_PAGE_FAULTS, _MAJOR)})"),
    Signal("host", "CPU waited for by servers", "s per s", f"sum({_rate(c.PROCESS_RUNQUEUE_SECONDS)})"),
    Signal("host", "memory on the GPU's socket, lowest", "%", f"100 * min({_mean(c.PROCESS_NUMA_LOCAL)})"),
)


def now() -> str:
    """All of them as one vector, over the dashboard's time."""
    rows = (q.named(signal.expr, of=signal.of, signal=signal.name, unit=signal.unit) for signal in SIGNALS)
    return " or ".join(rows)


def before() -> str:
    """The same over as long a time, which ended where the dashboard's begins."""
    return now().replace(f"[{RANGE}]", f"[{RANGE}] offset {RANGE}")


def change() -> str:
    """By which share it grew. No row where both are 0; 10 where it grew more than tenfold, or from nothing."""
    return f"clamp_max((({now()}) / ({before()}) - 1) >= -1, 10)"
