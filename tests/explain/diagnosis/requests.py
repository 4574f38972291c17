"""Explained requests made by hand, and what a diagnosis takes in, for tests whose answers are known by arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.explained import Account, Explained, Share
from gpumon.explain.group import group_of
from gpumon.explain.request_log import RequestLog
from gpumon.explain.request_rows import Rows
from gpumon.explain.signs import Fact
from gpumon.model import Binding, GpuUuid, RequestRecord

UNIX_S = 1_800_000_000.0
"""Unix time of steady 0: 2027-01-15T08:00:00Z."""


class Signal(NamedTuple):
    """A dimension."""

    name: str
    title: str = "a signal"
    unit: str = "ratio"
    healthy: str = ""
    bound: float | None = None
    high_is_bad: bool = True


def to_unix(at_s: float) -> float:
    return at_s + UNIX_S


def request(
    start_s: float = 100.0,
    duration_s: float = 2.0,
    *,
    first_s: float | None = 0.5,
    tokens: int | None = 101,
    prompt: int | None = 1000,
    slow_first: Mapping[str, float] | None = None,
    slow: Mapping[str, float] | None = None,
    is_expected: bool = True,
    fact: Fact | None = None,
    gpus: Sequence[str] = ("GPU-0",),
    gaps_s: Sequence[float] | None = None,
    signals: Sequence[float] = (),
    number: int = 0,
    **told: Any,
) -> Explained:
    """One that began at a steady second and took so long. slow_first, slow: excess of the two phases by cause; what was
    expected is the rest. fact: of each share. gaps_s: between its tokens; None: it does not tell their times.
    """
    start_ns = round(to_unix(start_s) * 1e9)
    fields: dict[str, Any] = {
        "trace_id": number.to_bytes(16, "big"),
        "request_id": "",
        "server": "vllm",
        "model": "m",
        "arrived_s": start_s,
        "start_ns": start_ns,
        "end_ns": start_ns + round(duration_s * 1e9),
        "time_to_first_token_s": first_s,
        "first_token_ns": None if first_s is None else start_ns + round(first_s * 1e9),
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "binding": Binding("resource", gpus=tuple(GpuUuid(uuid) for uuid in gpus)) if gpus else Binding(),
    }
    record = RequestRecord(**(fields | told))
    taken_s = first_s or 0.0, duration_s - (first_s or 0.0)
    accounts = [
        account(seconds, causes or {}, fact, is_expected=is_expected)
        for seconds, causes in zip(taken_s, (slow_first, slow), strict=True)
    ]
    steps_s = None
    if gaps_s is not None:
        steps_s = start_s + (first_s or 0.0) + np.concatenate(([0.0], np.cumsum(gaps_s)))
    return Explained(
        record=record,
        group=group_of(record),
        start_s=start_s,
        end_s=start_s + duration_s,
        first_token=accounts[0],
        decode=accounts[1],
        slow_gaps=(),
        token_s=steps_s,
        signals=np.array(signals, dtype=np.float32),
    )


def account(seconds: float, causes: Mapping[str, float], fact: Fact | None = None, *, is_expected: bool) -> Account:
    """Of one phase that took so long, of which the causes took theirs."""
    excess = sum(causes.values())
    shares = tuple(Share(cause, lost, 0.9, None, fact) for cause, lost in causes.items())
    return Account(seconds - excess if is_expected else None, seconds, excess, shares)


def rows_of(requests: Iterable[Explained], n_signals: int = 0) -> Rows:
    """As a log gives them."""
    found = list(requests)
    log = RequestLog(max(1, len(found)), n_signals=n_signals)
    for each in found:
        log.append(each)
    return log.since(float("-inf"))


def inputs(requests: Iterable[Explained], *, dimensions: Sequence[Signal] = (), **fields: Any) -> Inputs:
    """Of a period from steady 0 to 600."""
    told: dict[str, Any] = {
        "rows": rows_of(requests, len(dimensions)),
        "from_s": 0.0,
        "to_s": 600.0,
        "to_unix": to_unix,
        "version": "1.2.3",
        "node": "node-a",
        "dimensions": dimensions,
    }
    return Inputs(**(told | fields))


def seen(requests: Iterable[Explained], **fields: Any) -> Seen:
    return Seen(inputs(requests, **fields))
