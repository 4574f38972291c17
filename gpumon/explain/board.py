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

CELL_S: Final = 0.5
CELLS: Final = 720
KEPT_S: Final = CELL_S * CELLS
ROWS_MAX: Final = 1024
_FACTS: Final = 64
_PRUNE_S: Final = 10.0


class _Told(NamedTuple):
    start_s: float
    end_s: float
    evidence: float
    fact: Fact


class _Row:
    """Of one thing and cause: rings over the cells up to ``newest``."""

    __slots__ = ("caps", "evidence", "facts", "newest")

    def __init__(self, cell: int) -> None:
        self.newest = cell
        self.evidence = np.zeros(CELLS, dtype=np.float32)
        self.caps = np.zeros(CELLS, dtype=np.float32)
        self.facts: deque[_Told] = deque(maxlen=_FACTS)

    def put(self, first: int, last: int, evidence: float, cap: float) -> None:
        """Cells first to last, both included."""
        if last > self.newest:
            fresh = np.arange(max(self.newest + 1, last - CELLS + 1), last + 1) % CELLS
            self.evidence[fresh] = 0.0
            self.caps[fresh] = 0.0
            self.newest = last
        cells = np.arange(max(first, self.newest - CELLS + 1), last + 1) % CELLS
        known = self.evidence[cells]
        same, more = cells[known == np.float32(evidence)], cells[known < np.float32(evidence)]
        self.caps[same] = np.maximum(self.caps[same], cap)
        self.evidence[more], self.caps[more] = evidence, cap

    def read(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evidence and caps of cells first to last; 0 where nothing is known."""
        numbers = np.arange(first, last + 1)
        known = (numbers <= self.newest) & (numbers > self.newest - CELLS)
        cells = numbers % CELLS
        zero = np.float32(0)
        return np.where(known, self.evidence[cells], zero), np.where(known, self.caps[cells], zero)


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
        longest = int((high - low).max(initial=0)) + 1
        shape = (len(starts_s), len(self.causes))
        evidence, lost, cells = np.zeros(shape), np.zeros(shape), np.zeros(len(starts_s))
        # Most stretches are in one cell or two: as many passes over all of them as the longest has cells.
        for step in range(longest):
            at = low + step
            there = at <= high
            at = np.minimum(at, count - 1)
            seen = np.where(there[:, None], self.evidence[:, at].T, 0.0)
            np.maximum(evidence, seen, out=evidence)
            lost += np.where(there[:, None], (self.evidence * self.caps)[:, at].T, 0.0)
            cells += there
        return evidence, lost / cells[:, None]


class Board:
    """See the module. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Key, str], _Row] = {}
        self._pruned_s = -math.inf
        self.left_out = 0
        """Signs for which there was no room, or that cannot be true."""

    def __len__(self) -> int:
        return len(self._rows)

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
            self._rows = {name: row for name, row in self._rows.items() if row.newest > oldest}

    def _put(self, sign: Sign) -> None:
        # The end of a stretch is the beginning of the next one: a reading at a cell's edge is not of the next cell.
        last = max(0, math.ceil(sign.end_s / CELL_S) - 1)
        first = min(last, int(sign.start_s / CELL_S))
        name = (sign.key, sign.cause)
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self.left_out += 1
                return
            row = self._rows[name] = _Row(last)
        evidence = min(1.0, sign.evidence)
        row.put(first, last, evidence, min(1.0, max(0.0, sign.cap)))
        if sign.fact is not None and math.isfinite(sign.fact.observed) and math.isfinite(sign.fact.usual or 0.0):
            row.facts.append(_Told(sign.start_s, sign.end_s, evidence, sign.fact))

    def conditions(self, keys: Iterable[Key], start_s: float, end_s: float) -> Conditions:
        """What held of any of these things from start to end: of several the one with most evidence."""
        first = int(start_s / CELL_S)
        last = max(first, int(end_s / CELL_S))
        wanted = set(keys)
        merged: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        for (key, cause), row in self._rows.items():
            if key not in wanted:
                continue
            evidence, caps = row.read(first, last)
            if not evidence.any():
                continue
            known = merged.get(INDEX[cause])
            if known is not None:
                more = (evidence > known[0]) | ((evidence == known[0]) & (caps > known[1]))
                evidence, caps = np.where(more, evidence, known[0]), np.where(more, caps, known[1])
            merged[INDEX[cause]] = (evidence, caps)
        causes = tuple(sorted(merged))
        shape = (len(causes), last - first + 1)
        return Conditions(
            first,
            causes,
            np.array([merged[cause][0] for cause in causes], dtype=np.float64).reshape(shape),
            np.array([merged[cause][1] for cause in causes], dtype=np.float64).reshape(shape),
        )

    def fact(self, keys: Iterable[Key], cause: str, start_s: float, end_s: float) -> Fact | None:
        """The figure behind a condition: of those told in this stretch the one with most evidence, the newest such."""
        found: _Told | None = None
        for key in keys:
            row = self._rows.get((key, cause))
            for told in row.facts if row is not None else ():
                if (
                    told.start_s <= end_s
                    and told.end_s >= start_s
                    and (found is None or told.evidence >= found.evidence)
                ):
                    found = told
        return found.fact if found is not None else None
