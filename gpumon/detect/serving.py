"""Which processes serve already, and how incidents name them. A server that starts pages in its weights, compiles
kernels and keeps every CPU busy, and none of that is an incident.

A process counts as serving once it has been seen for a while and works: a request that ran on it or on its GPU has
ended, or its GPU's SMs were active over the last minute. Where neither can be known (no bound requests, no reading of
its GPU), and after ten minutes in any case, its age alone decides. What is there at the first look is taken to be old.
A server that ends most likely starts anew: for ten minutes or until that is over, the host is not settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpumon import catalogue
from gpumon.detect.detector import Entity
from gpumon.detect.scene import Labels, Scene

ALWAYS_S: Final = 600.0
GONE_S: Final = 30.0
"""Unseen for so long, a process has ended; for less, nobody could read it."""
WORKED: Final = 0.02
"""Mean SM activity, or utilization, of a GPU that works."""
_LOOK_BACK_S: Final = 60.0
_WORKS_MAX: Final = 256


def process_entity(scene: Scene, labels: Labels) -> Entity:
    """Of a series whose labels begin with those of a workload: pid and process."""
    return group_entity(scene, labels, (labels,))


def group_entity(scene: Scene, named: Labels, members: Iterable[Labels]) -> Entity:
    """Of several processes that are told of as one, by the name of one; of a GPU if they hold a single one."""
    held = {holder for labels in members for holder in scene.holders(labels[0])}
    one = held.pop() if len(held) == 1 else None
    return Entity("process", f"pid {named[0]} {named[1]}", one.gpu if one else "", one.uuid if one else "")


def main_process(scene: Scene, members: Iterable[Labels]) -> Labels:
    """The one to name several processes after: that with the most GPU memory, of equal ones the lowest pid."""
    memory: dict[str, float] = {}
    for labels, value, _ in scene.read(catalogue.PROCESS_GPU_MEMORY):
        memory[labels[2]] = memory.get(labels[2], 0.0) + value
    return min(members, key=lambda labels: (-memory.get(labels[0], 0.0), len(labels[0]), labels))


def cgroup_of(labels: Labels) -> Labels:
    """Of a series whose labels are those of a workload: what its process shares a cgroup with.

    Namespace, pod and container; where there is no container the pid, for nobody knows.
    """
    return labels[2:5] if labels[3] or labels[4] else labels[:1]


class Serving:
    """Not thread-safe. ``feed`` once per step."""

    def __init__(self, *, warm_up_s: float) -> None:
        """warm_up_s: how old a process must be at least."""
        self._warm_up_s = warm_up_s
        self._first_s: dict[str, float] | None = None
        """When a pid was first seen."""
        self._seen_s: dict[str, float] = {}
        """When it was last seen."""
        self._is_missing = False
        """Whether a process that was there is unseen now."""
        self._came_s = self._went_s = float("-inf")
        """When a process last came, and when one last went."""
        self._ended_s: dict[str, float] = {}
        """When a request on a GPU (its UUID) or a process (its pid) last ended, the newest last."""

    def feed(self, scene: Scene) -> None:
        """Note who is there, and whose requests ended."""
        seen = {labels[0] for labels in scene.values(catalogue.PROCESS_CPU_SECONDS)}
        if self._first_s is None:
            self._first_s = dict.fromkeys(seen, scene.at_s - self._warm_up_s)
        self._is_missing = not self._first_s.keys() <= seen
        self._seen_s |= dict.fromkeys(seen, scene.at_s)
        if seen != self._first_s.keys():
            self._came_s = scene.at_s if seen - self._first_s.keys() else self._came_s
            gone = {pid for pid, seen_s in self._seen_s.items() if scene.at_s - seen_s >= GONE_S}
            self._went_s = max([self._went_s, *(self._seen_s.pop(pid) for pid in gone)])
            self._first_s = {pid: self._first_s.get(pid, scene.at_s) for pid in self._seen_s}
        for record in scene.requests:
            keys = [*record.binding.gpus, *([str(record.binding.pid)] if record.binding.pid is not None else ())]
            for key in keys:
                self._ended_s.pop(key, None)
                self._ended_s[key] = scene.to_steady(record.end_ns)
        while len(self._ended_s) > _WORKS_MAX:
            del self._ended_s[next(iter(self._ended_s))]

    def is_settled(self, scene: Scene) -> bool:
        """Whether no watched process starts, or is likely to since one ended: what the host does is no such start."""
        awaited = self._went_s >= self._came_s and scene.at_s - self._went_s < ALWAYS_S
        if awaited or self._is_missing or scene.at_s - self._came_s < self._warm_up_s:
            return False
        return all(self.is_warm(scene, pid) for pid in self._first_s or ())

    def is_warm(self, scene: Scene, pid: str) -> bool:
        """Whether the process serves."""
        first_s = (self._first_s or {}).get(pid)
        if first_s is None or scene.at_s - first_s < self._warm_up_s:
            return False
        if scene.at_s - first_s >= ALWAYS_S:
            return True
        held = scene.holders(pid)
        told = [self._ended_s[key] for key in (pid, *(gpu.uuid for gpu in held)) if key in self._ended_s]
        if told:
            return max(told) > first_s
        working = [_mean_activity(scene, (gpu.gpu, gpu.uuid)) for gpu in held]
        known = [activity for activity in working if activity is not None]
        return not known or max(known) >= WORKED


def _mean_activity(scene: Scene, labels: Labels) -> float | None:
    for metric in (catalogue.GPU_SM_ACTIVE, catalogue.GPU_UTILIZATION):
        _, values = scene.window(metric, labels, scene.at_s - _LOOK_BACK_S)
        if len(values):
            return float(values.mean())
    return None
