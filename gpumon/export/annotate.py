"""What the GPUs and the host did during a span, as attributes to be added to it in passing.

From the store's history, in the span's own interval and for what the request is bound to:

``gpumon.gpu.uuids``         the GPUs or MIG instances it is bound to
``gpumon.gpu.sm_active``     SM activity, mean over time and over those GPUs, 0 to 1
``gpumon.gpu.dram_active``   DRAM activity, likewise
``gpumon.gpu.throttled_ms``  milliseconds for which clocks were held down, on the GPU where that was longest; of each
                             GPU the longest single reason, since reasons overlap
``gpumon.process.major_faults``  major page faults of the process it is bound to

and why its tokens were late (``annotate_cause``), on the request's own span.

The others come from counters, interpolated between two samples, so a burst between two samples is in them; of a span
shorter than the time between samples they say what that time was like on average. A value is left out unless samples
from before the span's start to after its end are there: requests longer than the history, spans of another node's
clock, and GPUs without the counter get none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpumon.catalogue import (
    GPU_DRAM_ACTIVE_SECONDS,
    GPU_SM_ACTIVE_SECONDS,
    GPU_THROTTLED_SECONDS,
    MIG_DRAM_ACTIVE_SECONDS,
    MIG_SM_ACTIVE_SECONDS,
    PROCESS_PAGE_FAULTS,
)
from gpumon.explain.explained import Explained
from gpumon.export.annotate_cause import cause_attributes
from gpumon.export.forward_edit import Attribute
from gpumon.model import Binding, Metric, RequestRecord
from gpumon.store import View

NOT_THROTTLED = frozenset({"low_utilization", "base_clocks"})
"""Reasons that are settings or idleness, not slowness."""

_REFRESH_S = 0.5
"""Age at which the view and what was read of it are replaced."""
_UUID_FIRST = frozenset({MIG_SM_ACTIVE_SECONDS, MIG_DRAM_ACTIVE_SECONDS})


class Bindings:
    """What the newest requests are bound to, by trace id. One thread puts, another one reads."""

    def __init__(self, limit: int = 16_384) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, Binding] = OrderedDict()

    def put(self, record: RequestRecord) -> None:
        """Remember it; an unbound one does not replace a bound one of the same trace."""
        if record.binding.how == "none" and record.trace_id in self._known:
            return
        self._known[record.trace_id] = record.binding
        self._known.move_to_end(record.trace_id)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def get(self, trace_id: bytes) -> Binding | None:
        """The binding of the trace's request; None while it is not known."""
        return self._known.get(trace_id)


@dataclass(slots=True)
class _Track:
    """History of one counter."""

    times: list[float]
    values: list[float]

    def grown(self, start_s: float, end_s: float) -> float | None:
        """By how much it grew from start to end; None where that is not known."""
        times, values = self.times, self.values
        if len(times) < 2 or start_s < times[0] or end_s > times[-1]:
            return None
        first, last = bisect_right(times, start_s) - 1, bisect_right(times, end_s)
        if any(values[i] > values[i + 1] for i in range(first, min(last, len(values) - 1))):
            return None  # it began anew in between
        return max(0.0, self._at(end_s) - self._at(start_s))

    def _at(self, at_s: float) -> float:
        times, values = self.times, self.values
        i = min(bisect_right(times, at_s), len(times) - 1)
        share = (at_s - times[i - 1]) / (times[i] - times[i - 1])
        return values[i - 1] + share * (values[i] - values[i - 1])


