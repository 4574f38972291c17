"""The rank that the others wait for in collective operations: ``straggler``.

Collectives block: whoever arrives last runs its kernel for the shortest time, and the waiters run the longest, so the
time in the operation blames the victims. The straggler is the rank with the shortest, if the others spent most of
theirs waiting for it, in many operations in a row, and if it came late out of its own work: its gap before the
operation is a multiple of the usual gap. Where all ranks take long and wait little, a link is slow, and nobody is told
of.

Joined by communicator, operation and sequence number, all ranks; durations are compared, never the clocks of hosts.
Left out: records timed on the host (``collective_cpu``), which hold the launch, and operations of which a rank is
missing, as on nodes that hold only a part of a communicator. Without stamps the gaps are unknown; then the waiting
alone decides, and it may be that the rank was held up by another communicator.

Bounded: 8 communicators of at most 64 ranks, 8,192 records each that wait for the other ranks'; of more records than
``records`` in a step whole blocks of consecutive operations are left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Unit

_COMMS: Final = 8
_FORGET_S: Final = 120.0
_RANKS_MAX: Final = 64
_WAITING_MAX: Final = 8192
_GAPS: Final = 31
_BLOCK: Final = 64
"""Consecutive operations that are looked at, or left out, together."""

Operation = tuple[str, int]
"""Name and sequence number: NCCL counts each kind of operation by itself."""
Ranks = dict[int, CollectiveRecord]


@dataclass(slots=True)
class _Run:
    """Consecutive operations in which the others waited for one rank; sums over them."""

    rank: int
    since_s: float
    operations: int = 0
    share: float = 0.0
    wait_s: float = 0.0
    gaps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_GAPS))
    """The rank's own and the median of all, of the newest operations of which they are known. Of many operations the
    median counts: while a server idles, the gaps of all ranks are alike and long."""

    def gap_s(self) -> tuple[float, float]:
        """The rank's own gap and the usual one, of the operation in the middle by their ratio."""
        ordered = sorted(self.gaps, key=lambda gap: gap[0] / gap[1] if gap[1] > 0 else math.inf)
        return ordered[len(ordered) // 2]


@dataclass(slots=True)
class _Comm:
    name: str = ""
    waiting: dict[Operation, Ranks] = field(default_factory=dict)
    records: int = 0
    """In ``waiting``."""
    stops_ns: dict[int, int] = field(default_factory=dict)
    """By rank, the end of the operation judged last."""
    last: Operation | None = None
    run: _Run | None = None
    found: _Run | None = None
    """The run that is told of; ends when the rank was not waited for in as many operations as it takes to be found."""
    pid: int = 0
    misses: int = 0
    matched_s: float = 0.0
    """When the rank that is told of was last waited for."""


class Straggler:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "straggler",
            "In `operations` consecutive collective operations of a communicator the same rank arrived last, the "
            "others waited at least `wait` of their time in the operation (mean of these ranks), and the rank's own "
            "gap before the operation was above `gap` times the median of all ranks' gaps, in the median of these "
            "operations. Informative only where gaps are unknown.",
            (Severity.WARNING, Severity.INFO),
            "All ranks run at the pace of this one. Look at its GPU (clocks, throttling, ECC, PCIe width), its process "
            "(page faults, run-queue wait, NUMA node) and its share of the work (experts, sequence lengths); if "
            "nothing is found, move it to another GPU and see whether the straggler moves along.",
            hold_s=15.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "operations": "Consecutive operations; number. At tens per second chance does not last that long.",
        "wait": "Time that the others wait, over their time in the operation; ratio. As measured with one slow rank of "
        "eight.",
        "gap": "The rank's gap between operations over the median of the ranks; ratio.",
        "fresh_s": "It is over when the rank was not waited for during this time; seconds.",
        "records": "Most records looked at per step; number. One costs about a microsecond.",
    }

    def __init__(
        self, *, operations: int = 20, wait: float = 0.65, gap: float = 3.0, fresh_s: float = 10.0, records: int = 4096
    ) -> None:
        if operations < 1 or records < 1:
            raise ValueError("operations and records must be above 0")
        self._operations = operations
        self._wait = wait
        self._gap = gap
        self._fresh_s = fresh_s
        self._records = records
        self._comms: Kept[str, _Comm] = Kept(_Comm, forget_s=_FORGET_S, most=_COMMS)

    def step(self, scene: Scene) -> Iterator[Finding]:
        by_comm: dict[str, list[CollectiveRecord]] = {}
        for record in self._sampled(scene):
            by_comm.setdefault(record.comm_id, []).append(record)
        for comm_id, records in by_comm.items():
            comm = self._comms.look(comm_id, scene.at_s)
            for operation, ranks in sorted(_joined(comm, records), key=_order):
                self._judge(scene, comm, operation, ranks)
        self._comms.sweep(scene.at_s)
        for comm_id, comm in self._comms.items():
            if comm.found is not None and scene.at_s - comm.matched_s <= self._fresh_s:
                yield self._finding(scene, comm_id, comm, comm.found)

    def _sampled(self, scene: Scene) -> Iterator[CollectiveRecord]:
        records = scene.collectives
        # A power of two, so that ranks whose records come in another step are left out alike, or nearly.
        stride = 1
        while len(records) > stride * self._records:
            stride *= 2
        for record in records:
            is_kept = stride == 1 or record.sequence // _BLOCK % stride == 0
            if is_kept and record.timing != "collective_cpu" and 1 < record.n_ranks <= _RANKS_MAX:
                yield record

    def _judge(self, scene: Scene, comm: _Comm, operation: Operation, ranks: Ranks) -> None:
        """One operation, all of its ranks."""
        last = min(ranks.values(), key=_lateness)
        last_rank, least_s = last.rank, last.exec_s
        others = [record.exec_s for record in ranks.values() if record is not last]
        shares = [(exec_s - least_s) / exec_s if exec_s > 0 else 0.0 for exec_s in others]
        share = sum(shares) / len(shares)
        gaps = _gaps(comm, operation, ranks)
        comm.last, comm.stops_ns = operation, {rank: record.stop_ns for rank, record in ranks.items()}
        if share < self._wait:
            comm.run = None
        else:
            if comm.run is None or comm.run.rank != last_rank:
                began_s = scene.to_steady(last.start_ns) if last.start_ns else scene.at_s
                comm.run = _Run(last_rank, min(began_s, scene.at_s))
            run = comm.run
            run.operations += 1
            run.share += share
            run.wait_s += sum(others) / len(others) - least_s
            if gaps is not None:
                run.gaps.append((gaps[last_rank], sorted(gaps.values())[(len(gaps) - 1) // 2]))
        self._follow(scene, comm, ranks)

    def _follow(self, scene: Scene, comm: _Comm, ranks: Ranks) -> None:
        """Find, go on, or end."""
        run, found = comm.run, comm.found
        if run is not None and run.operations >= self._operations and run is not found and self._is_late(run):
            if found is not None and found.rank == run.rank:
                run.since_s = found.since_s
            comm.found = found = run
        if found is None:
            return
        if run is not None and run.rank == found.rank:
            comm.pid, comm.misses, comm.matched_s = ranks[found.rank].pid, 0, scene.at_s
        else:
            comm.misses += 1
            if comm.misses >= self._operations:
                comm.found, comm.misses = None, 0

    def _is_late(self, run: _Run) -> bool:
        """Late out of its own work, as far as that is known."""
        if not run.gaps:
            return True
        own_s, usual_s = run.gap_s()
        return own_s > self._gap * usual_s

    def _finding(self, scene: Scene, comm_id: str, comm: _Comm, run: _Run) -> Finding:
        held = scene.holders(str(comm.pid)) if comm.pid else []
        one = held[0] if len(held) == 1 else None
        share, wait_s = run.share / run.operations, run.wait_s / run.operations
        evidence = [
            Evidence("wait_share", share, Unit.RATIO),
            Evidence("wait_per_operation", wait_s, Unit.SECONDS),
            Evidence("operations", float(run.operations), Unit.NONE),
        ]
        if run.gaps:
            own_s, usual_s = run.gap_s()
            evidence.append(Evidence("gap", own_s, Unit.SECONDS, usual_s))
        on = f" on gpu {one.gpu}" if one is not None else ""
        return Finding(
            "straggler",
            Entity(
                "collective",
                f"{comm.name or 'communicator'} {comm_id} rank {run.rank}",
                one.gpu if one else "",
                one.uuid if one else "",
            ),
            Severity.WARNING if run.gaps else Severity.INFO,
            run.since_s,
            f"rank {run.rank}{on} comes last: the others wait {100 * share:.0f} % of each operation",
            tuple(evidence),
        )


def _joined(comm: _Comm, records: Sequence[CollectiveRecord]) -> Iterator[tuple[Operation, Ranks]]:
    """Operations of which all ranks are there now."""
    comm.name = records[-1].comm_name or comm.name
    waiting = comm.waiting
    for record in records:
        key = (record.collective, record.sequence)
        ranks = waiting.get(key)
        if ranks is None:
            ranks = waiting[key] = {}
        comm.records += record.rank not in ranks
        ranks[record.rank] = record
        if len(ranks) >= record.n_ranks:
            comm.records -= len(waiting.pop(key))
            yield key, ranks
        while comm.records > _WAITING_MAX:
            comm.records -= len(waiting.pop(next(iter(waiting))))


def _lateness(record: CollectiveRecord) -> float:
    """The last to arrive has the least."""
    return record.exec_s


def _order(joined: tuple[Operation, Ranks]) -> tuple[int, int, str]:
    """In time where the ranks tell it, by one host's clock; else by number."""
    (collective, sequence), ranks = joined
    return ranks[min(ranks)].start_ns, sequence, collective


def _gaps(comm: _Comm, operation: Operation, ranks: Ranks) -> dict[int, float] | None:
    """Seconds from the operation before to this one, by rank; None where the one before is not known."""
    last = comm.last
    if last is None or (last[0] == operation[0] and last[1] + 1 != operation[1]):
        return None
    gaps: dict[int, float] = {}
    for rank, record in ranks.items():
        stop_ns = comm.stops_ns.get(rank, 0)
        if not stop_ns or record.start_ns < stop_ns:
            return None
        gaps[rank] = (record.start_ns - stop_ns) / 1e9
    return gaps
