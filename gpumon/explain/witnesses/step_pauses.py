"""Pauses between decode steps that no prompt explains: the part of ``witnesses.queue`` that looks at requests.

A step that takes over 2.5 times the request's median, between two that do not, is a pause; ``detect.pauses`` says more.
Each counts at its own moment, in cells of two seconds; how many there are among the gaps of the cells around one is
compared with what is usual of the model. What is known of a cell grows for seconds after it, as requests end: a request
is looked at ``SETTLE_S`` after its end, when most of those whose prompts it met have told of them.

More load brings prompts of requests that nothing is known of yet, and so do steps that all take longer, for requests
then end later. So nothing is said where requests wait, or where more than usual run together when it begins, and the
less the longer the median step is over its usual: half at 1.6 times, nothing at 1.8. Only requests with token times.
Bounded: 64 models; 3 requests per model and look, of 4,096 gaps; 64 under way; 512 prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.detect.time_cells import TimeCells
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import HOLDS, Usual, confirmed, found_servers, ramp, server_name
from gpumon.model import RequestRecord, Unit

SETTLE_S: Final = 4.0
CELL_S: Final = 2.0
CELLS: Final = 64
_LONG: Final = 2.5
_GAPS_LEAST, _GAPS_MAX = 16, 4096
_PER_LOOK: Final = 3
_AROUND: Final = 2
"""Cells to each side that count with one."""
_KNOWN: Final = 200
"""Gaps in these cells: fewer are no share."""
_FLOOR: Final = 0.005
"""Usual share of pauses that is taken where it is less."""
_TIMES: Final = (3.0, 6.0)
"""The usual share that is no evidence, and all of it."""
_SETTLED: Final = 8
"""Cells after which most of what ran in one has ended."""
_SAME_LOAD: Final = 1.5
_SAME_STEP: Final = (1.4, 1.8)
_PIECE: Final = 32
_RECENT: Final = 8
_MOST: Final = 0.7
"""Evidence without an incident: what is between the pauses is not known."""


class _Steps(NamedTuple):
    """One request's steps, steady seconds."""

    known_s: float
    ends_s: NDArray[np.float64]
    """Of all gaps."""
    begin_s: NDArray[np.float64]
    """Of the pauses."""
    end_s: NDArray[np.float64]
    median_s: float
    """Gap."""
    concurrency: float


@dataclass(slots=True)
class _Model:
    prompts: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=512))
    waiting: deque[_Steps] = field(default_factory=lambda: deque(maxlen=64))
    usual: Usual = field(default_factory=lambda: Usual(120, 15, settles=450))
    """Share of pauses."""
    load: Usual = field(default_factory=lambda: Usual(120, 15, settles=450))
    """Concurrency of requests."""
    step_s: Usual = field(default_factory=lambda: Usual(120, 15, settles=450))
    """Median gap."""
    cells: TimeCells = field(default_factory=lambda: TimeCells(CELL_S, CELLS))
    gaps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(CELLS))
    pauses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(CELLS))
    shares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(CELLS))
    """Highest share of pauses that was seen of a cell."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Median gaps of the newest requests: a long one is as it was most of its time."""
    held_s: float = float("-inf")
    """The end of the newest cell with evidence."""
    fed: int = -1
    """The newest cell that is part of the usual."""

    def __post_init__(self) -> None:
        self.cells.arrays += [self.gaps, self.pauses, self.shares]


class StepPauses:
    """See the module. ``look`` once per step."""

    def __init__(self) -> None:
        self._models: Kept[tuple[str, str], _Model] = Kept(_Model, forget_s=600.0)

    def look(self, scene: Scene, incidents: Sequence[Incident], held_up: Container[str]) -> Iterator[Sign]:
        """Signs of ``queueing``. held_up: models of which requests wait now; "" where a page names none."""
        by_model: dict[tuple[str, str], list[RequestRecord]] = {}
        for record in scene.requests:
            by_model.setdefault((record.server, record.model), []).append(record)
        for key, records in by_model.items():
            _take(self._models.look(key, scene.at_s), records, scene)
        self._models.sweep(scene.at_s)
        found = found_servers(incidents, "batch_jitter")
        for key, model in self._models.items():
            due = []
            while model.waiting and scene.at_s - model.waiting[0].known_s >= SETTLE_S:
                due.append(model.waiting.popleft())
            if due:
                is_found = server_name((*key, "")) in found
                yield from _judge(model, key, due, is_found=is_found, is_held_up=key[1] in held_up or "" in held_up)


def _take(model: _Model, records: Sequence[RequestRecord], scene: Scene) -> None:
    """Requests that ended: their prompts, and the steps of some."""
    taken = 0
    for record in records:
        start_s = scene.to_steady(record.start_ns)
        start_s -= max(0.0, scene.to_steady(record.end_ns) - scene.at_s)  # a clock ahead of ours
        if record.first_token_ns is not None:
            first_s = start_s + (record.first_token_ns - record.start_ns) / 1e9
            model.prompts.append((start_s + (record.queue_s or 0.0), first_s))
        steps = _steps(record, start_s, scene.at_s) if taken < _PER_LOOK else None
        if steps is not None:
            taken += 1
            model.waiting.append(steps)


