"""The matrix: each dimension's mean over the slow requests and over the others, and its r with response time.

Of one engine: on another one's GPUs everything differs, whoever is slow. ``bad`` is a dimension past its healthy bound
on the slow requests, and clearly worse there than on the others. ``suspect`` goes with slowness, whatever its bound, or
is past it where no other request tells what is normal. ``ok`` is neither; or next to nothing on both sides; or healthy
on both and about the same; or of no bound and nearly the same; or a temperature that is better on the slow requests.
``unknown`` is what too few requests tell.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.figures import known
from gpumon.explain.diagnosis.inputs import DimensionLike, Inputs
from gpumon.explain.diagnosis.model import MatrixRow, Verdict
from gpumon.explain.diagnosis.seen import Seen
from gpumon.model import Unit

CLEAR: Final = 0.5
"""Effect from which the slow requests are clearly worse; Cohen's "medium"."""
LARGE: Final = 0.8
"""Effect that is suspect by itself; Cohen's "large"."""
STRONG: Final = 0.7
"""Correlation likewise; docs/EXPLAINING.md, Correlation."""
ALIKE: Final = 0.2
"""Of the others' mean: means that differ by less are about the same, where both are healthy."""
NEARLY: Final = 0.1
"""Likewise, where nobody says what is healthy; as in the table of what changed."""
NEGLIGIBLE: Final = 0.1
"""Of a bound: of what is bad when it is high, this little is nothing."""
NO_TIME: Final = 0.02
"""Seconds a second, likewise, where nobody says what is healthy."""
_ORDER: Final[dict[Verdict, int]] = {"bad": 0, "suspect": 1, "ok": 2, "unknown": 3}


def matrix(inputs: Inputs, seen: Seen, engine: int | None) -> tuple[MatrixRow, ...]:
    """A row for each dimension, the worst first; of the same verdict those that differ most.

    engine: position of the group whose requests are compared; None: that with the most requests.
    """
    if engine is None and seen.engines:
        engine = seen.engines[0]
    mine = seen.group == engine if engine is not None else np.zeros(len(seen), dtype=np.bool_)
    table, response = seen.rows.signals[mine], seen.response[mine]
    slow, others = table[seen.slow[mine]], table[~seen.slow[mine]]
    slow_mean, other_mean = figures.means(slow), figures.means(others)
    effect = figures.effects(slow, others)
    r, counts = figures.correlations(table, response)
    rows = [
        MatrixRow(
            dimension=dimension.name,
            title=dimension.title,
            unit=str(dimension.unit),
            healthy=dimension.healthy,
            slow_mean=known(slow_mean[i]),
            other_mean=known(other_mean[i]),
            effect=known(effect[i]),
            r=known(r[i]),
            n=int(counts[i]),
            verdict=_verdict(dimension, slow_mean[i], other_mean[i], effect[i], r[i]),
        )
        for i, dimension in enumerate(inputs.dimensions[: table.shape[1]])
    ]
    return tuple(sorted(rows, key=lambda row: (_ORDER[row.verdict], -abs(row.effect or 0.0), -abs(row.r or 0.0))))


def _verdict(dimension: DimensionLike, slow_mean: float, other_mean: float, effect: float, r: float) -> Verdict:
    if not math.isfinite(slow_mean):
        return "suspect" if abs(r) > STRONG else "unknown"
    sign = 1.0 if dimension.high_is_bad else -1.0
    is_past = _is_past(dimension, slow_mean)
    if is_past and sign * effect > CLEAR:
        return "bad"
    if _is_negligible(dimension, slow_mean, other_mean):
        return "ok"
    is_healthy = dimension.bound is not None and not is_past and not _is_past(dimension, other_mean)
    is_alike = abs(slow_mean - other_mean) < ALIKE * abs(other_mean)
    if is_healthy and is_alike:
        return "ok"
    if dimension.bound is None and abs(slow_mean - other_mean) < NEARLY * abs(other_mean):
        return "ok"
    if dimension.unit == Unit.CELSIUS.value and sign * effect <= 0:
        return "ok"
    # What goes along with response time and is the same on slow requests goes along with something else.
    if (abs(r) > STRONG and not is_alike) or abs(effect) > LARGE:
        return "suspect"
    if math.isnan(effect):
        return "suspect" if is_past else "unknown"
    return "ok"


def _is_negligible(dimension: DimensionLike, slow_mean: float, other_mean: float) -> bool:
    most = NO_TIME if dimension.unit == "s/s" else 0.0
    if dimension.bound is not None:
        most = NEGLIGIBLE * dimension.bound if dimension.high_is_bad else 0.0
    return 0.0 <= slow_mean < most and 0.0 <= other_mean < most


def _is_past(dimension: DimensionLike, value: float) -> bool:
    sign = 1.0 if dimension.high_is_bad else -1.0
    return dimension.bound is not None and sign * (value - dimension.bound) > 0
