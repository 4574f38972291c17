"""Where performance collapses: between which rungs P95 grows faster than the work, and what was different there.

The rule is that of the detector which watches servers (``detect.growth``), for rungs of any ratio: what is allowed
where the prompt doubles is allowed in proportion elsewhere. Compared are rungs next to one another that were measured,
for each concurrency. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from gpumon.detect.growth import ALIKE, MEDIAN, P95, RATIO, Pair, allowed, is_cliff, shares
from gpumon.model import Unit
from gpumon.probe.climbing import Climbed, succeeded
from gpumon.probe.measured import Floats, first_tokens_s, gaps_s, quantiles
from gpumon.probe.model import Change, Collapse, Conditions, Rung
from gpumon.requests.windows import Signal

FEW: Final = 5
"""Requests of a rung, below which a collapse is a hint."""
_Measure = Literal["time_to_first_token", "inter_token"]
_MEASURES: Final[dict[Signal, _Measure]] = {
    Signal.FIRST_TOKEN: "time_to_first_token",
    Signal.INTER_TOKEN: "inter_token",
}


class _Side(NamedTuple):
    """One rung of two."""

    rung: Rung
    values_s: Mapping[Signal, Floats]


def collapses(rungs: Sequence[Rung], climbed: Sequence[Climbed]) -> list[Collapse]:
    """In the order of the rungs. climbed: what the rungs are made of, one for each."""
    sides = [_Side(rung, _values_s(each)) for rung, each in zip(rungs, climbed, strict=True)]
    return [found for pair in itertools.pairwise(sides) for found in _between(*pair)]


def _values_s(each: Climbed) -> dict[Signal, Floats]:
    answers = succeeded(each)
    return {Signal.FIRST_TOKEN: first_tokens_s(answers), Signal.INTER_TOKEN: gaps_s(answers)}


def _between(before: _Side, beyond: _Side) -> Iterator[Collapse]:
    if before.rung.concurrency != beyond.rung.concurrency or not (before.rung.requests and beyond.rung.requests):
        return
    work = beyond.rung.tokens / before.rung.tokens
    ratio = allowed(RATIO, work)
    for signal, measure in _MEASURES.items():
        low, high = _p95(before.values_s[signal], signal), _p95(beyond.values_s[signal], signal)
        if low is None or high is None or not is_cliff(Pair(low, high), ratio, MEDIAN[signal]):
            continue
        yield Collapse(
            concurrency=before.rung.concurrency,
            before_tokens=before.rung.aim_tokens,
            beyond_tokens=beyond.rung.aim_tokens,
            measure=measure,
            p95_before=low.value_s,
            p95_beyond=high.value_s,
            growth=high.value_s / low.value_s,
            work=work,
            allowed=ratio,
            few=min(before.rung.requests, beyond.rung.requests) < FEW,
            changes=changes(before.rung.conditions, beyond.rung.conditions),
        )


def _p95(values_s: Floats, signal: Signal) -> P95 | None:
    if not len(values_s) or not values_s.max() > 0:
        return None
    low_s, value_s, high_s, median_s = quantiles(values_s, shares(len(values_s), ALIKE[signal]))
    return P95(low_s, value_s, high_s, median_s, len(values_s)) if value_s > 0 else None


def changes(before: Conditions | None, beyond: Conditions | None) -> list[Change]:
    """What is known of both sides, or new on the longer one. Nothing where nobody looked."""
    if before is None or beyond is None:
        return []
    first, second = figures(before), figures(beyond)
    return [
        Change(name=name, title=title, before=first[name][1], beyond=value, unit=unit)
        for name, (title, value, unit) in second.items()
        if value is not None or first[name][1] is not None
    ]


def figures(said: Conditions) -> dict[str, tuple[str, float | None, str]]:
    """Title, value and unit by name; of GPUs, that which worked most. Counts are per second."""
    gpu = max(said.gpus, key=lambda each: each.sm_active or each.utilization or 0.0, default=None)
    throttled_s = sum(seconds for each in said.gpus for reason, seconds in each.throttled_seconds.items())

    def per_s(count: float | None) -> float | None:
        return count / said.seconds if count is not None and said.seconds > 0 else None

    return {
        "sm_active": ("SM active", gpu.sm_active if gpu else None, Unit.RATIO),
        "dram_active": ("DRAM active", gpu.dram_active if gpu else None, Unit.RATIO),
        "utilization": ("GPU busy", gpu.utilization if gpu else None, Unit.RATIO),
        "clock_hertz": ("SM clock", gpu.clock_hertz if gpu else None, Unit.HERTZ),
        "throttled": ("throttled", per_s(throttled_s) if said.gpus else None, Unit.RATIO),
        "process_major_faults": ("servers' major faults/s", per_s(said.process_major_faults), Unit.NONE),
        "host_major_faults": ("host's major faults/s", per_s(said.host_major_faults), Unit.NONE),
        "kv_usage": ("KV cache", said.kv_usage, Unit.RATIO),
        "waiting": ("requests waiting", said.waiting, Unit.NONE),
        "preemptions": ("preemptions/s", per_s(said.preemptions), Unit.NONE),
    }
