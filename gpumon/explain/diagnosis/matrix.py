"""The matrix: each dimension's mean over the slow requests and over the others, and its r with response time.

``bad`` is a dimension past its healthy bound on the slow requests, and clearly worse there than on the others.
``suspect`` goes with slowness, whatever its bound, or is past it where no other request tells what is normal. ``ok`` is
neither, ``unknown`` what too few requests tell.
"""

from __future__ import annotations

import math
from typing import Final

from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.figures import known
from gpumon.explain.diagnosis.inputs import DimensionLike, Inputs
from gpumon.explain.diagnosis.model import MatrixRow, Verdict
from gpumon.explain.diagnosis.seen import Seen

CLEAR: Final = 0.5
"""Effect from which the slow requests are clearly worse; Cohen's "medium"."""
LARGE: Final = 0.8
"""Effect that is suspect by itself; Cohen's "large"."""
STRONG: Final = 0.7
"""Correlation likewise; DESIGN §7."""
_ORDER: Final[dict[Verdict, int]] = {"bad": 0, "suspect": 1, "ok": 2, "unknown": 3}


def matrix(inputs: Inputs, seen: Seen) -> tuple[MatrixRow, ...]:
    """A row for each dimension, the worst first; of the same verdict those that differ most."""
    table = seen.rows.signals
    slow, others = table[seen.slow], table[~seen.slow]
    slow_mean, other_mean = figures.means(slow), figures.means(others)
    effect = figures.effects(slow, others)
    r, counts = figures.correlations(table, seen.response)
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
            verdict=_verdict(dimension, slow_mean[i], effect[i], r[i]),
        )
        for i, dimension in enumerate(inputs.dimensions[: table.shape[1]])
    ]
    return tuple(sorted(rows, key=lambda row: (_ORDER[row.verdict], -abs(row.effect or 0.0), -abs(row.r or 0.0))))


def _verdict(dimension: DimensionLike, slow_mean: float, effect: float, r: float) -> Verdict:
    if not math.isfinite(slow_mean):
        return "suspect" if abs(r) > STRONG else "unknown"
    sign = 1.0 if dimension.high_is_bad else -1.0
    is_past = dimension.bound is not None and sign * (slow_mean - dimension.bound) > 0
    if is_past and sign * effect > CLEAR:
        return "bad"
    if abs(r) > STRONG or abs(effect) > LARGE:
        return "suspect"
    if math.isnan(effect):
        return "suspect" if is_past else "unknown"
    return "ok"
