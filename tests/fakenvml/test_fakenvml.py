"""The fake library under the real, unpatched pynvml: values, enumeration, batches, MIG, build."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakenvml import build, layout, profiles
from tests.fakenvml.child import Child, RaisedError
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil
from tests.fakenvml.profiles import MigSpec
from tests.fakenvml.waveforms import serving

START_S = 1_700_000_000
ROOT = Path(__file__).parents[2]

Make = Callable[..., tuple[FakeNode, Child]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Creates stepped nodes, each with a child on it, and cleans both up."""
    opened: list[tuple[FakeNode, Child]] = []

    def create(profile: str = "h200", count: int = 2, **more: object) -> tuple[FakeNode, Child]:
        init = bool(more.pop("init", True))
        path = tmp_path / f"node{len(opened)}"
        node = FakeNode.create(path, profile, count, clock="stepped", **more)  # type: ignore[arg-type]
        child = Child(node, init=init)
        opened.append((node, child))
        return node, child

    yield create
    for node, child in opened:
        node.close()
        child.close()


# ---- build and layout ----


def test_python_and_c_agree_on_the_layout() -> None:
    library = ctypes.CDLL(str(build.build_library()))
    library.fakenvml_layout.restype = ctypes.c_char_p
    for row in library.fakenvml_layout().decode().splitlines():
        name, number = row.split()
        struct, _, member = name.partition(".")
        mirror = layout.STRUCTS[struct]
        ours = layout.offset(mirror, member) if member else ctypes.sizeof(mirror)
        assert ours == int(number), name


def test_function_numbers_agree() -> None:
    library = ctypes.CDLL(str(build.build_library()))
    library.fakenvml_function.restype = ctypes.c_char_p
    for number, name in enumerate(build.function_names()):
        assert library.fakenvml_function(number).decode() == name


def test_every_symbol_pynvml_looks_up_exists() -> None:
    library = ctypes.CDLL(str(build.build_library()))
    assert len(build.function_names()) >= 408
    for name in build.function_names():
        assert hasattr(library, name), name


def test_build_is_cached_and_safe_when_concurrent(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build.build_library((), tmp_path), range(4)))
    assert len(paths) == 1
    assert not list(tmp_path.glob("building-*"))


def test_unknown_symbol_cannot_be_left_out() -> None:
    with pytest.raises(build.BuildError):
        build.build_library(["nvmlDeviceGetEverything"])


def test_missing_symbols_are_really_missing(make: Make) -> None:
    _, child = make(missing=build.MISSING_BEFORE_535)
    assert child.code("pynvml.nvmlDeviceGetTemperatureV(h[0], 0)") == 13
    assert child.code("pynvml.nvmlDeviceGetCurrentClocksEventReasons(h[0])") == 13
    assert child("pynvml.nvmlDeviceGetTemperature(h[0], 0)") == 33
    assert child("pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h[0])") == 1


def test_missing_v3_process_list_is_a_library_mismatch(make: Make) -> None:
    _, child = make(missing=["nvmlDeviceGetComputeRunningProcesses_v3"])
    with pytest.raises(RaisedError, match="NVMLLibraryMismatchError"):
        child("pynvml.nvmlDeviceGetComputeRunningProcesses(h[0])")


def test_found_by_library_path_without_any_help(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "n", "t4", 1) as node, Child(node, by_path=False) as child:
        assert child("pynvml.nvmlDeviceGetName(h[0])") == "Tesla T4"


def test_a_scenario_of_another_build_is_refused(make: Make) -> None:
    node, child = make(init=False)
    node.state.layout_hash = 1
    assert child.code("pynvml.nvmlInit()") == 9


# ---- identity and enumeration ----


