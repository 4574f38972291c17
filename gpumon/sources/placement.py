"""On which NUMA nodes the resident pages of a process are, estimated from a sample of its pages.

The question per page goes to ``host.pages`` (move_pages(2)), which does not stall the process; a walk of all page
tables (numa_maps) does. Pure but for that port, and deterministic for a given random generator.

The estimator. The mappings are cut at doubling offsets (64 MiB, 128 MiB, ...), because large reservations are mostly
filled from their beginning, and pieces that are alike (size of their mapping, offset) form a stratum. Each round
asks for pages spread evenly, with a random offset, over each stratum; a stratum in which some pages are present and
others not, or in which nodes differ, is then halved. Further rounds go where they lower the variance most (Neyman
allocation: pages of the stratum x standard deviation of what was found there), and into empty strata only as much
as the process's known resident size says is still unfound. So a terabyte that was reserved and hardly touched costs a
few dozen questions unless what is resident must be in it.

The estimate of the pages on a node is the sum over strata of pages x (answers with that node / answers); only the
shares are used. Error: with k present pages among the answers and no structure at all, the standard deviation of a
share s is sqrt(s(1-s)/k), 1.6 points at s = 0.5 and k = 1,000; placement that is contiguous, as first touch makes
it, is known better, because strata become pure. Not found at all is what lies in a region smaller than the
distance between questions in a huge and otherwise empty mapping: ``coverage`` (pages found over pages that are
resident) tells how much that may be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.host.pages import Pages
from gpumon.sources.procfs import Vma

Numbers = NDArray[np.int64]
"""Of pages."""

_FIRST_CUT_BYTES = 64 << 20
_ROUNDS = 6
_LEAST_SPLIT_ANSWERS = 8
_LEAST_PER_STRATUM = 4
_ASKED_PER_WANTED = 3
"""Questions at most, per present page wanted: an answer without a page is cheap, and tells little."""
_HIGHEST: Final = 1 << 57
"""No process has addresses above this."""


class Placement(NamedTuple):
    """Estimated placement."""

    shares: dict[int, float]
    """Share of the resident pages by node; they add up to 1. Empty when no page was found."""
    coverage: float
    """Estimated pages over the resident pages that the process is known to have; near 1 when all were found."""
    found: int
    """Answers with a page present."""
    asked: int


class PageNumbers:
    """All pages of the mappings that may be resident, numbered so that alike pieces are neighbours."""

    def __init__(self, vmas: Sequence[Vma], page_bytes: int) -> None:
        pieces: list[tuple[tuple[int, int], int, int]] = []
        for vma in candidates(vmas):
            size_class = (vma.end - vma.start).bit_length()
            cuts = [vma.start]
            cut = _FIRST_CUT_BYTES
            while vma.start + cut < vma.end:
                cuts.append(vma.start + cut)
                cut *= 2
            cuts.append(vma.end)
            for octave, (start, end) in enumerate(pairwise(cuts)):
                pieces.append(((size_class, octave), start, (end - start) // page_bytes))
        pieces = sorted(piece for piece in pieces if piece[2])
        keys = [key for key, _, _ in pieces]
        changes = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
        self._page_bytes = page_bytes
        self._starts = np.array([start for _, start, _ in pieces], np.int64)
        bases = [0, *accumulate(pages for _, _, pages in pieces)]
        self._bases = np.array(bases, np.int64)
        self._edges = [bases[i] for i in changes] + [bases[-1]] * bool(pieces)

    @property
    def strata(self) -> list[tuple[int, int]]:
        """Ranges of page numbers whose pieces are alike."""
        return list(pairwise(self._edges))

    def addresses(self, numbers: Numbers) -> list[int]:
        """Of pages."""
        pieces = np.searchsorted(self._bases, numbers, "right") - 1
        found: list[int] = (self._starts[pieces] + (numbers - self._bases[pieces]) * self._page_bytes).tolist()
        return found


def candidates(vmas: Sequence[Vma]) -> list[Vma]:
    """Mappings that may hold resident pages of the host: not what is reserved without access, not device memory."""
    return [
        vma
        for vma in vmas
        if vma.permissions[:3] != "---"
        and vma.end <= _HIGHEST
        and not vma.path.startswith(("[v", "anon_inode:"))  # vdso, vvar, vsyscall
        and (not vma.path.startswith("/dev/") or vma.path.startswith(("/dev/shm/", "/dev/zero", "/dev/hugepages")))  # noqa: S108
    ]


def estimate_placement(
    pages: Pages, pid: int, numbered: PageNumbers, resident_pages: int, wanted: int, rng: random.Random
) -> Placement:
    """Ask for pages until ``wanted`` present ones were found, or three times as many were asked.

    resident_pages: what the process is known to have resident. Raises ReadError from the port.
    """
    strata = _Strata(numbered.strata)
    most = wanted * _ASKED_PER_WANTED
    asked = found = 0
    for turn in range(_ROUNDS):
        budget = min(max(wanted // 4, (wanted - found) // 2), most - asked)
        if budget <= 0 or found >= wanted:
            break
        counts = strata.allocate(budget, resident_pages, first=turn == 0)
        if not counts.any():
            break
        numbers = strata.choose(counts, rng)
        nodes = pages.nodes(pid, numbered.addresses(numbers))
        strata.learn(counts, numbers, nodes)
        found += len(nodes) - nodes.count(None)
        asked += len(nodes)
        strata.halve()
    estimate = strata.pages_by_node()
    total = sum(estimate.values())
    shares = {node: count / total for node, count in sorted(estimate.items())} if total else {}
    return Placement(shares, total / resident_pages if resident_pages else 0.0, found, asked)


class _Strata:
    """Ranges of page numbers in which pages are likely to be alike, and what was answered in them.

    One row or entry per stratum, or per answer: there are a hundred strata of a few answers each.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._low = np.array([low for low, _ in ranges], np.int64)
        self._high = np.array([high for _, high in ranges], np.int64)
        self._kinds: dict[int | None, int] = {None: 0}
        """Number of each answer: no page, or its node."""
        self._numbers = np.empty(0, np.int64)
        self._answers = np.empty(0, np.intp)
        self._strata = np.empty(0, np.intp)
        """In which each was given."""

    @property
    def _sizes(self) -> Numbers:
        return self._high - self._low

    def _counts(self) -> Numbers:
        """Answers by stratum and kind."""
        strata, kinds = len(self._low), len(self._kinds)
        counts: Numbers = np.bincount(self._strata * kinds + self._answers, minlength=strata * kinds)
        return counts.reshape(strata, kinds)

    def allocate(self, budget: int, resident_pages: int, *, first: bool) -> Numbers:
        """How many questions to ask in each."""
        sizes = self._sizes
        if first:
            weights = np.sqrt(sizes)
        else:
            unfound = max(0.0, resident_pages - sum(self.pages_by_node().values()))
            weights = self._deviations(unfound)
        total = float(weights.sum())
        if total == 0:
            return np.zeros(len(sizes), np.int64)
        shares = np.rint(budget * weights / total)
        counts: Numbers = np.minimum(np.maximum(shares, _LEAST_PER_STRATUM if first else 0), sizes).astype(np.int64)
        return counts

    def _deviations(self, unfound: float) -> NDArray[np.float64]:
        """Standard deviation, in pages, of what one more answer in each would say."""
        sizes, counts = self._sizes, self._counts()
        answers, by_node = counts.sum(axis=1), counts[:, 1:]
        # Half an answer added on either side: a stratum that looks pure after few answers is not known to be.
        shares = np.where(by_node > 0, (by_node + 0.5) / (answers + 1)[:, None], 0.0)
        empty = np.minimum(0.5 / (answers + 1), unfound / sizes)
        variances = np.where(by_node.any(axis=1), (shares * (1 - shares)).sum(axis=1), empty * (1 - empty))
        return np.where(answers < sizes, sizes * np.sqrt(variances), 0.0)

    def choose(self, counts: Numbers, rng: random.Random) -> Numbers:
        """Page numbers over each stratum, one at random in each of as many equal parts as questions are to be asked."""
        steps = np.repeat(self._sizes / np.maximum(counts, 1), counts)
        places = np.arange(len(steps)) - np.repeat(np.cumsum(counts) - counts, counts)
        random_parts = np.array([rng.random() for _ in range(len(steps))])
        numbers: Numbers = np.repeat(self._low, counts) + ((places + random_parts) * steps).astype(np.int64)
        np.minimum(numbers, np.repeat(self._high - 1, counts), out=numbers)  # a rounding up would be outside
        return numbers

    def learn(self, counts: Numbers, numbers: Numbers, nodes: Sequence[int | None]) -> None:
        """Take the answers to what was chosen."""
        kinds = self._kinds
        answers = np.array([kinds.setdefault(node, len(kinds)) for node in nodes], np.intp)
        self._numbers = np.concatenate((self._numbers, numbers))
        self._answers = np.concatenate((self._answers, answers))
        self._strata = np.concatenate((self._strata, np.repeat(np.arange(len(counts)), counts)))

    def halve(self) -> None:
        """Make two of each that is mixed and known well enough."""
        middles = (self._low + self._high) // 2
        is_above = self._numbers >= middles[self._strata]
        counts = self._counts()
        answers = counts.sum(axis=1)
        above = np.bincount(self._strata, is_above, len(answers))
        mixed = ((counts > 0).sum(axis=1) > 1) & (answers >= _LEAST_SPLIT_ANSWERS)
        halved = mixed & (above >= 2) & (answers - above >= 2)
        parts = 1 + halved
        first = np.cumsum(parts) - parts
        low, high = np.repeat(self._low, parts), np.repeat(self._high, parts)
        high[first[halved]] = low[first[halved] + 1] = middles[halved]
        self._strata = first[self._strata] + (halved[self._strata] & is_above)
        self._low, self._high = low, high

    def pages_by_node(self) -> dict[int, float]:
        """Estimated pages of each node that was answered."""
        counts = self._counts()
        answers = counts.sum(axis=1)
        told = answers > 0
        pages = (self._sizes[told, None] * counts[told] / answers[told, None]).sum(axis=0).tolist()
        return {node: pages[kind] for node, kind in self._kinds.items() if node is not None}
