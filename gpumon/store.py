"""What is true now, and a little of what was: current batches of samples by owner, and fixed-memory rings.

Decides which samples may be exposed. Left out and counted: values that are not finite or do not fit their family,
labels of the wrong number (``gpumon_samples_rejected_total``); series beyond their family's budget or beyond
``max_series``, and series that somebody else already exposes (``gpumon_series_dropped_total``). So whatever a source
does, the page has each series once and a bounded length. A batch that was not renewed in time is gone: absence is
how a reader learns that a source is sick.

A series is one label set of one family. ``max_series`` and ``gpumon_series`` count what a Prometheus server would
store of it: 1, or for a histogram its buckets, sum and count. Family budgets count label sets.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import HISTORY_SERIES, SAMPLES_REJECTED, SERIES, SERIES_DROPPED, WITHOUT_HISTORY
from gpumon.history import History
from gpumon.model import Distribution, Kind, Metric, Reason, Rejection, Sample

Key = tuple[Metric, tuple[str, ...]]


@dataclass(frozen=True)
class Batch:
    """Everything one owner has to say, taken at one time. Values are exact floats or Distributions, all finite."""

    at_s: float
    expires_at_s: float
    samples: tuple[Sample, ...]

    @cached_property
    def families(self) -> Mapping[Metric, tuple[Sample, ...]]:
        """The samples by family, each in the owner's order."""
        grouped: dict[Metric, list[Sample]] = {}
        for sample in self.samples:
            grouped.setdefault(sample.metric, []).append(sample)
        return {metric: tuple(samples) for metric, samples in grouped.items()}


