"""Remembers the signs of the last six minutes, in cells of half a second, for those who ask later.

A row per thing and cause, made when the first sign comes and given up when none came for as long as it is remembered.
The greatest evidence in a cell counts. What was never said is 0. Bounded: 1,024 rows of 6 kB and 64 facts; signs past
them are counted and left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.causes import INDEX, UNEXPLAINED
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign

Floats = NDArray[np.float32]

CELL_S: Final = 0.5
CELLS: Final = 720
KEPT_S: Final = CELL_S * CELLS
ROWS_MAX: Final = 1024
_FACTS: Final = 64
_PRUNE_S: Final = 10.0


class Told(NamedTuple):
    """A figure, and when it was so."""

    start_s: float
    end_s: float
    evidence: float
    fact: Fact


class _Row:
    """Of one thing and cause: rings over the cells up to ``newest``."""

    __slots__ = ("_cells", "facts", "newest")

    def __init__(self, cell: int) -> None:
        self.newest = cell
        self._cells = np.zeros((2, CELLS), dtype=np.float32)
        """Evidence and caps."""
        self.facts: deque[Told] = deque(maxlen=_FACTS)

    def put(self, first: int, last: int, evidence: float, cap: float) -> None:
        """Cells first to last, both included. Of equal evidence the higher cap counts."""
        for cell in range(max(self.newest + 1, last - CELLS + 1), last + 1):
            self._cells[:, cell % CELLS] = 0.0
        self.newest = max(self.newest, last)
        now = np.float32(evidence)
        for cell in range(max(first, self.newest - CELLS + 1), last + 1):
            known, most = self._cells[:, cell % CELLS]
            if known < now:
                self._cells[:, cell % CELLS] = now, cap
            elif known == now and most < cap:
                self._cells[1, cell % CELLS] = cap

    def read(self, first: int, last: int) -> Floats | None:
        """Evidence and caps of cells first to last, shape (2, cells); 0 where nothing is known, None where all is."""
        low, high = max(first, self.newest - CELLS + 1), min(last, self.newest)
        if low > high:
            return None
        found = np.zeros((2, last - first + 1), dtype=np.float32)
        start, stop = low % CELLS, high % CELLS + 1
        if start < stop:
            found[:, low - first : high - first + 1] = self._cells[:, start:stop]
        else:
            turn = low - first + CELLS - start
            found[:, low - first : turn] = self._cells[:, start:]
            found[:, turn : high - first + 1] = self._cells[:, :stop]
        return found if found[0].any() else None


class Conditions(NamedTuple):
    """What held of a group over a stretch: evidence and caps of shape (causes, cells), from cell ``first`` on.

    ``causes`` are those with any evidence, as indices into CAUSES.
    """

    first: int
    causes: tuple[int, ...]
    evidence: NDArray[np.float64]
    caps: NDArray[np.float64]

    def within(
        self, starts_s: NDArray[np.float64], ends_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each of n stretches the greatest evidence, and the mean share of time that can be lost: (n, causes).

        A stretch that is shorter than a cell has what the cell has.
        """
        count = self.evidence.shape[1]
        low = np.clip(np.floor(starts_s / CELL_S).astype(np.intp) - self.first, 0, count - 1)
        high = np.clip(np.floor(ends_s / CELL_S).astype(np.intp) - self.first, low, count - 1)
        cells = high - low + 1
        # The greatest of 1, 2, 4, … cells from each one on: any stretch is two of these that overlap.
        greatest = [self.evidence]
        for level in range(int(cells.max(initial=1)).bit_length() - 1):
            further = np.roll(greatest[-1], -(1 << level), axis=1)  # what it rolls round to is not asked for
            greatest.append(np.maximum(greatest[-1], further))
        level_of = np.frexp(cells)[1] - 1
        table = np.stack(greatest)
        evidence = np.maximum(table[level_of, :, low], table[level_of, :, high + 1 - (1 << level_of)])
        sums = np.zeros((count + 1, len(self.causes)))
        np.cumsum((self.evidence * self.caps).T, axis=0, out=sums[1:])
        lost = np.maximum(sums[high + 1] - sums[low], 0.0) / cells[:, None]
        # Where nothing held nothing is lost: no crumbs of rounding.
        return evidence, np.where(evidence > 0, lost, 0.0)


