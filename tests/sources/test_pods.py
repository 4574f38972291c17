"""What is told of pods on GPUs: one row to join by, shares, age and state; nothing that may be another pod's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon import catalogue
from gpumon.host.podresources import ClaimedDevice, ContainerHolds, HeldDevices, PodHolds
from gpumon.model import GpuProcess, GpuUuid, Metric, Miss, Pid, Reason, Sample
from gpumon.sources.cgroup import Identity
from gpumon.sources.pod_devices import GpuDevice
from gpumon.sources.pod_map import Listing
from gpumon.sources.pods import PodSource
from gpumon.sources.targets import Target, Workload

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"


def holds(name: str, *ids: str, container: str = "server") -> PodHolds:
    return PodHolds("serving", name, (ContainerHolds(container, (HeldDevices("nvidia.com/gpu", ids),)),))


class Bench:
    def __init__(self) -> None:
        self.listing: Listing | None = None
        self.state = "ok"
        self.devices: Sequence[GpuDevice] = (GpuDevice("0", A, minor=0), GpuDevice("1", B, minor=1))
        self.targets: Sequence[Target] = ()
        self.source = PodSource(
            lambda _: self.listing, lambda: self.state, lambda: self.devices, lambda: self.targets, lambda s: s + 1e9
        )

    def list(self, *pods: PodHolds, offered: tuple[str, ...] | None = None, began_s: float = 500.0) -> None:
        told = (HeldDevices("nvidia.com/gpu", offered),) if offered is not None else None
        self.listing = Listing(began_s, pods, told)

    def read(self) -> dict[Metric, dict[tuple[str, ...], float]]:
        self.misses: list[Miss] = []
        found: dict[Metric, dict[tuple[str, ...], float]] = {}
        for item in self.source.read(510.0):
            if isinstance(item, Sample):
                assert isinstance(item.value, float)
                assert item.labels not in found.setdefault(item.metric, {})
                assert len(item.labels) == len(item.metric.labels)
                found[item.metric][item.labels] = item.value
            else:
                assert isinstance(item, Miss)
                self.misses.append(item)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_gpu_of_one_pod_has_one_row_to_join_by(bench: Bench) -> None:
    bench.list(holds("vllm-0", A), offered=(A, B))
    found = bench.read()
    assert found[catalogue.GPU_POD] == {("0", A, "serving", "vllm-0", "server"): 1.0}
    assert found[catalogue.GPU_ALLOCATIONS] == {("0", A, "serving", "vllm-0", "server"): 1.0}
    assert found[catalogue.GPU_PODS] == {("0", A): 1.0, ("1", B): 0.0}
    assert found[catalogue.GPU_ALLOCATABLE] == {("0", A): 1.0, ("1", B): 1.0}
    assert found[catalogue.POD_MAPPING] == {(): 1e9 + 500.0}
    assert found[catalogue.POD_DEVICES_UNKNOWN] == {(): 0.0}
    assert bench.misses == []


def test_a_shared_gpu_has_no_row_to_join_by_and_one_for_each_share(bench: Bench) -> None:
    bench.list(holds("a", f"{A}::0", f"{A}::1"), holds("b", f"{A}::2"), offered=tuple(f"{A}::{n}" for n in range(4)))
    found = bench.read()
    assert catalogue.GPU_POD not in found
    assert found[catalogue.GPU_PODS][("0", A)] == 2.0
    assert found[catalogue.GPU_ALLOCATABLE][("0", A)] == 4.0
    assert found[catalogue.GPU_ALLOCATIONS] == {
        ("0", A, "serving", "a", "server"): 2.0,
        ("0", A, "serving", "b", "server"): 1.0,
    }


def test_a_claim_has_its_row(bench: Bench) -> None:
    claim = ClaimedDevice("serving", "one", "gpu.nvidia.com", "node-1", "gpu-1", ())
    bench.listing = Listing(500.0, (PodHolds("serving", "vllm-0", (ContainerHolds("server", (), (claim,)),)),))
    found = bench.read()
    assert found[catalogue.GPU_CLAIM] == {("1", B, "serving", "one", "gpu.nvidia.com", "node-1", "gpu-1"): 1.0}
    assert found[catalogue.GPU_POD] == {("1", B, "serving", "vllm-0", "server"): 1.0}
    assert catalogue.GPU_ALLOCATABLE not in found


@pytest.mark.parametrize("state", catalogue.POD_MAPPING_STATES)
def test_the_state_is_told_with_and_without_a_listing(bench: Bench, state: str) -> None:
    bench.state = state
    found = bench.read()
    assert set(found) == {catalogue.POD_MAPPING_STATE}
    assert {labels[0] for labels, value in found[catalogue.POD_MAPPING_STATE].items() if value} == {state}
    assert bench.source.mapped() is None


def test_every_reason_that_the_kubelet_can_fail_for_is_a_state() -> None:
    assert set(catalogue.POD_MAPPING_STATES) == {"ok", "waiting"} | {
        reason.value for reason in Reason if reason not in (Reason.ENDED, Reason.BUG, Reason.OUT_OF_RANGE)
    }


def test_before_any_gpu_is_known_no_id_is_called_unknown(bench: Bench) -> None:
    bench.list(holds("vllm-0", A))
    bench.devices = ()
    assert set(bench.read()) == {catalogue.POD_MAPPING_STATE}
    assert bench.misses == []


def test_unknown_ids_are_counted_missed_and_left_out(bench: Bench) -> None:
    bench.list(holds("vllm-0", A, "GPU-gone\n" + "x" * 500), holds("bad name", B))
    found = bench.read()
    assert found[catalogue.POD_DEVICES_UNKNOWN] == {(): 1.0}
    assert {labels[3] for labels in found[catalogue.GPU_POD]} == {"vllm-0"}
    assert [miss.what for miss in bench.misses] == ["device ids", "names of pods"]
    assert all(len(miss.detail) < 200 and "\n" not in miss.detail for miss in bench.misses)


def process(pod: str, *, began_s: float, uid: str | None = UID, gpu: GpuUuid = A, pid: int = 7) -> Target:
    held = (GpuProcess(pid, "0", gpu, 1.0, None),)
    workload = Workload("serving", pod) if pod else Workload()
    return Target(Pid(pid, round(began_s * 100)), "python", workload, held, Identity("c" * 64, uid))


CLAIM = ClaimedDevice("serving", "one", "gpu.nvidia.com", "node-1", "gpu-0", ())
OF_PODS = (catalogue.GPU_POD, catalogue.GPU_PODS, catalogue.GPU_ALLOCATIONS, catalogue.GPU_CLAIM)


def told_of(found: dict[Metric, dict[tuple[str, ...], float]], uuid: GpuUuid) -> list[Metric]:
    return [metric for metric in OF_PODS if any(labels[1] == uuid for labels in found.get(metric, {}))]


def claims(name: str) -> PodHolds:
    return PodHolds("serving", name, (ContainerHolds("server", (), (CLAIM,)),))


@pytest.mark.parametrize(
    ("target", "is_told"),
    [
        (process("vllm-0", began_s=505.0), True),  # a worker of the same pod that began anew
        (process("vllm-1", began_s=505.0), False),
        (process("", began_s=505.0), False),
        (process("", began_s=505.0, uid=None), True),  # nobody's pod: a process of the host
        (process("vllm-1", began_s=490.0), True),  # was there when the kubelet said whose the GPU is
        (process("vllm-1", began_s=505.0, gpu=B), True),
    ],
)
def test_a_process_that_may_be_a_newer_pods_takes_all_away_that_is_told_of_pods_on_its_gpu(
    bench: Bench, target: Target, is_told: bool
) -> None:
    bench.list(claims("vllm-0"), offered=(A, B))
    bench.targets = [target]
    found = bench.read()
    assert told_of(found, A) == (list(OF_PODS) if is_told else [])
    assert set(found[catalogue.GPU_ALLOCATABLE]) == {("0", A), ("1", B)}
    bench.list(holds("vllm-1", A), began_s=508.0)
    assert bench.read()[catalogue.GPU_POD] == {("0", A, "serving", "vllm-1", "server"): 1.0}


@pytest.mark.parametrize("pod", ["vllm-1", ""])
@pytest.mark.parametrize("elsewhere", [A, B])
def test_a_new_process_of_a_pod_that_was_there_before_the_listing_takes_nothing_away(
    bench: Bench, pod: str, elsewhere: GpuUuid
) -> None:
    bench.list(claims("vllm-0"))
    bench.targets = [process(pod, began_s=490.0, gpu=elsewhere), process(pod, began_s=505.0, pid=8)]
    assert told_of(bench.read(), A) == list(OF_PODS)
    bench.targets = bench.targets[1:]
    assert told_of(bench.read(), A) == []


def test_a_new_pod_on_a_shared_or_a_free_gpu_takes_its_count_and_shares_away(bench: Bench) -> None:
    bench.list(holds("a", f"{A}::0"), holds("b", f"{A}::1"))
    bench.targets = [process("b", began_s=505.0)]
    assert told_of(bench.read(), A) == [catalogue.GPU_PODS, catalogue.GPU_ALLOCATIONS]
    bench.targets = [process("c", began_s=505.0), process("c", began_s=505.0, gpu=B, pid=8)]
    found = bench.read()
    assert (told_of(found, A), told_of(found, B)) == ([], [])


def test_doubt_about_an_instance_is_doubt_about_its_gpu_and_the_other_way_round(bench: Bench) -> None:
    one, two = GpuUuid("MIG-1"), GpuUuid("MIG-2")
    bench.devices = (
        GpuDevice("0", A, minor=0),
        GpuDevice("0", one, None, A, "1"),
        GpuDevice("0", two, None, A, "2"),
    )
    bench.list(holds("a", one), holds("b", two))
    bench.targets = [process("c", began_s=505.0, gpu=one)]
    found = bench.read()
    assert [bool(told_of(found, each)) for each in (A, one, two)] == [False, False, True]
    bench.targets = [process("c", began_s=505.0, gpu=A)]
    found = bench.read()
    assert [bool(told_of(found, each)) for each in (A, one, two)] == [False, False, False]
