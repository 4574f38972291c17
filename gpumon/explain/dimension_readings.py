"""How a dimension is read: from the families of the store to one figure for each GPU, process, page or the host.

Levels are gauges. Rates are counters between two readings, per second. *Repeated* counters are published more often
than they are read (``detect.rates``): their rate is known at their next jump, of the time since the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.rates import Rate, RepeatedRates
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.group_members import Members
from gpumon.model import Metric


class Scope(NamedTuple):
    """Of what a family's series are."""

    name: slice
    """Labels that name it."""
    end: int
    """Where the labels begin that tell more than what it is of."""
    parts: str
    """What a group has of it, for people."""


GPU: Final = Scope(slice(1, 2), len(catalogue.GPU), "the group's GPUs")
MIG: Final = Scope(slice(0, 1), len(catalogue.MIG), GPU.parts)
"""The instance; its figures join those of GPUs."""
PROCESS: Final = Scope(slice(0, 5), len(catalogue.WORKLOAD), "the server's processes")
GPU_PROCESS: Final = Scope(slice(2, 7), len(catalogue.GPU_WORKLOAD), PROCESS.parts)
"""The process on a GPU; its figures join those of processes."""
PAGE: Final = Scope(slice(0, 3), 3, "the metrics pages of its model")
HOST: Final = Scope(slice(0, 0), 0, "the host")


class Found(NamedTuple):
    """What is new of one dimension."""

    values: dict[Labels, float]
    """By GPU, process, …: the labels that its scope names."""
    since_s: float
    """Steady seconds: the stretch of time of a rate; for a level the same as at_s."""
    at_s: float


Reader = Callable[[Scene, float], Found | None]
"""Of a scene and the time of the newest reading before: what is newer, None where nothing is."""
Over = Callable[[Sequence[float]], float]
"""The figure of a group from those of its parts; there is at least one."""


def mean(values: Sequence[float]) -> float:
    """An ``Over``, as are ``max``, ``min`` and ``sum``."""
    return sum(values) / len(values)


def level(scope: Scope, metric: Metric, *tail: str) -> Reader:
    """A gauge; where it has several series for one part, the least."""
    name, end, _ = scope

    def read(scene: Scene, after_s: float) -> Found | None:
        values: dict[Labels, float] = {}
        newest_s = after_s
        for labels, value, at_s in scene.read(metric):
            if at_s > after_s and labels[end:] == tail:
                of = labels[name]
                values[of] = min(value, values.get(of, value))
                newest_s = max(newest_s, at_s)
        return Found(values, newest_s, newest_s) if values else None

    return read


def rate(scope: Scope, metric: Metric, *tails: Labels, add: bool = False, most: float = math.inf) -> Reader:
    """A counter's growth per second. tails: which series count, all where none is given; of several the largest, or
    their sum with ``add``. most: the largest that can be true; timing makes shares of time pass 1 by a little.
    """
    name, end, _ = scope
    sought = frozenset(tails)

    def read(scene: Scene, after_s: float) -> Found | None:
        values: dict[Labels, float] = {}
        longest_s, newest_s = 0.0, after_s
        for labels, amount, dt_s, at_s in scene.grown(metric):
            if not sought or labels[end:] in sought:
                of, per_s = labels[name], amount / dt_s
                if of in values:
                    per_s = values[of] + per_s if add else max(values[of], per_s)
                values[of] = min(per_s, most)
                longest_s, newest_s = max(longest_s, dt_s), max(newest_s, at_s)
        return Found(values, newest_s - longest_s, newest_s) if values else None

    return read


def either(first: Reader, second: Reader) -> Reader:
    """Of two readers the figures of both: of whole GPUs and of MIG instances."""

    def read(scene: Scene, after_s: float) -> Found | None:
        one, other = first(scene, after_s), second(scene, after_s)
        if one is None or other is None:
            return one or other
        return Found(other.values | one.values, min(one.since_s, other.since_s), max(one.at_s, other.at_s))

    return read


def ratio(scope: Scope, above: Metric, tail: Labels, below: Metric, below_tails: Iterable[Labels]) -> Reader:
    """A gauge over the sum of gauges of the same part, each with these last labels."""
    name, end, _ = scope
    sought = tuple(below_tails)

    def read(scene: Scene, after_s: float) -> Found | None:
        wholes = scene.values(below)
        values: dict[Labels, float] = {}
        at_s = after_s
        for labels, value, read_s in scene.read(above):
            if read_s > after_s and labels[end:] == tail:
                parts = [part for each in sought if (part := wholes.get(labels[:end] + each)) is not None]
                if len(parts) == len(sought) and (whole := sum(parts)) > 0:
                    values[labels[name]] = value / whole
                    at_s = max(at_s, read_s)
        return Found(values, at_s, at_s) if values else None

    return read


def power_over_limit(scene: Scene, after_s: float) -> Found | None:
    """Board power over the limit that acts; the average where there is one, as it is of about a second."""
    limits = scene.values(catalogue.GPU_POWER_LIMIT)
    values: dict[Labels, float] = {}
    at_s = after_s
    for labels, watts, read_s in scene.read(catalogue.GPU_POWER):
        limit_w = limits.get((*labels[:2], "enforced"))
        of = labels[GPU.name]
        if read_s > after_s and limit_w and (labels[2] == "average" or of not in values):
            values[of] = watts / limit_w
            at_s = max(at_s, read_s)
    return Found(values, at_s, at_s) if values else None


