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

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from gpumon.host.pages import Pages
from gpumon.sources.procfs import Vma

_FIRST_CUT_BYTES = 64 << 20
_ROUNDS = 6
_LEAST_SPLIT_ANSWERS = 8
_LEAST_PER_STRATUM = 4
_ASKED_PER_WANTED = 3
"""Questions at most, per present page wanted: an answer without a page is cheap, and tells little."""


class Placement(NamedTuple):
    """Estimated placement."""

    shares: dict[int, float]
    """Share of the resident pages by node; they add up to 1. Empty when no page was found."""
    coverage: float
    """Estimated pages over the resident pages that the process is known to have; near 1 when all were found."""
    found: int
    """Answers with a page present."""
    asked: int


class _Stratum:
    """Pages lo..hi of the numbered pages, and what was answered there, by page number."""

    __slots__ = ("answers", "hi", "lo")

    def __init__(self, lo: int, hi: int, answers: list[tuple[int, int | None]]) -> None:
        self.lo = lo
        self.hi = hi
        self.answers = answers

    def counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for _, node in self.answers:
            if node is not None:
                counts[node] = counts.get(node, 0) + 1
        return counts


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
        self.page_bytes = page_bytes
        self._starts = [start for _, start, _ in pieces]
        self._bases = [0, *accumulate(pages for _, _, pages in pieces)]
        self._edges = [self._bases[i] for i in changes] + [self._bases[-1]] * bool(pieces)

    @property
    def strata(self) -> list[tuple[int, int]]:
        """Ranges of page numbers whose pieces are alike."""
        return list(pairwise(self._edges))

    def address(self, number: int) -> int:
        """Address of a page."""
        piece = bisect_right(self._bases, number) - 1
        return self._starts[piece] + (number - self._bases[piece]) * self.page_bytes


def candidates(vmas: Sequence[Vma]) -> list[Vma]:
    """Mappings that may hold resident pages of the host: not what is reserved without access, not device memory."""
    return [
        vma
        for vma in vmas
        if vma.permissions[:3] != "---"
        and not vma.path.startswith(("[v", "anon_inode:"))  # vdso, vvar, vsyscall
        and (not vma.path.startswith("/dev/") or vma.path.startswith(("/dev/shm/", "/dev/zero", "/dev/hugepages")))  # noqa: S108
    ]


def estimate_placement(
    pages: Pages, pid: int, numbered: PageNumbers, resident_pages: int, wanted: int, rng: random.Random
) -> Placement:
    """Ask for pages until ``wanted`` present ones were found, or three times as many were asked.

    resident_pages: what the process is known to have resident. Raises ReadError from the port.
    """
    strata = [_Stratum(lo, hi, []) for lo, hi in numbered.strata]
    most = wanted * _ASKED_PER_WANTED
    asked = found = 0
    for turn in range(_ROUNDS):
        budget = min(max(wanted // 4, (wanted - found) // 2), most - asked)
        if not strata or budget <= 0 or found >= wanted:
            break
        plan = _allocate(strata, budget, resident_pages, first=turn == 0)
        questions = [(stratum, number) for stratum, count in plan for number in _spread(stratum, count, rng)]
        nodes = pages.nodes(pid, [numbered.address(number) for _, number in questions])
        for (stratum, number), node in zip(questions, nodes, strict=True):
            stratum.answers.append((number, node))
            found += node is not None
        asked += len(questions)
        strata = [part for stratum in strata for part in _halved(stratum)]
    estimate = _pages_by_node(strata)
    total = sum(estimate.values())
    shares = {node: count / total for node, count in sorted(estimate.items())} if total else {}
    return Placement(shares, total / resident_pages if resident_pages else 0.0, found, asked)


def _pages_by_node(strata: Sequence[_Stratum]) -> dict[int, float]:
    estimate: dict[int, float] = {}
    for stratum in strata:
        for node, count in stratum.counts().items():
            pages = (stratum.hi - stratum.lo) * count / len(stratum.answers)
            estimate[node] = estimate.get(node, 0.0) + pages
    return estimate


def _allocate(
    strata: Sequence[_Stratum], budget: int, resident_pages: int, *, first: bool
) -> list[tuple[_Stratum, int]]:
    if first:
        weights = [math.sqrt(stratum.hi - stratum.lo) for stratum in strata]
    else:
        unfound = max(0.0, resident_pages - sum(_pages_by_node(strata).values()))
        weights = [_spread_of(stratum, unfound) for stratum in strata]
    total = sum(weights)
    if total == 0:
        return []
    least = _LEAST_PER_STRATUM if first else 0
    plan = []
    for stratum, weight in zip(strata, weights, strict=True):
        count = min(max(least, round(budget * weight / total)), stratum.hi - stratum.lo)
        if count:
            plan.append((stratum, count))
    return plan


def _spread_of(stratum: _Stratum, unfound: float) -> float:
    """Standard deviation, in pages, of what one more answer in the stratum would say."""
    size = stratum.hi - stratum.lo
    answers = len(stratum.answers)
    counts = stratum.counts()
    if answers >= size:
        return 0.0
    if not counts:
        share = min(0.5 / (answers + 1), unfound / size)
        return size * math.sqrt(share * (1 - share))
    # Half an answer added on either side: a stratum that looks pure after few answers is not known to be.
    variance = 0.0
    for count in counts.values():
        share = (count + 0.5) / (answers + 1)
        variance += share * (1 - share)
    return size * math.sqrt(variance)


def _spread(stratum: _Stratum, count: int, rng: random.Random) -> list[int]:
    """Page numbers over the stratum, one at random in each of ``count`` equal parts."""
    step = (stratum.hi - stratum.lo) / count
    uniform = rng.random
    last = stratum.hi - 1
    return [min(stratum.lo + int((i + uniform()) * step), last) for i in range(count)]


def _halved(stratum: _Stratum) -> list[_Stratum]:
    """The stratum in two where it is mixed and known well enough, else as it is."""
    answers = stratum.answers
    mixed = len({node for _, node in answers}) > 1
    if not mixed or len(answers) < _LEAST_SPLIT_ANSWERS:
        return [stratum]
    middle = (stratum.lo + stratum.hi) // 2
    below = [answer for answer in answers if answer[0] < middle]
    above = [answer for answer in answers if answer[0] >= middle]
    if len(below) < 2 or len(above) < 2:
        return [stratum]
    return [_Stratum(stratum.lo, middle, below), _Stratum(middle, stratum.hi, above)]
