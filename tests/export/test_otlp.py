"""gpumon's own metrics as OTLP: the table of names, the data model, and real receivers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, hw_metrics

from gpumon import catalogue
from gpumon.catalogue import METRICS
from gpumon.export.forward_send import Endpoint
from gpumon.export.otlp import MAX_POINTS, OtlpExport, make_exporter
from gpumon.export.otlp_names import ADDITIONAL, STATED, STATUS, Instrument, OtlpName, attributes, spelled
from gpumon.host.clock import ManualClock, SystemClock
from gpumon.model import Distribution, Kind, Metric, Sample
from gpumon.store import Store
from tests.export.receivers import GrpcReceiver, HttpReceiver, Receiver, Reply
from tests.export.views import family

ALL_NAMES = [*map(spelled, METRICS), *(extra.spelled for extra in ADDITIONAL), STATUS]
CONVENTIONS = {
    value for module in (hw_metrics, gen_ai_metrics) for name, value in vars(module).items() if name.isupper()
}
GPU_A, GPU_B = ("0", "GPU-a"), ("1", "GPU-b")

# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_family_has_a_name_in_the_style_of_otlp(metric: Metric) -> None:
    name = spelled(metric)
    assert re.fullmatch(r"(gpumon|hw|gen_ai)(\.[a-z][a-z0-9_]*)+", name.name)
    assert name.instrument is Instrument.HISTOGRAM or metric.kind is not Kind.HISTOGRAM
    assert (name.instrument is Instrument.COUNTER) == (metric.kind is Kind.COUNTER)


def test_names_are_shared_only_where_attributes_tell_the_families_apart() -> None:
    for first, second in combinations(METRICS, 2):
        one, other = spelled(first), spelled(second)
        if one.name == other.name:
            assert {first, second} == {catalogue.GPU_UTILIZATION, catalogue.GPU_CODEC_UTILIZATION}
            assert (one.unit, one.instrument) == (other.unit, other.instrument)
    additional = [extra.spelled.name for extra in ADDITIONAL] + [STATUS.name]
    assert len(set(additional)) == len(additional)
    assert not set(additional).intersection(spelled(metric).name for metric in METRICS)


@pytest.mark.parametrize("name", {name.name: name for name in ALL_NAMES}.values(), ids=lambda name: name.name)
def test_names_in_the_namespaces_of_the_conventions_are_theirs(name: OtlpName) -> None:
    if name.name.startswith(("hw.", "gen_ai.")):
        assert name.name in CONVENTIONS
    assert name.unit in ("1", "s", "By", "W", "J", "Hz", "Cel", "{error}")


def test_units_and_instruments_are_those_of_the_conventions() -> None:
    class Meter:
        """Takes down what the conventions' own functions create."""

        def __getattr__(self, create: str) -> Any:
            return lambda name, description="", unit="", callbacks=None: (create.removeprefix("create_"), name, unit)

    kinds = {
        "gauge": Instrument.GAUGE,
        "observable_gauge": Instrument.GAUGE,
        "counter": Instrument.COUNTER,
        "up_down_counter": Instrument.UP_DOWN_COUNTER,
        "histogram": Instrument.HISTOGRAM,
    }
    ours = {name.name: name for name in ALL_NAMES}
    seen = set()
    for module in (hw_metrics, gen_ai_metrics):
        for create in (value for key, value in vars(module).items() if key.startswith("create_")):
            try:
                kind, name, unit = create(Meter())
            except TypeError:  # an asynchronous one wants its callbacks
                kind, name, unit = create(Meter(), None)
            if name in ours:
                seen.add(name)
                assert (ours[name].unit, ours[name].instrument) == (unit, kinds[kind]), name
    assert seen == {name for name in ours if name.startswith(("hw.", "gen_ai."))}