def hardware_throttled(scene: Scene, after_s: float) -> Found | None:
    """Share of time held down by the power brake, or slowed by the hardware for another reason than heat, which sets
    both.
    """
    parts: dict[Labels, dict[str, float]] = {}
    longest_s, newest_s = 0.0, after_s
    for labels, amount, dt_s, at_s in scene.grown(catalogue.GPU_THROTTLED_SECONDS):
        if labels[2] in ("hw_slowdown", "hw_thermal", "hw_power_brake"):
            parts.setdefault(labels[GPU.name], {})[labels[2]] = amount / dt_s
            longest_s, newest_s = max(longest_s, dt_s), max(newest_s, at_s)
    values = {
        of: min(1.0, max(0.0, by.get("hw_power_brake", 0.0), by.get("hw_slowdown", 0.0) - by.get("hw_thermal", 0.0)))
        for of, by in parts.items()
    }
    return Found(values, newest_s - longest_s, newest_s) if values else None


def eager_share(scene: Scene, after_s: float) -> Found | None:
    """Share of decode passes outside CUDA graphs; none of a page whose server made no pass."""
    passes: dict[Labels, dict[str, float]] = {}
    longest_s, newest_s = 0.0, after_s
    for labels, amount, dt_s, at_s in scene.grown(catalogue.SERVER_GRAPH_PASSES):
        passes.setdefault(labels[PAGE.name], {})[labels[3]] = amount
        longest_s, newest_s = max(longest_s, dt_s), max(newest_s, at_s)
    values = {of: by.get("eager", 0.0) / total for of, by in passes.items() if (total := sum(by.values())) > 0}
    return Found(values, newest_s - longest_s, newest_s) if values else None


def others_share(members: Members, scene: Scene, after_s: float) -> Found | None:
    """SM share of all processes on a GPU that are not its server's; 0 where there are none."""
    values: dict[Labels, float] = {}
    taken: dict[str, dict[Labels, float]] = {}
    at_s = after_s
    for labels, share, read_s in scene.read(catalogue.PROCESS_GPU_SM):
        if read_s > after_s:
            taken.setdefault(labels[1], {})[labels[2:]] = share
            at_s = max(at_s, read_s)
    for uuid, shares in taken.items():
        others = members.others(uuid)
        if others is not None:
            values[(uuid,)] = min(1.0, sum([shares.get(each, 0.0) for each in others]))
    return Found(values, at_s, at_s) if values else None


_REST: Final = Rate(0.0, 0.0)


class Repeated:
    """A family of repeated counters of processes. ``step`` once per step. Not thread-safe."""

    def __init__(self, metric: Metric, *, period_s: float = 5.0) -> None:
        """period_s: how often it is read, until that is learned; the default cadence."""
        self._metric = metric
        self._rates = RepeatedRates(metric)
        self._period_s = period_s
        self._learned = False
        self._jumped: dict[Labels, Rate] = {}
        self._moving: dict[Labels, Rate] = {}
        """Rates of those that do not rest, and since when the next one will count."""
        self._known: dict[Labels, float] = {}
        self._at_s = 0.0

    def step(self, scene: Scene) -> None:
        """Take what is new."""
        self._known = scene.values(self._metric)
        self._at_s = max([reading.at_s for reading in scene.read(self._metric)], default=self._at_s)
        rests_s = self._at_s - 2 * self._period_s
        self._moving = {
            labels: rate for labels, rate in self._moving.items() if labels in self._known and rate.since_s >= rests_s
        }
        jumps = {labels: rate for labels, rate in self._rates.step(scene).items() if rate.per_s > 0}
        self._jumped = {labels: self._judged(labels, rate) for labels, rate in jumps.items()}
        self._moving |= {labels: Rate(rate.per_s, self._at_s) for labels, rate in self._jumped.items()}

    def of(self, series: Iterable[Labels], over: Over) -> tuple[float, float, float] | None:
        """Value, since when and until when; None where it is not known (yet). All zero while nothing moves."""
        present = [labels for labels in series if labels in self._known]
        jumped = [self._jumped[labels] for labels in present if labels in self._jumped]
        if jumped:
            value = over([self._moving.get(labels, _REST).per_s for labels in present])
            return value, min([rate.since_s for rate in jumped]), self._at_s
        if not present or any(labels in self._moving for labels in present):
            return None
        # It may have grown since it was last read, which will be told with its next jump.
        return over([0.0] * len(present)), 0.0, self._at_s - self._period_s

    def _judged(self, labels: Labels, rate: Rate) -> Rate:
        seconds = self._at_s - rate.since_s
        if labels in self._moving:
            if not self._learned or seconds < self._period_s:
                self._period_s, self._learned = seconds, True
            return rate
        # It rested until the reading before, so all of it grew since then.
        least_s = min(seconds, self._period_s)
        return Rate(rate.per_s * seconds / least_s, self._at_s - least_s)
