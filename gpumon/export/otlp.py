"""gpumon's own metrics out as OTLP: a view of the store, in the data model of opentelemetry-sdk, at an interval.

Counters and histograms are cumulative. Where a series begins within gpumon's life its start is the export before; a
counter that fell began anew since then. Not sent: exemplars (OTLP's are useless without a span id, and ours are of
tokens, not spans), gauges' history, zeros for what is not there.

Runs in a thread of its own and imports the SDK, so this module is only imported where the export is on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gpumon import __version__
from gpumon.catalogue import (
    GPU_PRESENT,
    GPU_RECOVERY_ACTION,
    GPU_ROW_REMAP_FAILED,
    GPU_ROW_REMAP_PENDING,
    OTLP_EXPORT_FAILURES,
    OTLP_EXPORTS,
)
from gpumon.export.forward_send import Endpoint
from gpumon.export.otlp_names import (
    ADDITIONAL,
    STATES,
    STATUS,
    Additional,
    Instrument,
    OtlpName,
    Take,
    attributes,
    spelled,
)
from gpumon.host.clock import Clock
from gpumon.ingest.request import Transport
from gpumon.model import Distribution, Metric, Sample
from gpumon.store import View

log = logging.getLogger(__name__)

MAX_POINTS = 4000
"""Points in one request: below the 4 MiB that most receivers take."""

_CUMULATIVE = AggregationTemporality.CUMULATIVE


@dataclass(slots=True)
class _Start:
    """Since when a cumulative series counts."""

    unix_ns: int
    last: float


@dataclass(frozen=True, slots=True)
class _Point:
    name: OtlpName
    labels: tuple[str, ...]
    """Names of the labels."""
    values: tuple[str, ...]
    value: float | Distribution
    start_ns: int

    @property
    def attributes(self) -> dict[str, str | int]:
        return attributes(self.name, self.labels, self.values)


class OtlpEncoder:
    """Views into the SDK's data model; remembers since when each cumulative series counts."""

    def __init__(self, resource: Mapping[str, str], started_ns: int) -> None:
        """resource: attributes of the resource beside service.name. started_ns: unix time of gpumon's start."""
        self._resource = Resource({"service.name": "gpumon", "service.version": __version__, **resource})
        self._scope = InstrumentationScope("gpumon", __version__)
        self._starts: dict[tuple[Metric, tuple[str, ...]], _Start] = {}
        self._before_ns = started_ns

    def encode(self, view: View, unix_ns: int) -> list[MetricsData]:
        """Everything in the view, in requests of at most ``MAX_POINTS`` points each."""
        families: dict[Metric, list[Sample]] = {}
        for sample in view:
            families.setdefault(sample.metric, []).append(sample)
        points: dict[str, tuple[OtlpName, str, tuple[float, ...], list[_Point]]] = {}
        starts: dict[tuple[Metric, tuple[str, ...]], _Start] = {}
        for metric, samples in families.items():
            name = spelled(metric)
            # Two families may share a name of the conventions; their attributes differ.
            *_, entries = points.setdefault(name.name, (name, metric.help, metric.bounds, []))
            for _, labels, value in samples:
                start_ns = 0
                if name.instrument in (Instrument.COUNTER, Instrument.HISTOGRAM):
                    start = starts[metric, labels] = self._start(metric, labels, value)
                    start_ns = start.unix_ns
                entries.append(_Point(name, metric.labels, labels, value, start_ns))
        for extra in ADDITIONAL:
            if found := list(_additional(extra, families.get(extra.metric, ()), starts, self._before_ns)):
                points[extra.spelled.name] = (extra.spelled, extra.metric.help, (), found)
        if status := list(_status(families, self._before_ns)):
            points[STATUS.name] = (STATUS, "Whether the GPU is well.", (), status)
        self._starts, self._before_ns = starts, unix_ns
        return [self._request(part) for part in _parts(points.values(), unix_ns)]

    def _start(self, metric: Metric, labels: tuple[str, ...], value: float | Distribution) -> _Start:
        now = float(sum(value.counts)) if isinstance(value, Distribution) else value
        known = self._starts.get((metric, labels))
        if known is None or now < known.last:
            return _Start(self._before_ns, now)
        known.last = now
        return known

    def _request(self, metrics: list[OtlpMetric]) -> MetricsData:
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])


def _additional(
    extra: Additional,
    samples: Iterable[Sample],
    starts: Mapping[tuple[Metric, tuple[str, ...]], _Start],
    default_ns: int,
) -> Iterator[_Point]:
    labels = extra.metric.labels[:-1]
    sums: dict[tuple[str, ...], float] = {}
    selected: dict[tuple[str, ...], float] = {}
    began: dict[tuple[str, ...], int] = {}
    for metric, values, value in samples:
        number = cast(float, value)  # no family here is one of histograms
        key = values[:-1]
        sums[key] = sums.get(key, 0.0) + number
        if values[-1] == extra.value:
            selected[key] = number
            start = starts.get((metric, values))
            began[key] = default_ns if start is None else start.unix_ns
    if extra.take is Take.SUM:
        found = sums
    elif extra.take is Take.SELECT:
        found = selected
    else:
        found = {key: number / sums[key] for key, number in selected.items() if sums[key] > 0}
    for key, number in found.items():
        yield _Point(extra.spelled, labels, key, number, began.get(key, default_ns))


