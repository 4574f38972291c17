"""Device ids of every plugin, and which GPU or MIG instance each of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.podresources import ClaimedDevice
from gpumon.model import GpuUuid
from gpumon.sources.pod_devices import DeviceIds, GpuDevice, is_gpu_claim, is_gpu_id

A = GpuUuid("GPU-11111111-2222-3333-4444-555555555555")
B = GpuUuid("GPU-66666666-2222-3333-4444-555555555555")
M1 = GpuUuid("MIG-aaaaaaaa-2222-3333-4444-555555555555")
M2 = GpuUuid("MIG-bbbbbbbb-2222-3333-4444-555555555555")
OLD_MIG = GpuUuid(f"MIG-{B}/3/0")
DEVICES = [
    GpuDevice("0", A, minor=1),  # NVML's order is not that of the device nodes
    GpuDevice("1", B, minor=0),
    GpuDevice("1", M1, parent=B, gpu_instance="1"),
    GpuDevice("1", M2, parent=B, gpu_instance="2"),
    GpuDevice("1", OLD_MIG, parent=B, gpu_instance="3"),
]
IDS = DeviceIds(DEVICES)


@pytest.mark.parametrize(
    ("device_id", "uuid"),
    [
        (A, A),
        (f"{A}::0", A),
        (f"{A}::15", A),
        (M1, M1),
        (f"{M2}::3", M2),
        (OLD_MIG, OLD_MIG),
        ("nvidia0", B),
        ("nvidia1", A),
        ("nvidia1/vgpu3", A),
        ("nvidia0/gi2", M2),
        ("nvidia0/gi1/vgpu0", M1),
        ("nvidia0/gi9", None),
        ("nvidia1/gi1", None),
        ("nvidia7", None),
        ("nvidia0/vgpu", None),
        ("nvidia0/", None),
        ("xnvidia0", None),
        (f"{A}-3", None),  # HAMi and its like: the kubelet's id need not be the GPU that is used
        (A[:-1], None),
        ("", None),
        ("::", None),
        ("0", None),
        ("0000:3b:00.0", None),
    ],
)
def test_ids_of_device_plugins(device_id: str, uuid: str | None) -> None:
    found = IDS.find("nvidia.com/gpu", device_id)
    assert (found.uuid if found else None) == uuid


@pytest.mark.parametrize(
    ("resource", "device_id", "uuid"),
    [
        ("nvidia.com/gpu.shared", "nvidia0", B),
        ("example.com/gpu", "nvidia0", None),
        ("example.com/nvidia.com/gpu", "nvidia0/gi1", None),
        ("", "nvidia1/vgpu0", None),
        ("example.com/gpu", A, A),  # a renamed resource: a UUID is no other GPU's
        ("example.com/mig", f"{M1}::2", M1),
    ],
)
def test_a_number_is_a_gpus_only_as_nvidias_resource(resource: str, device_id: str, uuid: str | None) -> None:
    found = IDS.find(resource, device_id)
    assert (found.uuid if found else None) == uuid


def test_a_minor_or_an_instance_that_two_have_is_nobodys() -> None:
    ids = DeviceIds([GpuDevice("0", A, minor=0), GpuDevice("1", B, minor=0)])
    assert ids.find("nvidia.com/gpu", "nvidia0") is None
    ids = DeviceIds([DEVICES[1], DEVICES[2], GpuDevice("1", M2, parent=B, gpu_instance="1")])
    assert ids.find("nvidia.com/gpu", "nvidia0/gi1") is None


def claimed(device: str, *cdi: str, driver: str = "gpu.nvidia.com") -> ClaimedDevice:
    return ClaimedDevice("ns", "claim", driver, "node", device, cdi)


@pytest.mark.parametrize(
    ("claim", "uuid"),
    [
        (claimed("gpu-0"), B),
        (claimed("gpu-1", "k8s.gpu.nvidia.com/claim=0b1c-gpu-1"), A),
        (claimed("gpu-9"), None),
        (claimed("gpu-0-mig-9-0-1"), None),
        (claimed("gpu-0-mig-9-0-1", f"nvidia.com/gpu={M1}"), M1),
        (claimed("gpu-0", driver="gpu.example.com"), None),
        (claimed("x", f"vendor.example.com/gpu={A}", driver="gpu.example.com"), A),
        (claimed("x", f"vendor.example.com/gpu=claim-{A}", driver="gpu.example.com"), None),
        (claimed("gpu-0", f"nvidia.com/gpu={A}"), None),  # contradicts itself
        (claimed("gpu-0", f"nvidia.com/gpu={B}"), B),
        (claimed("gpu-0", f"nvidia.com/gpu={B[:-1]}9"), None),
        (claimed("x", f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"), None),
        (claimed("channel-0", driver="compute-domain.nvidia.com"), None),
    ],
)
def test_devices_of_claims(claim: ClaimedDevice, uuid: str | None) -> None:
    found = IDS.find_claimed(claim)
    assert (found.uuid if found else None) == uuid


@pytest.mark.parametrize(
    ("resource", "device_id", "is_ours"),
    [
        ("nvidia.com/gpu", "anything", True),
        ("nvidia.com/gpu.shared", "anything", True),
        ("nvidia.com/mig-1g.10gb", "x", True),
        ("example.com/gpu", "GPU-x", True),
        ("example.com/gpu", "nvidia3/gi1", True),
        ("nvidia.com/hostdev", "0000:3b:00.0", False),
        ("rdma/hca", "mlx5_0", False),
        ("cpu", "7", False),
    ],
)
def test_only_ids_meant_for_gpus_count_as_unknown(resource: str, device_id: str, is_ours: bool) -> None:
    assert is_gpu_id(resource, device_id) is is_ours


def test_only_claims_of_gpus_count_as_unknown() -> None:
    assert is_gpu_claim(claimed("gpu-0"))
    assert is_gpu_claim(claimed("x", f"v/gpu={A}", driver="d"))
    assert not is_gpu_claim(
        claimed("channel-0", "k8s.compute-domain.nvidia.com/channel=0", driver="compute-domain.nvidia.com")
    )


@given(
    st.text(max_size=80)
    | st.sampled_from([A, B, M1, "nvidia0"]).flatmap(lambda a: st.text(max_size=6).map(lambda b: a + b))
)
def test_any_id_is_a_device_that_it_names_or_none(device_id: str) -> None:
    found = IDS.find("nvidia.com/gpu", device_id)
    if found is not None:
        assert device_id.startswith((found.uuid, "nvidia"))
