"""Who holds which GPU: alone, shared, in parts, by claims; and never a pod that does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.podresources import ClaimedDevice, ContainerHolds, HeldDevices, PodHolds
from gpumon.model import GpuUuid
from gpumon.sources.kube_names import PodName
from gpumon.sources.pod_devices import GpuDevice
from gpumon.sources.pod_map import Listing, Owner, PodMap, map_pods

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
M1, M2 = GpuUuid("MIG-1"), GpuUuid("MIG-2")
GPU_A, GPU_B = GpuDevice("0", A, minor=0), GpuDevice("1", B, minor=1)
MIG_1 = GpuDevice("1", M1, parent=B, gpu_instance="1")
MIG_2 = GpuDevice("1", M2, parent=B, gpu_instance="2")
ALL = [GPU_A, GPU_B, MIG_1, MIG_2]


def container(*ids: str, name: str = "server", claimed: tuple[ClaimedDevice, ...] = ()) -> ContainerHolds:
    return ContainerHolds(name, (HeldDevices("nvidia.com/gpu", ids),) if ids else (), claimed)


def pod(name: str, *containers: ContainerHolds, namespace: str = "serving") -> PodHolds:
    return PodHolds(namespace, name, containers)


def mapped(*pods: PodHolds, offered: tuple[str, ...] | None = None) -> PodMap:
    told = (HeldDevices("nvidia.com/gpu", offered),) if offered is not None else None
    return map_pods(Listing(5.0, pods, told), ALL)


def test_a_gpu_with_one_pod_is_that_pods() -> None:
    found = mapped(pod("a", container(A)))
    assert found.owner(A) == Owner(PodName("serving", "a"), "server")
    assert found.owner(B) is None
    assert found.pods(GPU_A) == {("serving", "a")}
    assert found.pods(GPU_B) == set()


def test_a_shared_gpu_is_nobodys_and_every_share_is_counted() -> None:
    found = mapped(pod("a", container(f"{A}::0", f"{A}::3")), pod("b", container(f"{A}::1")))
    assert found.owner(A) is None
    assert len(found.pods(GPU_A)) == 2
    assert sorted(found.held[A].values()) == [1, 2]


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    found = mapped(pod("a", container(f"{A}::0")), pod("a", container(f"{A}::1"), namespace="other"))
    assert found.owner(A) is None


def test_replicas_of_one_pod_are_that_pods() -> None:
    assert mapped(pod("a", container(f"{A}::0", f"{A}::1"))).owner(A) == Owner(PodName("serving", "a"), "server")


def test_two_containers_of_one_pod_leave_the_container_open() -> None:
    found = mapped(pod("a", container(f"{A}::0"), container(f"{A}::1", name="other")))
    assert found.owner(A) == Owner(PodName("serving", "a"), "")


def test_pods_on_the_instances_of_a_gpu_count_for_it_and_none_of_them_has_it_whole() -> None:
    found = mapped(pod("a", container(M1)), pod("b", container("nvidia1/gi2")))
    assert found.owner(M1) == Owner(PodName("serving", "a"), "server")
    assert found.owner(M2) == Owner(PodName("serving", "b"), "server")
    assert found.owner(B) is None
    assert found.pods(GPU_B) == {("serving", "a"), ("serving", "b")}
    assert found.pods(MIG_1) == {("serving", "a")}


def test_one_pod_on_an_instance_does_not_have_the_gpu() -> None:
    assert mapped(pod("a", container(M1))).owner(B) is None


def test_a_gpu_held_whole_and_in_part_is_nobodys() -> None:
    found = mapped(pod("a", container(B)), pod("b", container(M1)))
    assert found.owner(B) is None
    assert found.owner(M1) is None


def test_claims_count_as_holding_and_are_told_once() -> None:
    claim = ClaimedDevice("serving", "one", "gpu.nvidia.com", "node", "gpu-0", ())
    found = mapped(pod("a", container(claimed=(claim,)), container(name="other", claimed=(claim,))))
    assert found.owner(A) == Owner(PodName("serving", "a"), "")
    assert found.claims == ((A, claim),)


def test_a_claim_that_two_pods_share_makes_the_gpu_shared() -> None:
    claim = ClaimedDevice("serving", "one", "gpu.nvidia.com", "node", "gpu-0", ())
    assert mapped(pod("a", container(claimed=(claim,))), pod("b", container(claimed=(claim,)))).owner(A) is None


def test_ids_of_no_gpu_are_told_and_left_out_and_others_are_not_our_business() -> None:
    other = ContainerHolds(
        "server", (HeldDevices("rdma/hca", ("mlx5_0",)), HeldDevices("nvidia.com/gpu", ("GPU-x", A)))
    )
    found = mapped(pod("a", other))
    assert found.unknown == ("GPU-x",)
    assert found.owner(A) is not None


def test_names_that_cannot_be_names_are_left_out_and_counted() -> None:
    found = mapped(pod('a"} 1', container(A)), pod("b", container(B, name="Not A Name"), container(M1)))
    assert found.strange == 2
    assert found.owner(A) is None
    assert set(found.held) == {M1}


def test_what_may_be_handed_out_is_counted_by_gpu() -> None:
    assert mapped(offered=(f"{A}::0", f"{A}::1", B, "GPU-x")).offered == {A: 2, B: 1}
    assert mapped().offered is None


IDS = st.sampled_from([A, f"{A}::0", f"{A}::1", B, M1, f"{M1}::0", M2, "nvidia0", "nvidia1/gi1", "GPU-x"])
PODS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(IDS, max_size=3)).map(lambda told: pod(told[0], container(*told[1]))),
    max_size=5,
)


@given(PODS)
def test_an_owner_holds_it_and_nobody_else_holds_any_of_it(pods: list[PodHolds]) -> None:
    found = mapped(*pods)
    related: dict[str, set[str]] = {
        A: {A, f"{A}::0", f"{A}::1", "nvidia0"},
        M1: {M1, f"{M1}::0", "nvidia1/gi1"},
        M2: {M2},
        B: {B},
    }
    for device in ALL:
        owner = found.owner(device.uuid)
        names = {each.name for each in pods if related[device.uuid] & set(_ids(each))}
        assert owner is None or names == {owner.pod.pod}


def _ids(pod: PodHolds) -> list[str]:
    return [device_id for each in pod.containers for held in each.devices for device_id in held.ids]
