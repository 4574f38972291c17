"""What is said of one request, as the JSON API says it: how late its tokens were, when, and why.

Made from ``explain.explained.Explained``; read again by ``gpumon explain``. Durations are seconds, moments are unix
seconds, and times within the request milliseconds since its start. What is not known is null: never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gpumon.catalogue import TITLES
from gpumon.explain import explained as contract
from gpumon.explain.causes import is_fault
from gpumon.explain.diagnosis.facts import observed_text
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.signs import Fact as SignFact
from gpumon.model import RequestRecord
from gpumon.requests.gaps import tokens_made

POINTS_MAX: Final = 4096
"""Most points of a token timeline."""
REQUESTS_MAX: Final = 16
"""Most requests of one trace in an answer: an agent's trace may hold hundreds."""


class _Said(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Fact(_Said):
    """The figure behind a cause, in its base unit."""

    name: str
    observed: float | None
    unit: str = Field(description="seconds, hertz, ratio, …; empty for a bare number.")
    usual: float | None = Field(description="What it was before, or is elsewhere.")
    text: str = Field(default="", description="The same for people: SM clock 1,185 MHz, usually 1,980 MHz.")


class Share(_Said):
    """Part of an excess that a cause explains."""

    cause: str
    title: str = Field(default="", description="Of the cause, in a few words.")
    seconds: float
    evidence: float = Field(description="Of the condition meanwhile, 0 to 1; 0 for unexplained.")
    lift: float | None = Field(
        description="How many times as much excess there was while it held than while it did not; null where it never "
        "or always held, or is worked out from load."
    )
    fact: Fact | None = Field(description="The figure that speaks for it; null without one that is not as usual.")


class Account(_Said):
    """Time to first token, or the gaps after it."""

    expected_seconds: float | None = Field(
        description="What it usually takes under the usual load; null where too little is known yet."
    )
    actual_seconds: float
    excess_seconds: float = Field(description="Of what was slow: actual over expected. The sum of the shares.")
    cause: str = Field(description="The main one; empty where nothing was slow.")
    title: str = Field(default="", description="Of that cause.")
    shares: list[Share] = Field(description="The largest first.")


class CauseSeconds(_Said):
    """What a cause took of both accounts."""

    cause: str
    title: str
    fault: bool = Field(description="Something broken or badly set up, rather than load or unknown.")
    seconds: float
    share: float = Field(description="Of the excess, 0 to 1.")


class SlowGap(_Said):
    """One gap between tokens that was slow, or a stretch of tokens that were late together."""

    start_ms: float = Field(description="Since the request's start.")
    start: float = Field(description="Unix time.")
    duration_seconds: float
    tokens: int = Field(description="Made at its end, or in the stretch.")
    expected_seconds: float
    excess_seconds: float
    cause: str
    title: str = Field(default="", description="Of that cause.")
    shares: list[Share] = Field(description="The conditions under it, the largest first.")


class Tokens(_Said):
    """When the decode steps were."""

    steps: int
    ms: list[float] = Field(description="Since the request's start, ascending.")
    gap_ms: list[float | None] = Field(description="Since the step before, which need not be in the list; null: none.")
    note: str = Field(description="What is left out of the list; empty where nothing is.")


class Signal(_Said):
    """Mean of a dimension over the request."""

    name: str = Field(description="Snake case.")
    title: str
    value: float
    unit: str
    healthy: str = Field(description="What it should be; empty where there is no bound.")


class Explanation(_Said):
    """One request that ended."""

    trace_id: str
    request_id: str
    server: str
    model: str
    tenant: str
    outcome: str = Field(description="ok, error, aborted or incomplete.")
    gpus: list[str] = Field(description="UUIDs of the GPUs that it ran on; empty where it is not known.")
    unbound: str = Field(description="Why there are no GPUs, where there are none.")
    start: float = Field(description="Unix time.")
    duration_seconds: float
    time_to_first_token_seconds: float | None
    queue_seconds: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    tokens_per_second: float | None = Field(description="After the first one.")
    concurrency: int = Field(description="Requests open on that server when this one arrived.")
    excess_seconds: float
    causes: list[CauseSeconds] = Field(description="Of both accounts, the largest first.")
    first_token: Account
    decode: Account
    slow_gaps: list[SlowGap] = Field(description="The slowest ones, at most 64, by time.")
    tokens: Tokens | None = Field(description="Null where token times are not told, or no longer kept.")
    signals: list[Signal] = Field(description="Dimensions that are known.")


class Trace(_Said):
    """What is known of a trace."""

    trace_id: str
    requests: list[Explanation] = Field(description=f"By their start, at most {REQUESTS_MAX}: the latest ones.")
    left_out: int = Field(description="Further requests of the trace.")


class Late(_Said):
    """A slow request in a line."""

    trace_id: str
    request_id: str
    server: str
    model: str
    tenant: str
    start: float = Field(description="Unix time.")
    duration_seconds: float
    time_to_first_token_seconds: float | None
    completion_tokens: int | None
    tokens_per_second: float | None
    excess_seconds: float
    causes: list[CauseSeconds] = Field(description="The largest first.")


def trace(trace_id: str, found: Sequence[contract.Explained], to_unix: Callable[[float], float]) -> Trace:
    """All that is known of a trace. found: its requests, at least one."""
    kept = sorted(found, key=lambda each: (-each.excess_s, each.start_s))[:REQUESTS_MAX]
    by_start = sorted(kept, key=lambda each: (each.start_s, each.record.request_id))
    return Trace(
        trace_id=trace_id,
        requests=[explanation(each, to_unix) for each in by_start],
        left_out=len(found) - len(kept),
    )


def explanation(said: contract.Explained, to_unix: Callable[[float], float]) -> Explanation:
    """All of one request. to_unix: unix time of a steady moment."""
    record = said.record
    return Explanation(
        trace_id=record.trace_id.hex(),
        request_id=record.request_id,
        server=record.server,
        model=record.model,
        tenant=record.tenant,
        outcome=record.outcome,
        gpus=[*record.binding.gpus],
        unbound=record.binding.unbound,
        start=to_unix(said.start_s),
        duration_seconds=said.end_s - said.start_s,
        time_to_first_token_seconds=_known(record.time_to_first_token_s),
        queue_seconds=_known(record.queue_s),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=tokens_made(record),
        tokens_per_second=_rate(record, said.decode),
        concurrency=record.concurrency,
        excess_seconds=said.excess_s,
        causes=_causes(said),
        first_token=_account(said.first_token),
        decode=_account(said.decode),
        slow_gaps=[_slow_gap(gap, said.start_s, to_unix) for gap in said.slow_gaps],
        tokens=_tokens(said.token_s, said.start_s) if said.token_s is not None else None,
        signals=_signals(said.signals),
    )


def late(said: contract.Explained, to_unix: Callable[[float], float]) -> Late:
    """One request in a line."""
    record = said.record
    return Late(
        trace_id=record.trace_id.hex(),
        request_id=record.request_id,
        server=record.server,
        model=record.model,
        tenant=record.tenant,
        start=to_unix(said.start_s),
        duration_seconds=said.end_s - said.start_s,
        time_to_first_token_seconds=_known(record.time_to_first_token_s),
        completion_tokens=tokens_made(record),
        tokens_per_second=_rate(record, said.decode),
        excess_seconds=said.excess_s,
        causes=_causes(said),
    )


def _causes(said: contract.Explained) -> list[CauseSeconds]:
    total_s = said.excess_s
    return [
        CauseSeconds(
            cause=cause,
            title=TITLES[cause],
            fault=is_fault(cause),
            seconds=seconds,
            share=seconds / total_s if total_s > 0.0 else 0.0,
        )
        for cause, seconds in said.by_cause().items()
    ]


def _account(account: contract.Account) -> Account:
    return Account(
        expected_seconds=_known(account.expected_s),
        actual_seconds=account.actual_s,
        excess_seconds=account.excess_s,
        cause=account.cause,
        title=TITLES.get(account.cause, ""),
        shares=_shares(account.shares),
    )


def _shares(shares: Sequence[contract.Share]) -> list[Share]:
    return [
        Share(
            cause=share.cause,
            title=TITLES[share.cause],
            seconds=share.seconds,
            evidence=share.evidence,
            lift=_known(share.lift),
            fact=_fact(share.fact) if share.fact is not None else None,
        )
        for share in shares
    ]


def _fact(fact: SignFact) -> Fact | None:
    observed, usual = _known(fact.observed), _known(fact.usual)
    text = observed_text(fact.name, observed, fact.unit.value, usual)
    return Fact(name=fact.name, observed=observed, unit=fact.unit.value, usual=usual, text=text) if text else None


def _slow_gap(gap: contract.SlowGap, start_s: float, to_unix: Callable[[float], float]) -> SlowGap:
    return SlowGap(
        start_ms=_ms(gap.start_s - start_s),
        start=to_unix(gap.start_s),
        duration_seconds=gap.end_s - gap.start_s,
        tokens=gap.tokens,
        expected_seconds=gap.expected_s,
        excess_seconds=gap.excess_s,
        cause=gap.shares[0].cause if gap.shares else "",
        title=TITLES[gap.shares[0].cause] if gap.shares else "",
        shares=_shares(gap.shares),
    )


def _tokens(token_s: NDArray[np.float64], start_s: float) -> Tokens:
    """Of stretches of equally many steps, the step with the longest gap before it: what is slow stays."""
    token_s = token_s[np.isfinite(token_s)]
    steps = len(token_s)
    gaps = np.diff(token_s, prepend=np.nan)
    note = ""
    if steps > POINTS_MAX:
        # The first step is kept for itself: nothing is before it.
        width = -(-(steps - 1) // (POINTS_MAX - 1))
        stretches = np.full(-(-(steps - 1) // width) * width, -np.inf)
        stretches[: steps - 1] = gaps[1:]
        longest = stretches.reshape(-1, width).argmax(axis=1) + np.arange(0, len(stretches), width) + 1
        kept = np.concatenate(([0], longest))
        token_s, gaps = token_s[kept], gaps[kept]
        note = f"of every {width} steps the one with the longest gap before it; {steps} steps in all"
    return Tokens(
        steps=steps,
        ms=[_ms(seconds) for seconds in (token_s - start_s).tolist()],
        gap_ms=[_ms(gap) if math.isfinite(gap) else None for gap in gaps.tolist()],
        note=note,
    )


def _rate(record: RequestRecord, decode: contract.Account) -> float | None:
    tokens = tokens_made(record)
    if tokens is None or tokens < 2 or not decode.actual_s > 0.0:
        return None
    return (tokens - 1) / decode.actual_s


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _signals(means: NDArray[np.float32]) -> list[Signal]:
    return [
        Signal(name=each.name, title=each.title, value=mean, unit=each.unit, healthy=each.healthy)
        for each, mean in zip(DIMENSIONS, means.tolist(), strict=True)
        if math.isfinite(mean)
    ]
