"""Latencies and token rate by group: the last ten minutes, one value a second; and token times in tenths of a second.

From requests that have ended. A request is told of at its end, so a second fills for as long as requests last: it is
complete when it is one and a half times as old as four of five tokens are when they come (``RecentLatencies.lag_s``),
and before that it says nothing. Observations are ``requests.gaps``' and counted in four buckets per doubling, inside of
which a quantile is interpolated: it is at most 19 %, mostly 5 % off. Of a request that tells how many tokens it made,
but not when, they count as spread evenly from its first token to its end; in tenths of a second it is left out.

Bounded: 32 groups, of which one unseen for five minutes makes room for another; 0.5 MB each, used as it fills.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.scene import Scene
from gpumon.detect.time_cells import TimeCells
from gpumon.explain.group import Group
from gpumon.explain.group_room import GroupRoom
from gpumon.explain.ring_sums import place
from gpumon.explain.token_times import token_times
from gpumon.model import RequestRecord
from gpumon.requests.buckets import CONTEXT_UNKNOWN
from gpumon.requests.gaps import Segment, in_passes, inter_token_segment, possible, tokens_made
from gpumon.requests.logbuckets import LOWEST, PER_DOUBLING, SIZE, log_buckets
from gpumon.requests.windows import Signal

SIGNALS: Final = ("time_to_first_token_p95", "inter_token_p95", "tokens_per_second")
"""Rows of ``LatencyTracks.series``; seconds, seconds, tokens/s."""
FAST_SIGNALS: Final = ("inter_token_mean", "tokens_per_second")
"""Rows of ``LatencyTracks.fast``; seconds, tokens/s."""
SECONDS: Final = 600
FAST_S: Final = 0.1
FAST_CELLS: Final = 2400
"""Four minutes: a minute, and the time until it is complete."""
SHARE: Final = 0.95
COMPLETE: Final = 0.8
"""Share of tokens whose age, when they come, is waited for; as ``latency_shift`` does."""
LAGS: Final = 1.5
CAP_S: Final = 3600.0
"""Longest duration that is believed."""
_CAP_NS: Final = round(CAP_S * 1e9)
_MOMENT_MAX: Final = 1 << 62

_COARSE: Final = 4
"""Log buckets in one of these."""
_BUCKETS: Final = -(-SIZE // _COARSE)
_LOWER: Final = 2.0 ** ((LOWEST - 1 + _COARSE * np.arange(_BUCKETS)) / PER_DOUBLING)
"""Lower bounds, seconds."""
_GROWTH: Final = _COARSE / PER_DOUBLING
"""Width of a bucket in doublings."""

Floats = NDArray[np.float64]


class _Spread(NamedTuple):
    """Tokens of a request that does not tell when it made them, but for the first."""

    first_s: float
    end_s: float
    tokens: int
    """After the first one."""


class _Tracks:
    """Of one group."""

    def __init__(self, _at_s: float) -> None:
        self._cells = TimeCells(1.0, SECONDS)
        self._counts = np.zeros((SECONDS, len(Signal), _BUCKETS), dtype=np.float32)
        self._tokens = np.zeros(SECONDS, dtype=np.float64)
        self._cells.arrays += [self._counts, self._tokens]
        self._fast = TimeCells(FAST_S, FAST_CELLS)
        self._fast_tokens = np.zeros(FAST_CELLS)
        self._fast_after = np.zeros(FAST_CELLS)
        """Tokens but for the first of each request."""
        self._fast_gaps_s = np.zeros(FAST_CELLS)
        """Time that these took."""
        self._fast.arrays += [self._fast_tokens, self._fast_after, self._fast_gaps_s]
        self._first = [-1, -1, -1]
        """The first second of any time to first token, any gap, any token."""
        self._fast_first = -1
        self.complete_s = [0.0, 0.0]
        """By signal: what is older is complete."""

    def add(self, records: Sequence[RequestRecord], starts_s: Floats, at_s: float) -> None:
        """starts_s: when each began, steady. at_s: now; nothing is later."""
        told = [
            (start_s + first_s, first_s)
            for record, start_s in zip(records, starts_s.tolist(), strict=True)
            if (first_s := record.time_to_first_token_s) is not None and 0 <= first_s <= CAP_S
        ]
        if told:
            made_s, seconds = np.array(told).T
            self._count(Signal.FIRST_TOKEN, np.clip(made_s, 0.0, at_s), seconds, np.ones(len(told)))
        segments: list[Segment] = []
        spread: list[_Spread] = []
        for number, record in enumerate(records):
            segment = _segment(number, record)
            if segment is not None:
                segments.append(segment)
            elif (untimed := _spread(record, float(starts_s[number]), at_s)) is not None:
                spread.append(untimed)
        if segments:
            begun_ns = np.array([min(max(record.start_ns, 0), _MOMENT_MAX) for record in records], dtype=np.int64)
            self._add_firsts(segments, starts_s, begun_ns, at_s)
            for part in in_passes(segments):
                self._add_gaps(part, starts_s, begun_ns, at_s)
        for untimed in spread:
            self._add_spread(untimed)

    def series(self) -> tuple[NDArray[np.int64], Floats]:
        """See ``LatencyTracks.series``."""
        done = [int(self.complete_s[signal] // 1.0) for signal in (*Signal, Signal.INTER_TOKEN)]
        begun = [first for first in self._first if first >= 0]
        newest = min(max(done) - 1, self._cells.newest)
        oldest = max(min(begun, default=newest + 1), self._cells.newest - SECONDS + 1)
        seconds = np.arange(oldest, max(newest + 1, oldest))
        cells = seconds % SECONDS
        rows = np.stack([*(_quantile(self._counts[cells, signal]) for signal in Signal), self._tokens[cells]])
        for row, first, until in zip(rows, self._first, done, strict=True):
            row[(seconds >= until) | (seconds < (first if first >= 0 else until))] = np.nan
        return seconds, rows

    def fast(self) -> tuple[NDArray[np.int64], Floats]:
        """See ``LatencyTracks.fast``."""
        newest = min(int(self.complete_s[Signal.INTER_TOKEN] / FAST_S) - 1, self._fast.newest)
        oldest = max(self._fast_first if self._fast_first >= 0 else newest + 1, self._fast.newest - FAST_CELLS + 1)
        numbers = np.arange(oldest, max(newest + 1, oldest))
        cells = numbers % FAST_CELLS
        after = self._fast_after[cells]
        means = np.full(len(cells), np.nan)
        np.divide(self._fast_gaps_s[cells], after, out=means, where=after > 0)
        return numbers, np.stack([means, self._fast_tokens[cells] / FAST_S])

    def _count(self, signal: Signal, made_s: Floats, seconds: Floats, weights: Floats | None) -> None:
        """weights: tokens of each; None: one each."""
        placed = place(self._cells, made_s, 1.0, SECONDS)
        self._begin(signal, made_s)
        if not len(placed.cells):
            return
        flat = placed.offsets * _BUCKETS + log_buckets(placed.only(seconds)) // _COARSE
        weights = placed.only(weights) if weights is not None else None
        counts = np.bincount(flat, weights, len(placed.cells) * _BUCKETS).reshape(-1, _BUCKETS)
        self._counts[placed.cells, signal] += counts.astype(np.float32)
        if signal is Signal.INTER_TOKEN:
            self._tokens[placed.cells] += counts.sum(axis=1)

    def _add_gaps(
        self, segments: Sequence[Segment], starts_s: Floats, begun_ns: NDArray[np.int64], at_s: float
    ) -> None:
        of = np.array([segment.owner for segment in segments], dtype=np.intp)
        told = token_times([segment.token_ns for segment in segments], begun_ns[of], starts_s[of])
        good = told.is_gap & (told.gaps_ns >= 0) & (told.gaps_ns <= _CAP_NS)
        made_s = np.clip(told.made_s[1:][good], 0.0, at_s)
        gaps_s = np.asarray(told.gaps_ns[good] * 1e-9, dtype=np.float64)
        if not len(made_s):
            return
        tokens = None
        if any(segment.counts is not None for segment in segments):
            parts = [np.ones(len(s.token_ns)) if s.counts is None else s.counts.astype(np.float64) for s in segments]
            tokens = np.concatenate(parts)[1:][good]
        self._count(Signal.INTER_TOKEN, made_s, gaps_s if tokens is None else gaps_s / tokens, tokens)
        self._count_fast(made_s, tokens, gaps_s)

    def _add_firsts(
        self, segments: Sequence[Segment], starts_s: Floats, begun_ns: NDArray[np.int64], at_s: float
    ) -> None:
        """Tokens of first steps, which end no gap."""
        of = np.array([segment.owner for segment in segments], dtype=np.intp)
        firsts_ns = np.array([segment.token_ns[0] for segment in segments], dtype=np.int64)
        tokens = np.array([1 if each.counts is None else each.counts[0] for each in segments], dtype=np.float64)
        made_s = np.clip(starts_s[of] + (firsts_ns - begun_ns[of]) * 1e-9, 0.0, at_s)
        self._count_firsts(made_s, tokens)
        self._count_fast(made_s, tokens, None)

    def _add_spread(self, untimed: _Spread) -> None:
        self._count_firsts(np.array([untimed.first_s]), np.ones(1))
        lasted_s = untimed.end_s - untimed.first_s
        if not untimed.tokens or lasted_s <= 0:
            return
        edges = np.clip(np.arange(np.floor(untimed.first_s), untimed.end_s + 1.0), untimed.first_s, untimed.end_s)
        tokens = np.diff(edges) * (untimed.tokens / lasted_s)
        made_s = np.floor(edges[:-1])
        self._count(Signal.INTER_TOKEN, made_s, np.full(len(tokens), lasted_s / untimed.tokens), tokens)

    def _count_firsts(self, made_s: Floats, tokens: Floats) -> None:
        """Tokens that end no gap."""
        placed = place(self._cells, made_s, 1.0, SECONDS)
        self._tokens[placed.cells] += placed.sums(tokens)
        self._begin(len(Signal), made_s)

    def _count_fast(self, made_s: Floats, tokens: Floats | None, gaps_s: Floats | None) -> None:
        """tokens: None: one each. gaps_s: of those that end one; None of firsts, which do not."""
        placed = place(self._fast, made_s, FAST_S, FAST_CELLS)
        counts = placed.sums(tokens)
        self._fast_tokens[placed.cells] += counts
        if gaps_s is not None:
            self._fast_gaps_s[placed.cells] += placed.sums(gaps_s)
            self._fast_after[placed.cells] += counts
        if self._fast_first < 0:
            self._fast_first = int(made_s.min() / FAST_S)

    def _begin(self, row: int, made_s: Floats) -> None:
        if self._first[row] < 0:
            self._first[row] = int(made_s.min())


class LatencyTracks:
    """May be called from any thread: one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: GroupRoom[_Tracks] = GroupRoom(_Tracks)

    def add(self, group: Group, records: Sequence[RequestRecord], scene: Scene) -> None:
        """Requests of a group that ended since the last step; left out where there is no room for the group."""
        if not records:
            return
        at_s = scene.at_s
        epoch_s = scene.to_steady(0)
        starts_s = np.array([_start_s(record, epoch_s, at_s) for record in records])
        lags = [0.0] * len(Signal)
        for model in scene.latencies.models():
            if (model.server, model.model) == (group.server, group.model):
                lags = [model.lag_s(signal, COMPLETE) for signal in Signal]
        with self._lock:
            tracks = self._groups.see(group, at_s)
            if tracks is not None:
                tracks.add(records, starts_s, at_s)
                # Where nobody tells when tokens were made, none comes later than the first of its request.
                waited = [lags[Signal.FIRST_TOKEN], lags[Signal.INTER_TOKEN] or lags[Signal.FIRST_TOKEN]]
                tracks.complete_s = [at_s - LAGS * lag_s for lag_s in waited]

    def series(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Seconds (n is [n, n + 1) steady seconds), oldest first and without gaps, and values: (SIGNALS, seconds).

        NaN for latencies of a second without observations, for what is not complete, and before there was any. Ends
        with the newest complete second; empty for an unknown group.
        """
        with self._lock:
            tracks = self._groups.get(group)
            return _nothing(len(SIGNALS)) if tracks is None else tracks.series()

    def fast(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The same in tenths of a second, of the last four minutes: n is [n / 10, (n + 1) / 10); (FAST_SIGNALS, n)."""
        with self._lock:
            tracks = self._groups.get(group)
            return _nothing(len(FAST_SIGNALS)) if tracks is None else tracks.fast()


def _nothing(rows: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.empty(0, dtype=np.int64), np.empty((rows, 0))


def _start_s(record: RequestRecord, epoch_s: float, at_s: float) -> float:
    """A clock ahead of ours would put tokens into the future: the request has ended now."""
    if not 0 < record.start_ns <= record.end_ns < _MOMENT_MAX:
        return min(record.arrived_s, at_s)
    return record.start_ns / 1e9 + epoch_s - max(0.0, record.end_ns / 1e9 + epoch_s - at_s)


def _spread(record: RequestRecord, start_s: float, at_s: float) -> _Spread | None:
    made, first_s = tokens_made(record), record.time_to_first_token_s
    lasted_s = (record.end_ns - record.start_ns) / 1e9
    if not possible(made) or not made or first_s is None or not 0 <= first_s <= lasted_s <= CAP_S:
        return None
    moment_s = min(max(start_s + first_s, 0.0), at_s)
    return _Spread(moment_s, min(max(start_s + lasted_s, moment_s), at_s), made - 1)


def _segment(number: int, record: RequestRecord) -> Segment | None:
    """As ``inter_token_segment``, of requests with a moment; of the context nothing is asked."""
    if not 0 < record.start_ns < _MOMENT_MAX:
        return None
    if record.token_ns is not None and record.token_counts is None:
        timed = record.per_token and len(record.token_ns) > 1
        return Segment(number, record.token_ns, None, CONTEXT_UNKNOWN) if timed else None
    return inter_token_segment(number, record)


def _quantile(rows: NDArray[np.float32]) -> Floats:
    """Of each row of counts, the quantile SHARE; NaN of a row without any."""
    sums = np.cumsum(rows, axis=1, dtype=np.float64)
    totals = sums[:, -1]
    ranks = np.minimum(np.ceil(SHARE * totals), totals)
    bucket = np.argmax(sums >= ranks[:, None], axis=1)
    every = np.arange(len(rows))
    counts = rows[every, bucket].astype(np.float64)
    before = sums[every, bucket] - counts
    # The middle of what it is worth: a single value is in the middle of its bucket.
    share = np.divide(ranks - before - 0.5, counts, out=np.full(len(rows), 0.5), where=counts > 0)
    found: Floats = _LOWER[bucket] * 2.0 ** (_GROWTH * np.clip(share, 0.0, 1.0))
    found[totals <= 0] = np.nan
    return found
