"""From ended requests to their decode steps, and to the stretches of them that were slow.

A step is a gap between two tokens (or decode steps) of a request. Of a request that tells only how long its decoding
took and how many tokens it made, the whole of it counts as one stretch of so many steps.

Slow is a single step of over ``SINGLE`` times what is expected; and a stretch of about a second whose steps took over
``SUSTAINED`` times that on the mean, without the single ones: a GPU that is a tenth slower makes no gap that stands
out, and yet every token is late. The noise of steps is allowed for by their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.load import Ran
from gpumon.model import RequestRecord
from gpumon.requests.gaps import gaps_of, inter_token_segment, step_segment

SINGLE: Final = 1.5
SUSTAINED: Final = 1.06
LEAST_S: Final = 0.002
"""A single step that is late by less is not slow: clocks of servers are no better."""
_NOISE: Final = 0.05
"""Spread of single steps that is allowed for: three times it over the root of their number."""
_FEWEST: Final = 8
_WHOLE: Final = 1.15
CAP_S: Final = 3600.0
_EDGE_S: Final = 1.0


class Steps(NamedTuple):
    """Steps of several requests, as columns."""

    owners: NDArray[np.intp]
    """Position of the request."""
    starts_s: NDArray[np.float64]
    ends_s: NDArray[np.float64]
    counts: NDArray[np.float64]
    """Decode steps in it: 1, or many for a request that tells of no single ones."""
    tokens: NDArray[np.float64]

    @property
    def lengths_s(self) -> NDArray[np.float64]:
        """How long each took."""
        return self.ends_s - self.starts_s


class Slow(NamedTuple):
    """Stretches that were slow, as columns, by request and time."""

    owners: NDArray[np.intp]
    starts_s: NDArray[np.float64]
    ends_s: NDArray[np.float64]
    actual_s: NDArray[np.float64]
    """Time of its slow steps: in a stretch of many, without the single ones in its midst."""
    expected_s: NDArray[np.float64]
    tokens: NDArray[np.float64]
    members: NDArray[np.intp]
    """For every step the stretch that it belongs to; -1 for those that were on time."""

    @property
    def excess_s(self) -> NDArray[np.float64]:
        """Never negative."""
        return np.maximum(self.actual_s - self.expected_s, 0.0)


def ran_of(record: RequestRecord, start_s: float) -> Ran | None:
    """When a request did what; None where it does not say. start_s: steady seconds of its begin."""
    lasted_s = (record.end_ns - record.start_ns) / 1e9
    if not 0 <= lasted_s <= CAP_S:
        return None
    first = _first_after_s(record)
    if first is None or not 0 <= first <= lasted_s + 1e-3:
        return None
    first = min(first, lasted_s)
    if record.queue_s is not None and math.isfinite(record.queue_s):
        admitted = record.queue_s
    elif record.prefill_s is not None and math.isfinite(record.prefill_s):
        admitted = first - record.prefill_s
    else:
        admitted = 0.0
    prompt = max(0, record.prompt_tokens or 0)
    made = record.completion_tokens
    if made is None:
        made = len(record.token_ns) if record.token_ns is not None else 0
    return Ran(
        start_s=start_s,
        admitted_s=start_s + min(max(admitted, 0.0), first),
        first_s=start_s + first,
        end_s=start_s + lasted_s,
        prompt=prompt,
        computed=max(0, prompt - max(0, record.cached_tokens or 0)),
        made=max(0, made),
    )


def steps_of(records: Sequence[RequestRecord], runs: Sequence[Ran]) -> Steps:
    """All steps of the requests, in order. runs: of each of them."""
    segments = []
    wholes: list[tuple[int, float, float, float]] = []
    for position, (record, ran) in enumerate(zip(records, runs, strict=True)):
        segment = inter_token_segment(position, record) or step_segment(position, record)
        if segment is not None:
            segments.append(segment)
        elif record.token_ns is None and ran.made > 1 and ran.end_s > ran.first_s:
            wholes.append((position, ran.first_s, ran.end_s, ran.made - 1))
    if segments:
        gaps = gaps_of(segments)
        starts_ns = np.array([record.start_ns for record in records], dtype=np.int64)[gaps.owners]
        ends_s = np.array([ran.start_s for ran in runs])[gaps.owners] + (gaps.ends_ns - starts_ns) * 1e-9
        good = (gaps.gaps_ns > 0) & (gaps.gaps_ns <= int(CAP_S * 1e9))
        # Ranks may tell of steps by a clock of their own; what is not of the request's time is of no use.
        begun, ended = np.array([(ran.start_s, ran.end_s) for ran in runs]).T
        good &= (ends_s - gaps.gaps_ns * 1e-9 >= begun[gaps.owners] - _EDGE_S) & (
            ends_s <= ended[gaps.owners] + _EDGE_S
        )
        tokens = np.ones(len(ends_s)) if gaps.counts is None else gaps.counts.astype(np.float64)
        single = Steps(gaps.owners, ends_s - gaps.gaps_ns * 1e-9, ends_s, np.ones(len(ends_s)), tokens)
        if not good.all():
            single = Steps(
                single.owners[good], single.starts_s[good], single.ends_s[good], single.counts[good], tokens[good]
            )
        if not wholes:
            return single
    else:
        single = Steps(np.empty(0, dtype=np.intp), *(np.empty(0) for _ in range(4)))
    table = np.array(wholes, dtype=np.float64).reshape(-1, 4)
    whole = Steps(table[:, 0].astype(np.intp), table[:, 1], table[:, 2], table[:, 3], table[:, 3])
    return Steps(
        np.concatenate([single.owners, whole.owners]),
        np.concatenate([single.starts_s, whole.starts_s]),
        np.concatenate([single.ends_s, whole.ends_s]),
        np.concatenate([single.counts, whole.counts]),
        np.concatenate([single.tokens, whole.tokens]),
    )


def slow_of(steps: Steps, expected_s: NDArray[np.float64]) -> Slow:
    """The slow stretches. expected_s: of every step."""
    actual_s = steps.lengths_s
    ratios = actual_s / np.maximum(expected_s, 1e-9)
    is_whole = steps.counts > 1
    single = np.where(is_whole, ratios > _WHOLE, (ratios > SINGLE) & (actual_s - expected_s > LEAST_S))
    # About a second, and long enough for a dozen steps.
    width_s = float(np.clip(12 * np.median(expected_s / steps.counts), 1.0, 20.0)) if len(ratios) else 1.0
    cells = (steps.starts_s / width_s).astype(np.int64)
    fresh = np.ones(len(cells), dtype=bool)
    fresh[1:] = (cells[1:] != cells[:-1]) | (steps.owners[1:] != steps.owners[:-1])
    stretches = np.cumsum(fresh) - 1
    # Without the single ones, which do not make the others slow.
    length = int(stretches.max(initial=0)) + 1
    counts = np.bincount(stretches[~single], minlength=length)
    means = np.bincount(stretches[~single], ratios[~single], length) / np.maximum(counts, 1)
    limits = np.maximum(SUSTAINED, 1 + 3 * _NOISE / np.sqrt(np.maximum(counts, 1)))
    calm = ~single & ~is_whole
    is_slow = (means > limits) & (counts >= _FEWEST)
    others = calm & is_slow[stretches] if len(ratios) else calm
    # Stretches first by their number, then the single ones, then all by request and time.
    members = np.full(len(ratios), -1, dtype=np.intp)
    known, inverse = np.unique(stretches[others], return_inverse=True)
    members[others] = inverse
    members[single] = len(known) + np.arange(int(single.sum()))
    count = len(known) + int(single.sum())
    chosen = members >= 0
    which = members[chosen]
    starts, ends = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(starts, which, steps.starts_s[chosen])
    np.maximum.at(ends, which, steps.ends_s[chosen])
    owners = np.zeros(count, dtype=np.intp)
    owners[which] = steps.owners[chosen]
    order = np.lexsort((starts, owners))
    place = np.empty(count, dtype=np.intp)
    place[order] = np.arange(count)
    members[chosen] = place[which]

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(place[which], values[chosen], count), dtype=np.float64)[:count]

    return Slow(
        owners[order], starts[order], ends[order], sums(actual_s), sums(expected_s), sums(steps.tokens), members
    )


def _first_after_s(record: RequestRecord) -> float | None:
    """Seconds from its begin to its first token."""
    if record.first_token_ns is not None:
        return (record.first_token_ns - record.start_ns) / 1e9
    if record.time_to_first_token_s is not None:
        return record.time_to_first_token_s
    if record.queue_s is not None and record.prefill_s is not None:
        return record.queue_s + record.prefill_s
    if record.token_ns is not None and len(record.token_ns):
        return float(int(record.token_ns[0]) - record.start_ns) / 1e9
    return None
