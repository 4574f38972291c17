"""What else a group did at each moment: requests decoding, their context, prompts being computed, requests arriving.

From requests that have ended; those that still run are not known, so one looks some seconds back, and where the
server's page says how many there are (``running_pages``), the rest is taken to be like those that are known. Whoever
compares moments compares like with like: what is usual was learned in the same way.

The last six minutes, in cells of a quarter of a second. A group takes 0.4 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.running_pages import RunningPages

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


class Moments(NamedTuple):
    """What a group did at n moments, as positions in what it did in each stretch of a quarter of a second."""

    where: NDArray[np.intp]
    """(n,)"""
    running: NDArray[np.float64]
    """Requests decoding, at least one."""
    context: NDArray[np.float64]
    """Tokens of all of them together."""


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
        self._prefills = np.zeros((_PREFILLS, 4))
        """A ring. Begin, end, tokens and length of the prompt, in the order in which they became known."""
        self._prefilled = 0
        """Prefills ever."""
        self._forgotten = 0
        """Those of them that are too old."""
        self._pages = RunningPages()

    def add(self, requests: Sequence[Ran], at_s: float) -> None:
        """Requests that became known now. What is older than six minutes is left out."""
        self._advance(int(at_s / STEP_S) + 2)
        if not requests:
            return
        # Columns of ``Ran``.
        columns = np.fromiter(chain.from_iterable(requests), np.float64).reshape(len(requests), -1).T
        start_s, admitted_s, first_s, end_s, prompt, computed, made = columns
        self._add_decodes(first_s, end_s, prompt, made)
        cells = (start_s / STEP_S).astype(np.intp) - self._base
        good = (cells >= 0) & (cells < 2 * CELLS)
        np.add.at(self._arrived, cells[good], 1.0)
        np.add.at(self._brought, cells[good], computed[good])
        prefilled = (computed > 0) & (first_s > admitted_s)
        self._add_prefills(np.stack([admitted_s, first_s, computed, prompt], axis=1)[prefilled])

    def add_tokens(self, made_s: NDArray[np.float64]) -> None:
        """When tokens of the requests added were made, as far as they tell."""
        cells = (made_s / STEP_S).astype(np.intp) - self._base
        if not len(cells):
            return
        first, last = int(cells.min()), int(cells.max())
        if first < 0 or last >= 2 * CELLS:
            cells = cells[(cells >= 0) & (cells < 2 * CELLS)]
            first, last = 0, 2 * CELLS - 1
        # Only what they touch: they are of the last seconds, of twelve minutes.
        self._made[first : last + 1] += np.bincount(cells - first, minlength=last - first + 1)

    def add_running(self, at_s: float, running: float) -> None:
        """Requests in the batch, prompts among them, as the server's page says."""
        self._pages.add(at_s, running)

    def made(self, start_s: float, end_s: float) -> float:
        """Tokens per second in the whole cells between two moments; NaN where there is none."""
        first, last = max(0, int(np.ceil(start_s / STEP_S)) - self._base), min(2 * CELLS, self._cell(end_s))
        return float(self._made[first:last].sum()) / ((last - first) * STEP_S) if last > first else float("nan")

    def at(self, moments_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Requests decoding, at least one, and tokens of context of all of them together."""
        where, running, context = self.moments(moments_s)
        return running[where], context[where]

    def moments(self, moments_s: NDArray[np.float64]) -> Moments:
        """The same, for those who look at many moments of a few seconds."""
        if not len(moments_s):
            return Moments(np.empty(0, dtype=np.intp), np.empty(0), np.empty(0))
        where = (moments_s / STEP_S).astype(np.intp)
        where -= self._base
        first, last = (min(max(int(edge), 0), 2 * CELLS - 1) for edge in (where.min(), where.max()))
        np.clip(where, first, last, out=where)
        where -= first
        decoding = self._decoding[first : last + 1]
        # A request at the edge of a cell is there for a part of it: one alone is still one.
        mean = np.divide(self._context[first : last + 1], decoding, out=np.zeros(len(decoding)), where=decoding > 0)
        middles_s = STEP_S * np.arange(first + self._base + 0.5, last + self._base + 1, dtype=np.float64)
        running = np.maximum(decoding + self._pages.unknown(middles_s, self._known), 1.0)
        return Moments(where, running, running * mean)

    def arrived(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Requests, and prompt tokens to be computed, per second that came from start to end."""
        first, last = max(0, self._cell(start_s)), min(2 * CELLS, self._cell(end_s))
        lasted_s = max((last - first) * STEP_S, STEP_S)
        return float(self._arrived[first:last].sum()) / lasted_s, float(self._brought[first:last].sum()) / lasted_s

    def others(self, start_s: float, end_s: float) -> Others:
        """Prompts computed between start and end."""
        oldest, newest = max(self._forgotten, self._prefilled - _PREFILLS), self._prefilled
        known = self._prefills[np.arange(oldest, newest) % _PREFILLS] if oldest < newest else self._prefills[:0]
        table = known[(known[:, 0] < end_s) & (known[:, 1] > start_s)]
        if not len(table):
            return Others(np.empty(0), np.empty(0), np.empty(0))
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

    def _known(self, moments_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Requests decoding or having their prompts computed at each moment (ascending), of those that have ended."""
        cells = np.clip((moments_s / STEP_S).astype(np.intp) - self._base, 0, 2 * CELLS - 1)
        oldest, newest = max(self._forgotten, self._prefilled - _PREFILLS), self._prefilled
        known = self._prefills[np.arange(oldest, newest) % _PREFILLS]
        known = known[(known[:, 1] > moments_s[0]) & (known[:, 0] <= moments_s[-1])]  # a few of thousands
        begun = np.searchsorted(np.sort(known[:, 0]), moments_s, "right")
        ended = np.searchsorted(np.sort(known[:, 1]), moments_s, "right")
        return np.asarray(self._decoding[cells] + (begun - ended), dtype=np.float64)

    def _cell(self, moment_s: float) -> int:
        return int(moment_s / STEP_S) - self._base

    def _add_decodes(
        self,
        first_s: NDArray[np.float64],
        end_s: NDArray[np.float64],
        prompt: NDArray[np.float64],
        made: NDArray[np.float64],
    ) -> None:
        """Of every request the cells in which it decoded, all of them one after the other."""
        starts, stops = first_s / STEP_S - self._base, end_s / STEP_S - self._base
        begins, ends = np.maximum(starts, 0.0), np.minimum(stops, 2.0 * CELLS - 1)
        some = ends > begins
        if not some.any():
            return
        starts, lengths, begins, ends = starts[some], (stops - starts)[some], begins[some], ends[some]
        firsts = begins.astype(np.intp)
        counts = ends.astype(np.intp) - firsts + 1
        of = np.repeat(np.arange(len(counts)), counts)
        cells = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - firsts, counts)
        edges = np.maximum(cells, begins[of]), np.minimum(cells + 1, ends[of])
        shares = edges[1] - edges[0]
        middles = (edges[0] + edges[1]) / 2
        contexts = prompt[some][of] + made[some][of] * np.clip((middles - starts[of]) / lengths[of], 0.0, 1.0)
        low, size = int(cells.min()), int(cells.max() - cells.min()) + 1
        self._decoding[low : low + size] += np.bincount(cells - low, shares, size)
        self._context[low : low + size] += np.bincount(cells - low, shares * contexts, size)

    def _add_prefills(self, rows: NDArray[np.float64]) -> None:
        rows = rows[-_PREFILLS:]
        self._prefills[np.arange(self._prefilled, self._prefilled + len(rows)) % _PREFILLS] = rows
        self._prefilled += len(rows)

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
        oldest = max(self._forgotten, self._prefilled - _PREFILLS)
        while oldest < self._prefilled and self._prefills[oldest % _PREFILLS, 1] < oldest_s:
            oldest += 1
        self._forgotten = oldest