def _status(families: Mapping[Metric, list[Sample]], start_ns: int) -> Iterator[_Point]:
    def above_zero(metric: Metric) -> set[tuple[str, ...]]:
        return {labels for _, labels, value in families.get(metric, ()) if cast(float, value) > 0}

    degraded = above_zero(GPU_RECOVERY_ACTION) | above_zero(GPU_ROW_REMAP_PENDING)
    predicted = above_zero(GPU_ROW_REMAP_FAILED)
    for metric, labels, value in families.get(GPU_PRESENT, ()):
        state = "predicted_failure" if labels in predicted else "degraded" if labels in degraded else "ok"
        state = state if value else "failed"
        for each in STATES:
            yield _Point(STATUS, (*metric.labels, "state"), (*labels, each), float(each == state), start_ns)


def _parts(
    families: Iterable[tuple[OtlpName, str, tuple[float, ...], list[_Point]]], unix_ns: int
) -> Iterator[list[OtlpMetric]]:
    part: list[OtlpMetric] = []
    room = MAX_POINTS
    for name, text, bounds, points in families:
        for first in range(0, len(points), MAX_POINTS):
            some = points[first : first + MAX_POINTS]
            if part and len(some) > room:
                yield part
                part, room = [], MAX_POINTS
            part.append(OtlpMetric(name.name, text, name.unit, _data(name.instrument, bounds, some, unix_ns)))
            room -= len(some)
    if part:
        yield part


def _data(instrument: Instrument, bounds: tuple[float, ...], points: list[_Point], unix_ns: int) -> DataT:
    if instrument is Instrument.HISTOGRAM:
        return Histogram([_histogram(bounds, point, unix_ns) for point in points], _CUMULATIVE)
    numbers = [NumberDataPoint(point.attributes, point.start_ns, unix_ns, cast(float, point.value)) for point in points]
    if instrument is Instrument.GAUGE:
        return Gauge(numbers)
    return Sum(numbers, _CUMULATIVE, is_monotonic=instrument is Instrument.COUNTER)


def _histogram(bounds: tuple[float, ...], point: _Point, unix_ns: int) -> HistogramDataPoint:
    value = cast(Distribution, point.value)  # the store lets nothing else through
    return HistogramDataPoint(
        attributes=point.attributes,
        start_time_unix_nano=point.start_ns,
        time_unix_nano=unix_ns,
        count=sum(value.counts),
        sum=value.total,
        bucket_counts=list(value.counts),
        explicit_bounds=list(bounds),
        min=None,  # type: ignore[arg-type]  # optional in OTLP, and the encoder leaves None out
        max=None,  # type: ignore[arg-type]
    )


class OtlpExport:
    """Sends a view every ``interval_s``. ``start``, ``stop``; or ``export`` for one."""

    def __init__(
        self,
        view: Callable[[float], View],
        exporter: MetricExporter,
        clock: Clock,
        *,
        interval_s: float,
        resource: Mapping[str, str],
    ) -> None:
        """view: the store at a steady time. resource: host.name and the like."""
        self._view = view
        self._exporter = exporter
        self._clock = clock
        self._interval_s = interval_s
        self._encoder = OtlpEncoder(resource, self._unix_ns(clock.now_s()))
        self._ok = True
        self._exports = self._failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="otlp-export", daemon=True)

    def start(self) -> None:
        """Begin; the first export is an interval away."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End, whatever the endpoint is doing."""
        self._stop.set()
        self._exporter.shutdown(timeout_millis=1000 * timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def export(self) -> bool:
        """Send what is true now; whether all of it was taken."""
        now_s = self._clock.now_s()
        requests = self._encoder.encode(self._view(now_s), self._unix_ns(now_s))
        ok = all(self._exporter.export(request) is MetricExportResult.SUCCESS for request in requests)
        if ok:
            self._exports += 1
        else:
            self._failures += 1
        if ok != self._ok and not self._stop.is_set():
            log.log(logging.INFO if ok else logging.WARNING, "otlp_export state=%s", "ok" if ok else "failing")
        self._ok = ok
        return ok

    def samples(self) -> list[Sample]:
        """gpumon_otlp_export*."""
        return [
            Sample(OTLP_EXPORTS, (), float(self._exports)),
            Sample(OTLP_EXPORT_FAILURES, (), float(self._failures)),
        ]

    def _loop(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.export()

    def _unix_ns(self, at_s: float) -> int:
        return round(self._clock.to_unix(at_s) * 1e9)


def make_exporter(endpoint: Endpoint) -> MetricExporter:
    """opentelemetry's own exporter for an endpoint."""
    # It logs every failed try; here failures are counted, and changes of state are logged.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    tls = endpoint.tls
    if endpoint.protocol is Transport.GRPC:
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        secure = endpoint.url.startswith("https")
        ca, key, certificate = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.certificate))
        return GrpcExporter(
            endpoint=endpoint.url,
            insecure=not secure,
            credentials=grpc.ssl_channel_credentials(ca, key, certificate) if secure else None,
            headers={name.lower(): value for name, value in endpoint.headers.items()},
            timeout=endpoint.timeout_s,
            compression=grpc.Compression.Gzip if endpoint.gzip else grpc.Compression.NoCompression,
        )
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(
        endpoint=f"{endpoint.url.rstrip('/')}/v1/metrics",
        certificate_file=_text(tls.ca),
        client_key_file=_text(tls.key),
        client_certificate_file=_text(tls.certificate),
        headers=dict(endpoint.headers),
        timeout=endpoint.timeout_s,
        compression=Compression.Gzip if endpoint.gzip else Compression.NoCompression,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
