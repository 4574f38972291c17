"""dcgm-exporter's names: exact lines, and what is left out when it is not known."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpumon import catalogue as c
from gpumon.export.compat import DcgmExposition
from gpumon.export.dcgm_names import DCGM, DCGM_NEXT, NAME_SETS, NameSet
from gpumon.export.text import Format
from gpumon.model import Sample
from gpumon.store import Store, View
from tests.export.views import FOREVER_S
from tests.golden_file import golden

A = ("0", "GPU-aaaa")
B = ("1", "GPU-bbbb")
MIG = ("MIG-1111", "GPU-bbbb", "7", "0", "1g.18gb")
GIB = 2.0**30


def info(gpu: tuple[str, str], bus: str) -> Sample:
    known = dict(zip(("gpu", "uuid"), gpu, strict=True))
    known |= {"name": "NVIDIA H200", "pci_bus_id": bus, "driver_version": "580.65.06"}
    return Sample(c.GPU_INFO, tuple(known.get(label, "x") for label in c.GPU_INFO.labels), 1.0)


INVENTORY = [info(A, "0000:3b:00.0"), info(B, "0001:e1:00.0"), Sample(c.MIG_INFO, (*MIG, "1", "NVIDIA H200 MIG"), 1.0)]


def gpu_samples(at_s: float) -> list[Sample]:
    return [
        Sample(c.GPU_CLOCK, (*A, "sm"), 1980e6),
        Sample(c.GPU_CLOCK, (*A, "graphics"), 1e6),
        Sample(c.GPU_CLOCK, (*A, "memory"), 3201e6),
        Sample(c.GPU_TEMPERATURE, (*A, "gpu"), 41.0),
        Sample(c.GPU_TEMPERATURE, (*A, "memory"), 52.0),
        Sample(c.GPU_POWER, (*A, "average"), 347.5214),
        Sample(c.GPU_POWER, (*A, "instant"), 1.0),
        Sample(c.GPU_POWER, (*B, "average"), 75.0),
        Sample(c.GPU_ENERGY, A, 123456789.012),
        Sample(c.GPU_PCIE_REPLAYS, A, 3.0),
        Sample(c.GPU_UTILIZATION, A, 0.29),
        Sample(c.GPU_MEMORY_BUSY, A, 1.0),
        Sample(c.GPU_CODEC_UTILIZATION, (*A, "encoder"), 0.0),
        Sample(c.GPU_CODEC_UTILIZATION, (*A, "decoder"), 0.07),
        Sample(c.GPU_XID_ERRORS, (*A, "31"), 2.0),
        Sample(c.GPU_XID_ERRORS, (*A, "79"), 1.0),
        Sample(c.GPU_XID_ERRORS, (*B, "31"), 0.0),
        Sample(c.GPU_XID_LAST, (*A, "31"), 1.8e9 + 5),
        Sample(c.GPU_XID_LAST, (*A, "79"), 1.8e9),
        Sample(c.GPU_MEMORY, (*A, "used"), 100 * GIB),
        Sample(c.GPU_MEMORY, (*A, "free"), 40 * GIB),
        Sample(c.GPU_MEMORY, (*A, "reserved"), GIB / 2),
        Sample(c.GPU_NVLINK_BYTES, (*A, "tx"), 3e9 * at_s),
        Sample(c.GPU_NVLINK_BYTES, (*A, "rx"), 1e9 * at_s),
        Sample(c.GPU_PCIE_BYTES, (*A, "tx"), 5e6 * at_s),
        Sample(c.GPU_PCIE_BYTES, (*A, "rx"), 7e6 * at_s),
        Sample(c.GPU_REMAPPED_ROWS, (*A, "correctable"), 1.0),
        Sample(c.GPU_REMAPPED_ROWS, (*A, "uncorrectable"), 2.0),
        Sample(c.GPU_ROW_REMAP_FAILED, A, 0.0),
        Sample(c.GPU_GRAPHICS_ACTIVE, A, 0.5),
        Sample(c.GPU_TENSOR_ACTIVE, A, 0.25),
        Sample(c.GPU_DRAM_ACTIVE, A, 0.875),
        Sample(c.MIG_MEMORY, (*MIG, "used"), 2 * GIB),
        Sample(c.MIG_MEMORY, (*MIG, "free"), 14 * GIB),
        Sample(c.MIG_MEMORY, (*MIG, "reserved"), 0.0),
        Sample(c.MIG_GRAPHICS_ACTIVE, MIG, 0.125),
        Sample(c.MIG_DRAM_ACTIVE, MIG, 0.0625),
    ]


def whole_view() -> View:
    store = Store()
    store.put("inventory", 0.0, INVENTORY, FOREVER_S)
    for at_s in range(20):
        store.put("gpu", float(at_s), gpu_samples(float(at_s)), FOREVER_S)
    return store.view(19.0)


def page(view: View, names: NameSet = DCGM) -> str:
    return DcgmExposition(names, "node-1").render(view).body(Format.TEXT).decode()


def values(view: View, name: str, names: NameSet = DCGM) -> dict[str, float]:
    """By UUID, and by instance where there is one."""
    return {
        sample.labels["UUID"] + sample.labels.get("GPU_I_ID", ""): sample.value
        for parsed in parse_text(page(view, names))
        for sample in parsed.samples
        if sample.name.removesuffix("_total") == name  # which the parser adds to every counter
    }


def counted(points: Iterable[tuple[float, float]]) -> View:
    store = Store()
    at_s = 0.0
    for at_s, count in points:
        batch = [Sample(c.GPU_NVLINK_BYTES, (*A, "tx"), count), Sample(c.GPU_NVLINK_BYTES, (*A, "rx"), 0.0)]
        store.put("gpu", at_s, [info(A, "0000:3b:00.0"), *batch], FOREVER_S)
    return store.view(at_s)


@pytest.mark.parametrize("names", NAME_SETS.values(), ids=lambda names: names.name)
def test_the_whole_page_matches_its_golden_file(names: NameSet) -> None:
    golden(f"{names.name}.prom", page(whole_view(), names).encode())


def test_every_field_of_both_sets_is_made_from_the_samples_of_the_golden_page() -> None:
    for names in NAME_SETS.values():
        for field in names.fields:
            assert f"# TYPE {field.name} {field.kind}\n" in page(whole_view(), names)
        assert len({field.name for field in names.fields}) == len(names.fields)


def test_labels_are_spelled_as_dcgm_exporter_spells_them() -> None:
    assert (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aaaa",pci_bus_id="00000000:3B:00.0",device="nvidia0",'
        'modelName="NVIDIA H200",Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.65.06"} 29\n'
    ) in page(whole_view())
    assert 'hostname="node-1",DCGM_FI_SYSTEM_DRIVER_VERSION="580.65.06"} 0.290000\n' in page(whole_view(), DCGM_NEXT)


def test_an_instance_comes_beside_its_gpu_and_is_told_apart() -> None:
    view = whole_view()
    assert values(view, "DCGM_FI_DEV_FB_USED") == {"GPU-aaaa": 102400.0, "GPU-bbbb7": 2048.0}
    assert values(view, "DCGM_FI_DEV_FB_CAPACITY_BYTES", DCGM_NEXT) == {"GPU-aaaa": 140.5 * GIB, "GPU-bbbb7": 16 * GIB}
    assert 'GPU_I_PROFILE="1g.18gb",GPU_I_ID="7",Hostname=' in page(view)


def test_two_compute_instances_of_one_gpu_instance_are_one_entity() -> None:
    store = Store()
    second = ("MIG-2222", "GPU-bbbb", "7", "1", "1g.18gb")
    batch = [Sample(c.MIG_INFO, (*second, "1", ""), 1.0), Sample(c.MIG_MEMORY, (*second, "used"), 5 * GIB)]
    batch.append(Sample(c.MIG_MEMORY, (*MIG, "used"), 2 * GIB))
    store.put("x", 0.0, [*INVENTORY, *batch], FOREVER_S)
    assert page(store.view(0.0)).count("DCGM_FI_DEV_FB_USED{") == 1


def test_a_gpu_of_unknown_identity_is_left_out() -> None:
    store = Store()
    store.put("gpu", 0.0, gpu_samples(0.0), FOREVER_S)
    assert page(store.view(0.0)) == ""


def test_the_newest_xid_is_shown_with_its_message_and_0_where_there_was_none() -> None:
    assert values(whole_view(), "DCGM_FI_DEV_XID_ERRORS") == {"GPU-aaaa": 31.0, "GPU-bbbb": 0.0}
    assert 'err_code="31",err_msg="GPU memory page fault"} 31\n' in page(whole_view())
    assert 'err_code="0",err_msg="No Error"} 0\n' in page(whole_view())


def test_xids_that_nobody_watches_are_absent_not_0() -> None:
    store = Store()
    store.put("x", 0.0, INVENTORY, FOREVER_S)
    assert page(store.view(0.0)) == ""


def test_an_unknown_xid_has_its_code() -> None:
    store = Store()
    xid = [Sample(c.GPU_XID_ERRORS, (*A, "999"), 1.0), Sample(c.GPU_XID_LAST, (*A, "999"), 1.8e9)]
    store.put("x", 0.0, [*INVENTORY, *xid], FOREVER_S)
    assert 'err_code="999",err_msg="Unknown Error"} 999\n' in page(store.view(0.0))


def test_nvlink_bandwidth_is_a_rate_over_the_last_seconds_both_ways_in_megabytes() -> None:
    assert values(whole_view(), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == {"GPU-aaaa": 4000.0}
    assert values(whole_view(), "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", DCGM_NEXT) == {"GPU-aaaa": 4e9}
    assert values(whole_view(), "DCGM_FI_PROF_PCIE_TX_BYTES") == {"GPU-aaaa": 5e6}


@pytest.mark.parametrize(
    ("points", "megabytes_per_s"),
    [
        ([(0.0, 5e9)], None),
        ([(0.0, 0.0), (0.5, 5e9)], None),
        ([(0.0, 0.0), (1.0, 5e9)], 5000.0),
        ([(0.0, 0.0), (2.0, 0.0)], 0.0),
        # Only the last 15 s count.
        ([(0.0, 0.0), (10.0, 90e9), (20.0, 100e9)], 1000.0),
        # A counter that fell began anew.
        ([(0.0, 900e9), (2.0, 1e9), (4.0, 3e9)], 1000.0),
        ([(0.0, 900e9), (2.0, 1e9)], None),
    ],
)
def test_rates_over_odd_windows(points: list[tuple[float, float]], megabytes_per_s: float | None) -> None:
    shown = values(counted(points), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
    assert shown == ({} if megabytes_per_s is None else {"GPU-aaaa": megabytes_per_s})


def test_a_rate_of_both_ways_is_not_made_of_one() -> None:
    store = Store()
    for at_s in (0.0, 2.0):
        tx = Sample(c.GPU_NVLINK_BYTES, (*A, "tx"), at_s)
        rx = [Sample(c.GPU_NVLINK_BYTES, (*A, "rx"), 0.0)] if at_s else []
        store.put("gpu", at_s, [*INVENTORY, tx, *rx], FOREVER_S)
    assert values(store.view(2.0), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == {}


def test_the_select_labels_of_every_field_exist_on_its_families() -> None:
    for names in NAME_SETS.values():
        for field in names.fields:
            for metric in filter(None, (field.metric, field.mig)):
                assert "uuid" in metric.labels
                for label, value in field.where:
                    assert label in metric.labels
                    assert value in metric.values


def test_labels_of_a_pod_are_there_where_exactly_one_holds_the_gpu_or_instance() -> None:
    store = Store()
    store.put("inventory", 0.0, INVENTORY, FOREVER_S)
    store.put("gpu", 0.0, gpu_samples(0.0), FOREVER_S)
    pods = [
        Sample(c.GPU_POD, (*A, "serving", "vllm-0", "server"), 1.0),
        Sample(c.GPU_POD, ("1", MIG[0], "batch", "train-0", ""), 1.0),
        # What is shared has rows here alone.
        Sample(c.GPU_ALLOCATIONS, (*B, "serving", "a", "server"), 1.0),
        Sample(c.GPU_ALLOCATIONS, (*B, "serving", "b", "server"), 1.0),
    ]
    store.put("pods", 0.0, pods, FOREVER_S)
    page = DcgmExposition(DCGM, "node-1").render(store.view(0.0)).body(Format.TEXT).decode()
    power = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{")]
    assert 'container="server",namespace="serving",pod="vllm-0"} 347.5214' in power[0]
    assert "pod=" not in power[1]
    (instance,) = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED") and "1g.18gb" in line]
    assert ',namespace="batch",pod="train-0"}' in instance
    assert "container=" not in instance
