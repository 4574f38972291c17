"""What is added to spans, from a store with known counters."""

from __future__ import annotations

import pytest

from gpumon.catalogue import (
    GPU_DRAM_ACTIVE_SECONDS,
    GPU_SM_ACTIVE_SECONDS,
    GPU_THROTTLED_SECONDS,
    MIG_SM_ACTIVE_SECONDS,
    PROCESS_PAGE_FAULTS,
)
from gpumon.export.annotate import Annotator, Bindings
from gpumon.export.forward_edit import AttributeValue
from gpumon.model import Binding, GpuUuid, Metric, RequestRecord, Sample
from gpumon.store import Store

UNIX_NS = 1_800_000_000_000_000_000
"""Unix time of steady 0."""


class Node:
    """A store that was filled once a second from 100 to 120 s, by a function of the time."""

    def __init__(self) -> None:
        self.store = Store()
        self.now_s = 120.0
        self.views = 0
        self.binding: Binding | None = Binding("resource", pid=42, gpus=(GpuUuid("GPU-a"), GpuUuid("GPU-b")))

    def fill(self, samples: dict[tuple[Metric, tuple[str, ...]], list[float]], start_s: float = 100.0) -> None:
        for second in range(max(map(len, samples.values()))):
            batch = [Sample(metric, labels, values[second]) for (metric, labels), values in samples.items()]
            self.store.put("test", start_s + second, batch, 1e9)

    def annotate(self, start_s: float, end_s: float) -> dict[str, AttributeValue]:
        def view():  # type: ignore[no-untyped-def]
            self.views += 1
            return self.store.view(self.now_s)

        annotator = Annotator(view, lambda trace, span: self.binding, lambda ns: (ns - UNIX_NS) / 1e9)
        return dict(annotator(bytes(16), bytes(8), UNIX_NS + round(start_s * 1e9), UNIX_NS + round(end_s * 1e9)))


def ramp(rate: float, *, until: int = 21, then: float = 0.0) -> list[float]:
    """A counter from 100 s on: ``rate`` a second until so many, ``then`` after."""
    values = [5.0]
    for second in range(20):
        values.append(values[-1] + (rate if second < until else then))
    return values


def gpu(metric: Metric, uuid: str, *more: str) -> tuple[Metric, tuple[str, ...]]:
    return metric, ("0", uuid, *more)


def test_activity_is_the_mean_over_the_span_and_over_its_gpus() -> None:
    node = Node()
    node.fill(
        {
            gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.8, until=10, then=0.2),
            gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): ramp(0.4),
            gpu(GPU_SM_ACTIVE_SECONDS, "GPU-other"): ramp(1.0),
            gpu(GPU_DRAM_ACTIVE_SECONDS, "GPU-a"): ramp(0.5),
            gpu(GPU_DRAM_ACTIVE_SECONDS, "GPU-b"): ramp(0.1),
        }
    )
    assert node.annotate(101.0, 109.0) == {
        "gpumon.gpu.uuids": ("GPU-a", "GPU-b"),
        "gpumon.gpu.sm_active": pytest.approx(0.6),
        "gpumon.gpu.dram_active": pytest.approx(0.3),
    }
    assert node.annotate(109.5, 110.5)["gpumon.gpu.sm_active"] == pytest.approx((0.5 + 0.4) / 2)
    assert node.annotate(104.25, 104.5)["gpumon.gpu.sm_active"] == pytest.approx(0.6), "shorter than a sample"
    assert node.annotate(100.0, 120.0)["gpumon.gpu.dram_active"] == pytest.approx(0.3)


@pytest.mark.parametrize(("start_s", "end_s"), [(99.0, 110.0), (110.0, 120.5), (10.0, 20.0), (200.0, 201.0)])
def test_what_the_history_does_not_cover_is_left_out(start_s: float, end_s: float) -> None:
    node = Node()
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.8), gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): ramp(0.8)})
    assert node.annotate(start_s, end_s) == {"gpumon.gpu.uuids": ("GPU-a", "GPU-b")}


def test_no_mean_over_some_of_the_gpus() -> None:
    node = Node()
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.8)})
    assert "gpumon.gpu.sm_active" not in node.annotate(101.0, 109.0)


def test_a_counter_that_began_anew_within_the_span_says_nothing() -> None:
    node = Node()
    values = ramp(0.8)
    values[8:] = [value - values[8] for value in values[8:]]
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): values, gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): ramp(0.8)})
    assert "gpumon.gpu.sm_active" not in node.annotate(101.0, 115.0)
    assert "gpumon.gpu.sm_active" not in node.annotate(107.2, 107.8)
    assert node.annotate(109.0, 115.0)["gpumon.gpu.sm_active"] == pytest.approx(0.8)
    assert node.annotate(101.0, 106.5)["gpumon.gpu.sm_active"] == pytest.approx(0.8)


