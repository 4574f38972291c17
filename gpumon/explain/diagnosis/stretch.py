"""When it was worst: the period in cells, its worst stretch, and every signal before and during it.

An engine's gain is its excess over what it usually loses of its requests' time. Hot cells are nearer to the cells above
the period's average gain than to its quiet quarter. The worst stretch is the run of hot cells, breaks of two forgiven,
with the most gain in sum; it begins and ends where the engine that gained most became slow and well again, which for a
queue that grows is long before the worst of it. Where the gain is about the same everywhere, it is the whole period.
Before it is the newest run of cells in which the same engine worked and was well, up to five minutes; an idle engine is
no comparison. Where it was never well before, the first such run after it is calm time, too, but not the time before.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.cells import Cells
from gpumon.explain.diagnosis.figures import Floats, known
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.model import BeforeDuring, Change, Period, Timeline
from gpumon.explain.diagnosis.seen import Seen
from gpumon.model import Unit

CAUSES_SHOWN: Final = 12
HOT: Final = 0.5
BREAK: Final = 2
"""Cells."""
EVEN: Final = 1.5
"""Excess per cell within the stretch over that outside: below it, it was as slow all the time."""
USUAL: Final = 0.1
"""Quantile over the cells of an engine's share of excess in the time of its requests: what it loses when it is well."""
NONE_GAINED: Final = 1e-3
"""Of the excess: less than this over the usual is rounding."""
WELL: Final = 0.2
"""Of the way from the usual share of excess in the time of requests to that in the worst stretch."""
BEFORE_CELLS: Final = 30
BEFORE_LEAST: Final = 2
CHANGES: Final = 60
CHANGED: Final = 0.1
"""Of what it was before: less is no change."""
_NO_TIME_S: Final = 1e-9
_LATENCIES: Final = (
    ("time_to_first_token", "time to first token", "first_token_s", Unit.SECONDS),
    ("tokens_per_second", "decode tokens/s of a request", "tokens_per_s", Unit.NONE),
    ("longest_gap", "longest gap of a request", "gap_max_s", Unit.SECONDS),
    ("queue_time", "time in the queue", "queue_s", Unit.SECONDS),
    ("prompt_tokens", "prompt tokens", "prompt_tokens", Unit.NONE),
    ("completion_tokens", "completion tokens", "completion_tokens", Unit.NONE),
    ("open_requests", "requests open on arrival", "concurrency", Unit.NONE),
)


Run = tuple[int, int]
"""First and last cell, both included."""


class Stretch(NamedTuple):
    """The worst one. Cells from first to last, both included."""

    engine: int
    """Position of the group that gained most in it."""
    first: int
    last: int
    before: Run | None
    calm: Run | None
    """What it is compared with: before, or after where there is no before."""
    excess_s: float

    @property
    def run(self) -> Run:
        """Its cells."""
        return self.first, self.last


def timeline(inputs: Inputs, seen: Seen) -> Timeline | None:
    """The period in cells; None where there are no requests. Those of a short one are narrower than those in which the
    worst stretch is looked for."""
    if not len(seen):
        return None
    cells = Cells(seen.cells.start_s, seen.to_s, fine=True)
    # What ran in the period may have ended after it.
    inside = np.flatnonzero(seen.end_s <= seen.to_s)
    ended = cells.at(seen.end_s[inside])
    order = np.argsort(ended, kind="stable")
    parts = np.split(inside[order], np.searchsorted(ended[order], np.arange(1, cells.count)))
    totals = seen.by_cause.sum(axis=0)
    shown = [i for i in np.argsort(-totals, kind="stable").tolist() if totals[i] > 0][:CAUSES_SHOWN]
    return Timeline(
        start=inputs.to_unix(cells.start_s),
        step_seconds=cells.width_s,
        requests=tuple(len(part) for part in parts),
        response_p95=tuple(_short(figures.quantile(seen.duration_s[part], 0.95)) for part in parts),
        per_token_mean=tuple(_short(figures.mean(seen.per_token_s[part])) for part in parts),
        excess=_series(cells.spread(seen.start_s, seen.end_s, seen.excess_s)[0]),
        by_cause={CAUSES[i]: _series(cells.spread(seen.start_s, seen.end_s, seen.by_cause[:, i])[0]) for i in shown},
    )


