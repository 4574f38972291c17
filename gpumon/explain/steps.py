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
from gpumon.explain.quantiles import median
from gpumon.explain.token_times import token_times
from gpumon.model import RequestRecord
from gpumon.requests.buckets import CONTEXT_UNKNOWN
from gpumon.requests.gaps import Segment, inter_token_segment, step_segment

SINGLE: Final = 1.5
SUSTAINED: Final = 1.06
LEAST_S: Final = 0.002
"""A single step that is late by less is not slow: clocks of servers are no better."""
_NOISE: Final = 0.05
"""Spread of single steps that is allowed for: three times it over the root of their number."""
_FEWEST: Final = 8
_WHOLE: Final = 1.15
_DOZEN: Final = 12
CAP_S: Final = 3600.0
TOKENS_MAX: Final = 10_000_000
"""Of a prompt or an answer: whoever tells of more is wrong about it."""
_CAP_NS: Final = round(CAP_S * 1e9)
_EDGE_S: Final = 1.0
"""Ranks may tell of steps by a clock of their own; what is further outside of the request's time is of no use."""


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
    prompt = min(max(0, record.prompt_tokens or 0), TOKENS_MAX)
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
        made=min(max(0, made), TOKENS_MAX),
    )


def steps_of(records: Sequence[RequestRecord], runs: Sequence[Ran]) -> Steps:
    """All steps of the requests, in order. runs: of each of them."""
    segments = []
    wholes: list[tuple[int, float, float, float]] = []
    for position, (record, ran) in enumerate(zip(records, runs, strict=True)):
        times = record.token_ns
        if times is not None and record.token_counts is None:
            segment = Segment(position, times, None, CONTEXT_UNKNOWN) if len(times) > 1 else None
        else:
            segment = inter_token_segment(position, record) or step_segment(position, record)
        if segment is not None:
            segments.append(segment)
        elif times is None and ran.made > 1 and ran.end_s > ran.first_s:
            wholes.append((position, ran.first_s, ran.end_s, ran.made - 1))
    single = _single(segments, [record.start_ns for record in records], runs)
    if not wholes:
        return single
    table = np.array(wholes, dtype=np.float64)
    whole = Steps(table[:, 0].astype(np.intp), table[:, 1], table[:, 2], table[:, 3], table[:, 3])
    return Steps(*(np.concatenate(columns) for columns in zip(single, whole, strict=True)))


def _single(segments: Sequence[Segment], starts_ns: Sequence[int], runs: Sequence[Ran]) -> Steps:
    """Of requests that tell of single steps; of those steps that can be true."""
    if not segments:
        return Steps(np.empty(0, dtype=np.intp), *(np.empty(0) for _ in range(4)))
    of = [segment.owner for segment in segments]
    begun_s, ended_s = np.array([(runs[owner].start_s, runs[owner].end_s) for owner in of]).T
    begun_ns = np.array([starts_ns[owner] for owner in of], dtype=np.int64)
    made_s, gaps_ns, is_gap, lengths = token_times([segment.token_ns for segment in segments], begun_ns, begun_s)
    lasts = np.cumsum(lengths) - 1
    within_ns = gaps_ns[is_gap]
    is_sound = within_ns.min() > 0 and within_ns.max() <= _CAP_NS
    is_sound &= not (made_s[lasts - lengths + 1] < begun_s - _EDGE_S).any()
    if not is_sound or (made_s[lasts] > ended_s + _EDGE_S).any():
        is_gap &= (gaps_ns > 0) & (gaps_ns <= _CAP_NS)
        is_gap &= made_s[:-1] >= np.repeat(begun_s, lengths)[:-1] - _EDGE_S
        is_gap &= made_s[1:] <= np.repeat(ended_s, lengths)[1:] + _EDGE_S
    count = int(np.count_nonzero(is_gap))
    ones = np.ones(count)
    tokens = ones
    if any(segment.counts is not None for segment in segments):
        parts = [np.ones(len(s.token_ns)) if s.counts is None else s.counts.astype(np.float64) for s in segments]
        tokens = np.concatenate(parts)[1:][is_gap]
    owners = np.repeat(np.array(of, dtype=np.intp), lengths)
    return Steps(owners[1:][is_gap], made_s[:-1][is_gap], made_s[1:][is_gap], ones, tokens)


