"""Where the sampler's words and the sources' questions meet."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.model import GpuProcess, GpuUuid, Miss, Reason, Rejection, Sample
from gpumon.node import Node
from gpumon.sampler.wire import Batch
from gpumon.sources.pod_devices import GpuDevice
from gpumon.store import Store

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
MIG = GpuUuid("MIG-1")


class Stand:
    def __init__(self) -> None:
        self.clock = ManualClock(at_s=1000.0)
        self.store = Store()
        self.health = Health(self.clock.to_unix)
        self.node = Node(self.store, self.health, self.clock)
        self.node.believe_processes_for(30.0)

    def source(self, name: str, *labels: str) -> float | None:
        for sample in self.health.samples(self.clock.now_s()):
            if sample.metric.name == f"gpumon_source_{name}" and sample.labels == labels:
                assert isinstance(sample.value, (int, float))
                return sample.value
        return None


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_what_is_put_is_stored_and_what_is_dropped_is_gone(stand: Stand) -> None:
    sample = Sample(catalogue.GPU_PRESENT, ("0", A), 1.0)
    stand.node.put("gpu_fast/00", 1000.0, [sample], 3.0)
    assert list(stand.store.view(1000.0)) == [sample]
    stand.node.drop("gpu_fast/00")
    assert list(stand.store.view(1000.0)) == []


def test_a_pass_is_accounted_by_source_with_its_misses_and_rejections(stand: Stand) -> None:
    miss, rejection = Miss("gpu 0 fan", Reason.TIMEOUT), Rejection("power", Reason.OUT_OF_RANGE)
    stand.node.passed(Batch("gpu_slow", f"gpu_slow/00/{A}", 999.0, 15.0, 0.2, [], [miss], [rejection]))
    assert stand.source("up", "gpu_slow") == 1.0
    assert stand.source("errors_total", "gpu_slow", "timeout") == 1
    rejected = {s.labels: s.value for s in stand.store.self_samples(1000.0) if s.metric is catalogue.SAMPLES_REJECTED}
    assert rejected == {("power", "out_of_range"): 1.0}


@pytest.mark.parametrize(
    ("state", "up", "errors"),
    [("running", 1.0, 0), ("unavailable", 0.0, 1), ("stuck", 0.0, 1), ("released", 0.0, 0)],
)
def test_nvmls_state_is_a_source_like_any_other(stand: Stand, state: str, up: float, errors: int) -> None:
    stand.node.nvml_state("running", 999.0, Reason.UNAVAILABLE, "")
    stand.node.nvml_state(state, 1000.0, Reason.TIMEOUT, "why")
    assert stand.source("up", "nvml") == up
    assert stand.source("errors_total", "nvml", "timeout") == errors


def test_holders_are_believed_only_so_long(stand: Stand) -> None:
    process = GpuProcess(7, "0", A, 1.0, None)
    stand.node.gpu_processes(A, [process])
    stand.clock.step(30.0)
    stand.node.gpu_processes(B, [process._replace(uuid=B)])
    assert [p.uuid for p in stand.node.holders()] == [A, B]
    stand.clock.step(0.1)
    assert [p.uuid for p in stand.node.holders()] == [B]
    stand.node.believe_processes_for(90.0)  # the cadence was changed
    assert [p.uuid for p in stand.node.holders()] == [A, B]
    stand.node.gpu_processes(A, [])
    stand.node.gpu_processes(B, [])
    assert stand.node.holders() == []


def test_addresses_of_gpus_and_of_the_instances_on_them(stand: Stand) -> None:
    stand.node.gpu_identity(A, "0", "0000:3b:00.0")
    stand.node.gpu_identity(B, "1", "")
    stand.node.gpu_processes(A, [GpuProcess(7, "0", MIG, 1.0, None)])
    stand.node.gpu_processes(B, [GpuProcess(8, "1", GpuUuid("MIG-2"), 1.0, None)])
    assert stand.node.gpu_pci() == {A: "0000:3b:00.0", MIG: "0000:3b:00.0"}
    assert [(gpu.gpu, gpu.uuid) for gpu in stand.node.known_gpus()] == [("0", A), ("1", B)]


def test_an_identity_that_changes_replaces_the_one_before(stand: Stand) -> None:
    stand.node.gpu_identity(A, "3", "")
    stand.node.gpu_identity(A, "2", "0000:3b:00.0")
    assert [(gpu.gpu, gpu.pci_bus_id) for gpu in stand.node.known_gpus()] == [("2", "0000:3b:00.0")]


def test_what_was_lost_on_the_way_is_one_counter_from_the_start(stand: Stand) -> None:
    def lost() -> list[Sample]:
        return list(stand.node.own_samples())

    assert lost() == [Sample(catalogue.SERIES_DROPPED, ("sampler_backlog",), 0)]
    stand.node.dropped_messages(3)
    stand.node.dropped_messages(4)
    assert lost() == [Sample(catalogue.SERIES_DROPPED, ("sampler_backlog",), 7)]


def test_gpus_and_mig_instances_are_known_by_every_name_that_device_ids_use(stand: Stand) -> None:
    stand.node.gpu_identity(A, "0", "0000:3b:00.0")
    stand.node.gpu_identity(B, "1", "0000:5e:00.0")
    known = {"gpu": "0", "uuid": A, "minor": "3"}
    instance = {"uuid": MIG, "parent_uuid": B, "gpu_instance": "7", "gpu": "1"}
    told = [
        Sample(catalogue.GPU_INFO, tuple(known.get(label, "") for label in catalogue.GPU_INFO.labels), 1.0),
        Sample(catalogue.MIG_INFO, tuple(instance.get(label, "") for label in catalogue.MIG_INFO.labels), 1.0),
    ]
    stand.node.put("gpu_inventory/00", 1000.0, told, 3.0)
    found = {GpuDevice("0", A, 3), GpuDevice("1", B, None), GpuDevice("1", MIG, None, B, "7")}
    assert set(stand.node.gpu_devices()) == found
    stand.clock.step(100.0)  # a GPU that is lost is still the one that a pod holds; an instance may be another by now
    assert set(stand.node.gpu_devices()) == {GpuDevice("0", A, None), GpuDevice("1", B, None)}
