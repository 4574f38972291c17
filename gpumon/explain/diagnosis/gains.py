"""What a stretch of time lost beyond what calm time loses as well.

Some load is always there: prompts of others are computed in calm minutes, too, and cost each token a little. What a
cause cost in the calm time, in seconds lost per second of request time, is taken off for the stretch, by engine; what
is left is what changed, and that is what is told first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import is_fault
from gpumon.explain.diagnosis.facts import fact_text
from gpumon.explain.diagnosis.figures import Floats
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.diagnosis.stretch import Run, Stretch

FAULT_WEIGHT: Final = 1.25
"""A fault is told before load that gained up to as many times more: load grows behind a fault."""
_NO_TIME_S: Final = 1e-9


class Reason(NamedTuple):
    """A cause within the stretch."""

    cause: str
    seconds: float
    """Gained: beyond what calm time loses to it as well."""
    share: float
    """Of all that was gained; together 1."""
    fact: str
    """As text; may be empty."""
    engine: int
    """Position of the group that gained most of it."""


class Gained(NamedTuple):
    """See the module."""

    reasons: tuple[Reason, ...]
    """Those that gained, the most seconds first, faults before load."""
    usual_s: float
    """Lost in the stretch as in calm time."""
    calm_per_minute: dict[str, float] | None
    """Seconds lost per minute of calm time, by cause; None where no time was calm."""

    @property
    def seconds(self) -> float:
        """Of all reasons."""
        return sum(each.seconds for each in self.reasons)


def gained(seen: Seen, stretch: Stretch) -> Gained:
    """Of a stretch. Excess is spread evenly over each request's time."""
    lost, busy_s = _lost(seen, stretch.run), _busy(seen, stretch.run)
    by_cause = lost.sum(axis=0)
    usual = np.zeros(len(CAUSES))
    more_by_engine = lost
    per_minute = None
    if stretch.calm is not None:
        calm, calm_busy_s = _lost(seen, stretch.calm), _busy(seen, stretch.calm)
        # Of an engine that did not work then, the others tell.
        whole = calm.sum(axis=0) / max(float(calm_busy_s.sum()), _NO_TIME_S)
        known = (calm_busy_s > 0)[:, None]
        rates = np.where(known, calm / np.maximum(calm_busy_s, _NO_TIME_S)[:, None], whole)
        usual = np.minimum((rates * busy_s[:, None]).sum(axis=0), by_cause)
        more_by_engine = lost - rates * busy_s[:, None]
        from_s, to_s = seen.cells.period(*stretch.calm)
        per_minute = {
            CAUSES[i]: 60.0 * float(seconds) / (to_s - from_s) for i, seconds in enumerate(calm.sum(axis=0).tolist())
        }
        if not (by_cause > usual).any():
            usual = np.zeros(len(CAUSES))
    more = by_cause - usual
    total_s = float(more.sum())
    rows = seen.rows[_touching(seen, stretch.run)]
    order = sorted(np.flatnonzero(more > 0).tolist(), key=lambda i: -_weight(CAUSES[i], float(more[i])))
    return Gained(
        tuple(
            Reason(
                CAUSES[i],
                float(more[i]),
                float(more[i]) / total_s,
                fact_text(rows.fact(i)),
                int(np.argmax(more_by_engine[:, i])),
            )
            for i in order
        ),
        float(usual.sum()),
        per_minute,
    )


def _lost(seen: Seen, run: Run) -> Floats:
    """Seconds of excess in a run of cells, by engine and cause: (groups, causes)."""
    mine = _touching(seen, run)
    start_s, end_s, group, by_cause = seen.start_s[mine], seen.end_s[mine], seen.group[mine], seen.by_cause[mine]
    size = len(seen.rows.groups)
    lost = np.zeros((size, len(CAUSES)))
    for cause in np.flatnonzero(by_cause.any(axis=0)).tolist():
        spread = seen.cells.spread(start_s, end_s, by_cause[:, cause], group, size)
        lost[:, cause] = spread[:, run[0] : run[1] + 1].sum(axis=1)
    return lost


def _busy(seen: Seen, run: Run) -> Floats:
    """Seconds of request time in it, by engine."""
    mine = _touching(seen, run)
    size = len(seen.rows.groups)
    spread = seen.cells.spread(seen.start_s[mine], seen.end_s[mine], seen.duration_s[mine], seen.group[mine], size)
    busy_s: Floats = spread[:, run[0] : run[1] + 1].sum(axis=1)
    return busy_s


def _touching(seen: Seen, run: Run) -> NDArray[np.intp]:
    """Requests that ran in it for some time."""
    from_s, to_s = seen.cells.period(*run)
    return np.flatnonzero((seen.end_s >= from_s) & (seen.start_s < to_s))


def _weight(cause: str, seconds: float) -> float:
    return seconds * FAULT_WEIGHT if is_fault(cause) else seconds