def test_the_table_speaks_of_labels_and_values_that_exist() -> None:
    for metric, name in STATED.items():
        assert set(name.renamed) | set(name.identity) <= set(metric.labels)
        for label, value in name.values:
            assert label == metric.labels[-1]
            assert value in metric.values
    for extra in ADDITIONAL:
        assert not extra.value or extra.value in extra.metric.values


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_no_two_labels_become_one_attribute(metric: Metric) -> None:
    values = [("GPU-x" if label == "uuid" else f"7{number}") for number, label in enumerate(metric.labels)]
    if metric.values:
        values[-1] = metric.values[0]
    found = attributes(spelled(metric), metric.labels, tuple(values))
    constant = len(spelled(metric).constant)
    assert len(found) >= len(metric.labels) + constant - ("fan" in metric.labels)
    if spelled(metric).name.startswith("hw."):
        assert {"hw.id", "hw.type"} <= set(found)


def test_points_of_one_family_differ_in_their_attributes() -> None:
    for metric in METRICS:
        if metric.values:
            base = tuple("GPU-x" if label == "uuid" else "1" for label in metric.labels[:-1])
            points = [attributes(spelled(metric), metric.labels, (*base, value)) for value in metric.values]
            assert len({tuple(sorted(point.items())) for point in points}) == len(metric.values), metric.name


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[HttpReceiver, GrpcReceiver])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with request.param() as receiver:
        yield receiver


