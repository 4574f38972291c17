"""From seconds by cause to what is said of a request: shares with their evidence, lift and figure, largest first.

Of single slow gaps it is said only when somebody asks: there are many, and few are looked at. Until then they are rows
of numbers, with the figures of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import Board, Told, best
from gpumon.explain.explained import Share, SlowGap
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact

_LEAST_SHARE: Final = 1e-6
_GAP: Final = 5
"""Columns of a gap before its figures: start, end, tokens, expected and excess."""

Array = NDArray[np.float64]


class Telling(NamedTuple):
    """What the shares of several requests have in common."""

    causes: list[int]
    """Positions in CAUSES of the columns that are handed in."""
    load: dict[int, Fact]
    """What stands behind causes that are load; what was observed is each request's, or gap's: the figures that are
    handed in, in this order."""
    lifts: dict[int, float]
    told: dict[int, list[Told]]
    """Figures behind conditions, by cause."""

    @staticmethod
    def of(
        shares_s: Array,
        load: dict[int, Fact],
        lifts: dict[int, float],
        board: Board,
        keys: Iterable[Key],
        when: tuple[float, float],
    ) -> Telling:
        """shares_s: (n, CAUSES), of which only the causes with any seconds are told of. when: they are all of."""
        causes = np.flatnonzero(shares_s.any(axis=0)).tolist()
        told = {cause: board.told(keys, cause, *when) for cause in causes if cause not in load}
        return Telling(causes, load, lifts, told)

    def shares(
        self,
        seconds: Sequence[float],
        evidence: Sequence[float],
        when: tuple[float, float],
        figures: Sequence[float],
    ) -> tuple[Share, ...]:
        """seconds, evidence: by cause, in the order of ``causes``. figures: in the order of ``load``."""
        whole = sum(seconds)
        if whole <= 0:
            return ()
        least = _LEAST_SHARE * whole
        rows = [row for row, each in enumerate(seconds) if each > least]
        if len(rows) > 1:
            rows.sort(key=lambda row: -seconds[row])
        # Crumbs go to the largest, so that the sum stays what it is.
        crumbs = max(0.0, whole - sum([seconds[row] for row in rows]))
        found = []
        for row in rows:
            cause = self.causes[row]
            fact = best(self.told[cause], *when) if cause in self.told else self._fact(cause, figures)
            found.append(Share(CAUSES[cause], seconds[row] + crumbs, evidence[row], self.lifts.get(cause), fact))
            crumbs = 0.0
        return tuple(found)

    def _fact(self, cause: int, figures: Sequence[float]) -> Fact:
        known = self.load[cause]
        return Fact(known.name, figures[[*self.load].index(cause)], known.unit, known.usual)


class SlowGaps(Sequence[SlowGap]):
    """Slow gaps of a request, by time."""

    __slots__ = ("_rows", "_telling")

    def __init__(self, rows: Array, telling: Telling) -> None:
        """rows: of ``gap_rows``, for this request alone."""
        self._rows = rows
        self._telling = telling

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(tuple(self))

    @overload
    def __getitem__(self, position: int) -> SlowGap: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[SlowGap]: ...

    def __getitem__(self, position: int | slice) -> SlowGap | Sequence[SlowGap]:
        if isinstance(position, slice):
            return SlowGaps(self._rows[position], self._telling)
        row = self._rows[position].tolist()
        start_s, end_s, tokens, expected_s, excess_s = row[:_GAP]
        first, middle = _GAP + len(self._telling.load), _GAP + len(self._telling.load) + len(self._telling.causes)
        shares = self._telling.shares(row[first:middle], row[middle:], (start_s, end_s), row[_GAP:first])
        return SlowGap(start_s, end_s, round(tokens), expected_s, excess_s, shares)


def gap_rows(columns: Sequence[Array], shares_s: Array, evidence: Array, telling: Telling) -> Array:
    """Rows for ``SlowGaps``, of several requests. columns: starts, ends, tokens, expected, excess, then the figures
    behind load, each of shape (n,); shares_s, evidence: (n, CAUSES)."""
    return np.concatenate([np.stack(columns, axis=1), shares_s[:, telling.causes], evidence[:, telling.causes]], axis=1)
