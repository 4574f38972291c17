"""One request and what was explained of it, for tests of how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.explained import Account, Explained, Share, SlowGap
from gpumon.explain.group import group_of
from gpumon.explain.signs import Fact
from gpumon.model import Binding, GpuUuid, RequestRecord, Unit

OFFSET_S = 1_800_000_000.0
"""Unix time of steady 0: 2027-01-15T08:00:00Z."""
START_S = 1000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
CLOCK = Fact("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9)
THERMAL = Share("thermal_throttle", 0.5, 0.97, 12.0, CLOCK)
PREFILL = Share("prefill_interference", 0.2, 1.0, None, Fact("prefill_tokens_of_others", 8192.0, Unit.NONE))
UNKNOWN = Share("unexplained", 0.1, 0.0, None)
ON_TIME = Account(0.3, 0.31, 0.0, ())


def to_unix(at_s: float) -> float:
    return at_s + OFFSET_S


def token_times(
    tokens: int = 100, gap_s: float = 0.02, *, late: Sequence[tuple[int, float]] = ()
) -> NDArray[np.float64]:
    """Steady times, the first 0.4 s after the start. late: number of a token and by how much it was late."""
    gaps = np.full(tokens, gap_s)
    gaps[0] = 0.4
    for number, seconds in late:
        gaps[number] += seconds
    return START_S + np.cumsum(gaps)


def record(**fields: Any) -> RequestRecord:
    """A request on two GPUs of 100 tokens."""
    told: dict[str, Any] = {
        "trace_id": bytes.fromhex(TRACE),
        "request_id": "cmpl-7",
        "server": "vllm",
        "model": "llama-70b",
        "arrived_s": START_S + 4.0,
        "start_ns": int((START_S + OFFSET_S) * 1e9),
        "end_ns": int((START_S + OFFSET_S + 3.18) * 1e9),
        "time_to_first_token_s": 0.4,
        "queue_s": 0.05,
        "prompt_tokens": 2048,
        "cached_tokens": 512,
        "completion_tokens": 100,
        "tenant": "acme",
        "concurrency": 12,
        "binding": Binding("resource", 4711, None, None, (GpuUuid("GPU-0003"), GpuUuid("GPU-0004"))),
    }
    return RequestRecord(**(told | fields))


def explained(
    *,
    first_token: Account | None = None,
    decode: Account | None = None,
    slow_gaps: tuple[SlowGap, ...] | None = None,
    token_s: NDArray[np.float64] | None = None,
    start_s: float = START_S,
    timed: bool = True,
    signals: NDArray[np.float32] | None = None,
    **fields: Any,
) -> Explained:
    """A request that was late by 0.9 s: 0.1 s until the first token, 0.8 s in three gaps. timed: has token times."""
    told = record(**fields)
    if token_s is None and timed:
        token_s = token_times(late=((30, 0.4), (31, 0.1), (70, 0.3)))
    gaps = (
        _gap(1000.98, 0.42, (THERMAL._replace(seconds=0.35), UNKNOWN._replace(seconds=0.05))),
        _gap(1001.40, 0.12, (THERMAL._replace(seconds=0.1),)),
        _gap(1002.28, 0.32, (PREFILL, THERMAL._replace(seconds=0.05, evidence=0.6), UNKNOWN._replace(seconds=0.05))),
    )
    return Explained(
        record=told,
        group=group_of(told),
        start_s=start_s,
        end_s=start_s + 3.18,
        first_token=first_token or Account(0.3, 0.4, 0.1, (Share("queueing", 0.1, 1.0, None),)),
        decode=decode or Account(1.98, 2.78, 0.8, (THERMAL, PREFILL, UNKNOWN)),
        slow_gaps=gaps if slow_gaps is None else slow_gaps,
        token_s=token_s,
        signals=np.full(len(DIMENSIONS), np.nan, dtype=np.float32) if signals is None else signals,
    )


def _gap(start_s: float, seconds: float, shares: tuple[Share, ...]) -> SlowGap:
    return SlowGap(start_s, start_s + seconds, 1, 0.02, sum(share.seconds for share in shares), shares)
