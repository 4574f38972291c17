"""Totals of the sampler's that never fall: they go on where they were when its process or the driver begins anew.

Two kinds. What the sampler sums up itself begins at nothing in every process, so what earlier processes had is added.
What the hardware counts is absolute, and falls only when the driver or the GPU was reset: then it goes on from where
it was. Keyed by metric and labels without the GPU's index, which NVML may give out anew. Used by one thread.
"""

from __future__ import annotations

from collections import OrderedDict

from gpumon import catalogue
from gpumon.model import Distribution, Kind, Metric, Sample
from gpumon.sources.gpu_state import CarryCounter

KEPT = 8192
"""Totals remembered, those not seen for longest forgotten first: MIG instances come and go for ever."""

SUMMED_IN_SAMPLER: frozenset[Metric] = frozenset(
    {
        catalogue.GPU_BUSY_SECONDS,
        catalogue.GPU_UTILIZATION_SAMPLES,
        catalogue.MIG_SM_ACTIVE_SECONDS,
        catalogue.MIG_DRAM_ACTIVE_SECONDS,
    }
)

_Key = tuple[Metric, tuple[str, ...]]


class _Sum:
    """What earlier processes had, and what this one has with it."""

    __slots__ = ("before", "now", "process")

    def __init__(self, process: int) -> None:
        self.process = process
        self.before: float | Distribution | None = None
        self.now: float | Distribution | None = None

    def feed(self, process: int, value: float | Distribution) -> float | Distribution:
        if process != self.process:
            self.process, self.before = process, self.now
        before = self.before
        if isinstance(before, Distribution) and isinstance(value, Distribution):
            counts = tuple(old + new for old, new in zip(before.counts, value.counts, strict=True))
            value = Distribution(counts, before.total + value.total)
        elif before is not None and not isinstance(before, Distribution) and not isinstance(value, Distribution):
            value = before + value
        self.now = value
        return value


class Totals:
    """Everything that has been counted, over all processes."""

    def __init__(self) -> None:
        self._process = 0
        self._sums: OrderedDict[_Key, _Sum] = OrderedDict()
        self._counters: OrderedDict[_Key, CarryCounter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sums) + len(self._counters)

    def new_process(self) -> None:
        """From here on, sums begin at nothing again."""
        self._process += 1

    def carry(self, sample: Sample) -> Sample:
        """The sample with its total over all processes; any other than a counter or a sum as it is."""
        metric, labels, value = sample
        if metric in SUMMED_IN_SAMPLER:
            key = _key(metric, labels)
            total = self._sums.get(key)
            if total is None:
                total = self._sums[key] = _Sum(self._process)
            _touch(self._sums, key)
            return sample._replace(value=total.feed(self._process, value))
        if metric.kind is Kind.COUNTER and not isinstance(value, Distribution):
            key = _key(metric, labels)
            counter = self._counters.get(key)
            if counter is None:
                counter = self._counters[key] = CarryCounter()
            _touch(self._counters, key)
            return sample._replace(value=counter.feed(value))
        return sample


def _key(metric: Metric, labels: tuple[str, ...]) -> _Key:
    return metric, labels[1:] if metric.labels[0] == "gpu" else labels


def _touch(kept: OrderedDict[_Key, _Sum] | OrderedDict[_Key, CarryCounter], key: _Key) -> None:
    kept.move_to_end(key)
    if len(kept) > KEPT:
        kept.popitem(last=False)
