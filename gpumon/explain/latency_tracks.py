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
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.scene import Scene
from gpumon.detect.time_cells import TimeCells
from gpumon.explain.group import Group
from gpumon.explain.group_room import GroupRoom
from gpumon.model import RequestRecord
from gpumon.requests.gaps import Segment, gaps_of, in_passes, inter_token_segment, possible, tokens_made
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
            segment = inter_token_segment(number, record)
            if segment is not None and 0 < record.start_ns < _MOMENT_MAX:
                segments.append(segment)
            elif (untimed := _spread(record, float(starts_s[number]), at_s)) is not None:
                spread.append(untimed)
        begun_ns = np.array([min(max(record.start_ns, 0), _MOMENT_MAX) for record in records], dtype=np.int64)
        self._add_firsts(segments, starts_s, begun_ns, at_s)
        for part in in_passes(segments):
            gaps = gaps_of(part)
            good = (gaps.gaps_ns >= 0) & (gaps.gaps_ns <= int(CAP_S * 1e9))
            gaps = gaps if good.all() else gaps.only(good)
            if len(gaps.ends_ns):
                made_s = starts_s[gaps.owners] + (gaps.ends_ns - begun_ns[gaps.owners]) * 1e-9
                tokens = np.ones(len(made_s)) if gaps.counts is None else gaps.counts.astype(np.float64)
                gaps_s = gaps.gaps_ns.astype(np.float64) * 1e-9
                self._add_gaps(np.clip(made_s, 0.0, at_s), gaps_s, tokens)
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

    def _count(self, signal: Signal, made_s: Floats, seconds: Floats, weights: Floats) -> None:
        cells, current = self._cells.place(made_s)
        if not current.all():
            cells, seconds, weights = cells[current], seconds[current], weights[current]
        flat = (cells * len(Signal) + signal) * _BUCKETS + log_buckets(seconds) // _COARSE
        np.add.at(self._counts.reshape(-1), flat, weights.astype(np.float32))
        if signal is Signal.INTER_TOKEN:
            self._tokens += np.bincount(cells, weights, SECONDS)
        self._begin(signal, made_s)

    def _add_gaps(self, made_s: Floats, gaps_s: Floats, tokens: Floats) -> None:
        self._count(Signal.INTER_TOKEN, made_s, gaps_s / tokens, tokens)
        self._count_fast(made_s, tokens, gaps_s, tokens)

    def _add_firsts(
        self, segments: Iterable[Segment], starts_s: Floats, begun_ns: NDArray[np.int64], at_s: float
    ) -> None:
        """Tokens of first steps, which end no gap."""
        told = [
            (starts_s[each.owner] + (int(each.token_ns[0]) - int(begun_ns[each.owner])) * 1e-9, _first_count(each))
            for each in segments
        ]
        if told:
            made_s, tokens = np.array(told, dtype=np.float64).T
            made_s = np.clip(made_s, 0.0, at_s)
            self._count_firsts(made_s, tokens)
            self._count_fast(made_s, tokens, np.zeros(len(told)), np.zeros(len(told)))

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
        cells, current = self._cells.place(made_s)
        self._tokens += np.bincount(cells[current], tokens[current], SECONDS)
        self._begin(len(Signal), made_s)

    def _count_fast(self, made_s: Floats, tokens: Floats, gaps_s: Floats, after: Floats) -> None:
        cells, current = self._fast.place(made_s)
        if not current.all():
            cells, tokens, gaps_s, after = cells[current], tokens[current], gaps_s[current], after[current]
        self._fast_tokens += np.bincount(cells, tokens, FAST_CELLS)
        self._fast_gaps_s += np.bincount(cells, gaps_s, FAST_CELLS)
        self._fast_after += np.bincount(cells, after, FAST_CELLS)
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
        starts_s = np.array([_start_s(record, scene) for record in records])
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


def _start_s(record: RequestRecord, scene: Scene) -> float:
    """A clock ahead of ours would put tokens into the future: the request has ended now."""
    if not 0 < record.start_ns <= record.end_ns < _MOMENT_MAX:
        return min(record.arrived_s, scene.at_s)
    return scene.to_steady(record.start_ns) - max(0.0, scene.to_steady(record.end_ns) - scene.at_s)


def _spread(record: RequestRecord, start_s: float, at_s: float) -> _Spread | None:
    made, first_s = tokens_made(record), record.time_to_first_token_s
    lasted_s = (record.end_ns - record.start_ns) / 1e9
    if not possible(made) or not made or first_s is None or not 0 <= first_s <= lasted_s <= CAP_S:
        return None
    moment_s = min(max(start_s + first_s, 0.0), at_s)
    return _Spread(moment_s, min(max(start_s + lasted_s, moment_s), at_s), made - 1)


def _first_count(segment: Segment) -> int:
    return 1 if segment.counts is None else int(segment.counts[0])


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