def worst(seen: Seen) -> Stretch | None:
    """The worst stretch of the period; None where there was no excess."""
    if not seen.excess_s.any():
        return None
    cells = seen.cells
    size = len(seen.rows.groups)
    excess = cells.spread(seen.start_s, seen.end_s, seen.excess_s, seen.group, size)
    busy_s = cells.spread(seen.start_s, seen.end_s, seen.duration_s, seen.group, size)
    gain = _gain(excess, busy_s)
    first, last = _hottest(gain.sum(axis=0))
    engine = int(np.argmax(gain[:, first : last + 1].sum(axis=1)))
    is_well = _well(excess[engine], busy_s[engine], first, last)
    is_slow = (busy_s[engine] > 0) & ~is_well
    while first > 0 and is_slow[first - 1]:
        first -= 1
    while last < cells.count - 1 and is_slow[last + 1]:
        last += 1
    before = _before(is_well, first)
    calm = before if before is not None else _after(is_well, last)
    return Stretch(engine, first, last, before, calm, float(excess[:, first : last + 1].sum()))


def before_during(inputs: Inputs, seen: Seen, stretch: Stretch, usual_s: float = 0.0) -> BeforeDuring:
    """The table of what changed. usual_s: of its excess, what calm time loses as well."""
    cells, group = seen.cells, seen.of(stretch.engine)
    during = cells.period(stretch.first, stretch.last)
    before = cells.period(*stretch.before) if stretch.before is not None else None
    changes = [*_latencies(seen, stretch.engine, during, before), *_signals(inputs, seen, stretch, during, before)]
    changes.sort(key=lambda each: -each[0])
    return BeforeDuring(
        during=_period(inputs, during),
        before=_period(inputs, before) if before is not None else None,
        server=group.server,
        model=group.model,
        excess_seconds=stretch.excess_s,
        usual_seconds=usual_s,
        changes=tuple(change for _, change in changes[:CHANGES]),
    )


def within(seen: Seen, engine: int, period: tuple[float, float]) -> NDArray[np.bool_]:
    """An engine's requests that ran for the greater part in a stretch of time."""
    middle = (seen.start_s + seen.end_s) / 2
    return seen.members(engine) & (middle >= period[0]) & (middle < period[1])


def _hottest(excess: Floats) -> tuple[int, int]:
    """First and last cell of the worst stretch. excess: gain of each cell."""
    if not excess.any():
        return 0, len(excess) - 1
    high = float(excess[excess >= excess.mean()].mean())
    quiet = min(figures.quantile(excess, 0.25) or 0.0, high / 2)
    hot = np.flatnonzero(excess > quiet + HOT * (high - quiet))
    runs = np.split(hot, np.flatnonzero(np.diff(hot) > BREAK + 1) + 1)
    first, last = max(((int(run[0]), int(run[-1])) for run in runs), key=lambda run: excess[run[0] : run[1] + 1].sum())
    inside = np.zeros(len(excess), dtype=np.bool_)
    inside[first : last + 1] = True
    if inside.all() or excess[inside].mean() < EVEN * excess[~inside].mean():
        return 0, len(excess) - 1
    return first, last


def _gain(excess: Floats, busy_s: Floats) -> Floats:
    """Excess over the usual of each engine, (groups, cells); the excess itself where all is as usual."""
    shares = _shares(excess, busy_s)
    usual = np.array([figures.quantile(each, USUAL) or 0.0 for each in shares])
    gain = np.maximum(excess - usual[:, None] * busy_s, 0.0)
    return gain if gain.sum() > NONE_GAINED * excess.sum() else excess


def _shares(excess: Floats, busy_s: Floats) -> Floats:
    return np.where(busy_s > 0, excess / np.maximum(busy_s, _NO_TIME_S), np.nan)


def _well(excess: Floats, busy_s: Floats, first: int, last: int) -> NDArray[np.bool_]:
    """Cells in which an engine worked and was about as slow as it is when it is well. first, last: the hottest ones."""
    worked = busy_s > 0
    shares = _shares(excess, busy_s)
    inside = slice(first, last + 1)
    worst = float(excess[inside].sum() / max(busy_s[inside].sum(), _NO_TIME_S))
    usual = min(figures.quantile(shares, 0.25) or 0.0, worst / 2)
    well: NDArray[np.bool_] = worked & (shares <= usual + WELL * (worst - usual))
    return well


