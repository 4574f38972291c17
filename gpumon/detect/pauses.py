"""Pauses between decode steps that nothing explains: a part of ``detect.batch``.

A step that takes much longer than its neighbours on both sides delayed all requests of the batch at that moment. Most
often another request's prompt was processed in it, which that request tells when it has ended; so a request is judged
some seconds after its own end. A longer run of slow steps is something else (throttling, page faults, a full batch),
and so is a change of the usual step. What is left is the scheduler waiting. Judged against the share of such pauses
that is usual for the same server and model.

Only requests with token times. Bounded: 64 pairs of server and model; per pair 128 requests under way and 256 judged,
512 prompts; 3 requests per pair and step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.model import RequestRecord

_LONG: Final = 2.5
"""A step this many times the request's median step, where its neighbours are not, is a pause."""
_GAPS_LEAST: Final = 16
_GAPS_MAX: Final = 4096
_SETTLE_S: Final = 8.0
"""From the end of a request until it is judged: by then most of those whose prompts it met have ended."""
_WINDOW_S: Final = 20.0
_LEAST: Final = 6
"""Requests judged within the window."""
_USUAL_LEAST: Final = 24


class _Steps(NamedTuple):
    """One request's steps."""

    known_s: float
    gaps: int
    usual_ns: float
    """The median gap."""
    begins_ns: NDArray[np.int64]
    """Of its pauses."""
    ends_ns: NDArray[np.int64]
    concurrency: int


class _Judged(NamedTuple):
    at_s: float
    gaps: int
    pauses: int
    """Those that no prompt explains."""
    usual_ns: float
    concurrency: int


class Pauses(NamedTuple):
    """What is so now and what is usual."""

    share: float
    """Of the gaps between tokens of the last seconds that are pauses."""
    usual_share: float
    gap_s: float
    """Median gap."""
    usual_gap_s: float
    concurrency: float
    """Mean."""
    usual_concurrency: float
    largest: int
    """Concurrency, over all that is remembered."""


@dataclass(slots=True)
class PauseWatch:
    """Of one server and model."""

    _prompts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=512))
    _settling: deque[_Steps] = field(default_factory=lambda: deque(maxlen=128))
    _recent: deque[_Judged] = field(default_factory=lambda: deque(maxlen=256))
    _usual: deque[_Judged] = field(default_factory=lambda: deque(maxlen=256))

    def add(self, records: Iterable[RequestRecord], at_s: float, most: int = 3) -> None:
        """Requests that ended; of more than ``most`` only the prompts."""
        taken = 0
        for record in records:
            if record.first_token_ns is not None:
                queued_ns = round((record.queue_s or 0.0) * 1e9)
                self._prompts.append((record.start_ns + queued_ns, record.first_token_ns))
            steps = _steps(record, at_s) if taken < most else None
            if steps is not None:
                taken += 1
                self._settling.append(steps)

    def look(self, at_s: float, *, is_well: bool) -> Pauses | None:
        """is_well: nothing was found; what leaves the window becomes usual then. None where too little is known."""
        if self._settling and at_s - self._settling[0].known_s >= _SETTLE_S:
            starts, ends = self._intervals()
            while self._settling and at_s - self._settling[0].known_s >= _SETTLE_S:
                self._recent.append(_judge(self._settling.popleft(), at_s, starts, ends))
        while self._recent and at_s - self._recent[0].at_s >= _WINDOW_S:
            gone = self._recent.popleft()
            if is_well:
                self._usual.append(gone)
        if len(self._recent) < _LEAST or len(self._usual) < _USUAL_LEAST:
            return None
        return Pauses(
            _share(self._recent),
            _share(self._usual),
            _middle(self._recent) / 1e9,
            _middle(self._usual) / 1e9,
            _mean_concurrency(self._recent),
            _mean_concurrency(self._usual),
            max([each.concurrency for of in (self._recent, self._usual) for each in of]),
        )

    def _intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Times in which a prompt was processed: starts, ascending, and for each the latest end so far."""
        if not self._prompts:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        starts, ends = np.array(sorted(self._prompts), dtype=np.int64).T
        return starts, np.maximum.accumulate(ends)


def _steps(record: RequestRecord, at_s: float) -> _Steps | None:
    if record.token_ns is None or not record.per_token or record.outcome != "ok":
        return None
    times = record.token_ns[-_GAPS_MAX:]
    gaps = np.diff(times)
    if len(gaps) < _GAPS_LEAST:
        return None
    usual_ns = float(np.median(gaps))
    is_long = gaps > _LONG * usual_ns
    alone = is_long[1:-1] & ~is_long[:-2] & ~is_long[2:]
    at = np.nonzero(alone)[0] + 1
    return _Steps(at_s, len(gaps), usual_ns, times[at], times[at + 1], record.concurrency)


def _judge(steps: _Steps, at_s: float, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> _Judged:
    pauses = len(steps.begins_ns)
    if pauses and len(starts):
        before = np.searchsorted(starts, steps.ends_ns) - 1  # the last prompt that began before the pause ended
        pauses = int(np.count_nonzero((before < 0) | (ends[before] <= steps.begins_ns)))
    return _Judged(at_s, steps.gaps, pauses, steps.usual_ns, steps.concurrency)


def _share(judged: Iterable[_Judged]) -> float:
    gaps = pauses = 0
    for each in judged:
        gaps += each.gaps
        pauses += each.pauses
    return pauses / gaps


def _mean_concurrency(judged: Collection[_Judged]) -> float:
    return sum([each.concurrency for each in judged]) / len(judged)


def _middle(judged: Iterable[_Judged]) -> float:
    return median([each.usual_ns for each in judged])