class Node:
    """A store and its export to a receiver."""

    def __init__(self, receiver: Receiver, timeout_s: float = 5.0) -> None:
        self.clock = ManualClock(1000.0, 1_800_000_000.0)
        self.store = Store(max_series=50_000)
        self.receiver = receiver
        self.export = OtlpExport(
            self.store.view,
            make_exporter(Endpoint(receiver.url, receiver.protocol, {"X-Key": "k"}, timeout_s=timeout_s)),
            self.clock,
            interval_s=60.0,
            resource={"host.name": "node-1"},
        )

    def put(self, *samples: Sample) -> None:
        self.store.put("test", self.clock.now_s(), samples, 1e9)

    def send(self, *samples: Sample) -> dict[str, metrics_pb2.Metric]:
        """The metrics that arrive of these, a minute later."""
        self.clock.step(60.0)
        self.put(*samples)
        before = len(self.receiver.taken.requests)
        assert self.export.export()
        return {metric.name: metric for metric in self.arrived(before)}

    def arrived(self, first: int = 0) -> list[metrics_pb2.Metric]:
        return [
            metric
            for _, request in self.receiver.taken.requests[first:]
            if isinstance(request, ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


@pytest.fixture
def node(receiver: Receiver) -> Iterator[Node]:
    node = Node(receiver)
    yield node
    node.export.stop()


def plain(points: Iterable[metrics_pb2.NumberDataPoint]) -> list[tuple[dict[str, object], float]]:
    out = []
    for point in points:
        found = {entry.key: getattr(entry.value, str(entry.value.WhichOneof("value"))) for entry in point.attributes}
        out.append((found, point.as_double))
    return out


MINUTE_NS = 60 * 10**9
START_NS = 1_800_000_000 * 10**9


def test_a_gauge_of_the_conventions_arrives_with_its_attributes(node: Node) -> None:
    found = node.send(
        Sample(catalogue.GPU_UTILIZATION, GPU_A, 0.5),
        Sample(catalogue.GPU_CODEC_UTILIZATION, (*GPU_A, "decoder"), 0.25),
    )["hw.gpu.utilization"]
    base = {"hw.type": "gpu", "hw.id": "GPU-a", "gpumon.gpu.index": "0"}
    assert plain(found.gauge.data_points) == [
        (base | {"hw.gpu.task": "general"}, 0.5),
        (base | {"hw.gpu.task": "decoder"}, 0.25),
    ]
    assert found.unit == "1"
    assert {point.time_unix_nano for point in found.gauge.data_points} == {START_NS + MINUTE_NS}


def test_the_resource_names_gpumon_and_the_host(node: Node) -> None:
    node.send(Sample(catalogue.SERIES, (), 7.0))
    request = node.receiver.taken.requests[0][1]
    assert isinstance(request, ExportMetricsServiceRequest)
    resource = {entry.key: entry.value.string_value for entry in request.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "gpumon"
    assert resource["host.name"] == "node-1"
    assert resource["service.version"]
    assert request.resource_metrics[0].scope_metrics[0].scope.name == "gpumon"
    assert node.receiver.taken.headers[0]["x-key"] == "k"


def test_counters_are_cumulative_and_begin_anew_when_they_fall(node: Node) -> None:
    def sent(value: float) -> metrics_pb2.NumberDataPoint:
        metric = node.send(Sample(catalogue.GPU_ENERGY, GPU_A, value))["hw.energy"]
        assert metric.sum.is_monotonic
        assert metric.sum.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        (point,) = metric.sum.data_points
        return point

    assert [(point.start_time_unix_nano, point.as_double) for point in (sent(10.0), sent(12.0), sent(12.0))] == [
        (START_NS, 10.0),
        (START_NS, 12.0),
        (START_NS, 12.0),
    ]
    assert sent(3.0).start_time_unix_nano == START_NS + 3 * MINUTE_NS
    assert sent(4.0).start_time_unix_nano == START_NS + 3 * MINUTE_NS


def test_a_series_that_vanishes_and_returns_begins_anew(node: Node) -> None:
    node.send(Sample(catalogue.GPU_ENERGY, GPU_A, 10.0), Sample(catalogue.SERIES, (), 1.0))
    assert "hw.energy" not in node.send(Sample(catalogue.SERIES, (), 1.0))
    (point,) = node.send(Sample(catalogue.GPU_ENERGY, GPU_A, 11.0))["hw.energy"].sum.data_points
    assert point.start_time_unix_nano == START_NS + 2 * MINUTE_NS


def test_histograms_keep_their_bounds_and_have_no_extremes(node: Node) -> None:
    bounds = catalogue.REQUEST_FIRST_TOKEN.bounds
    counts = tuple(range(len(bounds) + 1))
    labels = ("vllm", "llama")
    metric = node.send(Sample(catalogue.REQUEST_FIRST_TOKEN, labels, Distribution(counts, 12.5)))[
        "gen_ai.server.time_to_first_token"
    ]
    (point,) = metric.histogram.data_points
    assert tuple(point.bucket_counts) == counts
    assert tuple(point.explicit_bounds) == bounds
    assert (point.count, point.sum) == (sum(counts), 12.5)
    assert point.start_time_unix_nano == START_NS
    assert not point.HasField("min")
    assert not point.HasField("max")
    assert {entry.key: entry.value.string_value for entry in point.attributes} == {
        "gen_ai.operation.name": "inference",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "llama",
    }
    assert metric.histogram.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE


def test_memory_has_the_metrics_of_the_conventions_beside_its_own(node: Node) -> None:
    samples = [
        Sample(catalogue.GPU_MEMORY, (*GPU_A, state), value)
        for state, value in (("used", 30.0), ("free", 60.0), ("reserved", 10.0))
    ]
    found = node.send(*samples, Sample(catalogue.GPU_MEMORY, (*GPU_B, "free"), 0.0))
    base = {"hw.type": "gpu", "hw.id": "GPU-a", "gpumon.gpu.index": "0"}
    assert plain(found["hw.gpu.memory.usage"].sum.data_points) == [(base, 30.0)]
    assert plain(found["hw.gpu.memory.limit"].sum.data_points)[0] == (base, 100.0)
    assert plain(found["hw.gpu.memory.utilization"].gauge.data_points) == [(base, 0.3)]
    assert not found["hw.gpu.memory.limit"].sum.is_monotonic
    assert len(found["gpumon.gpu.memory.usage"].gauge.data_points) == 4


def test_errors_are_the_volatile_ones_by_type(node: Node) -> None:
    found = node.send(
        *(
            Sample(catalogue.GPU_ECC_ERRORS, (*GPU_A, kind, scope), value)
            for kind, scope, value in (("corrected", "volatile", 3.0), ("corrected", "aggregate", 99.0))
        )
    )
    (point,) = plain(found["hw.errors"].sum.data_points)
    assert point[0]["error.type"] == "corrected"
    assert point[1] == 3.0
    assert found["hw.errors"].sum.is_monotonic


@pytest.mark.parametrize(
    ("present", "others", "state"),
    [
        (1.0, [], "ok"),
        (0.0, [], "failed"),
        (1.0, [(catalogue.GPU_RECOVERY_ACTION, 1.0)], "degraded"),
        (1.0, [(catalogue.GPU_RECOVERY_ACTION, 0.0)], "ok"),
        (1.0, [(catalogue.GPU_ROW_REMAP_FAILED, 1.0), (catalogue.GPU_RECOVERY_ACTION, 1.0)], "predicted_failure"),
    ],
)
def test_the_status_is_one_of_its_states(
    node: Node, present: float, others: list[tuple[Metric, float]], state: str
) -> None:
    found = node.send(
        Sample(catalogue.GPU_PRESENT, GPU_A, present), *(Sample(metric, GPU_A, value) for metric, value in others)
    )
    points = {point["hw.state"]: value for point, value in plain(found["hw.status"].sum.data_points)}
    assert points == {each: float(each == state) for each in ("ok", "degraded", "predicted_failure", "failed")}


def test_parts_and_processes_are_told_apart(node: Node) -> None:
    found = node.send(
        Sample(catalogue.GPU_FAN, (*GPU_A, "0"), 0.5),
        Sample(catalogue.GPU_FAN, (*GPU_A, "1"), 0.6),
        Sample(catalogue.PROCESS_THREADS, ("42", "vllm", "", "", ""), 8.0),
        Sample(catalogue.GPU_TEMPERATURE_LIMIT, (*GPU_A, "memory_max"), 95.0),
    )
    fans = plain(found["hw.fan.speed_ratio"].gauge.data_points)
    assert [fan["hw.id"] for fan, _ in fans] == ["GPU-a/0", "GPU-a/1"]
    assert {fan["hw.parent"] for fan, _ in fans} == {"GPU-a"}
    assert plain(found["gpumon.process.threads"].gauge.data_points) == [
        ({"process.pid": 42, "process.executable.name": "vllm"}, 8.0)
    ]
    (limit,) = plain(found["hw.temperature.limit"].gauge.data_points)
    assert limit[0]["hw.limit_type"] == "max"
    assert limit[0]["hw.sensor_location"] == "memory"


def test_large_views_go_in_several_requests(node: Node) -> None:
    metric = family("many", labels=("a",))
    node.send(*(Sample(metric, (str(number),), 1.0) for number in range(2 * MAX_POINTS + 5)))
    sizes = [len(metric.gauge.data_points) for metric in node.arrived()]
    assert sizes == [MAX_POINTS, MAX_POINTS, 5]
    assert len(node.receiver.taken.requests) == 3


def test_failures_are_counted_and_the_next_export_is_a_fresh_one(node: Node) -> None:
    node.put(Sample(catalogue.SERIES, (), 7.0))
    node.receiver.script.append(Reply(400 if isinstance(node.receiver, HttpReceiver) else 3))
    assert not node.export.export()
    assert node.export.export()
    assert {sample.metric: sample.value for sample in node.export.samples()} == {
        catalogue.OTLP_EXPORTS: 1.0,
        catalogue.OTLP_EXPORT_FAILURES: 1.0,
    }


def test_an_empty_view_sends_nothing(node: Node) -> None:
    assert node.export.export()
    assert not node.receiver.taken.requests


def test_the_thread_exports_and_ends_while_the_endpoint_hangs(receiver: Receiver) -> None:
    clock = SystemClock()
    store = Store()
    store.put("test", clock.now_s(), [Sample(catalogue.SERIES, (), 7.0)], 1e9)
    receiver.script.extend([Reply(), Reply(hang=True)])
    exporter = make_exporter(Endpoint(receiver.url, receiver.protocol, timeout_s=5.0))
    export = OtlpExport(store.view, exporter, clock, interval_s=0.02, resource={})
    export.start()
    wait = threading.Event()
    while len(receiver.taken.requests) < 2:
        wait.wait(0.005)
    before_s = clock.now_s()
    export.stop(0.3)
    assert clock.now_s() - before_s < 2.0
    receiver.stopping.set()
    export._thread.join(10.0)


def test_the_sdk_and_grpc_are_imported_only_where_they_are_used() -> None:
    code = "import sys, gpumon.export.forward; print(*[m for m in ('grpc', 'opentelemetry.sdk') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
