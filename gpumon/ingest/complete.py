"""A request's record, completed by what its child spans say. Pure: the same children give the same record in any order.

Latencies are taken from one span's own two ends, or between two spans only where both stand on one clock: same
resource, same host as far as told, and the child inside its request. Ranks of the engine repeat the same steps: the
one that reports most of them is taken, never a sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.ingest.adapters.seen import Adapter, LinkSeen, MarksSeen, Phase, PhaseSeen, RankSeen, RequestSeen, Seen
from gpumon.ingest.adapters.triton import COMPUTE_START, QUEUE_START
from gpumon.ingest.adapters.values import Gate
from gpumon.ingest.traces import COUNT, END, INDEX, SPAN_ID, START
from gpumon.model import RequestRecord

_NEXT_NS = 1_000_000
"""A step that begins within a millisecond of its request's leaving the queue is the first."""


class Child(NamedTuple):
    """A child span, at any depth."""

    span_id: bytes
    parent_id: bytes | None
    seen: Seen
    rank: RankSeen | None
    same_resource: bool
    """As the request's."""


class Steps(NamedTuple):
    """The steps below one parent."""

    parent_id: bytes | None
    table: NDArray[np.int64]
    counted: bool
    rank: RankSeen | None
    same_resource: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Ran:
    """Steps of one rank that can be true, by time."""

    place: tuple[int, int, bytes]
    """Orders equals: pipeline rank, tensor rank, parent."""
    table: NDArray[np.int64]
    counted: bool
    rank: RankSeen | None
    same_resource: bool