def best(told: Iterable[Told], start_s: float, end_s: float) -> Fact | None:
    """Of figures that were so in this stretch the one with most evidence, the last such; None where there is none."""
    found: Told | None = None
    for each in told:
        if each.start_s <= end_s and each.end_s >= start_s and (found is None or each.evidence >= found.evidence):
            found = each
    return found.fact if found is not None else None


class Board:
    """See the module. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[Key, dict[int, _Row]] = {}
        """By thing and cause (its position in CAUSES)."""
        self._count = 0
        self._pruned_s = -math.inf
        self.left_out = 0
        """Signs for which there was no room, or that cannot be true."""

    def __len__(self) -> int:
        return self._count

    def put(self, signs: Iterable[Sign], at_s: float) -> None:
        """What the witnesses say now."""
        for sign in signs:
            good = (
                sign.cause in INDEX
                and sign.cause != UNEXPLAINED
                and math.isfinite(sign.start_s)
                and math.isfinite(sign.end_s)
                and sign.start_s <= sign.end_s <= at_s + CELL_S
                and math.isfinite(sign.evidence)
                and math.isfinite(sign.cap)
            )
            if not good:
                self.left_out += 1
            elif sign.evidence > 0:
                self._put(sign)
        if self._rows and at_s - self._pruned_s >= _PRUNE_S:
            self._pruned_s = at_s
            oldest = int(at_s / CELL_S) - CELLS
            kept = {
                key: {cause: row for cause, row in rows.items() if row.newest > oldest}
                for key, rows in self._rows.items()
            }
            self._rows = {key: rows for key, rows in kept.items() if rows}
            self._count = sum(map(len, self._rows.values()))

    def _put(self, sign: Sign) -> None:
        # The end of a stretch is the beginning of the next one: a reading at a cell's edge is not of the next cell.
        last = max(0, math.ceil(sign.end_s / CELL_S) - 1)
        first = min(last, int(sign.start_s / CELL_S))
        cause = INDEX[sign.cause]
        row = self._rows.get(sign.key, {}).get(cause)
        if row is None:
            if self._count >= ROWS_MAX:
                self.left_out += 1
                return
            self._count += 1
            row = self._rows.setdefault(sign.key, {})[cause] = _Row(last)
        evidence = min(1.0, sign.evidence)
        row.put(first, last, evidence, min(1.0, max(0.0, sign.cap)))
        if sign.fact is not None and math.isfinite(sign.fact.observed) and math.isfinite(sign.fact.usual or 0.0):
            row.facts.append(Told(sign.start_s, sign.end_s, evidence, sign.fact))

    def conditions(self, keys: Iterable[Key], start_s: float, end_s: float) -> Conditions:
        """What held of any of these things from start to end: of several the one with most evidence."""
        first = int(start_s / CELL_S)
        last = max(first, int(end_s / CELL_S))
        merged: dict[int, Floats] = {}
        for key in keys:
            for cause, row in self._rows.get(key, {}).items():
                found = row.read(first, last)
                if found is None:
                    continue
                known = merged.get(cause)
                if known is not None:
                    more = (found[0] > known[0]) | ((found[0] == known[0]) & (found[1] > known[1]))
                    found = np.where(more, found, known)
                merged[cause] = found
        causes = tuple(sorted(merged))
        values = np.zeros((2, len(causes), last - first + 1))
        for place, cause in enumerate(causes):
            values[:, place] = merged[cause]
        return Conditions(first, causes, values[0], values[1])

    def fact(self, keys: Iterable[Key], cause: str, start_s: float, end_s: float) -> Fact | None:
        """The figure behind a condition: of those told in this stretch the one with most evidence, the newest such."""
        return best(self.told(keys, INDEX[cause], start_s, end_s), start_s, end_s)

    def told(self, keys: Iterable[Key], cause: int, start_s: float, end_s: float) -> list[Told]:
        """All figures behind a condition (its position in CAUSES) that were so in this stretch, for ``best``."""
        rows = [row for key in keys if (row := self._rows.get(key, {}).get(cause)) is not None]
        return [told for row in rows for told in row.facts if told.start_s <= end_s and told.end_s >= start_s]
