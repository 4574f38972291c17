from __future__ import annotations

from typing import Any

import pytest

from gpumon.catalogue import DRIVER_INFO, GPU_COUNT, GPU_INFO
from gpumon.host.nvml import Code, Driver, NvmlError
from gpumon.model import GpuUuid, Item, Miss, Reason, Rejection, Sample
from gpumon.sources.capabilities import GONE, Capabilities
from gpumon.sources.gpu_inventory import GpuIdentity, GpuInventory, NodeInventory, expected_gpus
from tests.fake_port import DictFiles, FakeNvml, device

GPU = ("0", "GPU-a")
NODE = "sys/bus/pci/devices/0000:3b:00.0/numa_node"
QUESTIONS = {
    "name": "name",
    "vbios": "vbios_version",
    "pci_bus_id": "pci_bus_id",
    "minor": "minor",
    "architecture": "architecture",
    "compute_capability": "compute_capability",
    "mig_mode": "mig_mode",
    "memory": "memory_model",
    "gpm_supported": "activity_source",
    "driver": "driver_version",
}
CODES = [*(code for code in Code if code is not Code.SUCCESS), 31]


def rig(nvml: FakeNvml, files: DictFiles | None = None) -> GpuInventory:
    return GpuInventory(nvml, device(), GPU, Capabilities("gpu 0"), files or DictFiles({NODE: b"1\n"}))


def info(items: list[Item]) -> dict[str, str]:
    (sample,) = [item for item in items if isinstance(item, Sample)]
    assert (sample.metric, sample.value) == (GPU_INFO, 1.0)
    return dict(zip(GPU_INFO.labels, sample.labels, strict=True))


HEALTHY_INFO = {
    "gpu": "0",
    "uuid": "GPU-a",
    "name": "NVIDIA H200",
    "pci_bus_id": "0000:3b:00.0",
    "driver_version": "590.48.01",
    "vbios_version": "96.00.AE.00.01",
    "architecture": "hopper",
    "compute_capability": "9.0",
    "numa_node": "1",
    "minor": "0",
    "mig_mode": "disabled",
    "memory_model": "dedicated",
    "activity_source": "gpm",
}


def test_what_a_gpu_is() -> None:
    source = rig(FakeNvml())
    assert info(source.read(1000.0)) == HEALTHY_INFO
    assert source.identity == GpuIdentity(GpuUuid("GPU-a"), "0", "NVIDIA H200", "0000:3b:00.0", 0, 1)


def test_identity_is_asked_once_per_generation_and_the_mig_mode_always() -> None:
    nvml = FakeNvml()
    source = rig(nvml)
    for tick in range(3):
        assert info(source.read(1000.0 + 60 * tick)) == HEALTHY_INFO
    assert {name: nvml.log.count(name) for name in QUESTIONS} == dict.fromkeys(QUESTIONS, 1) | {"mig_mode": 3}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_fails_leaves_the_others_and_is_asked_again(question: str, code: int) -> None:
    nvml = FakeNvml()
    nvml.errors[question] = code
    source = rig(nvml)
    if code in GONE:
        with pytest.raises(NvmlError):
            source.read(1000.0)
        return
    items = source.read(1000.0)
    changed = {label for label, value in info(items).items() if value != HEALTHY_INFO[label]}
    assert changed == {QUESTIONS[question]} | ({"numa_node"} if question == "pci_bus_id" else set())
    assert any(isinstance(item, Miss) for item in items)
    del nvml.errors[question]
    passing = code not in (
        Code.NOT_SUPPORTED,
        Code.FUNCTION_NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.DEPRECATED,
    )
    if passing:
        assert info(source.read(1060.0)) == HEALTHY_INFO


@pytest.mark.parametrize(
    ("question", "answer", "label", "expected"),
    [
        ("architecture", 10, "architecture", "blackwell"),
        ("architecture", 0xFFFFFFFF, "architecture", ""),
        ("compute_capability", (12, 1), "compute_capability", "12.1"),
        ("compute_capability", (-1, 0), "compute_capability", ""),
        ("minor", 0xFFFFFFFF, "minor", ""),
        ("mig_mode", (1, 1), "mig_mode", "enabled"),
        ("mig_mode", (0, 1), "mig_mode", "enabling"),
        ("mig_mode", (1, 0), "mig_mode", "disabling"),
        ("mig_mode", (7, 0), "mig_mode", ""),
        ("gpm_supported", False, "activity_source", "utilization"),
        ("name", "  NVIDIA H200 ", "name", "NVIDIA H200"),
        ("driver", Driver(None, None, None), "driver_version", ""),
    ],
)
def test_answers_become_labels(question: str, answer: Any, label: str, expected: str) -> None:
    nvml = FakeNvml()
    nvml.answers[question] = answer
    assert info(rig(nvml).read(1000.0))[label] == expected


def test_a_part_without_mig_and_without_memory_of_its_own() -> None:
    nvml = FakeNvml()
    nvml.errors |= {"mig_mode": Code.NOT_SUPPORTED, "memory": Code.NOT_SUPPORTED}
    labels = info(rig(nvml).read(1000.0))
    assert (labels["mig_mode"], labels["memory_model"]) == ("unsupported", "unified")


