"""Signals of GPUs, processes, servers and the host by group: the last ten minutes, one value a second.

What they are and how they are read is in ``dimension_table``. Counters become rates between two readings and fill the
seconds between them; what is read now and then holds until it is read again, but never for longer than two and a half
times its cadence, which is learned from the readings (``second_track``). NaN is what is not known: no such reading,
no such process, a device without it.

Bounded: 32 groups, of which one not seen for five minutes makes room for another; 0.1 MB each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.scene import Labels, Scene
from gpumon.explain.dimension_readings import GPU, HOST, PAGE, Found, Repeated, Scope, others_share
from gpumon.explain.dimension_table import TABLE, Others, Repeat
from gpumon.explain.dimension_table import Dimension as Dimension
from gpumon.explain.group import Group
from gpumon.explain.group_members import Members, is_page_of, parents
from gpumon.explain.group_room import GroupRoom
from gpumon.explain.second_track import SecondTrack

DIMENSIONS: Final[tuple[Dimension, ...]] = tuple(dimension for dimension, _ in TABLE)
HOLD: Final = 2.5
"""A level holds for this many times its cadence."""
_CADENCE_S: Final = 5.0
"""Of levels, until it is learned."""
_MOST: Final = float(np.finfo(np.float32).max)

_RULES: Final = tuple(rule for _, rule in TABLE)
_IS_LEVEL: Final = np.array([rule.is_level for rule in _RULES])
_REPEATS: Final = tuple(dict.fromkeys(rule.read.metric for rule in _RULES if isinstance(rule.read, Repeat)))


class _Parts(NamedTuple):
    """Labels of what a group is made of, by scope."""

    group: Group
    gpus: Sequence[tuple[Labels, Labels]]
    """Of each its own, and of a MIG instance those of the GPU it is on (else the same again)."""
    processes: Sequence[Labels]
    is_here: bool
    """Whether it is known to run on this host."""


class Dimensions:
    """``feed`` from one thread, the rest from any: one lock, held while values are written or copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._tracks: GroupRoom[SecondTrack] = GroupRoom(lambda at_s: SecondTrack(_IS_LEVEL, at_s))
        self._repeated = {metric: Repeated(metric) for metric in _REPEATS}
        width = len(DIMENSIONS)
        self._read_s = np.full(width, -np.inf)
        """When each dimension was last read, for any group."""
        self._intervals_s = np.full((2, width), _CADENCE_S)
        """The last two times between its readings: the shorter one is its cadence, as one may have been missed."""

    @property
    def began_s(self) -> float | None:
        """The first step, in steady seconds; None before it."""
        return self._began_s

    def feed(self, scene: Scene, groups: Iterable[Group]) -> None:
        """Once per step. groups: those seen since the last step, or known to be there; others go on until forgotten."""
        if self._began_s is None:
            self._began_s = scene.at_s
        members = Members(scene)
        for repeated in self._repeated.values():
            repeated.step(scene)
        found = self._found(scene, members)
        hold_s = HOLD * self._intervals_s.min(axis=0)
        on_gpu = parents(scene)
        with self._lock:
            for group in groups:
                self._tracks.see(group, scene.at_s)
            for group, track in self._tracks.items():
                parts = _parts(group, members, on_gpu)
                track.fill(*self._values(found, parts), hold_s, scene.at_s)

    def groups(self) -> list[Group]:
        """Those that have tracks, in the order in which they were first seen."""
        with self._lock:
            return [group for group, _ in self._tracks.items()]

    def means(self, group: Group, start_s: float, end_s: float) -> NDArray[np.float32]:
        """Of each dimension, the mean over the known seconds that a stretch of time touches: shape (DIMENSIONS,).

        start_s, end_s: steady seconds, at most ten minutes ago. NaN for what is not known, as all of an unknown group.
        """
        return self.means_of(group, [(start_s, end_s)])[0]

    def means_of(self, group: Group, stretches: Iterable[tuple[float, float]]) -> list[NDArray[np.float32]]:
        """The same of several stretches. Those that touch the same seconds share an array."""
        found: dict[tuple[int, int], NDArray[np.float32]] = {}
        seconds = [(int(start_s // 1.0), int(end_s // 1.0)) for start_s, end_s in stretches]
        with self._lock:
            track = self._tracks.get(group)
            for each in seconds:
                if each not in found:
                    found[each] = np.full(len(DIMENSIONS), np.nan, np.float32) if track is None else track.means(*each)
        return [found[each] for each in seconds]

    def series(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Seconds (n is [n, n + 1) steady seconds), oldest first, and values of shape (DIMENSIONS, seconds): copies.

        Without gaps; empty for an unknown group.
        """
        with self._lock:
            track = self._tracks.get(group)
            if track is not None:
                return track.series()
        return np.empty(0, dtype=np.int64), np.empty((len(DIMENSIONS), 0), dtype=np.float32)

    def _found(self, scene: Scene, members: Members) -> list[Found | None]:
        """What is new, by dimension; None too for those that are read group by group."""
        found: list[Found | None] = []
        for number, rule in enumerate(_RULES):
            after_s = float(self._read_s[number])
            if isinstance(rule.read, Repeat):
                found.append(None)
                continue
            read = others_share(members, scene, after_s) if isinstance(rule.read, Others) else rule.read(scene, after_s)
            found.append(read)
            if read is not None:
                if after_s > -np.inf:
                    self._intervals_s[:, number] = read.at_s - after_s, self._intervals_s[0, number]
                self._read_s[number] = read.at_s
        return found

    def _values(
        self, found: Sequence[Found | None], parts: _Parts
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Of one group: value of each dimension, since when and until when."""
        stretches = np.full((3, len(_RULES)), np.nan)
        for number, (rule, read) in enumerate(zip(_RULES, found, strict=True)):
            stretch: tuple[float, float, float] | None = None
            if isinstance(rule.read, Repeat):
                tail = rule.read.tail
                stretch = self._repeated[rule.read.metric].of([of + tail for of in parts.processes], rule.over)
            elif read is not None:
                values = _of_parts(rule.scope, read.values, parts)
                if values:
                    stretch = rule.over(values), read.since_s, read.at_s
            if stretch is not None and abs(stretch[0]) <= _MOST:
                stretches[:, number] = stretch
        return stretches[0], stretches[1], stretches[2]


def _parts(group: Group, members: Members, on_gpu: Mapping[str, str]) -> _Parts:
    gpus = [((uuid,), (on_gpu.get(uuid, uuid),)) for uuid in group.gpus]
    is_here = bool(group.gpus or group.pid or group.container)
    return _Parts(group, gpus, members.processes(group), is_here)


def _of_parts(scope: Scope, values: Mapping[Labels, float], parts: _Parts) -> list[float]:
    """The figures of those of the parts that have one."""
    if scope is GPU:
        both = [(values.get(own), values.get(gpu)) for own, gpu in parts.gpus]
        return [value for own, gpu in both if (value := gpu if own is None else own) is not None]
    if scope is HOST:
        return [*values.values()] if parts.is_here else []
    if scope is PAGE:
        return [value for page, value in values.items() if is_page_of(parts.group, page)]
    return [value for each in parts.processes if (value := values.get(each)) is not None]
