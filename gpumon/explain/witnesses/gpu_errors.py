"""Errors that end the work on a GPU, GPUs and drivers that are gone, and servers that start anew.

From new XIDs, whether the GPU and NVML answer, and the process that holds the GPU: whether it is there and what it is
called (told every 2 s; a process that ended has no name any more). It lasts until the GPU serves again: a process
holds it and is as busy as is usual there, or a request had its first token from it. An XID whose process goes on as
before did no harm, and one that only keeps account of memory rows never does.

Not told of: a driver of another version than its library (what runs goes on), and NVML that was released on purpose. A
process that the kernel killed for want of memory is ``memory_pressure``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.presence import MISMATCH
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import GPUS_MAX, Gpu, found_on
from gpumon.explain.witnesses.weighing import Usual, confirmed
from gpumon.model import Unit

CAUSE: Final = "gpu_error"
HARMLESS: Final = frozenset({"63", "64", "92"})
"""XIDs that tell of rows to be remapped and of corrected errors, and touch no work."""
_XID: Final = re.compile("[0-9]{1,5}")
_GONE: Final = 1.0
"""Evidence of a GPU that does not answer while others do."""
_ENDED: Final = 0.9
"""Of a process that ended, or that an XID stopped."""
_AWAY: Final = 0.8
"""Of a driver that does not answer."""
_DOUBT: Final = 0.5
"""Of an XID alone."""
_KILLED: Final = 0.15
"""Of a process that ended when the kernel killed one."""
_DOUBT_S: Final = 4.0
"""What an XID does to work is seen within this time."""
_KILLED_S: Final = 10.0
_LONGEST_S: Final = 600.0
"""A server that is not back by then does not come back."""
_LATE_S: Final = 3.0
"""That a process ended is known that late."""
_SERVED_S: Final = 1.5
"""A token may come that much after what is told of as its end: looks are a second apart."""
_BUSY: Final = (0.5, 0.2)
"""From where on a GPU serves: part of the usual utilization, or where that is not known, utilization."""
_BUSY_LEAST: Final = 0.05
"""A GPU that is less busy says nothing of what is usual while it serves; ratio."""
_REQUESTS: Final = 256


class _Holder(NamedTuple):
    pid: str
    name: str
    used_bytes: float
    at_s: float


class _Event(NamedTuple):
    since_s: float
    evidence: float
    fact: Fact


@dataclass(slots=True)
class _Gpu:
    owner: _Holder | None = None
    """The process that held most of its memory when it was first seen, for as long as it lives."""
    was_owned: bool = False
    busy: Usual = field(default_factory=lambda: Usual(120, 5))
    """Utilization while it serves."""
    event: _Event | None = None
    """The worst since it ceased to serve; None while it serves."""

    def is_busy(self, busy: float | None) -> bool | None:
        """As while it serves; None where nobody tells."""
        usual = self.busy.value
        return None if busy is None else busy >= (_BUSY[1] if usual is None else _BUSY[0] * usual)


class GpuErrors:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self) -> None:
        self._xids: dict[Labels, float] = {}
        self._gpus: Kept[Gpu, _Gpu] = Kept(_Gpu, forget_s=_LONGEST_S, most=GPUS_MAX)
        self._looked_s: float | None = None
        self._killed_s = -math.inf

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        before_s = scene.at_s if self._looked_s is None else self._looked_s
        self._looked_s = scene.at_s
        if any(growth.amount > 0 for growth in scene.grown(catalogue.HOST_OOM_KILLS)):
            self._killed_s = scene.at_s
        found = found_on(incidents, "xid", "gpu_lost")
        xids, holders, served = self._new_xids(scene), _holders(scene), _served(scene)
        utilizations, away = scene.values(catalogue.GPU_UTILIZATION), _away(scene)
        for gpu, present in scene.values(catalogue.GPU_PRESENT).items():
            state, busy = self._gpus.look(gpu, scene.at_s), utilizations.get(gpu)
            events: list[_Event] = []
            if present <= 0 and away > 0:
                events.append(_Event(before_s, away, Fact("gpu_present", 0.0, Unit.NONE, 1.0)))
            if gpu in xids:
                events.append(_Event(before_s, _DOUBT, Fact("xid", xids[gpu], Unit.NONE)))
            if present > 0:
                is_busy = state.is_busy(busy)
                # Where nobody holds it now, that may only not have been told: a GPU that works has a process.
                is_told = gpu in holders or is_busy is False or (is_busy is None and bool(holders))
                events += self._ended(scene, state, holders.get(gpu, [])) if is_told else []
            starts_s = [max(event.since_s, before_s - _LATE_S) for event in events]
            self._take(state, events, busy)
            if state.event is None or before_s >= scene.at_s:
                if busy is not None and busy >= _BUSY_LEAST:
                    state.busy.feed(busy, 0.0)
                continue
            evidence = confirmed(state.event.evidence, is_found=gpu[1] in found)
            yield Sign(CAUSE, ("gpu", gpu[1]), min([before_s, *starts_s]), scene.at_s, evidence, 1.0, state.event.fact)
            if present > 0 and _serves(scene, state, busy, served.get(gpu[1], -math.inf)):
                state.event = None
        self._gpus.sweep(scene.at_s)

    def _take(self, state: _Gpu, events: Sequence[_Event], busy: float | None) -> None:
        """What happened, or that there is more to what happened before."""
        known = [state.event] if state.event is not None else []
        if not known and not events:
            return
        worst = max((*known, *events), key=lambda event: event.evidence)
        # The number of the XID tells more than that a process ended.
        first = next((event for event in (*known, *events) if event.fact.name == "xid"), worst)
        evidence = worst.evidence
        if first.fact.name == "xid" and state.is_busy(busy) is False:
            evidence = max(evidence, _ENDED)
        state.event = _Event(min(event.since_s for event in (*known, *events)), evidence, first.fact)

    def _ended(self, scene: Scene, state: _Gpu, present: Sequence[_Holder]) -> list[_Event]:
        """Whether the process that held the GPU ended; who holds it now."""
        owner, events = state.owner, []
        if owner is not None:
            same = next((each for each in present if each.pid == owner.pid), None)
            if same is not None and (same.name or not owner.name):
                state.owner = same
            else:
                evidence = _KILLED if scene.at_s - self._killed_s <= _KILLED_S else _ENDED
                events.append(_Event(owner.at_s, evidence, Fact("server_processes", 0.0, Unit.NONE, 1.0)))
                state.owner = None
        if state.owner is None:
            there = [each for each in present if owner is None or each.pid != owner.pid]
            state.owner = max(there, key=lambda each: (each.used_bytes, each.pid), default=None)
            state.was_owned = state.was_owned or state.owner is not None
        return events

    def _new_xids(self, scene: Scene) -> dict[Gpu, float]:
        """Number of an XID that is new since the last look, by GPU; not of those that do no harm."""
        counts = scene.values(catalogue.GPU_XID_ERRORS)
        if not counts or counts == self._xids:
            return {}
        known = {labels[:2] for labels in self._xids}
        new: dict[Gpu, float] = {}
        for labels, count in sorted(counts.items()):
            # The series of an uncommon XID is born with the first error.
            before = self._xids.get(labels, 0.0 if labels[:2] in known else count)
            if count > before and labels[2] not in HARMLESS and _XID.fullmatch(labels[2]):
                new[labels[:2]] = float(labels[2])
        self._xids = counts
        return new


def _serves(scene: Scene, state: _Gpu, busy: float | None, served_s: float) -> bool:
    """Whether the GPU serves again."""
    event = state.event
    if event is None or scene.at_s - event.since_s > _LONGEST_S or served_s > event.since_s + _SERVED_S:
        return True
    is_owned = state.owner is not None or not state.was_owned
    is_settled = event.evidence > _DOUBT or scene.at_s - event.since_s >= _DOUBT_S
    # Where nobody tells how busy it is, an XID alone is forgotten, and a process that is there serves.
    return is_owned and is_settled and state.is_busy(busy) is not False


def _holders(scene: Scene) -> dict[Gpu, list[_Holder]]:
    """Processes by GPU."""
    found: dict[Gpu, list[_Holder]] = {}
    for labels, used_bytes, at_s in scene.read(catalogue.PROCESS_GPU_MEMORY):
        if labels[2] != "other":
            found.setdefault(labels[:2], []).append(_Holder(labels[2], labels[3], used_bytes, at_s))
    return found


def _served(scene: Scene) -> Mapping[str, float]:
    """When a request that went well had its first token, the newest one, by UUID of its GPUs."""
    served: dict[str, float] = {}
    for record in scene.requests[-_REQUESTS:]:
        if record.outcome == "ok" and record.first_token_ns is not None:
            first_s = scene.to_steady(record.first_token_ns)
            for uuid in record.binding.gpus:
                served[uuid] = max(served.get(uuid, -math.inf), first_s)
    return served


def _away(scene: Scene) -> float:
    """Evidence of an error where a GPU is not present: 0 where that says nothing."""
    state = next((labels[0] for labels, value in scene.values(catalogue.NVML_STATE).items() if value > 0), "")
    if state == "running":
        return _GONE
    is_mismatch = any(labels[0] == MISMATCH for labels in scene.values(catalogue.NVML_ERROR))
    return _AWAY if state in ("unavailable", "stuck") and not is_mismatch else 0.0
