"""A rank for which the others wait in collective operations.

Whoever arrives last spends the least time in the operation; what the others spend above that they waited. Evidence is
high where in most operations it is the same rank, the others wait most of their time in the operation, and the waiting
takes more of the time than it usually does. The cap is that share of the time: it is measured, where operations are
stamped; else their own share stands for it.

That a rank is late is a fact, not yet a reason: heat, its host, or its link may be behind it, and are then the cause.
Nothing is said where nobody tells of collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.collectives import Joiner, Operation
from gpumon.explain.witnesses.gpus import found_on, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, ramp
from gpumon.model import Unit

CAUSE: Final = "straggler"
_COMMS: Final = 8
_FORGET_S: Final = 120.0
_ENOUGH: Final = 8
"""Operations that are judged at once: of few, one rank may be the last by chance."""
_PATIENCE_S: Final = 2.5
"""After this, so many must do: a slow server makes a few steps a second."""
_LEAST: Final = 4
_LONGEST_S: Final = 6.0
"""Between two looks at which operations were told of: some tell of a few only, every seconds."""


_STALE_S: Final = 30.0
"""Operations that ended longer ago are by another clock."""


@dataclass(slots=True)
class _Comm:
    usual: Usual = field(default_factory=lambda: Usual(60, 3))
    """Share of the time that ranks wait for the one that comes last most often."""
    judged_s: float | None = None
    """When operations were judged last."""
    until_s: float | None = None
    """End of these."""
    operations: list[Operation] = field(default_factory=list)
    """Since then."""


class _Waits(NamedTuple):
    """Of a communicator since the last look."""

    rank: int
    """For which the others waited longest."""
    part: float
    """Of all operations, those in which it came last, weighed by the waiting."""
    share: float
    """Of the others' time in these operations, waiting."""
    lost: float
    """Of all the time, that the others waited for it."""
    pids: tuple[int, ...]
    """Of all ranks, by rank; 0 where not told."""
    pid: int
    """Its own."""


class LateRank:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, wait_low: float = 0.3, wait_high: float = 0.6) -> None:
        """wait_low, wait_high: share of the others' time in the operation that they wait, from where on it may count,
        and counts wholly. As measured with one slow rank of eight: 0.65."""
        self._wait = (wait_low, wait_high)
        self._joiner = Joiner()
        self._comms: Kept[str, _Comm] = Kept(_Comm, forget_s=_FORGET_S, most=_COMMS)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = found_on(incidents, CAUSE)
        for comm_id, operations in self._joiner.join(scene).items():
            comm = self._comms.look(comm_id, scene.at_s)
            comm.judged_s = scene.at_s if comm.judged_s is None else comm.judged_s
            comm.operations += operations
            waits = _waits(comm.operations, _LEAST if scene.at_s - comm.judged_s >= _PATIENCE_S else _ENOUGH)
            if waits is None:
                continue
            before_s, end_s = comm.until_s, _end_s(scene, comm.operations[-1])
            comm.judged_s, comm.until_s, comm.operations = scene.at_s, end_s, []
            usual = comm.usual.value
            keys = _keys(scene, waits)
            evidence = 0.0
            if usual is not None:
                evidence = ramp(waits.part, 0.5, 0.8) * ramp(waits.share, *self._wait)
                evidence *= ramp(waits.lost - usual, 0.02, 0.08)
                evidence = confirmed(evidence, is_found=any(name in found for _, name in keys))
            comm.usual.feed(waits.lost, evidence)
            if evidence > 0 and before_s is not None and before_s < end_s:
                fact = Fact("wait_share", waits.share, Unit.RATIO)
                start_s = max(before_s, end_s - _LONGEST_S)
                for key in keys:
                    yield Sign(CAUSE, key, start_s, end_s, evidence, waits.lost, fact)
        self._comms.sweep(scene.at_s)


def _end_s(scene: Scene, operation: Operation) -> float:
    """Steady seconds of its end by a rank's host, where that is near; else when it is told of."""
    stop_ns = operation.ranks[min(operation.ranks)].stop_ns
    end_s = scene.to_steady(stop_ns) if stop_ns else scene.at_s
    return end_s if 0 <= scene.at_s - end_s <= _STALE_S else scene.at_s


def _waits(operations: Sequence[Operation], least: int) -> _Waits | None:
    """Who was waited for, and how long; None of fewer operations than ``least``."""
    if len(operations) < least:
        return None
    by_rank: dict[int, float] = {}
    shares: dict[int, list[float]] = {}
    spans: dict[str, list[tuple[int, float, float]]] = {}
    for operation in operations:
        last = min(operation.ranks.values(), key=lambda record: (record.exec_s, record.rank))
        others = [record.exec_s for record in operation.ranks.values() if record is not last]
        whole_s = sum(others) / len(others)
        wait_s = max(0.0, whole_s - last.exec_s)
        by_rank[last.rank] = by_rank.get(last.rank, 0.0) + wait_s
        shares.setdefault(last.rank, []).append(wait_s / whole_s if whole_s > 0 else 0.0)
        if operation.since_s is not None:
            spans.setdefault(operation.collective, []).append((last.rank, wait_s, operation.since_s))
    rank = max(by_rank, key=lambda each: (by_rank[each], -each))
    whole = sum(by_rank.values())
    share = ratio(sum(shares[rank]) / len(shares[rank]))
    # Operations of each name come again and again over the whole time.
    lost = sum(
        sum([wait_s for late, wait_s, _ in each if late == rank]) / sum([since_s for _, _, since_s in each])
        for each in spans.values()
    )
    ranks = operations[-1].ranks
    return _Waits(
        rank,
        by_rank[rank] / whole if whole > 0 else 0.0,
        share,
        ratio(lost) if spans else share,
        tuple([ranks[each].pid for each in sorted(ranks)]),
        ranks[rank].pid if rank in ranks else 0,
    )


def _keys(scene: Scene, waits: _Waits) -> list[Key]:
    """Whom it is of: the GPU of the late rank, its process, or all GPUs of the communicator."""
    if waits.pid:
        held = scene.holders(str(waits.pid))
        return [("gpu", held[0].uuid)] if len(held) == 1 else [("process", str(waits.pid))]
    uuids = [holder.uuid for pid in waits.pids if pid for holder in scene.holders(str(pid))]
    return [("gpu", uuid) for uuid in dict.fromkeys(uuids)]