def test_throttling_is_the_longest_reason_of_the_worst_gpu() -> None:
    node = Node()
    node.fill(
        {
            gpu(GPU_THROTTLED_SECONDS, "GPU-a", "sw_thermal"): ramp(0.1),
            gpu(GPU_THROTTLED_SECONDS, "GPU-a", "hw_thermal"): ramp(0.25),
            gpu(GPU_THROTTLED_SECONDS, "GPU-a", "low_utilization"): ramp(1.0),
            gpu(GPU_THROTTLED_SECONDS, "GPU-b", "sw_power_cap"): ramp(0.2),
            gpu(GPU_THROTTLED_SECONDS, "GPU-b", "base_clocks"): ramp(1.0),
        }
    )
    assert node.annotate(102.0, 104.0)["gpumon.gpu.throttled_ms"] == pytest.approx(500.0)


def test_no_throttling_is_zero_and_not_absent() -> None:
    node = Node()
    node.fill({gpu(GPU_THROTTLED_SECONDS, "GPU-a", "sw_thermal"): ramp(0.0)})
    assert node.annotate(102.0, 104.0)["gpumon.gpu.throttled_ms"] == 0.0


def test_major_faults_of_the_bound_process_alone() -> None:
    node = Node()
    node.fill(
        {
            (PROCESS_PAGE_FAULTS, ("42", "vllm", "", "", "", "major")): ramp(30.0),
            (PROCESS_PAGE_FAULTS, ("42", "vllm", "", "", "", "minor")): ramp(999.0),
            (PROCESS_PAGE_FAULTS, ("7", "other", "", "", "", "major")): ramp(999.0),
        }
    )
    assert node.annotate(102.0, 104.5)["gpumon.process.major_faults"] == 75
    node.binding = Binding("peer", pid=43)
    assert node.annotate(102.0, 104.5) == {}


def test_a_mig_instance_has_its_own_activity() -> None:
    node = Node()
    node.binding = Binding("config", gpus=(GpuUuid("MIG-1"),))
    node.fill({(MIG_SM_ACTIVE_SECONDS, ("MIG-1", "GPU-a", "1", "0", "1g.10gb")): ramp(0.5)})
    assert node.annotate(102.0, 104.0) == {"gpumon.gpu.uuids": ("MIG-1",), "gpumon.gpu.sm_active": pytest.approx(0.5)}


@pytest.mark.parametrize("binding", [None, Binding(), Binding("peer", container_id="c")])
def test_unbound_spans_stay_as_they_are(binding: Binding | None) -> None:
    node = Node()
    node.binding = binding
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.5)})
    assert node.annotate(102.0, 104.0) == {}
    assert node.views == 0


@pytest.mark.parametrize(("start_s", "end_s"), [(104.0, 102.0), (103.0, 103.0)])
def test_spans_without_a_length_get_the_gpus_alone(start_s: float, end_s: float) -> None:
    node = Node()
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.5), gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): ramp(0.5)})
    assert node.annotate(start_s, end_s) == {"gpumon.gpu.uuids": ("GPU-a", "GPU-b")}


def test_many_spans_share_a_view_and_newer_spans_get_a_newer_one() -> None:
    node = Node()
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): ramp(0.5), gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): ramp(0.5)})
    made: list[float] = []

    def view():  # type: ignore[no-untyped-def]
        made.append(node.now_s)
        return node.store.view(node.now_s)

    annotator = Annotator(view, lambda trace, span: node.binding, lambda ns: ns / 1e9)
    for _ in range(50):
        annotator(bytes(16), bytes(8), 102_000_000_000, 104_000_000_000)
    assert made == [120.0]
    node.fill({gpu(GPU_SM_ACTIVE_SECONDS, "GPU-a"): [50.0], gpu(GPU_SM_ACTIVE_SECONDS, "GPU-b"): [50.0]}, start_s=130.0)
    node.now_s = 131.0
    found = dict(annotator(bytes(16), bytes(8), 102_000_000_000, 125_000_000_000))
    assert made == [120.0, 131.0]
    assert "gpumon.gpu.sm_active" in found


def record(number: int, binding: Binding) -> RequestRecord:
    return RequestRecord(bytes([number]) * 16, "", "vllm", "", 0.0, 0, 0, binding=binding)


def test_bindings_remember_the_newest_traces_and_never_unbind_one() -> None:
    bindings = Bindings(limit=2)
    bound = Binding("peer", pid=1)
    bindings.put(record(1, bound))
    bindings.put(record(1, Binding()))
    assert bindings.get(bytes([1]) * 16) == bound
    bindings.put(record(2, bound))
    bindings.put(record(3, bound))
    assert bindings.get(bytes([1]) * 16) is None
    assert bindings.get(bytes([3]) * 16) == bound