@dataclass(slots=True)
class _Readings:
    """What was read of one view."""

    view: View
    series: dict[tuple[Metric, str], list[tuple[str, ...]]] = field(default_factory=dict)
    """Labels of the series of a family, by uuid or pid."""
    families: set[Metric] = field(default_factory=set)
    tracks: dict[tuple[Metric, tuple[str, ...]], _Track] = field(default_factory=dict)

    def of(self, metric: Metric, key: str) -> Iterable[tuple[tuple[str, ...], _Track]]:
        """The series of a family that belong to this uuid or pid."""
        if metric not in self.families:
            self.families.add(metric)
            position = 0 if metric is PROCESS_PAGE_FAULTS or metric in _UUID_FIRST else 1
            for sample in self.view.family(metric):
                self.series.setdefault((metric, sample.labels[position]), []).append(sample.labels)
        for labels in self.series.get((metric, key), ()):
            track = self.tracks.get((metric, labels))
            if track is None:
                times, values = self.view.window(metric, labels, float("-inf"))
                track = self.tracks[metric, labels] = _Track(times.tolist(), values.tolist())
            yield labels, track


class Annotator:
    """An ``Annotate``. Not for two threads at once."""

    def __init__(
        self,
        view: Callable[[], View],
        binding: Callable[[bytes, bytes], Binding | None],
        to_steady: Callable[[int], float],
        explained: Callable[[bytes, bytes], Explained | None] | None = None,
    ) -> None:
        """view: the store now. binding: of (trace id, span id), None for spans that are to stay as they are.

        to_steady: steady seconds of a moment in unix nanoseconds. explained: of (trace id, span id), None for spans
        that are not a request's own, or not explained.
        """
        self._explained = explained
        self._view = view
        self._binding = binding
        self._to_steady = to_steady
        self._readings: _Readings | None = None

    def __call__(self, trace_id: bytes, span_id: bytes, start_ns: int, end_ns: int) -> list[Attribute]:
        """The attributes of this span."""
        explained = self._explained(trace_id, span_id) if self._explained is not None else None
        attributes: list[Attribute] = cause_attributes(explained) if explained is not None else []
        binding = self._binding(trace_id, span_id)
        if binding is None or (not binding.gpus and binding.pid is None):
            return attributes
        if binding.gpus:
            attributes.append(("gpumon.gpu.uuids", tuple(binding.gpus)))
        if not 0 < start_ns < end_ns:
            return attributes
        start_s, end_s = self._to_steady(start_ns), self._to_steady(end_ns)
        readings = self._current(end_s)
        length_s = end_s - start_s
        for name, whole, part in (
            ("gpumon.gpu.sm_active", GPU_SM_ACTIVE_SECONDS, MIG_SM_ACTIVE_SECONDS),
            ("gpumon.gpu.dram_active", GPU_DRAM_ACTIVE_SECONDS, MIG_DRAM_ACTIVE_SECONDS),
        ):
            grown = [
                track.grown(start_s, end_s)
                for uuid in binding.gpus
                for _, track in readings.of(part if uuid.startswith("MIG-") else whole, uuid)
            ]
            known = [seconds for seconds in grown if seconds is not None]
            if known and len(known) == len(binding.gpus):
                attributes.append((name, min(1.0, sum(known) / len(known) / length_s)))
        throttled = [
            track.grown(start_s, end_s)
            for uuid in binding.gpus
            for labels, track in readings.of(GPU_THROTTLED_SECONDS, uuid)
            if labels[-1] not in NOT_THROTTLED
        ]
        if throttled and None not in throttled:
            attributes.append(("gpumon.gpu.throttled_ms", 1000 * max(seconds or 0.0 for seconds in throttled)))
        if binding.pid is not None:
            for labels, track in readings.of(PROCESS_PAGE_FAULTS, str(binding.pid)):
                faults = track.grown(start_s, end_s) if labels[-1] == "major" else None
                if faults is not None:
                    attributes.append(("gpumon.process.major_faults", round(faults)))
        return attributes

    def _current(self, needed_s: float) -> _Readings:
        readings = self._readings
        # Anew only when a span needs newer samples, and not for each of a thousand spans that end just now.
        if readings is None or needed_s > readings.view.at_s - _REFRESH_S:
            view = self._view()
            if readings is None or view.at_s - readings.view.at_s >= _REFRESH_S:
                readings = self._readings = _Readings(view)
        return readings
