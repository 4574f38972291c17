"""Collective operations, all ranks of each put together, and how often they come.

Joined by communicator, name and sequence number. Left out: records timed on the host (``collective_cpu``), which hold
the launch, and operations of which a rank is missing, as on nodes that hold only a part of a communicator. Bounded: 8
communicators of 64 ranks, 8,192 records each that wait for the other ranks'; of more records than ``records`` in a look
whole blocks of consecutive operations are left out, the same of every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.ingest.nccl import CollectiveRecord

_COMMS: Final = 8
_FORGET_S: Final = 120.0
_RANKS_MAX: Final = 64
_WAITING_MAX: Final = 8192
_BLOCK: Final = 64
_KINDS_MAX: Final = 16


class Operation(NamedTuple):
    """One operation, as all of its ranks saw it."""

    collective: str
    ranks: dict[int, CollectiveRecord]
    since_s: float | None
    """Seconds from the end of the operation before, of the same name and communicator, to its own; None where that one
    is not known, or the times are not."""


@dataclass(slots=True)
class _Comm:
    waiting: dict[tuple[str, int], dict[int, CollectiveRecord]] = field(default_factory=dict)
    records: int = 0
    """In ``waiting``."""
    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sequence number and end of the newest operation, by name."""


class Joiner:
    """Not thread-safe. ``join`` once per look."""

    def __init__(self, records: int = 4096) -> None:
        """records: most looked at per look."""
        self._records = records
        self._comms: Kept[str, _Comm] = Kept(_Comm, forget_s=_FORGET_S, most=_COMMS)

    def join(self, scene: Scene) -> dict[str, list[Operation]]:
        """Operations that are complete since the last look, by communicator, in the order of their numbers."""
        found: dict[str, list[tuple[tuple[str, int], dict[int, CollectiveRecord]]]] = {}
        for record in self._sampled(scene):
            comm = self._comms.look(record.comm_id, scene.at_s)
            key = (record.collective, record.sequence)
            ranks = _add(comm, key, record)
            if len(ranks) >= record.n_ranks:
                comm.records -= len(comm.waiting.pop(key))
                found.setdefault(record.comm_id, []).append((key, ranks))
        self._comms.sweep(scene.at_s)
        return {
            comm_id: [
                _operation(self._comms.look(comm_id, scene.at_s), *key, ranks)
                for key, ranks in sorted(joined, key=lambda each: each[0])
            ]
            for comm_id, joined in found.items()
        }

    def _sampled(self, scene: Scene) -> Iterator[CollectiveRecord]:
        # A power of two, so that ranks whose records come in another look are left out alike, or nearly.
        stride = 1
        while len(scene.collectives) > stride * self._records:
            stride *= 2
        for record in scene.collectives:
            is_kept = stride == 1 or record.sequence // _BLOCK % stride == 0
            if is_kept and record.timing != "collective_cpu" and 1 < record.n_ranks <= _RANKS_MAX:
                yield record


def _add(comm: _Comm, key: tuple[str, int], record: CollectiveRecord) -> dict[int, CollectiveRecord]:
    """Put a record to those of its operation. The oldest operations give way."""
    ranks = comm.waiting.get(key)
    if ranks is None:
        ranks = comm.waiting[key] = {}
    comm.records += record.rank not in ranks
    ranks[record.rank] = record
    while comm.records > _WAITING_MAX:
        comm.records -= len(comm.waiting.pop(next(iter(comm.waiting))))
    return ranks


def _operation(comm: _Comm, collective: str, sequence: int, ranks: dict[int, CollectiveRecord]) -> Operation:
    # By the clock of one host; which rank is on it does not matter.
    stop_ns = ranks[min(ranks)].stop_ns
    before, before_ns = comm.last.get(collective, (sequence, 0))
    is_next = before + 1 == sequence and 0 < before_ns < stop_ns
    if sequence >= before and (collective in comm.last or len(comm.last) < _KINDS_MAX):
        comm.last[collective] = (sequence, stop_ns)
    return Operation(collective, ranks, (stop_ns - before_ns) / 1e9 if is_next else None)
