"""What else a group did at each moment: requests decoding, their context, prompts being computed, requests arriving.

From requests that have ended; those that still run are not known, so one looks some seconds back. Whoever compares
moments compares like with like: what is usual was learned in the same way.

The last six minutes, in cells of a quarter of a second. A group takes 0.2 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP_S: Final = 0.25
CELLS: Final = 1440
KEPT_S: Final = STEP_S * CELLS
_PREFILLS: Final = 8192


class Ran(NamedTuple):
    """When a request did what, steady seconds."""

    start_s: float
    """It arrived."""
    admitted_s: float
    """Its prefill began, or at the latest then."""
    first_s: float
    """Its first token, the end of prefill."""
    end_s: float
    prompt: int
    """Tokens."""
    computed: int
    """Those of them that were not cached."""
    made: int
    """Tokens of the answer."""


class Others(NamedTuple):
    """Prompt tokens that a group computed: running sums at ``times``, between which they grow evenly."""

    times: NDArray[np.float64]
    tokens: NDArray[np.float64]
    weighed: NDArray[np.float64]
    """Tokens, each times the length of its prompt."""

    def between(
        self, starts_s: NDArray[np.float64], ends_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each stretch: prompt tokens, and the mean length of the prompts that they are of (0 where none are)."""
        if not len(self.times):
            return np.zeros(len(starts_s)), np.zeros(len(starts_s))
        tokens = np.interp(ends_s, self.times, self.tokens) - np.interp(starts_s, self.times, self.tokens)
        weighed = np.interp(ends_s, self.times, self.weighed) - np.interp(starts_s, self.times, self.weighed)
        tokens = np.where(tokens > 0.5, tokens, 0.0)  # what is left of rounding is nothing
        return tokens, np.divide(weighed, tokens, out=np.zeros(len(tokens)), where=tokens > 0)


class GroupLoad:
    """Of one group. Not thread-safe."""

    def __init__(self) -> None:
        self._base = 0
        """Number of the first cell of the arrays."""
        self._decoding = np.zeros(2 * CELLS)
        self._context = np.zeros(2 * CELLS)
        self._arrived = np.zeros(2 * CELLS)
        self._brought = np.zeros(2 * CELLS)
        self._made = np.zeros(2 * CELLS)
        """Tokens."""
        self._prefills: deque[tuple[float, float, float, float]] = deque(maxlen=_PREFILLS)
        """Begin, end, tokens and length of the prompt, in the order in which they became known."""

    def add(self, requests: Sequence[Ran], at_s: float) -> None:
        """Requests that became known now. What is older than six minutes is left out."""
        self._advance(int(at_s / STEP_S) + 2)
        for ran in requests:
            self._add_decode(ran)
            cell = self._cell(ran.start_s)
            if 0 <= cell < 2 * CELLS:
                self._arrived[cell] += 1
                self._brought[cell] += ran.computed
            if ran.computed > 0 and ran.first_s > ran.admitted_s:
                self._prefills.append((ran.admitted_s, ran.first_s, float(ran.computed), float(ran.prompt)))

    def add_tokens(self, made_s: NDArray[np.float64]) -> None:
        """When tokens of the requests added were made, as far as they tell."""
        cells = (made_s / STEP_S).astype(np.intp) - self._base
        good = (cells >= 0) & (cells < 2 * CELLS)
        self._made += np.bincount(cells[good], minlength=2 * CELLS)

    def made(self, start_s: float, end_s: float) -> float:
        """Tokens per second in the whole cells between two moments; NaN where there is none."""
        first, last = max(0, int(np.ceil(start_s / STEP_S)) - self._base), min(2 * CELLS, self._cell(end_s))
        return float(self._made[first:last].sum()) / ((last - first) * STEP_S) if last > first else float("nan")

    def at(self, moments_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Requests decoding, at least one, and tokens of context of all of them together."""
        cells = np.clip((moments_s / STEP_S).astype(np.intp) - self._base, 0, 2 * CELLS - 1)
        decoding = self._decoding[cells]
        # A request at the edge of a cell is there for a part of it: one alone is still one.
        mean = np.divide(self._context[cells], decoding, out=np.zeros(len(cells)), where=decoding > 0)
        running = np.maximum(decoding, 1.0)
        return running, running * mean

    def arrived(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Requests, and prompt tokens to be computed, per second that came from start to end."""
        first, last = max(0, self._cell(start_s)), min(2 * CELLS, self._cell(end_s))
        lasted_s = max((last - first) * STEP_S, STEP_S)
        return float(self._arrived[first:last].sum()) / lasted_s, float(self._brought[first:last].sum()) / lasted_s

    def others(self, start_s: float, end_s: float) -> Others:
        """Prompts computed between start and end."""
        rows = [row for row in self._prefills if row[0] < end_s and row[1] > start_s]
        if not rows:
            return Others(np.empty(0), np.empty(0), np.empty(0))
        table = np.array(rows)
        rates = table[:, 2] / (table[:, 1] - table[:, 0])
        times = np.concatenate([table[:, 0], table[:, 1]])
        slopes = np.concatenate([rates, -rates])
        weighed = np.concatenate([rates * table[:, 3], -rates * table[:, 3]])
        order = np.argsort(times, kind="stable")
        times, slopes, weighed = times[order], np.cumsum(slopes[order]), np.cumsum(weighed[order])
        steps = np.diff(times)
        return Others(
            times,
            np.concatenate([[0.0], np.cumsum(slopes[:-1] * steps)]),
            np.concatenate([[0.0], np.cumsum(weighed[:-1] * steps)]),
        )

    def _cell(self, moment_s: float) -> int:
        return int(moment_s / STEP_S) - self._base

    def _add_decode(self, ran: Ran) -> None:
        begin, end = ran.first_s / STEP_S - self._base, ran.end_s / STEP_S - self._base
        start, length = begin, end - begin
        begin, end = max(begin, 0.0), min(end, 2.0 * CELLS - 1)
        if end <= begin:
            return
        first, last = int(begin), int(end)
        share = np.ones(last - first + 1)
        share[0] -= begin - first
        share[-1] -= last + 1 - end
        cells = np.arange(first, last + 1)
        middles = (np.maximum(cells, begin) + np.minimum(cells + 1, end)) / 2
        contexts = ran.prompt + ran.made * np.clip((middles - start) / length, 0.0, 1.0)
        self._decoding[first : last + 1] += share
        self._context[first : last + 1] += share * contexts

    def _advance(self, cell: int) -> None:
        """Make room for a cell; the older half goes when the arrays are full."""
        if cell - self._base < 2 * CELLS:
            return
        shift = min(cell - self._base - CELLS, 2 * CELLS)
        for array in (self._decoding, self._context, self._arrived, self._brought, self._made):
            array[: 2 * CELLS - shift] = array[shift:].copy()
            array[2 * CELLS - shift :] = 0.0
        self._base = cell - CELLS if shift == 2 * CELLS else self._base + shift
        oldest_s = self._base * STEP_S
        while self._prefills and self._prefills[0][1] < oldest_s:
            self._prefills.popleft()
