"""Learns what is usual of a group, from the same requests that are explained; slowly, so that no fault is learned.

Every step of detection gives a few lessons: what steps took, by size of batch; what prompts took; waits, batch, context
and arrivals. A lesson is taken in only ``LATER_S`` after its time, when every detector has had the time to say that
something was wrong then. What an incident touches is kept apart, for groups that know nothing else. Until steps and
prompts are known, lessons are taken in at once. Bounded: 4,096 lessons wait at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.expected import Expected, Look, sizes_of
from gpumon.explain.load import GroupLoad, Others, Ran
from gpumon.explain.quantiles import median
from gpumon.explain.steps import Steps
from gpumon.explain.usual import Load

LATER_S: Final = 20.0
OVER_S: Final = 30.0
"""Over which arrivals are counted."""
_WAITING: Final = 4096
_SAMPLE: Final = 512
_REQUESTS: Final = 32
"""Of one step of detection: with all of several hundred the lessons of twenty seconds would not fit."""
_FEW: Final = 5
_LEAST_TOKENS: Final = 16.0

Array = NDArray[np.float64]
Stretches = Sequence[tuple[float, float]]
"""Steady seconds from, to."""


class _Lesson(NamedTuple):
    due_s: float
    start_s: float
    end_s: float
    takers: tuple[Callable[..., None], ...]
    """Of the figures, each of its own; told too whether it was calm."""
    figures: tuple[tuple[object, ...], ...]


class Learning:
    """Of one group. Not thread-safe."""

    def __init__(self, load: GroupLoad) -> None:
        self._load = load
        self.usual = Load()
        self.expected = Expected()
        self._waiting: deque[_Lesson] = deque(maxlen=_WAITING)
        self._first_s: float | None = None
        """When its first request began."""

    def settle(self, touched: Stretches, at_s: float) -> None:
        """Take in the lessons that are old enough. touched: when an incident held."""
        waiting = self._waiting
        while waiting and (waiting[0].due_s <= at_s or not self._knows()):
            lesson = waiting.popleft()
            calm = not any(lesson.start_s <= last_s and lesson.end_s >= first_s for first_s, last_s in touched)
            for take, figures in zip(lesson.takers, lesson.figures, strict=True):
                take(*figures, calm=calm)

    def _knows(self) -> bool:
        """What steps and prompts take; the latter only if there are such that were not cached as a whole."""
        usual = self.usual
        has_seen = self.expected.is_known and usual.queue_s.value() is not None
        computed = usual.computed.mean()
        return has_seen and (not computed or usual.prompt_s.at(np.array([max(computed, 1.0)])) is not None)

    def steps(self, steps: Steps, running: Array, context: Array, others: Others, at_s: float) -> None:
        """Steps of requests that ended, with requests decoding and context of each. At most 512 are looked at."""
        if not len(steps.owners):
            return
        some = np.arange(0, len(steps.owners), max(1, len(steps.owners) // _SAMPLE))
        starts, ends = steps.starts_s[some], steps.ends_s[some]
        tokens, lengths = others.between(starts, ends)
        each_s = (ends - starts) / steps.counts[some]
        batch, whole = running[some], context[some]

        def teach(take: Callable[..., None], rows: NDArray[np.intp], *figures: object) -> None:
            span = float(starts[rows].min()), float(ends[rows].max())
            self._waiting.append(_Lesson(at_s + LATER_S, *span, (take,), (figures,)))

        alone = (tokens == 0) | (steps.counts[some] > 1)
        if alone.sum() < _FEW:
            alone[:] = True
        chosen = np.flatnonzero(alone)
        sizes = sizes_of(batch[chosen])
        for size in np.unique(sizes).tolist():
            rows = chosen[sizes == size]
            if len(rows) >= _FEW or len(some) < 4 * _FEW:
                look = Look(*(median(column[rows]) for column in (batch, whole, each_s)))
                teach(self.expected.learn, rows, look)
        usual = self.usual
        # An engine that has just been found fills its batch first: that is not what is usual of it.
        if self._first_s is not None and float(starts.min()) - OVER_S >= self._first_s:
            load = (median(batch),), (median(whole / batch),)
            span = float(starts.min()), float(ends.max())
            self._waiting.append(_Lesson(at_s + LATER_S, *span, (usual.running.add, usual.context.add), load))
        if self.expected.is_known:
            late_s = each_s - self.expected.gaps(batch, whole)
            costly = np.flatnonzero((tokens > _LEAST_TOKENS) & (steps.counts[some] == 1) & (late_s > 0))
            buckets = np.log2(np.maximum(lengths[costly], 1.0)).astype(np.intp)
            for bucket in np.unique(buckets).tolist():
                rows = costly[buckets == bucket]
                teach(usual.token_s.add, rows, median(lengths[rows]), median(late_s[rows] / tokens[rows]))

    def requests(self, runs: Sequence[Ran], others: Others, at_s: float) -> None:
        """Waits and prompts of requests that ended: of 32 of them at most, from first to last."""
        some = runs[:: -(-len(runs) // _REQUESTS)]
        admitted, firsts = np.array([(ran.admitted_s, ran.first_s) for ran in some]).T
        beside, _ = others.between(admitted, firsts)
        usual, due_s = self.usual, at_s + LATER_S
        queue = (usual.queue_s.add,)
        prompt: tuple[Callable[..., None], ...] = (usual.computed.add, usual.beside.add, usual.prompt_s.add)
        for ran, tokens in zip(some, beside.tolist(), strict=True):
            span = ran.start_s, ran.first_s
            if ran.first_s > ran.admitted_s:
                computed = float(ran.computed)
                took = max(computed, 1.0), ran.first_s - ran.admitted_s
                lesson = _Lesson(due_s, *span, prompt, ((computed,), (max(0.0, tokens - computed),), took))
                self._waiting.append(lesson)
            # After the prompt: as soon as waits are known, so are prompts, where there are any.
            self._waiting.append(_Lesson(due_s, *span, queue, ((ran.admitted_s - ran.start_s,),)))
        latest = max(runs, key=lambda ran: ran.start_s)
        if self._first_s is None:
            self._first_s = min(ran.start_s for ran in runs)
        if latest.start_s - OVER_S >= self._first_s:
            came, brought = self._load.arrived(latest.start_s - OVER_S, latest.start_s)
            both = (usual.arrivals.add, usual.brought.add)
            self._waiting.append(_Lesson(due_s, latest.start_s, latest.first_s, both, ((came,), (brought,))))

    def own_cost_s(self) -> float:
        """What a prompt token costs, as long as only whole prompts tell: what they take longer than a step of those
        that decode meanwhile."""
        computed = self.usual.computed.mean()
        at = self.usual.prompt_s.at(np.array([max(computed, 1.0)])) if computed else None
        if at is None:
            return 0.0
        step_s = 0.0
        if self.expected.is_known:
            running, context = np.full(1, self.usual.running.value() or 1.0), self.usual.context.value() or 0.0
            step_s = float(self.expected.gaps(running, running * context)[0])
        return max(0.0, float(at[0]) - step_s) / max(computed or 1.0, 1.0)