class Completion:
    """What it takes to complete records, and what was counted on the way."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.dropped: Counter[str] = Counter()
        """Steps left out, by reason: unfinished, negative_duration, gap."""
        self.skewed: Counter[str] = Counter()
        """Requests with a child outside of them, by kind of server."""
        self.skew_s: dict[str, float] = {}
        """How far outside the last of them was."""

    def complete(self, request: RequestSeen, adapter: Adapter, children: list[Child], steps: list[Steps]) -> None:
        """Fill in what ``request.record`` does not say itself."""
        record = request.record
        timed = record.outcome != "incomplete"
        dropped_first = request.dropped_events > 0
        if record.token_ns is not None:  # token events or the compact form: the record's own
            if timed and not dropped_first:
                self._first_token(record, int(record.token_ns[0]))
            all_there = not dropped_first and not request.cut
            record.per_token = _sizes_known(record, one_token_each=request.one_token_each, all_there=all_there)
        if children or steps:
            clock_host = next((c.seen.host for c in children if isinstance(c.seen, LinkSeen) and c.seen.host), "")
            self._note_skew(record, adapter, children, steps)
            ran = self._ran(steps)
            self._rank_steps(record, ran)
            best = max(ran, key=lambda one: (len(one.table), [-part for part in one.place[:2]]), default=None)
            place = best.place[:2] if best is not None else _lowest(children)
            phases = [child for child in children if isinstance(child.seen, PhaseSeen) and _place(child.rank) == place]
            if any(isinstance(child.seen, RankSeen) and child.seen.aborted for child in children) and timed:
                record.outcome = "aborted"
            self._read_phases(record, phases)
            self._read_marks(record, children)
            self._read_steps(request, adapter, best, phases, clock_host)
        times, counts = record.token_ns, record.token_counts
        if times is None:
            return
        from_first = record.first_token_ns == int(times[0])
        if record.decode_s is None and timed and len(times) > 1 and from_first:
            record.decode_s = int(times[-1] - times[0]) / 1e9
        if record.completion_tokens is None and record.per_token and from_first and not request.cut:
            record.completion_tokens = len(times) if counts is None else int(counts.sum())

    def _first_token(self, record: RequestRecord, first_ns: int) -> None:
        """The first token's time, by the request's own clock."""
        if record.time_to_first_token_s is None:
            since_start_s = max(0, first_ns - record.start_ns) / 1e9
            record.time_to_first_token_s = self._gate.check(
                "first_token", since_start_s, (record.end_ns - record.start_ns) / 1e9
            )
        record.first_token_ns = first_ns

    def _ran(self, steps: list[Steps]) -> list[_Ran]:
        by_rank: dict[tuple[int, int, bytes], list[Steps]] = {}
        for one in steps:
            place = (*_place(one.rank), b"" if one.rank is not None else one.parent_id or b"")
            by_rank.setdefault(place, []).append(one)
        ran = []
        for place, same in sorted(by_rank.items(), key=lambda item: item[0]):
            table = self._clean(np.concatenate([one.table for one in same]))
            if len(table):
                resources = all(one.same_resource for one in same)
                ran.append(_Ran(place, table, any(one.counted for one in same), same[0].rank, resources))
        return ran

    def _clean(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps with both ends, by time."""
        finished = (table[:, START] > 0) & (table[:, END] > 0)
        forward = table[:, END] >= table[:, START]
        self.dropped["unfinished"] += int((~finished).sum())
        self.dropped["negative_duration"] += int((finished & ~forward).sum())
        table = table[finished & forward]
        return table[np.lexsort((table[:, SPAN_ID], table[:, INDEX], table[:, END]))]

    def _rank_steps(self, record: RequestRecord, ran: list[_Ran]) -> None:
        width = 1 + max((one.rank.tensor for one in ran if one.rank is not None), default=0)
        for one in ran:
            if one.rank is not None:
                record.rank_steps[one.rank.pipeline * width + one.rank.tensor] = one.table[:, END].copy()

    def _read_phases(self, record: RequestRecord, phases: list[Child]) -> None:
        span_s = (record.end_ns - record.start_ns) / 1e9 if record.outcome != "incomplete" else None
        total_ns: dict[Phase, int] = {}
        for seen in _phases(phases):
            total_ns[seen.phase] = total_ns.get(seen.phase, 0) + seen.end_ns - seen.start_ns
        for phase, duration_ns in total_ns.items():
            name = f"{phase.value}_s"
            if getattr(record, name) is None:
                setattr(record, name, self._gate.check(phase.value, duration_ns / 1e9, span_s))

    def _read_marks(self, record: RequestRecord, children: list[Child]) -> None:
        """Triton's moments: a model's span says when its queue began, a span below it when computing did."""
        marked = [(child, child.seen) for child in children if isinstance(child.seen, MarksSeen)]
        if not marked:
            return
        begun = {child.span_id: seen.marks[QUEUE_START] for child, seen in marked if QUEUE_START in seen.marks}
        waits_ns = [
            seen.marks[COMPUTE_START] - queued_ns
            for child, seen in marked
            if COMPUTE_START in seen.marks
            and (queued_ns := begun.get(child.span_id, begun.get(child.parent_id or b""))) is not None
        ]
        span_s = (record.end_ns - record.start_ns) / 1e9 if record.outcome != "incomplete" else None
        if waits_ns and record.queue_s is None:
            record.queue_s = self._gate.check(Phase.QUEUE.value, sum(waits_ns) / 1e9, span_s)
        named = [(seen.start_ns, -seen.end_ns, seen.model) for _, seen in marked if seen.model]
        if named and not record.model:
            record.model = min(named)[2]

    def _read_steps(
        self, request: RequestSeen, adapter: Adapter, best: _Ran | None, phases: list[Child], clock_host: str
    ) -> None:
        record = request.record
        table = best.table if best is not None else np.empty((0, 5), np.int64)
        if len(table) > 1 and int(table[-1, END] - table[0, END]) > self._gate.cap_s * 1e9:
            self._gate.refuse("step", "over_cap")
            return
        table, from_first = self._contiguous(table)
        one_clock = _one_clock(best, phases, clock_host)
        ends = [seen.end_ns for seen in _phases(phases) if seen.first_token_at_end]
        first_ns: int | None = None
        times, counts = table[:, END].copy(), table[:, COUNT].astype(np.int32)
        if adapter.first_in_steps and len(table) and from_first and _is_first(record, table, phases):
            first_ns = int(times[0])
            if adapter.first_is_prefill and record.prefill_s is None:
                record.prefill_s = int(table[0, END] - table[0, START]) / 1e9
        if first_ns is None and ends and (not len(table) or min(ends) <= int(times[0])):
            first_ns = min(ends)
            if from_first and len(table):
                times = np.concatenate(([first_ns], times))
                counts = np.concatenate((np.ones(1, np.int32), counts))
        if record.token_ns is None and len(times):
            record.token_ns = times
            counted = best is not None and best.counted
            record.token_counts = counts if counted else None
            # A server's step without a count is one token if there are as many steps as tokens.
            made = len(table) + (not adapter.first_in_steps)
            told = record.completion_tokens
            record.per_token = counted or (request.one_token_each if told is None else told == made)
        inside = first_ns is not None and self._inside(record, first_ns, first_ns)
        if first_ns is not None and one_clock and inside and record.outcome != "incomplete":
            self._first_token(record, first_ns)

    def _contiguous(self, table: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """The longest run of steps without one missing, where steps are numbered; and whether it may be the first."""
        index = table[:, INDEX]
        if not len(table) or (index < 0).any() or (index[1:] <= index[:-1]).any():
            return table, True  # not numbered, or numbered anew after a retraction
        breaks = np.flatnonzero(index[1:] != index[:-1] + 1) + 1
        edges = [0, *breaks.tolist(), len(table)]
        start, end = max(pairwise(edges), key=lambda run: run[1] - run[0])
        self.dropped["gap"] += len(table) - (end - start)
        return table[start:end], int(index[start]) == 0

    def _inside(self, record: RequestRecord, start_ns: int, end_ns: int) -> bool:
        slack_ns = self._gate.slack_s * 1e9
        return start_ns >= record.start_ns - slack_ns and end_ns <= record.end_ns + slack_ns

    def _note_skew(self, record: RequestRecord, adapter: Adapter, children: list[Child], steps: list[Steps]) -> None:
        if record.outcome == "incomplete":
            return
        pairs = [
            (seen.start_ns, seen.end_ns)
            for child in children
            if isinstance(seen := child.seen, (PhaseSeen, RankSeen, LinkSeen, MarksSeen))
        ]
        pairs += [(int(one.table[:, START].min()), int(one.table[:, END].max())) for one in steps if len(one.table)]
        outside_ns = max(
            (max(record.start_ns - start_ns, end_ns - record.end_ns) for start_ns, end_ns in pairs if start_ns > 0),
            default=0,
        )
        if outside_ns > self._gate.slack_s * 1e9:
            self.skewed[adapter.server] += 1
            self.skew_s[adapter.server] = outside_ns / 1e9


def _sizes_known(record: RequestRecord, *, one_token_each: bool, all_there: bool) -> bool:
    """Whether each of the record's steps is known to be so many tokens."""
    if record.token_ns is None or record.token_counts is not None:
        return record.token_ns is not None
    told = record.completion_tokens
    if told is None or (one_token_each and not all_there):
        return one_token_each
    return len(record.token_ns) == told


def _is_first(record: RequestRecord, table: NDArray[np.int64], phases: list[Child]) -> bool:
    """Whether the first step known is the first there was, where steps are not numbered."""
    told = record.completion_tokens
    if int(table[0, INDEX]) == 0 or told is None or len(table) >= told:
        return True
    left_queue_ns = (seen.end_ns for seen in _phases(phases) if seen.phase is Phase.QUEUE)
    return any(abs(int(table[0, START]) - left_ns) <= _NEXT_NS for left_ns in left_queue_ns)


def _phases(children: list[Child]) -> list[PhaseSeen]:
    """Those with both ends, whichever comes first."""
    return [
        child.seen
        for child in children
        if isinstance(child.seen, PhaseSeen) and child.seen.start_ns > 0 and child.seen.end_ns > 0
    ]


def _one_clock(best: _Ran | None, phases: list[Child], clock_host: str) -> bool:
    rank = best.rank if best is not None else next((child.rank for child in phases if child.rank is not None), None)
    same = (best is None or best.same_resource) and all(child.same_resource for child in phases)
    return same and (rank is None or not rank.host or not clock_host or rank.host == clock_host)


def _place(rank: RankSeen | None) -> tuple[int, int]:
    return (0, 0) if rank is None else (rank.pipeline, rank.tensor)


def _lowest(children: list[Child]) -> tuple[int, int]:
    return min((_place(child.rank) for child in children if isinstance(child.seen, PhaseSeen)), default=(0, 0))