def test_identity(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(1)
    assert child("pynvml.nvmlSystemGetDriverVersion()") == "590.48.01"
    assert child("pynvml.nvmlSystemGetNVMLVersion()") == "13.590.48.01"
    assert child("pynvml.nvmlSystemGetCudaDriverVersion_v2()") == 13010
    assert child("pynvml.nvmlDeviceGetCount()") == 2
    assert child("pynvml.nvmlDeviceGetName(h[1])") == "NVIDIA H200"
    assert child("pynvml.nvmlDeviceGetUUID(h[1])") == gpu.uuid
    assert child("pynvml.nvmlDeviceGetIndex(h[1])") == 1
    assert child("pynvml.nvmlDeviceGetMinorNumber(h[1])") == 1
    assert child("pynvml.nvmlDeviceGetSerial(h[1])") == gpu.data.serial.decode()
    assert child("pynvml.nvmlDeviceGetVbiosVersion(h[1])") == "96.00.01.00.01"
    assert child("pynvml.nvmlDeviceGetBrand(h[1])") == 14
    assert child("pynvml.nvmlDeviceGetArchitecture(h[1])") == 9
    assert child("pynvml.nvmlDeviceGetCudaComputeCapability(h[1])") == [9, 0]
    assert child("pynvml.nvmlDeviceGetNumGpuCores(h[1])") == 16896
    assert child("pynvml.nvmlDeviceGetPersistenceMode(h[1])") == 1
    assert child("pynvml.nvmlDeviceGetComputeMode(h[1])") == 0
    assert child("pynvml.nvmlDeviceGetDisplayActive(h[1])") == 0
    assert child("pynvml.nvmlDeviceGetDisplayMode(h[1])") == 0
    assert child.code("pynvml.nvmlDeviceGetNumaNodeId(h[0])") == 3
    assert child("list(pynvml.nvmlDeviceGetCpuAffinity(h[0], 2))") == [
        2**48 - 1, 0xFFFFFFFF00000000,
    ]  # fmt: skip
    assert child("list(pynvml.nvmlDeviceGetMemoryAffinity(h[0], 1, 0))") == [1]
    pci = child(
        "(lambda p: [p.busId, p.busIdLegacy, p.bus, p.pciDeviceId])"
        "(pynvml.nvmlDeviceGetPciInfo(h[1]))"
    )
    assert pci == [gpu.bus_id, "0000:43:00.0", 0x43, 0x233510DE]
    for how in (
        f"pynvml.nvmlDeviceGetHandleByUUID({gpu.uuid!r})",
        "pynvml.nvmlDeviceGetHandleByPciBusId('0000:43:00.0')",
        f"pynvml.nvmlDeviceGetHandleByPciBusId({gpu.bus_id!r})",
        f"pynvml.nvmlDeviceGetHandleBySerial({gpu.data.serial.decode()!r})",
    ):
        assert child(f"pynvml.nvmlDeviceGetIndex({how})") == 1
    assert child.code("pynvml.nvmlDeviceGetHandleByUUID('GPU-none')") == 6
    assert child.code("pynvml.nvmlDeviceGetHandleByIndex(2)") == 2


def test_order_count_and_uuids_change_at_run_time(make: Make) -> None:
    node, child = make(count=3)
    uuids = [gpu.uuid for gpu in node.gpus]
    node.set_order([2, 0, 1])
    assert child("[pynvml.nvmlDeviceGetUUID(x) for x in open_all()]") == [
        uuids[2], uuids[0], uuids[1],
    ]  # fmt: skip
    assert child("pynvml.nvmlDeviceGetIndex(h[0])") == 1  # the old handle still means its board
    node.remove_gpu(0)
    assert child("pynvml.nvmlDeviceGetCount()") == 2
    assert child.code("pynvml.nvmlDeviceGetUUID(h[0])") == 15
    node.restore_gpu(0)
    node.set_uuid(0, "GPU-new")
    assert child("pynvml.nvmlDeviceGetUUID(h[0])") == "GPU-new"


def test_handles_change_on_every_init(make: Make) -> None:
    node, child = make()
    child("value = lambda x: ctypes.cast(x, ctypes.c_void_p).value")
    before = child("[value(x) for x in h]")
    child("pynvml.nvmlShutdown(); pynvml.nvmlInit(); new = open_all()")
    assert child("[value(x) for x in new]") != before
    assert child.code("pynvml.nvmlDeviceGetName(h[0])") == 2
    assert child("pynvml.nvmlDeviceGetName(new[0])") == "NVIDIA H200"
    assert node.misuse().stale_handle == 1


# ---- scalars ----


def test_power_energy_clocks_heat(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    gpu.set("energy_mj", 5000)
    gpu.set_power(500)
    node.step(2)
    assert child("pynvml.nvmlDeviceGetPowerUsage(h[0])") == 500_000
    assert child("pynvml.nvmlDeviceGetTotalEnergyConsumption(h[0])") == 5000 + 1_000_000
    assert child("pynvml.nvmlDeviceGetPowerManagementLimit(h[0])") == 700_000
    assert child("pynvml.nvmlDeviceGetPowerManagementLimitConstraints(h[0])") == [200_000, 700_000]
    assert child("pynvml.nvmlDeviceGetPowerManagementDefaultLimit(h[0])") == 700_000
    gpu.set_power_limit(600)
    assert child("pynvml.nvmlDeviceGetEnforcedPowerLimit(h[0])") == 600_000
    gpu.set_clock(1200)
    gpu.set_clock(3000, "memory")
    assert child("[pynvml.nvmlDeviceGetClockInfo(h[0], d) for d in range(4)]") == [
        1200, 1200, 3000, 1545,
    ]  # fmt: skip
    assert child("pynvml.nvmlDeviceGetMaxClockInfo(h[0], 1)") == 1980
    gpu.set_temperature(52, 41)
    assert child("pynvml.nvmlDeviceGetTemperatureV(h[0], 0)") == 52
    assert child("pynvml.nvmlDeviceGetTemperature(h[0], 0)") == 52
    assert child("pynvml.nvmlDeviceGetMarginTemperature(h[0])") == 35
    assert child("pynvml.nvmlDeviceGetTemperatureThreshold(h[0], 0)") == 95
    assert child("pynvml.nvmlDeviceGetPerformanceState(h[0])") == 0
    assert child.code("pynvml.nvmlDeviceGetFanSpeed(h[0])") == 3
    assert child("pynvml.nvmlDeviceGetNumFans(h[0])") == 0


def test_utilization_and_throttling(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    gpu.set_utilization(0.97, 0.4, encoder=0.1, decoder=0.2, jpg=0.3, ofa=0.05)
    rates = child("(lambda u: [u.gpu, u.memory])(pynvml.nvmlDeviceGetUtilizationRates(h[0]))")
    assert rates == [97, 40]
    for engine, percent in (("Encoder", 10), ("Decoder", 20), ("Jpg", 30), ("Ofa", 5)):
        assert child(f"pynvml.nvmlDeviceGet{engine}Utilization(h[0])") == [percent, 166_667]
    gpu.throttle("sw_thermal", 0.25)
    gpu.throttle("hw_power_brake")
    node.step(4)
    assert child("pynvml.nvmlDeviceGetCurrentClocksEventReasons(h[0])") == 0x1 | 0x20 | 0x80
    assert child("pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h[0])") == 0x1 | 0x20 | 0x80
    assert child("pynvml.nvmlDeviceGetSupportedClocksEventReasons(h[0])") == 0x1FF
    assert child(
        "[v.value.ullVal for v in pynvml.nvmlDeviceGetFieldValues(h[0], [269, 271, 74])]"
    ) == [10**9, 4 * 10**9, 0]
    thermal = child(
        "(lambda v: [v.referenceTime, v.violationTime])"
        "(pynvml.nvmlDeviceGetViolationStatus(h[0], 1))"
    )
    assert thermal == [(START_S + 4) * 10**6, 10**9]
    gpu.unthrottle()
    node.step(1)
    assert child("pynvml.nvmlDeviceGetFieldValues(h[0], [269])[0].value.ullVal") == 10**9
    assert child("pynvml.nvmlDeviceGetCurrentClocksEventReasons(h[0])") == 0


def test_memory_and_versions_of_structs(make: Make) -> None:
    node, child = make()
    node.gpu(0).set_memory(1000, bar1_used=77)
    total = 143771 * 2**20
    assert child(
        "(lambda m: [m.total, m.used])(pynvml.nvmlDeviceGetMemoryInfo(h[0]))"
    ) == [total, 1000 + 614 * 2**20]  # fmt: skip
    assert child(
        "(lambda m: [m.total, m.reserved, m.used, m.free])"
        "(pynvml.nvmlDeviceGetMemoryInfo(h[0], version=pynvml.nvmlMemory_v2))"
    ) == [total, 614 * 2**20, 1000, total - 1000 - 614 * 2**20]
    assert child.code("pynvml.nvmlDeviceGetMemoryInfo(h[0], version=0x03000028)") == 25
    assert child("pynvml.nvmlDeviceGetBAR1MemoryInfo(h[0]).bar1Used") == 77


def test_pcie_and_nvlink(make: Make) -> None:
    node, child = make()
    node.delay("nvmlDeviceGetPcieThroughput", 0)  # 20 ms a call otherwise
    gpu = node.gpu(0)
    gpu.set_pcie(111_000, 222_000)
    assert child("[pynvml.nvmlDeviceGetPcieThroughput(h[0], c) for c in (0, 1)]") == [111, 222]
    assert node.calls("nvmlDeviceGetPcieThroughput", 0) == 2
    gpu.set("pcie_replays", 3)
    assert child("pynvml.nvmlDeviceGetPcieReplayCounter(h[0])") == 3
    for what in ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration"):
        assert child(f"pynvml.nvmlDeviceGet{what}(h[0])") == 5
    assert child("pynvml.nvmlDeviceGetCurrPcieLinkWidth(h[0])") == 16
    assert child("pynvml.nvmlDeviceGetNvLinkState(h[0], 17)") == 1
    assert child.code("pynvml.nvmlDeviceGetNvLinkState(h[0], 18)") == 2
    assert child("pynvml.nvmlDeviceGetNvLinkVersion(h[0], 0)") == 4
    gpu.set_link(3, "recovery", 9)
    gpu.set_link(4, "state", 0)
    assert child("pynvml.nvmlDeviceGetNvLinkErrorCounter(h[0], 3, 1)") == 9
    assert child("pynvml.nvmlDeviceGetNvLinkState(h[0], 4)") == 0
    assert child("pynvml.nvmlDeviceGetNvLinkRemotePciInfo(h[0], 1).busId") == "00000000:06:00.0"
    gpu.set_nvlink(18 * 1024 * 10, 18 * 1024 * 20)
    node.step(3)
    values = child(
        "[[v.nvmlReturn, v.value.ullVal] for v in pynvml.nvmlDeviceGetFieldValues("
        "h[0], [(138, 5), (138, 0xFFFFFFFF), (139, 17), (139, 18), (140, 0), 59, (162, 3)])]"
    )
    assert values[:3] == [[0, 30], [0, 540], [0, 60]]
    assert values[3][0] == 2
    assert values[4:] == [[0, 33], [0, 9], [0, 9]]


def test_ecc_rows_and_pages(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    gpu.ecc("uncorrected", 2, "sram")
    assert child("pynvml.nvmlDeviceGetEccMode(h[0])") == [1, 1]
    assert child("pynvml.nvmlDeviceGetTotalEccErrors(h[0], 1, 0)") == 2
    assert child("pynvml.nvmlDeviceGetMemoryErrorCounter(h[0], 1, 1, 7)") == 2
    assert child("pynvml.nvmlDeviceGetMemoryErrorCounter(h[0], 0, 0, 7)") == 0
    gpu.remap(corrected=1, uncorrected=2, pending=True)
    assert child("pynvml.nvmlDeviceGetRemappedRows(h[0])") == [1, 2, 1, 0]
    assert child("pynvml.nvmlDeviceGetRowRemapperHistogram(h[0]).max") == 3072
    assert child.code("pynvml.nvmlDeviceGetRetiredPages(h[0], 0)") == 3
    gpu.set("ecc_mode", 0)
    assert child.code("pynvml.nvmlDeviceGetTotalEccErrors(h[0], 1, 0)") == 3

    old, old_child = make("t4", 1)
    old.gpu(0).retire_pages(1, [(0x1000, 5), (0x2000, 6)])
    assert old_child("pynvml.nvmlDeviceGetRetiredPages(h[0], 1)") == [0x1000, 0x2000]
    assert old_child.code("pynvml.nvmlDeviceGetRemappedRows(h[0])") == 3


# ---- fields ----


def test_fields_have_own_codes_types_and_timestamps(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    gpu.field_error(82, 2)
    gpu.set_field(230, 3.5, value_type=profiles.DOUBLE)
    gpu.set_field(191, 0, raw=2**64 - 1)
    gpu.field_timestamp(83, 0)
    gpu.skew_timestamps(-7)
    child("fs = pynvml.nvmlDeviceGetFieldValues(h[0], [82, 230, 191, 83, 193, 29, 999])")
    child("f = {v.fieldId: v for v in fs}")
    assert child("[f[i].nvmlReturn for i in (82, 230, 191, 83, 193, 29, 999)]") == [
        2, 0, 0, 0, 0, 3, 2,
    ]  # fmt: skip
    assert child("[f[82].valueType, f[230].valueType, f[230].value.dVal]") == [0, 0, 3.5]
    assert child("f[82].value.ullVal") == 0xA5A5A5A5A5A5A5A5  # whoever reads it will see garbage
    assert child("f[191].value.ullVal") == 2**64 - 1
    assert child("[f[83].timestamp, f[191].timestamp]") == [0, START_S * 10**6 - 7]
    assert child("f[193].value.siVal") == -8


def test_counters_wrap_fall_and_are_cleared(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    read = "pynvml.nvmlDeviceGetFieldValues(h[0], [197])[0].value.ullVal"
    gpu.set("pcie_tx_bytes", 2**32 - 100, 50, wrap=2**32)
    node.step(1)
    assert child(read) == 2**32 - 50
    node.step(2)
    assert child(read) == 50
    gpu.reset_counters()
    assert child(read) == 0
    node.step(1)
    assert child(read) == 50
    child("pynvml.nvmlDeviceClearFieldValues(h[0], [197])")
    assert child(read) == 0


def test_all_fields_failing_can_fail_the_call(make: Make) -> None:
    node, child = make()
    assert child.code("pynvml.nvmlDeviceGetFieldValues(h[0], [29])") == 0
    node.fields_all_failed(3)
    assert child.code("pynvml.nvmlDeviceGetFieldValues(h[0], [29])") == 3
    assert child.code("pynvml.nvmlDeviceGetFieldValues(h[0], [29, 83])") == 0


def test_old_parts_lack_new_fields(make: Make) -> None:
    _, child = make("t4", 1)
    fields = "pynvml.nvmlDeviceGetFieldValues(h[0], [83, 186, 269, 270, 271])"
    codes = f"[v.nvmlReturn for v in {fields}]"
    assert child(codes) == [0, 2, 2, 2, 2]
    _, ampere = make("a100-mig", 1)
    assert ampere(codes) == [0, 0, 3, 3, 3]


# ---- samples ----


def test_sample_ring_and_cursor(make: Make) -> None:
    node, child = make()
    node.gpu(0).set_samples("gpu", [(100, 5), (0, 6), (300, 7), (200, 8)])
    read = (
        "(lambda r: [r[0], [[s.timeStamp, s.sampleValue.uiVal] for s in r[1]]])"
        "(pynvml.nvmlDeviceGetSamples(h[0], 1, {}))"
    )
    assert child(read.format(150)) == [1, [[300, 7], [200, 8]]]
    assert len(child(read.format(0))[1]) == 4
    assert child.code("pynvml.nvmlDeviceGetSamples(h[0], 1, 300)") == 6
    node.gpu(0).set_samples("power", [(10, 1.5)], value_type=profiles.DOUBLE)
    assert child("pynvml.nvmlDeviceGetSamples(h[0], 0, 1)[1][0].sampleValue.dVal") == 1.5
    node.gpu(0).set_samples("ofa", [])
    assert child.code("pynvml.nvmlDeviceGetSamples(h[0], 9, 0)") == 6


def test_automatic_samples_follow_the_clock(make: Make) -> None:
    node, child = make()
    node.gpu(0).set_power(300)
    node.step(1)
    cursor = node.now_us() - 100_000
    samples = child(
        f"[s.sampleValue.uiVal for s in pynvml.nvmlDeviceGetSamples(h[0], 0, {cursor})[1]]"
    )
    assert samples == [300_000] * 5


# ---- GPM ----

GPM = """
def take(get, *where):
    s = pynvml.nvmlGpmSampleAlloc(); get(*where, s); return s
def metrics(a, b, *ids, version=1):
    m = pynvml.c_nvmlGpmMetricsGet_t()
    m.version, m.numMetrics, m.sample1, m.sample2 = version, len(ids), a, b
    for i, x in enumerate(ids): m.metrics[i].metricId = x
    m.metrics[len(ids)].value = 123.0
    pynvml.nvmlGpmMetricsGet(m)
    assert m.metrics[len(ids)].value == 123.0
    return [[m.metrics[i].nvmlReturn, m.metrics[i].value] for i in range(len(ids))]
"""


def test_gpm_gives_the_exact_mean(make: Make) -> None:
    node, child = make()
    child(GPM)
    gpu = node.gpu(0)
    gpu.set_gpm("sm", 0.9)
    gpu.set_gpm("pcie_rx", 250.0)
    assert child("pynvml.nvmlGpmQueryDeviceSupport(h[0]).isSupportedDevice") == 1
    child("a = take(pynvml.nvmlGpmSampleGet, h[0])")
    node.step(0.3)
    gpu.set_gpm("sm", 0.1)
    node.step(0.1)
    child("b = take(pynvml.nvmlGpmSampleGet, h[0])")
    answer = child("metrics(a, b, 2, 21, 10, 100)")
    assert [code for code, _ in answer] == [0, 0, 0, 3]
    assert answer[0][1] == pytest.approx(70.0)
    assert answer[1][1] == pytest.approx(250.0)
    assert answer[2][1] == 0
    assert child.code("metrics(a, b, 2, version=2)") == 25
    child("c = take(pynvml.nvmlGpmSampleGet, h[1])")
    assert child.code("metrics(a, c, 2)") == 2


def test_gpm_faults(make: Make) -> None:
    node, child = make()
    child(GPM)
    gpu = node.gpu(0)
    gpu.gpm_answer("sm", value=math.nan)
    gpu.gpm_answer("tensor", code=3)
    gpu.gpm_answer("dram", value=-5)
    gpu.freeze_gpm()
    child("a = take(pynvml.nvmlGpmSampleGet, h[0])")
    node.step(1)
    child("b = take(pynvml.nvmlGpmSampleGet, h[0])")
    frozen = child("metrics(a, b, 13)")
    assert math.isnan(frozen[0][1])
    gpu.freeze_gpm(code=21)
    assert child.code("metrics(a, b, 13)") == 21
    gpu.freeze_gpm(False)
    child("pynvml.nvmlGpmSampleGet(h[0], b)")
    sm, tensor, dram = child("metrics(a, b, 2, 5, 10)")
    assert sm[0] == 0
    assert math.isnan(sm[1])
    assert tensor[0] == 3
    assert dram == [0, -5.0]
    gpu.fail("nvmlGpmMetricsGet", 4)
    assert child.code("metrics(a, b, 2)") == 4
    child("pynvml.nvmlGpmSampleFree(a)")
    assert child.code("pynvml.nvmlGpmSampleGet(h[0], a)") == 2
    assert child.code("pynvml.nvmlGpmSampleFree(a)") == 2
    assert node.misuse().gpm_use_after_free == 2
    child("pynvml.nvmlShutdown()")
    assert node.misuse().gpm_leaked_at_shutdown == 1
    assert node.live().gpm_samples == 0


@pytest.mark.parametrize("profile", ["a100-mig", "l40s", "t4", "gb10"])
def test_no_gpm_before_hopper(make: Make, profile: str) -> None:
    _, child = make(profile, 1)
    assert child("pynvml.nvmlGpmQueryDeviceSupport(h[0]).isSupportedDevice") == 0
    assert child.code("pynvml.nvmlGpmSampleGet(h[0], pynvml.nvmlGpmSampleAlloc())") == 3


# ---- processes ----


def test_running_processes(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    read = "[[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGet{}RunningProcesses(h[0])]"
    assert child(read.format("Compute")) == []
    gpu.set_processes([Proc(1234, 2**30), Proc(77, None)])
    gpu.set_processes([Proc(5, 1)], "graphics")
    gpu.set_processes([Proc(6, 2)], "mps")
    assert child(read.format("Compute")) == [[1234, 2**30], [77, None]]
    assert child(read.format("Graphics")) == [[5, 1]]
    assert child(read.format("MPSCompute")) == [[6, 2]]
    gpu.set_processes([Proc(pid, 1) for pid in range(1, 951)])
    assert len(child(read.format("Compute"))) == 950


def test_early_535_wrote_longer_entries(make: Make) -> None:
    node, child = make()
    node.gpu(0).set_processes([Proc(10, 11), Proc(12, 13)])
    node.gpu(0).data.process_entry_bytes = 32
    pids = child("[p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h[0])]")
    assert pids != [10, 12]


def test_process_utilization_and_its_quirks(make: Make) -> None:
    node, child = make()
    gpu = node.gpu(0)
    read = (
        "[[p.pid, p.smUtil, p.memUtil, p.timeStamp]"
        " for p in pynvml.nvmlDeviceGetProcessUtilization(h[0], {})]"
    )
    assert child.code(read.format(0)) == 6
    gpu.set_process_utilization([ProcUtil(1, sm=50, mem=20, ts_us=1000), ProcUtil(2, sm=30)])
    now = START_S * 10**6
    assert child(read.format(0)) == [[1, 50, 20, 1000], [2, 30, 0, now]]
    assert child(read.format(1000)) == [[2, 30, 0, now]]
    assert child.code(read.format(now)) == 6
    info = "[p.pid for p in pynvml.nvmlDeviceGetProcessesUtilizationInfo(h[0], 0)]"
    assert child(info) == [1, 2]
    gpu.process_utilization_quirks(races=1)
    assert child.code(read.format(0)) == 7
    assert child.code(read.format(0)) == 0
    gpu.process_utilization_quirks(success_with_zero=True)
    with pytest.raises(RaisedError, match="Success"):
        child(read.format(0))


# ---- MIG ----


def test_mig_devices_and_holes(make: Make) -> None:
    node, child = make("a100-mig", 1)
    assert child("pynvml.nvmlDeviceGetMigMode(h[0])") == [1, 1]
    assert child("pynvml.nvmlDeviceGetMaxMigDeviceCount(h[0])") == 7
    child("m = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 0)")
    assert child.code("pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 1)") == 6
    assert child.code("pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 7)") == 2
    assert child("pynvml.nvmlDeviceGetName(m)") == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    uuid = node.gpu(0).mig(0).uuid
    assert uuid.startswith("MIG-")
    assert child("pynvml.nvmlDeviceGetUUID(m)") == uuid
    by_uuid = f"pynvml.nvmlDeviceGetHandleByUUID({uuid!r})"
    assert child(f"pynvml.nvmlDeviceGetGpuInstanceId({by_uuid})") == 2
    assert child("pynvml.nvmlDeviceGetComputeInstanceId(m)") == 0
    assert child("pynvml.nvmlDeviceIsMigDeviceHandle(m).value") == 1
    assert child("pynvml.nvmlDeviceIsMigDeviceHandle(h[0]).value") == 0
    attributes = child(
        "(lambda a: [a.multiprocessorCount, a.memorySizeMB])(pynvml.nvmlDeviceGetAttributes(m))"
    )
    assert attributes == [42, 19968]
    parent = "pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)"
    assert child(f"pynvml.nvmlDeviceGetUUID({parent})") == node.gpu(0).uuid
    node.gpu(0).mig(0).set_memory(5000)
    assert child("pynvml.nvmlDeviceGetMemoryInfo(m, version=pynvml.nvmlMemory_v2).used") == 5000
    node.gpu(0).set_processes([Proc(1, 10, 2, 0), Proc(2, 10, 3, 0)])
    assert child("[p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(m)]") == [1]
    assert child("pynvml.nvmlDeviceGetMemoryErrorCounter(m, 1, 0, 7)") == 0


def test_mig_not_supported_set(make: Make) -> None:
    _, child = make("a100-mig", 1)
    child("m = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 0)")
    for call in (
        "UtilizationRates({})", "EncoderUtilization({})", "DecoderUtilization({})",
        "JpgUtilization({})", "OfaUtilization({})", "Samples({}, 1, 0)",
        "ProcessUtilization({}, 0)", "NumGpuCores({})", "RemappedRows({})",
    ):  # fmt: skip
        for handle in ("h[0]", "m"):
            assert child.code(f"pynvml.nvmlDeviceGet{call.format(handle)}") == 3, (call, handle)
    for call in ("PowerUsage({})", "Temperature({}, 0)", "ClockInfo({}, 1)"):
        assert child.code(f"pynvml.nvmlDeviceGet{call.format('h[0]')}") == 0
        assert child.code(f"pynvml.nvmlDeviceGet{call.format('m')}") == 3


def test_mig_reconfigured_and_gpm(make: Make) -> None:
    node, child = make("h200", 1)
    child(GPM)
    gpu = node.gpu(0)
    gpu.set_mig([MigSpec("1g.18gb", 7), None, MigSpec("2g.35gb", 3)])
    gpu.mig(2).set_gpm("sm", 0.5)
    child("m = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 2)")
    child("a = take(pynvml.nvmlGpmSampleGet, m); c = take(pynvml.nvmlGpmMigSampleGet, h[0], 3)")
    node.step(1)
    child("b = take(pynvml.nvmlGpmSampleGet, m); d = take(pynvml.nvmlGpmMigSampleGet, h[0], 3)")
    for pair in ("a, b", "c, d"):
        assert child(f"metrics({pair}, 2)")[0][1] == pytest.approx(50)
    assert child.code("take(pynvml.nvmlGpmMigSampleGet, h[0], 1)") == 2
    gpu.mig(2).fail("nvmlGpmSampleGet", 15)
    assert child.code("pynvml.nvmlGpmSampleGet(m, a)") == 15
    gpu.mig_off()
    assert child("pynvml.nvmlDeviceGetMigMode(h[0])") == [0, 0]
    assert child.code("pynvml.nvmlDeviceGetName(m)") == 2
    assert child.code("pynvml.nvmlDeviceGetMigMode(h[0])") == 0
    _, ada = make("l40s", 1)
    assert ada.code("pynvml.nvmlDeviceGetMigMode(h[0])") == 3


# ---- profiles ----


@pytest.mark.parametrize("profile", sorted(profiles.PROFILES))
def test_every_profile_answers_the_basics(make: Make, profile: str) -> None:
    node, child = make(profile, 1)
    assert child("pynvml.nvmlDeviceGetName(h[0])") == node.gpu(0).name
    assert child("pynvml.nvmlDeviceGetPowerUsage(h[0])") > 0
    assert 0 < child("pynvml.nvmlDeviceGetTemperatureV(h[0], 0)") < 60
    assert child("pynvml.nvmlDeviceGetFieldValues(h[0], [83])[0].nvmlReturn") == 0


def test_unified_memory_part(make: Make) -> None:
    _, child = make("gb10", 1)
    assert child.code("pynvml.nvmlDeviceGetMemoryInfo(h[0])") == 3
    assert child.code("pynvml.nvmlDeviceGetBAR1MemoryInfo(h[0])") == 3
    assert child("pynvml.nvmlDeviceGetUtilizationRates(h[0]).memory") == 0


def test_sick_node_keeps_its_healthy_gpus(make: Make) -> None:
    node, child = make("sick8", 8)
    assert child("pynvml.nvmlDeviceGetCount()") == 8
    assert child("[i for i, x in enumerate(h) if x is None]") == [profiles.SICK_LOST]
    rates = "pynvml.nvmlDeviceGetUtilizationRates(h[{}])"
    assert child.code(rates.format(profiles.SICK_RESET_REQUIRED)) == 16
    assert child.code(rates.format(7)) == 0
    assert child(f"pynvml.nvmlDeviceGetRemappedRows(h[{profiles.SICK_ROW_REMAP}])") == [2, 8, 1, 1]
    assert child(f"pynvml.nvmlDeviceGetUtilizationRates(h[{profiles.SICK_GARBAGE}]).gpu") == 250
    energy = f"pynvml.nvmlDeviceGetTotalEnergyConsumption(h[{profiles.SICK_GARBAGE}])"
    assert child(energy) == 2**64 - 1
    child.send(f"pynvml.nvmlDeviceGetUtilizationRates(h[{profiles.SICK_HANGING}])")
    node.wait_until(lambda: node.hanging(profiles.SICK_HANGING_CALL) == 1)
    node.release()
    child.answer()


# ---- waveforms and tools ----


def test_waveform_on_a_stepped_clock_is_deterministic(tmp_path: Path) -> None:
    def energies(name: str) -> list[float]:
        with FakeNode.create(tmp_path / name, "h100", 2, clock="stepped") as node:
            node.play(serving(node, seed=3, pids=[1, 2]))
            node.step(10)
            return [gpu.get("energy_mj") for gpu in node.gpus]

    first = energies("a")
    assert first == energies("b")
    assert first[0] > 1e9 + 10 * 100e3


def test_timeline_on_the_real_clock(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "n", "h100", 1) as node:
        gpu = node.gpu(0)
        gpu.set("energy_mj", 0)
        begun = node.play([
            (0.0, lambda: gpu.set("energy_mj", 0, 1000)),
            (0.05, lambda: gpu.rate("energy_mj", 0)),
        ])  # fmt: skip
        begun.join()
        assert gpu.get("energy_mj") == gpu.get("energy_mj") > 0


def test_an_error_in_a_timeline_is_not_lost(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "n", "t4", 1) as node:
        player = node.play([(0.0, lambda: node.gpu(0).set("no such signal", 1))])
        with pytest.raises(KeyError):
            player.join()
        node._players.clear()


def test_command_line_runs_a_program_on_a_fresh_node(tmp_path: Path) -> None:
    script = "import pynvml as p; p.nvmlInit(); print(p.nvmlDeviceGetCount()); p.nvmlShutdown()"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakenvml", "--profile", "h200", "--count", "3", "--waveform",
         "--driver", "590", "--state", str(tmp_path / "n"), "--", sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == f"export FAKENVML_STATE={tmp_path / 'n'}"
    assert lines[1].startswith("export LD_LIBRARY_PATH=")
    assert lines[-1] == "3"


def test_nodes_follow_one_another_in_one_process(tmp_path: Path) -> None:
    """In a child of our own: this test process must not get the library loaded for good."""
    script = f"""
import pynvml
from tests.fakenvml.controller import FakeNode
for name, count in (("a", 2), ("b", 5)):
    with FakeNode.create({str(tmp_path)!r} + "/" + name, "h100", count) as node:
        node.use_here()
        pynvml.nvmlInit()
        print(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == ["2", "5"]


def test_open_steers_a_node_from_another_place(make: Make) -> None:
    node, child = make()
    FakeNode.open(node.scenario.path).gpu(0).set_power(321)
    assert child("pynvml.nvmlDeviceGetPowerUsage(h[0])") == 321_000
