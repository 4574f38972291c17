"""When it was worst: the period in cells, its worst stretch, and every signal before and during it.

Hot cells are nearer to the cells above the period's average than to its quiet quarter. The worst stretch is the run of
hot cells, breaks of two forgiven, with the most excess in sum; it begins and ends where the engine that lost most
became slow and well again, which for a queue that grows is long before the worst of it. Where excess is about the same
everywhere, it is the whole period. Before it is the newest run of cells in which the same engine worked and was well,
up to five minutes; an idle engine is no comparison.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.figures import Floats, known
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.model import BeforeDuring, Change, Period, Timeline
from gpumon.explain.diagnosis.seen import Seen
from gpumon.model import Unit

CAUSES_SHOWN: Final = 6
HOT: Final = 0.5
BREAK: Final = 2
"""Cells."""
EVEN: Final = 1.5
"""Excess per cell within the stretch over that outside: below it, it was as slow all the time."""
WELL: Final = 0.2
"""Of the way from the usual share of excess in the time of requests to that in the worst stretch."""
BEFORE_CELLS: Final = 30
BEFORE_LEAST: Final = 2
CHANGES: Final = 60
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


class Stretch(NamedTuple):
    """The worst one. Cells from first to last, both included."""

    engine: int
    """Position of the group that lost most in it."""
    first: int
    last: int
    before: tuple[int, int] | None
    excess_s: float


class Reason(NamedTuple):
    """A cause within it."""

    cause: str
    seconds: float
    share: float
    """Of the excess within it; together 1."""
    fact: str
    """As text; may be empty."""


def timeline(inputs: Inputs, seen: Seen) -> Timeline | None:
    """The period in cells; None where there are no requests."""
    if not len(seen):
        return None
    cells = seen.cells
    ended = cells.at(seen.end_s)
    order = np.argsort(ended, kind="stable")
    parts = np.split(order, np.searchsorted(ended[order], np.arange(1, cells.count)))
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
    total = excess.sum(axis=0)
    first, last = _hottest(total)
    engine = int(np.argmax(excess[:, first : last + 1].sum(axis=1)))
    mine = seen.members(engine)
    busy_s = cells.spread(seen.start_s[mine], seen.end_s[mine], seen.duration_s[mine])[0]
    is_well = _well(excess[engine], busy_s, first, last)
    is_slow = (busy_s > 0) & ~is_well
    while first > 0 and is_slow[first - 1]:
        first -= 1
    while last < cells.count - 1 and is_slow[last + 1]:
        last += 1
    return Stretch(engine, first, last, _before(is_well, first), float(total[first : last + 1].sum()))


def before_during(inputs: Inputs, seen: Seen, stretch: Stretch) -> BeforeDuring:
    """The table of what changed."""
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
        changes=tuple(change for _, change in changes[:CHANGES]),
    )


def reasons(seen: Seen, stretch: Stretch) -> tuple[Reason, ...]:
    """The causes of the excess within it, the most seconds first. Excess is spread evenly over each request's time."""
    period = seen.cells.period(stretch.first, stretch.last)
    mine = np.flatnonzero((seen.end_s >= period[0]) & (seen.start_s < period[1]))
    rows, start_s, end_s = seen.rows[mine], seen.start_s[mine], seen.end_s[mine]
    seconds = np.zeros(len(CAUSES))
    for cause in np.flatnonzero(seen.by_cause[mine].any(axis=0)).tolist():
        spread = seen.cells.spread(start_s, end_s, seen.by_cause[mine, cause])[0]
        seconds[cause] = spread[stretch.first : stretch.last + 1].sum()
    total_s = float(seconds.sum())
    return tuple(
        Reason(CAUSES[i], float(seconds[i]), float(seconds[i]) / total_s, figures.fact_text(rows.fact(i)))
        for i in np.argsort(-seconds, kind="stable").tolist()
        if seconds[i] > 0
    )


def within(seen: Seen, engine: int, period: tuple[float, float]) -> NDArray[np.bool_]:
    """An engine's requests that ran for the greater part in a stretch of time."""
    middle = (seen.start_s + seen.end_s) / 2
    return seen.members(engine) & (middle >= period[0]) & (middle < period[1])


def _hottest(excess: Floats) -> tuple[int, int]:
    """First and last cell of the worst stretch. excess: of each cell, not 0 everywhere."""
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


def _well(excess: Floats, busy_s: Floats, first: int, last: int) -> NDArray[np.bool_]:
    """Cells in which an engine worked and was about as slow as it is when it is well. first, last: the hottest ones."""
    worked = busy_s > 0
    shares = np.where(worked, excess / np.maximum(busy_s, _NO_TIME_S), np.nan)
    inside = slice(first, last + 1)
    worst = float(excess[inside].sum() / max(busy_s[inside].sum(), _NO_TIME_S))
    usual = min(figures.quantile(shares, 0.25) or 0.0, worst / 2)
    well: NDArray[np.bool_] = worked & (shares <= usual + WELL * (worst - usual))
    return well


def _before(is_well: NDArray[np.bool_], first: int) -> tuple[int, int] | None:
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
    """With how much each differs, in standard deviations. Signals of which nothing is known during it are left out."""
    before, during = figures.means(quiet), figures.means(mine)
    effect = np.abs(figures.effects(mine, quiet, least=1))
    found = []
    for i, (name, title, unit) in enumerate(named[: len(during)]):
        if not math.isfinite(during[i]):
            continue
        is_told = math.isfinite(before[i]) and abs(before[i]) > 1e-12 * abs(during[i]) and before[i] != 0
        ratio = known(during[i] / before[i] - 1.0) if is_told else None
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
