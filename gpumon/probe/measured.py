"""What the requests of a rung add up to. Pure: answers in, figures out; times in nanoseconds in, in seconds out.

Only requests that succeeded count. A gap is between two events with output of one request; where the server sends
several tokens in one event, ``tokens_per_chunk`` says so, and gaps are those of events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.probe.asking import OK, TOO_LONG, Answer
from gpumon.probe.climbing import Climbed, succeeded
from gpumon.probe.model import CauseSeconds, Conditions, Latency, Rung, Slow

Floats = NDArray[np.float64]
SLOWEST: Final = 5


def rung(each: Climbed, conditions: Conditions | None, causes: Sequence[CauseSeconds]) -> Rung:
    """All of one."""
    answers = succeeded(each)
    firsts, gaps = first_tokens_s(answers), gaps_s(answers)
    failures = [answer for answer in each.answers if answer.outcome not in (OK, TOO_LONG)]
    seconds = max(0, each.ended_ns - each.began_ns) / 1e9
    tokens = sum(answer.tokens for answer in answers)
    lengths = np.array([prompt for answer in answers if (prompt := answer.prompt_tokens) is not None], np.float64)
    prompts = lengths if len(lengths) == len(answers) else np.full(len(answers), float(each.cell.aim))
    return Rung(
        concurrency=each.cell.concurrency,
        aim_tokens=each.cell.aim,
        prompt_tokens=float(np.median(lengths)) if len(lengths) else None,
        state=each.state.value,
        requests=len(answers),
        errors=dict(sorted(Counter(answer.outcome for answer in failures).items())),
        said={answer.outcome: answer.said for answer in reversed(failures) if answer.said},
        cut=len(each.cut),
        duration_seconds=seconds,
        time_to_first_token=latency(firsts),
        inter_token=latency(gaps),
        response_time=latency(np.array([answer.end_ns / 1e9 for answer in answers])),
        completion_tokens=tokens,
        tokens_per_chunk=_ratio(tokens, sum(len(answer.token_ns) for answer in answers)),
        tokens_per_second=_ratio(tokens, seconds) if answers else None,
        decode_tokens_per_second=_decode_rate(answers),
        prefill_tokens_per_second=float(np.median(prompts / firsts)) if len(firsts) and firsts.min() > 0 else None,
        cached_share=_cached(answers),
        causes=list(causes),
        conditions=conditions,
    )


def latency(values_s: Floats) -> Latency | None:
    """None of none."""
    if not len(values_s):
        return None
    p50, p95, p99 = quantiles(values_s, (0.5, 0.95, 0.99))
    return Latency(
        observations=len(values_s), mean=float(values_s.mean()), p50=p50, p95=p95, p99=p99, most=float(values_s.max())
    )


def quantiles(values: Floats, shares: Sequence[float]) -> list[float]:
    """The quantile q of n values is the one of rank ceil(q n), from 1: always one that was measured."""
    found: list[float] = np.quantile(values, shares, method="inverted_cdf").tolist()
    return found


def first_tokens_s(answers: Sequence[Answer]) -> Floats:
    """Times to first token."""
    return np.array([answer.token_ns[0] / 1e9 for answer in answers], np.float64)


def gaps_s(answers: Sequence[Answer]) -> Floats:
    """Between the tokens of each of them."""
    gaps: list[Floats] = [np.diff(np.array(answer.token_ns, np.float64)) / 1e9 for answer in answers]
    return np.concatenate(gaps) if gaps else np.empty(0)


def slowest(climbed: Sequence[Climbed]) -> list[Slow]:
    """The requests to look at: those that took longest."""
    found = [(answer, each) for each in climbed for answer in succeeded(each)]
    found.sort(key=lambda pair: -pair[0].end_ns)
    return [
        Slow(
            trace_id=answer.trace_id,
            concurrency=each.cell.concurrency,
            aim_tokens=each.cell.aim,
            time_to_first_token=answer.token_ns[0] / 1e9,
            response_time=answer.end_ns / 1e9,
            longest_gap=max(gaps_s([answer]).tolist(), default=None),
        )
        for answer, each in found[:SLOWEST]
    ]


def causes_of(each: Climbed, late: Mapping[str, Mapping[str, CauseSeconds]]) -> list[CauseSeconds]:
    """Of its requests. late: by trace id and cause."""
    sums: dict[str, CauseSeconds] = {}
    for answer in each.answers:
        for cause, told in late.get(answer.trace_id, {}).items():
            known = sums.setdefault(cause, CauseSeconds(cause=cause, title=told.title, seconds=0.0))
            known.seconds += told.seconds
    return sorted(sums.values(), key=lambda cause: -cause.seconds)


def _decode_rate(answers: Sequence[Answer]) -> float | None:
    """Tokens a second of one request, its first event left out; median."""
    rates = []
    for answer in answers:
        spent_ns = answer.token_ns[-1] - answer.token_ns[0]
        # The first event holds as many tokens as the others, as far as anybody knows.
        after = answer.tokens * (1 - 1 / len(answer.token_ns))
        if spent_ns > 0:
            rates.append(after * 1e9 / spent_ns)
    return float(np.median(rates)) if rates else None


def _cached(answers: Sequence[Answer]) -> float | None:
    told = [(a.cached_tokens, a.prompt_tokens) for a in answers if a.cached_tokens is not None and a.prompt_tokens]
    return _ratio(sum(cached for cached, _ in told), sum(prompt for _, prompt in told if prompt)) if told else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
