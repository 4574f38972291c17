"""Readings of what the cgroups of watched processes count, one by one: for witnesses.

The source reads a cgroup every five seconds and repeats what it read until then; so a reading is new where any of its
counters has moved, and where none has for ``REST_S``. Processes of one container share a cgroup: one of them is read,
and what it says is said of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.scene import Labels, Scene
from gpumon.detect.serving import cgroup_of

REST_S: Final = 12.0
"""Two readings, and more, at which nothing had moved."""
THROTTLED: Final = "throttled"


class Reading(NamedTuple):
    """How fast the counters of a cgroup grew between two readings."""

    group: Labels
    pids: tuple[str, ...]
    """All watched processes of it."""
    start_s: float
    end_s: float
    per_s: Mapping[str, float]
    """By name: ``throttled``, or resource and kind: ``memory some``. Those that are not known are not in it."""


@dataclass(slots=True)
class _Read:
    process: Labels
    at_s: float
    values: dict[str, float]


class CgroupReadings:
    """Not thread-safe. ``step`` once per look."""

    def __init__(self) -> None:
        self._last: dict[Labels, _Read] = {}
        self.told: frozenset[str] = frozenset()
        """Pids whose cgroup tells of pressure, at the last step."""

    def step(self, scene: Scene) -> list[Reading]:
        """New readings since the last step."""
        values: dict[Labels, dict[str, float]] = {}
        read_s: dict[Labels, float] = {}
        for labels, value, at_s in scene.read(catalogue.PROCESS_PRESSURE):
            values.setdefault(labels[:5], {})[f"{labels[5]} {labels[6]}"] = value
            read_s[labels[:5]] = at_s
        self.told = frozenset(process[0] for process in values)
        for labels, value, at_s in scene.read(catalogue.PROCESS_CPU_THROTTLED):
            values.setdefault(labels, {})[THROTTLED] = value
            read_s[labels] = at_s
        members: dict[Labels, list[Labels]] = {}
        for process in values:
            members.setdefault(cgroup_of(process), []).append(process)
        found = []
        kept: dict[Labels, _Read] = {}
        for group, processes in members.items():
            last = self._last.get(group)
            if last is None or last.process not in values:
                named = processes[0]
                kept[group] = _Read(named, read_s[named], values[named])
                continue
            kept[group] = last
            now, at_s = values[last.process], read_s[last.process]
            if at_s <= last.at_s or (now == last.values and at_s - last.at_s < REST_S):
                continue
            kept[group] = _Read(last.process, at_s, now)
            both = [name for name in now if name in last.values]
            if all(now[name] >= last.values[name] for name in both):
                seconds = at_s - last.at_s
                per_s = {name: (now[name] - last.values[name]) / seconds for name in both}
                found.append(Reading(group, tuple(each[0] for each in processes), last.at_s, at_s, per_s))
        self._last = kept
        return found