def slow_of(steps: Steps, expected_s: NDArray[np.float64]) -> Slow:
    """The slow stretches. expected_s: of every step."""
    actual_s = steps.lengths_s
    count = len(actual_s)
    if not count:
        none, nothing = np.empty(0, dtype=np.intp), np.empty(0)
        return Slow(none, nothing, nothing, nothing, nothing, nothing, none)
    ratios = actual_s / np.maximum(expected_s, 1e-9)
    whole = np.flatnonzero(steps.counts > 1)
    # Few are: it is looked at them alone.
    single = np.flatnonzero(ratios > min(SINGLE, _WHOLE) if len(whole) else ratios > SINGLE)
    is_late = (ratios[single] > SINGLE) & (actual_s[single] - expected_s[single] > LEAST_S)
    single = single[np.where(steps.counts[single] > 1, ratios[single] > _WHOLE, is_late)]
    cells = (steps.starts_s / _width_s(steps, expected_s, whole)).astype(np.int64)
    fresh = cells[1:] != cells[:-1]
    fresh |= steps.owners[1:] != steps.owners[:-1]
    firsts = np.concatenate([[0], np.flatnonzero(fresh) + 1])
    sizes = np.diff(firsts, append=count)
    # Without the single ones: they do not make the others slow.
    calm = ratios.copy()
    calm[single] = 0.0
    counts = sizes - np.bincount(np.searchsorted(firsts, single, "right") - 1, minlength=len(firsts))
    means = np.add.reduceat(calm, firsts) / np.maximum(counts, 1)
    limits = np.maximum(SUSTAINED, 1 + 3 * _NOISE / np.sqrt(np.maximum(counts, 1)))
    is_slow = (means > limits) & (counts >= _FEWEST)
    # Stretches first by their number, then the single ones, then all by request and time.
    members = np.full(count, -1, dtype=np.intp)
    known = 0
    if is_slow.any():
        others = np.repeat(is_slow, sizes)
        others[single] = False
        others[whole] = False
        stretches = np.repeat(np.arange(len(firsts)), sizes)[others]
        numbers = np.cumsum(np.diff(stretches, prepend=-1) != 0) - 1
        members[others] = numbers
        known = int(numbers[-1]) + 1 if len(numbers) else 0
    members[single] = known + np.arange(len(single))
    found = known + len(single)
    chosen = np.flatnonzero(members >= 0)
    which = members[chosen]
    starts, ends = np.full(found, np.inf), np.full(found, -np.inf)
    np.minimum.at(starts, which, steps.starts_s[chosen])
    np.maximum.at(ends, which, steps.ends_s[chosen])
    owners = np.zeros(found, dtype=np.intp)
    owners[which] = steps.owners[chosen]
    order = np.lexsort((starts, owners))
    place = np.empty(found, dtype=np.intp)
    place[order] = np.arange(found)
    members[chosen] = places = place[which]

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(places, values[chosen], found), dtype=np.float64)[:found]

    return Slow(
        owners[order], starts[order], ends[order], sums(actual_s), sums(expected_s), sums(steps.tokens), members
    )


def _width_s(steps: Steps, expected_s: NDArray[np.float64], whole: NDArray[np.intp]) -> float:
    """Of a stretch: about a second, and long enough for a dozen steps."""
    each_s = expected_s / steps.counts if len(whole) else expected_s
    # The median is asked for only where it can matter.
    return float(np.clip(_DOZEN * median(each_s), 1.0, 20.0)) if _DOZEN * each_s.max() > 1.0 else 1.0


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