class View:
    """The store at one moment. Immutable and cheap: batches are shared, never copied."""

    __slots__ = ("_history", "at_s", "batches")

    def __init__(self, at_s: float, batches: Mapping[str, Batch], history: History) -> None:
        self.at_s = at_s
        self.batches = MappingProxyType(dict(batches))
        """Live batches by owner, ordered by the owner's name."""
        self._history = history

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches.values():
            yield from batch.samples

    def family(self, metric: Metric) -> list[Sample]:
        """All samples of one family, of all owners."""
        return [sample for batch in self.batches.values() for sample in batch.families.get(metric, ())]

    def value(self, metric: Metric, labels: tuple[str, ...]) -> float | Distribution | None:
        """Value of one series; None when it has no reading now."""
        for batch in self.batches.values():
            for sample in batch.families.get(metric, ()):
                if sample.labels == labels:
                    return sample.value
        return None

    def window(
        self, metric: Metric, labels: tuple[str, ...], since_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times (steady seconds, strictly ascending) and values of a scalar series, ``since_s <= time <= at_s``.

        Copies, taken under the store's lock. Points newer than the view are never in it; the oldest ones may be
        gone if the store went on meanwhile, for the rings do not stand still. Empty for a series without history:
        unknown, vanished, a histogram, an info, of a family in catalogue.WITHOUT_HISTORY, or past the number of series
        with history.
        """
        return self._history.window((metric, labels), since_s, self.at_s)


@dataclass(slots=True)
class _Owned:
    batch: Batch
    keys: list[Key]
    weight: int
    clean: bool
    """True when the batch was taken whole, with history, so that the next one with the same keys is taken likewise."""
    metrics: tuple[Metric, ...]
    labels: tuple[tuple[str, ...], ...]
    types: list[type]
    """Of the values: float or Distribution."""
    histograms: list[int]
    """Positions of the Distributions."""
    scalars: list[int]
    """Positions of the samples that have history."""
    slots: NDArray[np.intp]

    def takes(self, samples: Sequence[Sample]) -> bool:
        """True when these differ from what was taken whole before in nothing but good values: the usual case."""
        if not self.clean or not samples or len(samples) != len(self.keys):
            return False
        # By column: a comparison of two tuples is a small part of one for every sample.
        metrics, labels, values = zip(*samples, strict=True)
        return (
            metrics == self.metrics
            and labels == self.labels
            and [*map(type, values)] == self.types
            # One infinity or NaN makes the sum one; a sum of good ones that overflows only costs the longer way.
            and math.isfinite(sum([value for value in values if type(value) is float]))
            and all(_fits(metrics[i], values[i]) for i in self.histograms)
        )


class Store:
    """The only mutable thing that is shared. Every method may be called from any thread; one lock, held shortly.

    Memory: ``capacity_bytes`` for the rings, reserved at once and touched only as far as it is used, plus the
    samples themselves: at most ``max_series`` of them (about 200 bytes each), twice that while views are alive.
    """

    def __init__(self, *, max_series: int = 20_000, history_points: int = 240, history_series: int = 4096) -> None:
        self._lock = threading.Lock()
        self._max_series = max_series
        self._history = History(points=history_points, series=history_series, lock=self._lock)
        self._owners: dict[str, _Owned] = {}
        self._claims: set[Key] = set()
        self._family_sizes: Counter[Metric] = Counter()
        self._weight = 0
        self._dropped: Counter[str] = Counter(budget=0, duplicate=0)
        self._rejected: Counter[tuple[str, Reason]] = Counter()

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the rings when full."""
        return self._history.capacity_bytes

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        """Replace all that the owner said before; series it no longer names vanish, together with their history.

        at_s: steady seconds of the readings; ttl_s: seconds for which they count as true. A batch that expires
        before ``at_s``, of any owner, ends here. Among samples of the same series the first one stays. Whatever
        ``samples`` raises while it is iterated goes through and changes nothing.
        """
        given = tuple(samples)
        old = self._owners.get(owner)
        like_before = old is not None and old.takes(given)
        malformed: list[Rejection] = []
        if not like_before:
            given = tuple(good for sample in given if (good := _checked(sample, malformed)) is not None)
        batch = Batch(at_s, at_s + ttl_s, given)
        with self._lock:
            self._count_rejections(malformed)
            for name in [name for name, owned in self._owners.items() if at_s > owned.batch.expires_at_s]:
                self._release(name)
            owned = self._owners.get(owner)
            if owned is not None and owned is old and like_before:
                owned.batch = batch
            else:
                owned = self._take(owner, batch)
            taken = owned.batch.samples
            self._history.append(owned.slots, at_s, [taken[i].value for i in owned.scalars])

    def drop(self, owner: str) -> None:
        """Forget all that the owner said; nothing happens if it said nothing."""
        with self._lock:
            self._release(owner)

    def view(self, at_s: float) -> View:
        """The batches that are true at this moment."""
        with self._lock:
            return self._view(at_s)

    def count_rejections(self, rejections: Iterable[Rejection]) -> None:
        """Count what sources read and could not believe."""
        with self._lock:
            self._count_rejections(rejections)

    def self_samples(self, at_s: float) -> list[Sample]:
        """The store's account of itself, to be put by whoever runs it."""
        with self._lock:
            live = [owned.weight for owned in self._owners.values() if at_s <= owned.batch.expires_at_s]
            return [
                Sample(SERIES, (), float(sum(live))),
                *(Sample(SERIES_DROPPED, (reason,), float(count)) for reason, count in self._dropped.items()),
                *(Sample(SAMPLES_REJECTED, key, float(count)) for key, count in self._rejected.items()),
                Sample(HISTORY_SERIES, ("kept",), float(self._history.kept)),
                Sample(HISTORY_SERIES, ("refused",), float(self._history.refused)),
            ]

    def _view(self, at_s: float) -> View:
        live = {
            name: self._owners[name].batch
            for name in sorted(self._owners)
            if at_s <= self._owners[name].batch.expires_at_s
        }
        return View(at_s, live, self._history)

    def _take(self, owner: str, batch: Batch) -> _Owned:
        old = self._owners.pop(owner, None)
        self._unclaim(old)
        taken: list[Sample] = []
        claimed: list[Key] = []
        weight = 0
        for sample in batch.samples:
            metric = sample.metric
            key = (metric, sample.labels)
            size = _weight(metric)
            if key in self._claims:
                self._dropped["duplicate"] += 1
            elif self._family_sizes[metric] >= metric.budget or self._weight + size > self._max_series:
                self._dropped["budget"] += 1
            else:
                self._claims.add(key)
                self._family_sizes[metric] += 1
                self._weight += size
                weight += size
                taken.append(sample)
                claimed.append(key)
        self._history.release(set(old.keys if old else ()).difference(claimed))
        rows = [
            (position, self._history.slot(key))
            for position, key in enumerate(claimed)
            if key[0].kind in (Kind.GAUGE, Kind.COUNTER) and key[0] not in WITHOUT_HISTORY
        ]
        kept = [(position, slot) for position, slot in rows if slot is not None]
        owned = _Owned(
            batch=Batch(batch.at_s, batch.expires_at_s, tuple(taken)),
            keys=claimed,
            weight=weight,
            clean=len(claimed) == len(batch.samples) and len(kept) == len(rows),
            metrics=tuple([metric for metric, _ in claimed]),
            labels=tuple([labels for _, labels in claimed]),
            types=[type(sample.value) for sample in taken],
            histograms=[position for position, sample in enumerate(taken) if type(sample.value) is Distribution],
            scalars=[position for position, _ in kept],
            slots=np.array([slot for _, slot in kept], dtype=np.intp),
        )
        self._owners[owner] = owned
        return owned

    def _release(self, owner: str) -> None:
        owned = self._owners.pop(owner, None)
        if owned is not None:
            self._unclaim(owned)
            self._history.release(owned.keys)

    def _unclaim(self, owned: _Owned | None) -> None:
        if owned is None:
            return
        self._claims.difference_update(owned.keys)
        self._family_sizes.subtract(metric for metric, _ in owned.keys)
        self._weight -= owned.weight

    def _count_rejections(self, rejections: Iterable[Rejection]) -> None:
        for field, reason in rejections:
            key = (field, reason)
            if key not in self._rejected and len(self._rejected) >= SAMPLES_REJECTED.budget - len(Reason):
                key = ("other", reason)  # fields come from closed lists; this holds even when one does not
            self._rejected[key] += 1


def _weight(metric: Metric) -> int:
    return len(metric.bounds) + 3 if metric.kind is Kind.HISTOGRAM else 1


def _fits(metric: Metric, value: float | Distribution) -> bool:
    if isinstance(value, Distribution):
        return (
            metric.kind is Kind.HISTOGRAM
            and len(value.counts) == len(metric.bounds) + 1
            and min(value.counts) >= 0
            and math.isfinite(value.total)
            and len(value.exemplars) in (0, len(value.counts))
        )
    return metric.kind is not Kind.HISTOGRAM and math.isfinite(value)


def _checked(sample: Sample, malformed: list[Rejection]) -> Sample | None:
    """The sample with an exact float and labels that are text; None, and a rejection, when it cannot be exposed."""
    metric, labels, value = sample
    if type(value) is not float and not isinstance(value, Distribution):
        return _checked_number(sample, malformed)
    if len(labels) != len(metric.labels) or not _fits(metric, value):
        malformed.append(Rejection(metric.stem, Reason.MALFORMED))
        return None
    if all(map(str.isascii, labels)):
        return sample
    # Names of processes and files may hold bytes that are no text; no output format can carry those.
    return Sample(metric, tuple(label.encode("utf-8", "replace").decode() for label in labels), value)


def _checked_number(sample: Sample, malformed: list[Rejection]) -> Sample | None:
    try:
        value = float(sample.value)  # type: ignore[arg-type]  # ints and numpy scalars arrive here
    except (TypeError, ValueError, OverflowError):
        malformed.append(Rejection(sample.metric.stem, Reason.MALFORMED))
        return None
    return _checked(sample._replace(value=value), malformed)
