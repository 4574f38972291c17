"""Device memory that a framework's allocator holds and does not use, and more of it by the minute: ``allocator_gap``.

From what a shim tells of the allocator (reserved, allocated); no server tells it of itself. The gap rises and falls
with the load, so its floor counts: the least of each part of the window. NVML's used memory cannot show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.model import Unit

_PARTS: Final = 10
"""Of the window: each is 12 s of two minutes, longer than most requests."""
_GIVEN_BACK: Final = 0.8
"""Reserved memory below this share of what it was has been given back, or the process is another one."""


class _Floor(NamedTuple):
    """The least gap in a part of the window."""

    number: int
    at_s: float
    gap_bytes: float
    reserved_bytes: float


@dataclass(slots=True)
class _Allocator:
    first_s: float | None = None
    """When it was first seen, or began anew."""
    reserved_bytes: float = 0.0
    floors: list[_Floor] = field(default_factory=list)
    since_s: float | None = None


class AllocatorGap:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "allocator_gap",
            "Memory reserved by the allocator and not allocated grew over `window_s`, by its floor, by more than "
            "`growth_bytes` and `growth` of what is reserved, rising in at least `rising` of ten parts; not within "
            "`warm_up_s` of the first reading or of a restart. It is over when the floor no longer rises like this.",
            (Severity.WARNING,),
            "The allocator's memory falls into pieces that nothing fits, and an out-of-memory error will end it. "
            "PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a limit to the size of split blocks; look "
            "for shapes that change with every request (padding, multi-modal input); restart the server in a quiet "
            "hour.",
            hold_s=120.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "window_s": "Over which growth counts; seconds.",
        "growth_bytes": "Least growth of the floor; bytes.",
        "growth": "The same, over reserved memory; ratio.",
        "rising": "Parts of the window whose floor is above that of the part before; ratio.",
        "warm_up_s": "Time from the first reading that counts for nothing; seconds. Caches and graphs fill then.",
    }

    def __init__(
        self,
        *,
        window_s: float = 120.0,
        growth_bytes: float = float(1 << 30),
        growth: float = 0.01,
        rising: float = 0.8,
        warm_up_s: float = 60.0,
    ) -> None:
        if window_s <= 0:
            raise ValueError("window_s must be above 0")
        self._part_s = window_s / _PARTS
        self._growth_bytes = growth_bytes
        self._growth = growth
        self._rising = rising
        self._warm_up_s = warm_up_s
        self._allocators: Kept[Labels, _Allocator] = Kept(_Allocator)

    def step(self, scene: Scene) -> Iterator[Finding]:
        values = scene.values(catalogue.SERVER_ALLOCATOR)
        for labels, reserved, at_s in scene.read(catalogue.SERVER_ALLOCATOR):
            of = labels[:-1]
            allocated = values.get((*of, "allocated"))
            if labels[-1] != "reserved" or allocated is None:
                continue
            allocator = self._allocators.look(of, scene.at_s)
            if allocator.first_s is None or reserved < _GIVEN_BACK * allocator.reserved_bytes:
                allocator.first_s, allocator.floors, allocator.since_s = at_s, [], None
                allocator.reserved_bytes = 0.0
            allocator.reserved_bytes = max(reserved, allocator.reserved_bytes)
            if at_s - allocator.first_s >= self._warm_up_s:
                self._take(allocator, _Floor(int(at_s // self._part_s), at_s, max(0.0, reserved - allocated), reserved))
                yield from self._judge(of, allocator, reserved, allocated)
        self._allocators.sweep(scene.at_s)

    def _take(self, allocator: _Allocator, now: _Floor) -> None:
        floors = allocator.floors
        if floors and floors[-1].number == now.number:
            if now.gap_bytes < floors[-1].gap_bytes:
                floors[-1] = now
            return
        if floors and now.number - floors[-1].number > 2:
            floors.clear()  # nothing was told for so long that no trend goes through it
        floors.append(now)
        del floors[: -(_PARTS + 1)]

    def _judge(self, labels: Labels, allocator: _Allocator, reserved: float, allocated: float) -> Iterator[Finding]:
        # The part under way has no floor yet: it may still fall.
        floors = allocator.floors[:-1]
        if len(floors) < _PARTS:
            allocator.since_s = None
            return
        rising = sum([after.gap_bytes > before.gap_bytes for before, after in pairwise(floors)])
        grown = floors[-1].gap_bytes - floors[0].gap_bytes
        enough = max(self._growth_bytes, self._growth * reserved)
        if grown <= enough or rising < self._rising * (len(floors) - 1):
            allocator.since_s = None
            return
        if allocator.since_s is None:
            allocator.since_s = floors[0].at_s
        per_minute = grown / (floors[-1].at_s - floors[0].at_s) * 60.0
        gap = floors[-1].gap_bytes
        yield Finding(
            "allocator_gap",
            server_entity(labels),
            Severity.WARNING,
            allocator.since_s,
            f"reserved but unused device memory {floors[0].gap_bytes / 2**30:.1f} → {gap / 2**30:.1f} GiB",
            (
                Evidence("unused", gap, Unit.BYTES, floors[0].gap_bytes),
                Evidence("unused_growth_per_minute", per_minute, Unit.BYTES),
                Evidence("reserved", reserved, Unit.BYTES, floors[0].reserved_bytes),
                Evidence("allocated", allocated, Unit.BYTES),
            ),
        )