def _steps(record: RequestRecord, start_s: float, at_s: float) -> _Steps | None:
    if record.token_ns is None or not record.per_token or record.outcome != "ok" or record.start_ns <= 0:
        return None
    times_s = start_s + (record.token_ns[-_GAPS_MAX:] - record.start_ns) / 1e9
    gaps = np.diff(times_s)
    if len(gaps) < _GAPS_LEAST or times_s[0] < 0 or times_s[-1] > at_s + 1.0 or gaps.min() < 0:
        return None
    median_s = float(np.median(gaps))
    is_long = gaps > _LONG * np.maximum(median_s, _medians(gaps))
    at = np.flatnonzero(is_long[1:-1] & ~is_long[:-2] & ~is_long[2:]) + 1
    return _Steps(at_s, times_s[1:], times_s[at], times_s[at + 1], median_s, float(record.concurrency))


def _medians(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each gap and its neighbours, in pieces of ``_PIECE``: steps may have become longer halfway."""
    pieces = len(gaps) // _PIECE
    if not pieces:
        return np.full(len(gaps), np.median(gaps))
    found = np.median(gaps[: pieces * _PIECE].reshape(pieces, _PIECE), axis=1)
    return np.asarray(found[np.minimum(np.arange(len(gaps)) // _PIECE, pieces - 1)])


def _judge(
    model: _Model, key: tuple[str, str], due: Sequence[_Steps], *, is_found: bool, is_held_up: bool
) -> Iterator[Sign]:
    """Requests that ended a while ago go into the cells; signs of the cells that they touch."""
    ends_s = np.concatenate([each.ends_s for each in due])
    pauses_s = _unexplained(model, due)
    for moments_s, counts in ((ends_s, model.gaps), (pauses_s, model.pauses)):
        cells, good = model.cells.place(moments_s)
        np.add.at(counts, cells[good], 1.0)
    usual = model.usual.value
    load = sum([each.concurrency for each in due]) / len(due)
    step_s = sum([each.median_s for each in due]) / len(due)
    model.recent.extend(each.median_s for each in due)
    slowest_s = max(step_s, median(model.recent))
    usual_step_s = model.step_s.value
    same = 1 - ramp(slowest_s / usual_step_s, *_SAME_STEP) if usual_step_s else 0.0
    is_more = load > _SAME_LOAD * (model.load.value or 0.0)
    for number in np.unique(np.floor(ends_s / CELL_S).astype(np.int64)).tolist():
        start_s = number * CELL_S
        share = _share(model, number)
        model.shares[number % CELLS] = max(model.shares[number % CELLS], share or 0.0)
        goes_on = start_s - model.held_s <= 2 * _AROUND * CELL_S
        if share is None or usual is None or is_held_up or (is_more and not goes_on):
            continue
        evidence = same * _MOST * ramp(share / max(usual, _FLOOR), *_TIMES)
        evidence = confirmed(evidence, is_found=is_found)
        if evidence <= 0:
            continue
        if evidence >= HOLDS:
            model.held_s = max(model.held_s, start_s + CELL_S)
        fact = Fact("step_pauses", share, Unit.RATIO, usual)
        end_s = min(start_s + CELL_S, due[-1].known_s)
        yield Sign("queueing", ("server", key[1] or f"{key[0]}/"), start_s, end_s, evidence, 1.0, fact)
    _learn(model, load, step_s)


def _unexplained(model: _Model, due: Sequence[_Steps]) -> NDArray[np.float64]:
    """Ends of the pauses in which no prompt is known to have been computed."""
    begin_s, end_s = (np.concatenate([each[column] for each in due]) for column in (2, 3))
    if not len(begin_s) or not model.prompts:
        return end_s
    prompts = np.array(sorted(model.prompts))
    latest = np.maximum.accumulate(prompts[:, 1])
    before = np.searchsorted(prompts[:, 0], end_s) - 1  # the last prompt that began before the pause ended
    return end_s[(before < 0) | (latest[np.maximum(before, 0)] <= begin_s)]


def _share(model: _Model, number: int) -> float | None:
    """Pauses among the gaps of a cell and those around it; None where there are too few."""
    first = max(0, number - _AROUND, model.cells.newest - CELLS + 1)
    cells = np.arange(first, min(number + _AROUND, model.cells.newest) + 1) % CELLS
    gaps = float(model.gaps[cells].sum())
    return float(model.pauses[cells].sum()) / gaps if gaps >= _KNOWN else None


def _learn(model: _Model, load: float, step_s: float) -> None:
    """What is so old that its requests have ended becomes usual, if nothing held."""
    newest = model.cells.newest
    model.fed = max(model.fed, newest - CELLS + 1 + _AROUND)
    while model.fed < newest - _SETTLED:
        model.fed += 1
        if _share(model, model.fed) is not None:
            evidence = 0.0 if model.fed * CELL_S >= model.held_s else 1.0
            # Like with like: at first some prompts are not known, and more pauses are without a reason.
            model.usual.feed(float(model.shares[model.fed % CELLS]), evidence)
            model.load.feed(load, evidence)
            model.step_s.feed(step_s, evidence)
