"""The driver port on the fake library, in a child: pynvml's own wrappers are the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumon.host.nvml import Code
from gpumon.host.nvml_driver import parse_bus_id
from tests.fakenvml.build import MISSING_BEFORE_535, build_library
from tests.fakenvml.child import Child, RaisedError
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil
from tests.fakenvml.profiles import DOUBLE, INT, SLL, UINT, ULL, ULONG, USHORT, MigSpec

OPEN = """
from tests.host.driver_probe import *
driver = NvmlDriver({library!r})
driver.open()
gpus = [driver.device(i) for i in range(driver.device_count())]
gpu = gpus[0]
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode.create(tmp_path / "node", "h200", 2, clock="stepped") as created:
        yield created


@pytest.fixture
def child(node: FakeNode) -> Iterator[Child]:
    with Child(node) as opened:
        opened(OPEN.format(library=str(node.library)))
        yield opened
        node.close()


def test_every_answer_is_pynvmls(node: FakeNode, child: Child) -> None:
    gpu = node.gpu(1)
    gpu.set_utilization(0.73, 0.21)
    gpu.set_temperature(67, 71)
    gpu.throttle("sw_thermal", 0.5)
    gpu.set_memory(33 << 30)
    gpu.set_processes([Proc(4242, 5 << 30), Proc(4243, None), Proc(7, 1, 3, 2)])
    gpu.set_processes([Proc(99, 12)], "graphics")
    gpu.set_processes([Proc(98, 13)], "mps")
    gpu.set_process_utilization([ProcUtil(4242, sm=40, mem=3), ProcUtil(4243, sm=2, mem=1)])
    gpu.ecc("uncorrected", 3)
    node.step(3.0)
    ours, theirs = child("ours(driver, gpus[1])"), child("theirs(h[1])")
    assert ours.keys() == theirs.keys()
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}
    answered = {name for name, value in ours.items() if not isinstance(value, dict)}
    assert {"utilization", "memory", "fields", "compute", "samples", "process_utilization", "uuid"} <= answered
    assert ours["utilization"] == [73, 21]
    assert len(ours["compute"]) == 3
    assert ours["compute"][1][1] is None


@pytest.mark.parametrize("profile", ["t4", "a100-mig", "gb10"])
def test_other_parts_answer_as_pynvml_says_they_do(tmp_path: Path, profile: str) -> None:
    with FakeNode.create(tmp_path / "node", profile, 1, clock="stepped") as node, Child(node) as child:
        child(OPEN.format(library=str(node.library)))
        node.step(1.0)
        ours, theirs = child("ours(driver, gpu)"), child("theirs(h[0])")
        assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


@pytest.mark.parametrize(
    ("value", "value_type", "expected"),
    [
        (41.75, DOUBLE, 41.75),
        (-3.5, DOUBLE, -3.5),
        (2**32 - 1, UINT, 2**32 - 1),
        (2**63, ULONG, 2**63),
        (2**64 - 1, ULL, 2**64 - 1),
        (-5, SLL, -5),
        (-8, INT, -8),
        (65535, USHORT, 65535),
    ],
)
def test_a_field_is_read_by_the_type_it_comes_with(
    node: FakeNode, child: Child, value: float, value_type: int, expected: float
) -> None:
    child("batch = driver.fields(gpu, (Field(82), Field(83)))")
    child("batch.read()")  # the types are those of before
    node.gpu(0).set_field(82, value, value_type=value_type)
    assert child("batch.read()")[0] == expected
    assert child("nv.nvmlDeviceGetFieldValues(h[0], [82])[0].valueType") == value_type


def test_a_type_that_changes_between_two_reads_is_followed_each_time(node: FakeNode, child: Child) -> None:
    child("batch = driver.fields(gpu, (Field(82),))")
    seen = []
    for value, value_type in ((50, UINT), (50.5, DOUBLE), (-1, INT), (51, ULL), (52.25, DOUBLE)):
        node.gpu(0).set_field(82, value, value_type=value_type)
        seen += child("batch.read()")
    assert seen == [50, 50.5, -1, 51, 52.25]


