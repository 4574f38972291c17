"""What a detector sees at one step: the view of the store, growth of counters, and what ended since the last step.

Made once per step by ``SceneMaker`` and shared by all detectors, so that each series is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.detect.recent import RecentLatencies
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Metric, RequestRecord, Sample
from gpumon.store import View

Labels = tuple[str, ...]


class Reading(NamedTuple):
    """The newest value of a series."""

    labels: Labels
    value: float
    at_s: float
    """When it was read: a slow series keeps its value, and its time, over several steps."""


class Growth(NamedTuple):
    """How much a counter grew between two readings."""

    labels: Labels
    amount: float
    dt_s: float
    """Seconds between the two, > 0."""
    at_s: float
    """Of the newer one."""

    @property
    def rate(self) -> float:
        """Per second."""
        return self.amount / self.dt_s


class Holder(NamedTuple):
    """A GPU that a process holds."""

    gpu: str
    uuid: str


class Scene:
    """See the module. Valid during one step."""

    def __init__(
        self,
        view: View,
        past: dict[Metric, dict[Labels, tuple[float, float]]],
        requests: Sequence[RequestRecord],
        collectives: Sequence[CollectiveRecord],
        to_steady: Callable[[int], float],
        latencies: RecentLatencies,
    ) -> None:
        """past: by counter and series, time and value of the last reading taken; kept from step to step."""
        self.at_s = view.at_s
        self.view = view
        self.requests = requests
        """Requests that ended, or became known, since the last step."""
        self.collectives = collectives
        """Records of collective operations since the last step, in order of arrival."""
        self.to_steady = to_steady
        """Steady seconds of a moment in unix nanoseconds of a server's clock."""
        self.latencies = latencies
        """Of the last minutes by server and model, these requests among them."""
        self._past = past
        self._readings: dict[Metric, list[Reading]] = {}
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._growths: dict[Metric, list[Growth]] = {}
        self._holders: dict[str, list[Holder]] | None = None

    def _parts(self, metric: Metric) -> Iterator[tuple[float, tuple[Sample, ...]]]:
        """Time and samples of each batch that has any of a family."""
        for batch in self.view.batches.values():
            samples = batch.families.get(metric)
            if samples is not None:
                yield batch.at_s, samples

    def read(self, metric: Metric) -> list[Reading]:
        """Newest values of a family of gauges or counters. Empty where nothing is known now."""
        found = self._readings.get(metric)
        if found is None:
            found = [
                Reading(labels, value, at_s)
                for at_s, samples in self._parts(metric)
                for _, labels, value in samples
                if isinstance(value, float)
            ]
            self._readings[metric] = found
        return found

    def values(self, metric: Metric) -> dict[Labels, float]:
        """The same by labels."""
        found = self._values.get(metric)
        if found is None:
            found = self._values[metric] = {
                labels: value
                for _, samples in self._parts(metric)
                for _, labels, value in samples
                if isinstance(value, float)
            }
        return found

    def value(self, metric: Metric, labels: Labels) -> float | None:
        """Newest value of one series; None where it has no reading now."""
        return self.values(metric).get(labels)

    def grown(self, metric: Metric) -> list[Growth]:
        """Series of a counter family with a newer reading than at the last step, and how much they grew since.

        A series seen for the first time, or that began anew, is left out this time. Call it at every step: the growth
        is since the last call of any detector.
        """
        found = self._growths.get(metric)
        if found is None:
            past = self._past.setdefault(metric, {})
            found = []
            seen: dict[Labels, tuple[float, float]] = {}
            for at_s, samples in self._parts(metric):
                for _, labels, value in samples:
                    before = past.get(labels)
                    if before is not None and at_s <= before[0]:
                        seen[labels] = before
                    elif isinstance(value, float):
                        seen[labels] = (at_s, value)
                        if before is not None and value >= before[1]:
                            found.append(Growth(labels, value - before[1], at_s - before[0], at_s))
            self._past[metric] = seen
            self._growths[metric] = found
        return found

    def rates(self, metric: Metric) -> dict[Labels, float]:
        """Per second, of the series in ``grown``."""
        return {growth.labels: growth.rate for growth in self.grown(metric)}

    def window(self, metric: Metric, labels: Labels, since_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``View.window``: times and values of the points kept of a series, at the rate at which it is published."""
        return self.view.window(metric, labels, since_s)

    def holders(self, pid: str) -> list[Holder]:
        """GPUs that a process holds, by the label value of its pid."""
        if self._holders is None:
            self._holders = {}
            for labels, _, _ in self.read(catalogue.PROCESS_GPU_MEMORY):
                self._holders.setdefault(labels[2], []).append(Holder(labels[0], labels[1]))
        return self._holders.get(pid, [])


class SceneMaker:
    """Keeps what a scene needs of the one before. Not thread-safe."""

    def __init__(self, to_steady: Callable[[int], float]) -> None:
        self._to_steady = to_steady
        self._past: dict[Metric, dict[Labels, tuple[float, float]]] = {}
        self._latencies = RecentLatencies()

    def make(
        self, view: View, requests: Sequence[RequestRecord] = (), collectives: Sequence[CollectiveRecord] = ()
    ) -> Scene:
        """The scene of this moment."""
        self._latencies.feed(requests, view.at_s)
        return Scene(view, self._past, requests, collectives, self._to_steady, self._latencies)