def test_gpm_that_is_denied_is_no_activity_source() -> None:
    capabilities = Capabilities("gpu 0")
    source = GpuInventory(FakeNvml(), device(), GPU, capabilities, DictFiles({}))
    capabilities.note(999.0, "gpm", Code.NO_PERMISSION)
    assert info(source.read(1000.0))["activity_source"] == "utilization"
    assert info(source.read(1060.0))["activity_source"] == "gpm"


@pytest.mark.parametrize("content", [b"-1\n", b"99999999\n"])
def test_a_slot_without_a_numa_node_has_none(content: bytes) -> None:
    source = rig(FakeNvml(), DictFiles({NODE: content}))
    items = source.read(1000.0)
    assert info(items)["numa_node"] == ""
    assert source.identity.numa_node is None
    assert len(items) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", Reason.MALFORMED), (b"node1", Reason.MALFORMED), (b"\xff\x00", Reason.MALFORMED)]
    + [(reason, reason) for reason in (Reason.DENIED, Reason.UNAVAILABLE)],
)
def test_an_unreadable_numa_node_is_a_miss(content: bytes | Reason, reason: Reason) -> None:
    items = rig(FakeNvml(), DictFiles({NODE: content})).read(1000.0)
    assert info(items)["numa_node"] == ""
    assert [item.reason for item in items if isinstance(item, Miss)] == [reason]


# --- the node -----------------------------------------------------------------------------------------------------


def pci(name: str, vendor: bytes = b"0x10de\n", class_: bytes = b"0x030200\n") -> dict[str, bytes]:
    path = f"sys/bus/pci/devices/{name}"
    return {f"{path}/vendor": vendor, f"{path}/class": class_}


def counts(items: list[Item]) -> dict[str, Any]:
    return {item.labels[0]: item.value for item in items if isinstance(item, Sample) and item.metric is GPU_COUNT}


def test_gpus_are_expected_from_the_bus_by_vendor_and_class() -> None:
    files = DictFiles(
        pci("0000:3b:00.0")
        | pci("0000:86:00.0", class_=b"0x030000\n")
        | pci("0000:87:00.0", class_=b"0x068000\n")  # NVSwitch
        | pci("0000:88:00.1", class_=b"0x040300\n")  # audio function
        | pci("0000:89:00.0", vendor=b"0x8086\n")
        | {"sys/bus/pci/devices/0000:8a:00.0/class": b"0x030200\n"}
    )
    assert expected_gpus(files) == 2


def test_virtual_functions_and_gpus_of_virtual_machines_are_not_expected() -> None:
    files = DictFiles(
        pci("0000:3b:00.0") | pci("0000:3b:00.4") | pci("0000:86:00.0"),
        {
            "sys/bus/pci/devices/0000:3b:00.0/driver": "../../../bus/pci/drivers/nvidia",
            "sys/bus/pci/devices/0000:3b:00.4/physfn": "../0000:3b:00.0",
            "sys/bus/pci/devices/0000:86:00.0/driver": "../../../bus/pci/drivers/vfio-pci",
        },
    )
    assert expected_gpus(files) == 1


def test_seven_of_eight_present_shows() -> None:
    nvml = FakeNvml()
    nvml.answers["device_count"] = 7
    files = DictFiles({name: content for i in range(8) for name, content in pci(f"0000:{i:02x}:00.0").items()})
    items = NodeInventory(nvml, files, lambda: 1).read(1000.0)
    assert counts(items) == {"expected": 8, "present": 7, "lost": 1}
    assert Sample(DRIVER_INFO, ("590.48.01", "13.590.48.01", "13.1"), 1.0) in items


def test_without_the_bus_the_rest_is_told() -> None:
    items = NodeInventory(FakeNvml(), DictFiles({}), lambda: 0).read(1000.0)
    assert counts(items) == {"present": 1, "lost": 0}
    assert [item for item in items if isinstance(item, Miss)] == [Miss("pci devices", Reason.UNAVAILABLE)]


def test_an_impossible_count_is_rejected() -> None:
    nvml = FakeNvml()
    nvml.answers["device_count"] = 0xFFFFFFFF
    items = NodeInventory(nvml, DictFiles(pci("0000:3b:00.0")), lambda: 0).read(1000.0)
    assert counts(items) == {"expected": 1, "lost": 0}
    assert Rejection("device_count", Reason.OUT_OF_RANGE) in items


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("question", "own"), [("driver", DRIVER_INFO), ("device_count", GPU_COUNT)])
def test_a_node_question_that_fails_takes_only_its_own(question: str, own: object, code: int) -> None:
    nvml = FakeNvml()
    source = NodeInventory(nvml, DictFiles(pci("0000:3b:00.0")), lambda: 0)
    everything = source.read(1000.0)
    nvml.errors[question] = code
    if code in GONE:
        with pytest.raises(NvmlError):
            source.read(1060.0)
        return
    items = source.read(1060.0)
    lost = [item for item in everything if item not in items]
    assert [item.metric for item in lost if isinstance(item, Sample)] == [own]