def _before(is_well: NDArray[np.bool_], first: int) -> Run | None:
    """First and last cell of the quiet time before a cell; None where there is none."""
    end = first - 1
    while end >= BEFORE_LEAST - 1:
        start = end
        while start >= 0 and is_well[start] and end - start < BEFORE_CELLS:
            start -= 1
        if end - start >= BEFORE_LEAST:
            return start + 1, end
        end = min(start, end - 1)
    return None


def _after(is_well: NDArray[np.bool_], last: int) -> Run | None:
    """First and last cell of the quiet time after a cell; None where there is none."""
    found = _before(is_well[::-1], len(is_well) - 1 - last)
    return None if found is None else (len(is_well) - 1 - found[1], len(is_well) - 1 - found[0])


def _latencies(
    seen: Seen, engine: int, during: tuple[float, float], before: tuple[float, float] | None
) -> list[tuple[float, Change]]:
    mine = within(seen, engine, during)
    quiet = within(seen, engine, before) if before is not None else np.zeros(len(seen), dtype=np.bool_)
    columns = [
        ("response_time_per_token", "response time per token", Unit.SECONDS.value, seen.per_token_s),
        *((name, title, unit.value, seen.rows.column(column)) for name, title, column, unit in _LATENCIES),
    ]
    table = np.column_stack([values for *_, values in columns])
    return _changes([(name, title, unit) for name, title, unit, _ in columns], table[quiet], table[mine])


def _signals(
    inputs: Inputs,
    seen: Seen,
    stretch: Stretch,
    during: tuple[float, float],
    before: tuple[float, float] | None,
) -> list[tuple[float, Change]]:
    """Of the dimensions: from the group's track, where it reaches, else from the means over its requests."""
    track = inputs.tracks.get(seen.of(stretch.engine))
    named = [(each.name, each.title, str(each.unit)) for each in inputs.dimensions]
    if track is not None:
        mine = _inside(track.seconds, during)
        quiet = _inside(track.seconds, before)
        if mine.any() and (before is None or quiet.any()):
            return _changes(named, track.values[:, quiet].T, track.values[:, mine].T)
    rows = seen.rows.signals
    quiet_rows = within(seen, stretch.engine, before) if before is not None else np.zeros(len(rows), dtype=np.bool_)
    return _changes(named, rows[quiet_rows], rows[within(seen, stretch.engine, during)])


def _inside(seconds: NDArray[np.int64] | Floats, period: tuple[float, float] | None) -> NDArray[np.bool_]:
    if period is None:
        return np.zeros(len(seconds), dtype=np.bool_)
    return (seconds >= period[0]) & (seconds < period[1])


def _changes(
    named: list[tuple[str, str, str]], quiet: NDArray[np.floating], mine: NDArray[np.floating]
) -> list[tuple[float, Change]]:
    """With how much each differs, in standard deviations. Left out are signals of which nothing is known during it, and
    those that changed by less than ``CHANGED``."""
    before, during = figures.means(quiet), figures.means(mine)
    effect = np.abs(figures.effects(mine, quiet, least=1))
    found = []
    for i, (name, title, unit) in enumerate(named[: len(during)]):
        if not math.isfinite(during[i]):
            continue
        is_told = math.isfinite(before[i]) and abs(before[i]) > 1e-12 * abs(during[i]) and before[i] != 0
        ratio = known(during[i] / before[i] - 1.0) if is_told else None
        if (ratio is not None and abs(ratio) < CHANGED) or before[i] == during[i]:
            continue
        weight = float(effect[i]) if math.isfinite(effect[i]) else -1.0
        found.append(
            (
                weight,
                Change(
                    signal=name,
                    title=title,
                    unit=unit,
                    before=known(before[i]),
                    during=known(during[i]),
                    change=ratio,
                ),
            )
        )
    return found


def _period(inputs: Inputs, steady: tuple[float, float]) -> Period:
    return Period(start=inputs.to_unix(steady[0]), end=inputs.to_unix(min(steady[1], max(inputs.to_s, steady[0]))))


def _series(values: Floats) -> tuple[float, ...]:
    return tuple(np.round(values, 6).tolist())


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