def test_upper_bits_of_a_narrow_value_are_not_read(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_field(82, 0, value_type=UINT, raw=0xDEADBEEF_00000045)
    node.gpu(0).set_field(83, 0, value_type=USHORT, raw=0xDEADBEEF_FFFF0046)
    assert child("driver.fields(gpu, (Field(82), Field(83))).read()") == [0x45, 0x46]


def test_values_that_are_not_finite_or_of_no_known_type_are_absent(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_field(82, 0, value_type=DOUBLE, raw=0x7FF8000000000000)
    node.gpu(0).set_field(83, 0, value_type=DOUBLE, raw=0xFFF0000000000000)
    node.gpu(0).set_field(185, 5, value_type=9)
    child("batch = driver.fields(gpu, (Field(82), Field(83), Field(185), Field(186)))")
    *absent, there = child("batch.read()")
    assert absent == [None, None, None]
    assert there > 0
    assert child("batch.codes()") == [0, 0, 0, 0]


def test_one_field_failing_leaves_the_others_and_tells_its_own_code(node: FakeNode, child: Child) -> None:
    child("batch = driver.fields(gpu, (Field(82), Field(83), Field(185)))")
    before = child("batch.read()")
    for code in (2, 3, 4, 15, 999):
        node.gpu(0).field_error(83, code)
        values = child("batch.read()")
        assert (values[0], values[1], values[2]) == (before[0], None, before[2])
        assert child("batch.codes()") == [0, code, 0]
    node.gpu(0).field_error(83, 0)
    assert child("batch.read()")[1] is not None


def test_a_scope_asks_for_one_link_or_all(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_nvlink(9e9, 18e9)
    node.step(2.0)
    one, every = child("driver.fields(gpu, (Field(138, 1), Field(138, 0xFFFFFFFF))).read()")
    assert 0 < one < every


# --- failing --------------------------------------------------------------------------------------------------------

CODES = [*range(1, 31), 999]
FAILING = {
    "driver.number(gpu, port.POWER_USAGE)": "nvmlDeviceGetPowerUsage",
    "driver.numbers(gpu, port.REMAPPED_ROWS)": "nvmlDeviceGetRemappedRows",
    "driver.text(gpu, port.NAME)": "nvmlDeviceGetName",
    "driver.pci_bus_id(gpu)": "nvmlDeviceGetPciInfo_v3",
    "driver.utilization(gpu)": "nvmlDeviceGetUtilizationRates",
    "driver.memory(gpu)": "nvmlDeviceGetMemoryInfo_v2",
    "driver.bar1(gpu)": "nvmlDeviceGetBAR1MemoryInfo",
    "driver.temperature(gpu)": "nvmlDeviceGetTemperatureV",
    "driver.temperature_margin(gpu)": "nvmlDeviceGetMarginTemperature",
    "batch.read()": "nvmlDeviceGetFieldValues",
    "driver.gpm_supported(gpu)": "nvmlGpmQueryDeviceSupport",
    "driver.gpm(gpu, (2,))": "nvmlGpmSampleAlloc",
    "reader.read()": "nvmlGpmSampleGet",
    "driver.utilization_samples(gpu, 1)": "nvmlDeviceGetSamples",
    "driver.processes(gpu, 'compute')": "nvmlDeviceGetComputeRunningProcesses_v3",
    "driver.processes(gpu, 'graphics')": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "driver.processes(gpu, 'mps')": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "driver.process_utilization(gpu, 1)": "nvmlDeviceGetProcessUtilization",
    "driver.device_count()": "nvmlDeviceGetCount_v2",
    "driver.device(0)": "nvmlDeviceGetHandleByIndex_v2",
    "driver.device_by_uuid(uuid)": "nvmlDeviceGetHandleByUUID",
    "driver.mig_device(gpu, 0)": "nvmlDeviceGetMigDeviceHandleByIndex",
    "driver.events()": "nvmlEventSetCreate",
    "events.register(gpu)": "nvmlDeviceRegisterEvents",
    "events.wait(0)": "nvmlEventSetWait_v2",
}
EMPTY_INSTEAD = {
    ("nvmlDeviceGetSamples", 6),  # nothing newer
    ("nvmlDeviceGetProcessUtilization", 6),  # an idle GPU
    ("nvmlEventSetWait_v2", 10),  # nothing came
}


def test_every_code_of_every_call_is_an_nvml_error_with_that_code(node: FakeNode, child: Child) -> None:
    child(
        "uuid = driver.text(gpu, port.UUID); batch = driver.fields(gpu, (Field(83),)); reader = driver.gpm(gpu, (2,))"
    )
    child("events = driver.events()")
    wrong: dict[str, Any] = {}
    for expression, function in FAILING.items():
        for code in CODES:
            node.fail(function, code)
            got = child(f"answer(lambda: {expression})")
            node.clear_rules(function)
            expected: Any = {"code": code}
            if (function, code) in EMPTY_INSTEAD:
                expected = None if function == "nvmlEventSetWait_v2" else []
            if got != expected:
                wrong[f"{function} {code}"] = got
    assert wrong == {}


@pytest.mark.parametrize("code", CODES)
def test_an_open_that_fails_says_why_and_may_be_tried_again(node: FakeNode, child: Child, code: int) -> None:
    child("fresh = NvmlDriver(); fresh._path = driver._path")
    node.fail_init(1, code)
    assert child("answer(fresh.open)") == {"code": code}
    assert child("fresh.generation") == 0
    assert child("answer(fresh.open)") is None
    assert child("fresh.generation") == 1


def test_versions_that_are_not_told_are_none_and_a_dead_driver_is_raised(node: FakeNode, child: Child) -> None:
    node.fail("nvmlSystemGetNVMLVersion", 999)
    node.fail("nvmlSystemGetCudaDriverVersion_v2", 3)
    assert child("list(driver.driver())") == [child("nv.nvmlSystemGetDriverVersion()"), None, None]
    node.fail("nvmlSystemGetDriverVersion", 9)
    assert child("answer(driver.driver)") == {"code": 9}


def test_a_device_of_an_earlier_generation_is_refused_before_nvml_sees_it(node: FakeNode, child: Child) -> None:
    child("batch = driver.fields(gpu, (Field(83),)); reader = driver.gpm(gpu, (2,))")
    child("driver.close()")
    for use in ("driver.utilization(gpu)", "batch.read()", "driver.text(gpu, port.UUID)"):
        with pytest.raises(RaisedError, match="StaleDeviceError"):
            child(use)
    child("driver.open()")
    calls = node.all_calls()
    for use in ("driver.utilization(gpu)", "batch.read()", "reader.read()", "driver.number(gpu, port.MINOR)"):
        with pytest.raises(RaisedError, match="StaleDeviceError"):
            child(use)
    child("reader.close()")
    assert node.all_calls() == calls
    assert child("driver.generation") == 2
    assert child("driver.number(driver.device(0), port.MINOR)") == 0
    assert node.misuse().stale_handle == 0


def test_close_is_safe_twice_and_when_it_fails(node: FakeNode, child: Child) -> None:
    child("driver.close(); driver.close()")
    assert child("pynvml.nvmlDeviceGetCount()") == 2  # pynvml's own init still counts: shut down once, not twice
    child("driver.open()")
    node.fail("nvmlShutdown", 999)
    assert child("answer(driver.close)") == {"code": 999}
    node.clear_rules()
    child("driver.close(); driver.open()")
    assert child("driver.device_count()") == 2


# --- old drivers ----------------------------------------------------------------------------------------------------


def test_a_driver_before_535_is_asked_by_its_older_names(tmp_path: Path) -> None:
    missing = [
        *MISSING_BEFORE_535,
        "nvmlDeviceGetMemoryInfo_v2",
        *(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")),
    ]
    with (
        FakeNode.create(tmp_path / "node", "a100-mig", 1, clock="stepped", missing=missing) as node,
        Child(node) as child,
    ):
        node.gpu(0).throttle("sw_power_cap")
        node.gpu(0).set_temperature(61)
        node.gpu(0).set_memory(9 << 30)
        child(OPEN.format(library=str(node.library)))
        answers = child("ours(driver, gpu)")
        assert answers["temperature_v"] == 61
        assert answers["reasons"][0] & 0x4
        assert answers["memory"][1] >= 9 << 30
        assert answers["memory"][3] is None
        assert answers["margin"] == {"code": Code.FUNCTION_NOT_FOUND}
        assert node.calls("nvmlDeviceGetComputeRunningProcesses_v2") == 1  # the same layout; the fake has no more of it
        assert node.calls("nvmlDeviceGetTemperature") == 2  # as such, and in the place of the newer one
        assert node.calls("nvmlDeviceGetCurrentClocksThrottleReasons") == 1
        assert node.calls("nvmlDeviceGetMemoryInfo") == 1


def test_a_symbol_that_is_missing_is_looked_for_once(tmp_path: Path) -> None:
    missing = ["nvmlDeviceGetFieldValues", "nvmlEventSetCreate", "nvmlGpmSampleAlloc"]
    with FakeNode.create(tmp_path / "node", "h200", 1, clock="stepped", missing=missing) as node, Child(node) as child:
        child(OPEN.format(library=str(node.library)))
        for call in ("driver.fields(gpu, (Field(83),))", "driver.events()", "driver.gpm(gpu, (2,))"):
            for _ in range(2):
                assert child(f"answer(lambda: {call})") == {"code": Code.FUNCTION_NOT_FOUND}


def test_without_a_library_open_says_which_and_why(tmp_path: Path, node: FakeNode, child: Child) -> None:
    garbage = tmp_path / "libnvidia-ml.so.1"
    garbage.write_text("no library")
    child(f"broken = NvmlDriver({str(garbage)!r})")
    with pytest.raises(RaisedError, match=r"NvmlError: .*libnvidia-ml.so.1: (file too short|invalid ELF header)"):
        child("broken.open()")
    assert child("answer(broken.open)") == {"code": Code.LIBRARY_NOT_FOUND}
    garbage.unlink()
    garbage.symlink_to(node.library)
    assert child("answer(broken.open)") is None


def test_a_library_that_appears_later_in_a_folder_that_was_not_there_is_found(node: FakeNode, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with Child(node, init=False, by_path=True) as child:
        # This child has loaded the library by its path, so what is asked is a name that nobody has loaded yet.
        child("import os; from gpumon.host import nvml_driver; from tests.host.driver_probe import answer")
        child(f"os.environ['LD_LIBRARY_PATH'] = {str(folder)!r}; nvml_driver.LIBRARY = 'libnvidia-later.so.1'")
        child("late = nvml_driver.NvmlDriver()")
        assert child("answer(late.open)") == {"code": Code.LIBRARY_NOT_FOUND}
        folder.mkdir()
        (folder / "libnvidia-later.so.1").symlink_to(build_library())
        assert child("answer(late.open)") is None


# --- lists ----------------------------------------------------------------------------------------------------------


def test_a_long_process_list_is_read_whole(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_processes([Proc(1000 + i, i) for i in range(120)])
    listed = child("plain(driver.processes(gpu, 'compute'))")
    assert [row[0] for row in listed] == [1000 + i for i in range(120)]


def test_a_list_that_grows_while_it_is_asked_for_is_read_in_the_end(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_process_utilization([ProcUtil(50 + i, sm=i % 100) for i in range(40)])
    node.gpu(0).process_utilization_quirks(races=3)
    node.step(1.0)
    assert len(child("driver.process_utilization(gpu, 1)")) == 40
    node.fail("nvmlDeviceGetComputeRunningProcesses_v3", 7, to_call=4)
    node.gpu(0).set_processes([Proc(1, 2)])
    assert child("plain(driver.processes(gpu, 'compute'))") == [[1, 2, None, None]]


def test_a_list_that_never_fits_ends_with_the_drivers_own_code(node: FakeNode, child: Child) -> None:
    node.fail("nvmlDeviceGetComputeRunningProcesses_v3", 7)
    before = node.calls("nvmlDeviceGetComputeRunningProcesses_v3")
    assert child("answer(driver.processes, gpu, 'compute')") == {"code": 7}
    assert node.calls("nvmlDeviceGetComputeRunningProcesses_v3") - before < 12


def test_success_with_no_rows_is_an_empty_list(node: FakeNode, child: Child) -> None:
    node.gpu(0).process_utilization_quirks(success_with_zero=True)
    assert child("driver.process_utilization(gpu, 0)") == []
    assert child("driver.processes(gpu, 'compute')") == []


def test_utilization_samples_keep_what_is_a_number(node: FakeNode, child: Child) -> None:
    at_us = node.now_us()
    node.gpu(0).set_samples("gpu", [(at_us, 10.0), (at_us + 1, float("nan")), (at_us + 2, 30.0)], value_type=DOUBLE)
    rows = child("plain(driver.utilization_samples(gpu, 1))")
    assert rows == [[at_us, 10], [at_us + 2, 30]]


# --- GPM ------------------------------------------------------------------------------------------------------------


def test_gpm_reads_the_mean_between_two_samples(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_gpm("sm", 0.5)
    child("reader = driver.gpm(gpu, (2, 10))")
    node.step(0.2)
    assert child("reader.read()") is None
    node.step(0.2)
    node.gpu(0).set_gpm("sm", 0.9)
    node.step(0.2)
    values, codes, interval_s = child("plain(reader.read())")
    assert codes == [0, 0]
    assert values[0] == pytest.approx(70.0)
    assert interval_s > 0
    node.step(0.2)
    assert child("reader.read()")[0][0] == pytest.approx(90.0)


def test_gpm_errors_of_one_metric_and_values_that_are_none(node: FakeNode, child: Child) -> None:
    node.gpu(0).gpm_answer("sm", value=float("nan"))
    node.gpu(0).gpm_answer("tensor", code=3)
    node.gpu(0).set_gpm("dram", 0.25)
    child("reader = driver.gpm(gpu, (2, 5, 10)); reader.read()")
    node.step(0.2)
    values, codes, _ = child("plain(reader.read())")
    assert values[:2] == [None, None]
    assert values[2] == pytest.approx(25.0)
    assert codes == [0, 3, 0]


def test_gpm_keeps_the_older_sample_over_a_failure_so_the_next_reading_covers_it(node: FakeNode, child: Child) -> None:
    node.gpu(0).set_gpm("sm", 0.2)
    child("reader = driver.gpm(gpu, (2,)); reader.read()")
    node.step(1.0)
    node.fail("nvmlGpmMetricsGet", 999, to_call=1)
    assert child("answer(reader.read)") == {"code": 999}
    node.gpu(0).set_gpm("sm", 0.8)
    node.step(1.0)
    assert child("reader.read()")[0][0] == pytest.approx(50.0)
    node.fail("nvmlGpmSampleGet", 27, to_call=1)
    node.step(1.0)
    assert child("answer(reader.read)") == {"code": 27}
    child("reader.reset()")
    assert child("reader.read()") is None


def test_gpm_samples_with_equal_timestamps_are_no_value(node: FakeNode, child: Child) -> None:
    child("reader = driver.gpm(gpu, (2,)); reader.read()")
    node.gpu(0).freeze_gpm()
    child("reader.read()")
    assert child("reader.read()")[0] == [None]
    node.gpu(0).freeze_gpm(code=2)
    assert child("answer(reader.read)") == {"code": 2}


def test_gpm_buffers_are_given_back_each_once_whatever_fails(node: FakeNode, child: Child) -> None:
    child("reader = driver.gpm(gpu, (2,))")
    assert node.live().gpm_samples == 2
    node.fail("nvmlGpmSampleFree", 999, to_call=1)
    assert child("answer(reader.close)") == {"code": 999}
    assert node.live().gpm_samples == 1  # the other one was freed all the same
    child("reader.close()")
    node.fail("nvmlGpmSampleAlloc", 20, from_call=2, to_call=2)
    assert child("answer(driver.gpm, gpu, (2,))") == {"code": 20}
    assert node.live().gpm_samples == 1
    assert node.misuse().gpm_use_after_free == 0


def test_gpm_of_a_mig_instance_goes_through_its_parent(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "h100", 1, clock="stepped") as node, Child(node) as child:
        node.gpu(0).set_mig([MigSpec("1g.10gb", 7), None, MigSpec("2g.20gb", 3)])
        child(OPEN.format(library=str(node.library)))
        child("mig = driver.mig_device(gpu, 0)")
        assert child("[mig.gpu_instance, mig.compute_instance]") == [
            child("pynvml.nvmlDeviceGetGpuInstanceId(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 0))"),
            child("pynvml.nvmlDeviceGetComputeInstanceId(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 0))"),
        ]
        assert child("driver.text(mig, port.UUID)") == node.gpu(0).mig(0).uuid
        node.gpu(0).mig(0).set_gpm("sm", 0.4)
        child("reader = driver.gpm(mig, (2,)); reader.read()")
        node.step(0.5)
        assert child("reader.read()")[0][0] == pytest.approx(40.0)
        child("other = nv.nvmlDeviceGetMigDeviceHandleByIndex(h[0], 0)")
        child("memory = nv.nvmlDeviceGetMemoryInfo(other, version=nv.nvmlMemory_v2)")
        theirs = child("[memory.total, memory.used, memory.free, memory.reserved]")
        assert child("plain(driver.memory(mig))") == theirs


# --- events and accounting ------------------------------------------------------------------------------------------


def test_an_event_names_its_gpu_and_comes_once(node: FakeNode, child: Child) -> None:
    child("events = driver.events()")
    assert child("[events.register(g) for g in gpus]") == [True, True]
    node.gpu(1).push_xid(79)
    assert child("plain(events.wait(1000))") == [node.gpu(1).uuid, 8, 79]
    assert child("events.wait(0)") is None
    child("events.close()")
    assert node.live().event_sets == 0


def test_each_call_is_timed_under_its_own_name(node: FakeNode, child: Child) -> None:
    node.delay("nvmlDeviceGetPowerUsage", 12_000, to_call=1)
    for _ in range(2):
        child("driver.number(gpu, port.POWER_USAGE)")
    counts = child("gpu.calls.durations['nvmlDeviceGetPowerUsage']")
    *buckets, total_ns = counts
    assert sum(buckets) == 2
    assert sum(buckets[4:]) == 1  # over 10 ms
    assert total_ns >= 12_000_000
    assert child("gpu.calls.name") is None
    assert child("sum(driver.calls.durations['nvmlDeviceGetHandleByIndex_v2'][:-1])") == 2


def test_a_call_under_way_is_seen_by_another_thread(node: FakeNode, child: Child) -> None:
    node.hang("nvmlDeviceGetUtilizationRates", gpu=0)
    child("t = threading.Thread(target=answer, args=(driver.utilization, gpu)); t.start()")
    node.wait_until(lambda: node.hanging("nvmlDeviceGetUtilizationRates", 0) == 1)
    assert child("gpu.calls.name") == "nvmlDeviceGetUtilizationRates"
    assert child("gpus[1].calls.name") is None
    node.release()
    child("t.join()")
    assert child("gpu.calls.name") is None


@pytest.mark.parametrize(
    ("told", "kernel"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:C1:1F.7", "0000:c1:1f.7"),
        ("00010001:00:00.0", "0001:00:00.0"),
        ("../../../etc", None),
        ("", None),
        ("0000:3b:00.0/..", None),
        ("0000:3b:00.8", None),
    ],
)
def test_a_bus_id_is_spelled_as_the_kernel_does_or_is_none(told: str, kernel: str | None) -> None:
    assert parse_bus_id(told) == kernel
