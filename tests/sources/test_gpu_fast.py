"""The fast row: every value in its column and unit, each failure alone, and no more calls than allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.nvml import DEVICE_GONE, DRIVER_GONE, Code, GpmReading, Memory, NvmlError, Utilization
from gpumon.model import Reason, Rejection
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_fast import BLANK, Column, GpuFast
from tests.fake_port import GIB, HEALTHY, FakeNvml, device
from tests.fakenvml.child import Child
from tests.fakenvml.controller import FakeNode

FIELDS = {
    82: (Column.MEMORY_TEMPERATURE, 41, 41.0),
    83: (Column.ENERGY, 5_000_250, 5000.25),
    185: (Column.POWER_AVERAGE, 627_000, 627.0),
    186: (Column.POWER_INSTANT, 625_500, 625.5),
    74: (Column.THROTTLED_SW_POWER_CAP, 1_500_000_000, 1.5),
    76: (Column.THROTTLED_SYNC_BOOST, 2_500_000_000, 2.5),
    77: (Column.THROTTLED_BOARD_LIMIT, 3_500_000_000, 3.5),
    78: (Column.THROTTLED_LOW_UTILIZATION, 4_500_000_000, 4.5),
    79: (Column.THROTTLED_RELIABILITY, 5_500_000_000, 5.5),
    81: (Column.THROTTLED_BASE_CLOCKS, 6_500_000_000, 6.5),
    269: (Column.THROTTLED_SW_THERMAL, 7_500_000_000, 7.5),
    270: (Column.THROTTLED_HW_THERMAL, 8_500_000_000, 8.5),
    271: (Column.THROTTLED_HW_POWER_BRAKE, 9_500_000_000, 9.5),
    197: (Column.PCIE_TX, 111, 111.0),
    198: (Column.PCIE_RX, 222, 222.0),
    138: (Column.NVLINK_TX, 3, 3072.0),
    139: (Column.NVLINK_RX, 4, 4096.0),
}
GPM = {
    1: (Column.GRAPHICS_ACTIVE, 81.0, 0.81),
    2: (Column.SM_ACTIVE, 72.0, 0.72),
    3: (Column.SM_OCCUPANCY, 63.0, 0.63),
    4: (Column.INTEGER_ACTIVE, 14.0, 0.14),
    5: (Column.TENSOR_ACTIVE, 55.0, 0.55),
    10: (Column.DRAM_ACTIVE, 46.0, 0.46),
    11: (Column.FP64_ACTIVE, 1.0, 0.01),
    12: (Column.FP32_ACTIVE, 2.0, 0.02),
    13: (Column.FP16_ACTIVE, 3.0, 0.03),
    20: (Column.PCIE_TX_RATE, 2.0, 2 * 2.0**20),
    21: (Column.PCIE_RX_RATE, 3.0, 3 * 2.0**20),
    60: (Column.NVLINK_RX_RATE, 4.0, 4 * 2.0**20),
    61: (Column.NVLINK_TX_RATE, 5.0, 5 * 2.0**20),
}
CALLS: dict[str, tuple[Any, dict[Column, float]]] = {
    "utilization": (Utilization(87, 23), {Column.UTILIZATION: 0.87, Column.MEMORY_BUSY: 0.23}),
    "clock_graphics": (1980, {Column.CLOCK_GRAPHICS: 1.98e9}),
    "clock_sm": (1981, {Column.CLOCK_SM: 1.981e9}),
    "clock_memory": (3201, {Column.CLOCK_MEMORY: 3.201e9}),
    "clock_video": (1545, {Column.CLOCK_VIDEO: 1.545e9}),
    "reasons": (0x24, {Column.REASONS: 36.0}),
    "memory": (
        Memory(141 * GIB, 32 * GIB, 108 * GIB, GIB),
        {
            Column.MEMORY_USED: 32.0 * GIB,
            Column.MEMORY_FREE: 108.0 * GIB,
            Column.MEMORY_RESERVED: float(GIB),
        },
    ),
    "temperature": (52, {Column.TEMPERATURE: 52.0}),
}
EVERYTHING: dict[Column, float] = (
    {column: value for _, columns in CALLS.values() for column, value in columns.items()}
    | {column: value for column, _, value in FIELDS.values()}
    | {column: value for column, _, value in GPM.values()}
    | {Column.GPM_INTERVAL: 0.1}
)


def gpm(_handle: object, metrics: tuple[int, ...]) -> GpmReading:
    return GpmReading(tuple(GPM[metric][1] for metric in metrics), (0,) * len(metrics), 0.1)


def healthy() -> FakeNvml:
    answers = (
        HEALTHY | {name: answer for name, (answer, _) in CALLS.items()} | {"gpm.read": gpm, "power_usage": 600_000}
    )
    return FakeNvml(answers, {field: raw for field, (_, raw, _) in FIELDS.items()})


def fast(nvml: FakeNvml) -> GpuFast:
    return GpuFast(nvml, device(), Capabilities("gpu 0"))


def read(row: list[float | None]) -> dict[Column, float]:
    return {Column(i): value for i, value in enumerate(row) if value is not None}


def test_every_value_is_in_its_column_in_base_units() -> None:
    row = read(fast(healthy()).row(1.0))
    assert row.keys() == EVERYTHING.keys() == set(Column)
    assert row == pytest.approx(EVERYTHING)


def test_a_second_row_asks_for_the_same_and_nothing_that_blocks() -> None:
    nvml = healthy()
    subject = fast(nvml)
    subject.row(1.0)
    nvml.log.clear()
    assert read(subject.row(1.1)) == pytest.approx(EVERYTHING)
    asked = [name for name in nvml.log if not name.startswith("field:")]
    assert sorted(asked) == sorted([*CALLS, "fields.read", "gpm.read"])
    assert len(asked) + 1 <= 12  # a GPM reading is two calls


EACH_CALL = [*CALLS, "fields.read", "gpm.read"]
LASTING = [code for code in Code if code not in DEVICE_GONE | DRIVER_GONE and code is not Code.SUCCESS]


def columns_of(name: str) -> set[Column]:
    if name == "fields.read":
        return {column for column, _, _ in FIELDS.values()} - {Column.POWER_AVERAGE}  # which has a call of its own
    if name == "gpm.read":
        return {column for column, _, _ in GPM.values()} | {Column.GPM_INTERVAL}
    return set(CALLS[name][1])


@pytest.mark.parametrize("code", LASTING)
@pytest.mark.parametrize("name", EACH_CALL)
@pytest.mark.parametrize("after", [0, 1])
def test_a_call_that_fails_takes_its_own_columns_and_no_others(name: str, code: Code, after: int) -> None:
    nvml = healthy()
    subject = fast(nvml)
    for tick in range(after):
        subject.row(float(tick))
    nvml.errors[name] = code
    for tick in range(after, after + 3):
        row = read(subject.row(float(tick)))
        assert row.keys() == set(Column) - columns_of(name)
        expected = {column: EVERYTHING[column] for column in row} | (
            {Column.POWER_AVERAGE: 600.0} if name == "fields.read" else {}
        )
        assert row == pytest.approx(expected)
    assert subject.take_rejections() == []


@pytest.mark.parametrize("code", sorted(DEVICE_GONE | DRIVER_GONE))
@pytest.mark.parametrize("name", EACH_CALL)
def test_a_gpu_or_driver_that_is_gone_is_raised_wherever_it_is_noticed(name: str, code: Code) -> None:
    nvml = healthy()
    subject = fast(nvml)
    subject.row(0.0)
    nvml.errors[name] = code
    with pytest.raises(NvmlError) as raised:
        subject.row(0.1)
    assert raised.value.code == code


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.UNINITIALIZED])
def test_one_field_that_says_gone_is_as_good_as_all(code: Code) -> None:
    nvml = healthy()
    nvml.field_codes[83] = code
    with pytest.raises(NvmlError):
        fast(nvml).row(0.0)


@pytest.mark.parametrize(
    ("name", "answer", "lost", "field"),
    [
        ("utilization", Utilization(101, 5), {Column.UTILIZATION}, "utilization"),
        ("utilization", Utilization(250, 2**32 - 1), {Column.UTILIZATION, Column.MEMORY_BUSY}, "utilization"),
        ("clock_sm", 2**32 - 1, {Column.CLOCK_SM}, "clock_sm"),
        ("reasons", 2**64 - 1, {Column.REASONS}, "reasons"),
        (
            "memory",
            Memory(10, 11, 0, 0),
            {Column.MEMORY_USED, Column.MEMORY_FREE, Column.MEMORY_RESERVED},
            "memory",
        ),
        ("memory", Memory(0, 0, 0, 0), {Column.MEMORY_USED, Column.MEMORY_FREE, Column.MEMORY_RESERVED}, "memory"),
        ("memory", Memory(GIB, 0, 0, 2**64 - 1), {Column.MEMORY_RESERVED}, "memory_reserved"),
        ("temperature", -300, {Column.TEMPERATURE}, "temperature"),
        ("temperature", -1, {Column.TEMPERATURE}, "temperature"),  # all ones, read as a signed number
        ("temperature", 2**31 - 1, {Column.TEMPERATURE}, "temperature"),
    ],
)
def test_what_cannot_be_is_left_out_and_told(name: str, answer: Any, lost: set[Column], field: str) -> None:
    nvml = healthy()
    nvml.answers[name] = answer
    subject = fast(nvml)
    assert read(subject.row(0.0)).keys() == set(Column) - lost
    assert Rejection(field, Reason.OUT_OF_RANGE) in subject.take_rejections()
    assert subject.take_rejections() == []


@pytest.mark.parametrize("raw", [-1, -0.5, 2**63 - 1, 2**64 - 1, 140737488355328.0 * 2**40])
@pytest.mark.parametrize("field", [field for field in FIELDS if field != 185])
def test_a_field_that_cannot_be_is_left_out_and_told(field: int, raw: float) -> None:
    nvml = healthy()
    nvml.field_values[field] = raw
    subject = fast(nvml)
    assert read(subject.row(0.0)).keys() == set(Column) - {FIELDS[field][0]}
    assert [rejection.reason for rejection in subject.take_rejections()] == [Reason.OUT_OF_RANGE]


@pytest.mark.parametrize("percent", [-5.0, 105.1, 1e300])
def test_an_activity_that_cannot_be_is_left_out_and_told(percent: float) -> None:
    nvml = healthy()
    nvml.answers["gpm.read"] = lambda _, metrics: gpm(_, metrics)._replace(values=(percent,) * len(metrics))
    subject = fast(nvml)
    row = read(subject.row(0.0))
    assert Column.SM_ACTIVE not in row
    assert Rejection("sm_active", Reason.OUT_OF_RANGE) in subject.take_rejections()


def test_an_activity_just_above_all_of_it_is_all_of_it() -> None:
    nvml = healthy()
    nvml.answers["gpm.read"] = lambda _, metrics: gpm(_, metrics)._replace(values=(104.0,) * len(metrics))
    assert fast(nvml).row(0.0)[Column.SM_ACTIVE] == 1.0


def test_a_finite_code_with_no_finite_value_is_told_each_time_and_asked_again() -> None:
    nvml = healthy()
    nvml.field_values[82] = None
    subject = fast(nvml)
    for tick in range(3):
        assert subject.row(float(tick))[Column.MEMORY_TEMPERATURE] is None
        assert subject.take_rejections() == [Rejection("memory_temperature", Reason.OUT_OF_RANGE)]
    nvml.field_values[82] = 44
    assert subject.row(3.0)[Column.MEMORY_TEMPERATURE] == 44.0


def test_rejections_nobody_takes_do_not_pile_up() -> None:
    nvml = healthy()
    nvml.answers["utilization"] = Utilization(999, 999)
    subject = fast(nvml)
    for tick in range(500):
        subject.row(tick / 10)
    assert len(subject.take_rejections()) == 256


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT])
def test_the_batch_shrinks_to_what_the_gpu_has(code: Code) -> None:
    nvml = healthy()
    missing = [82, 269, 270, 271, 138]
    nvml.field_codes = dict.fromkeys(missing, code)
    subject = fast(nvml)
    subject.row(0.0)
    nvml.log.clear()
    subject.row(0.1)
    asked = [int(name.removeprefix("field:")) for name in nvml.log if name.startswith("field:")]
    assert asked == [field for field in FIELDS if field not in missing]
    assert nvml.log.count("fields.read") == 1


def test_a_field_that_only_stumbles_stays_in_the_batch() -> None:
    nvml = healthy()
    nvml.field_codes[83] = Code.UNKNOWN
    subject = fast(nvml)
    assert subject.row(0.0)[Column.ENERGY] is None
    nvml.field_codes.clear()
    assert subject.row(0.1)[Column.ENERGY] == 5000.25


def test_what_was_denied_is_asked_for_again_once_it_may_have_been_granted() -> None:
    nvml = healthy()
    nvml.field_codes[83] = Code.NO_PERMISSION
    denied = Code.NO_PERMISSION

    def partly(_: object, metrics: tuple[int, ...]) -> GpmReading:
        codes = tuple(denied if metric == 2 else 0 for metric in metrics)
        values = tuple(None if metric == 2 else GPM[metric][1] for metric in metrics)
        return GpmReading(values, codes, 0.1)

    nvml.answers["gpm.read"] = partly
    subject = fast(nvml)
    for tick in range(3):
        row = subject.row(float(tick))
        assert (row[Column.ENERGY], row[Column.SM_ACTIVE]) == (None, None)
    nvml.log.clear()
    subject.row(4.0)
    assert "field:83" not in nvml.log
    nvml.field_codes.clear()
    nvml.answers["gpm.read"] = gpm
    subject.reconsider()
    subject.row(5.0)
    assert subject.row(6.0)[Column.ENERGY] is None  # once a minute is enough
    subject.reconsider()
    subject.row(64.0)
    row = subject.row(64.1)
    assert (row[Column.ENERGY], row[Column.SM_ACTIVE]) == (5000.25, 0.72)
    subject.close()
    assert not nvml.readers


def test_without_any_field_the_single_calls_remain_and_none_is_asked_in_vain() -> None:
    nvml = healthy()
    nvml.field_codes = dict.fromkeys(FIELDS, Code.NOT_SUPPORTED)
    subject = fast(nvml)
    subject.row(0.0)
    nvml.log.clear()
    row = read(subject.row(0.1))
    assert "fields.read" not in nvml.log
    assert row[Column.POWER_AVERAGE] == 600.0


def test_without_gpm_nothing_of_it_is_asked_after_the_first_row() -> None:
    nvml = healthy()
    nvml.answers["gpm_supported"] = False
    subject = fast(nvml)
    assert Column.SM_ACTIVE not in read(subject.row(0.0))
    nvml.log.clear()
    subject.row(0.1)
    assert not [name for name in nvml.log if name.startswith("gpm")]


def test_gpm_without_a_single_metric_is_left_alone() -> None:
    nvml = healthy()
    nvml.answers["gpm.read"] = lambda _, metrics: GpmReading(
        (None,) * len(metrics), (Code.NOT_SUPPORTED,) * len(metrics), 0.1
    )
    subject = fast(nvml)
    for tick in range(4):
        subject.row(float(tick))
    assert not nvml.readers
    nvml.log.clear()
    subject.row(5.0)
    assert "gpm.read" not in nvml.log


def test_gpm_goes_on_without_the_metrics_it_does_not_have() -> None:
    nvml = healthy()
    asked: list[tuple[int, ...]] = []

    def some(_: object, metrics: tuple[int, ...]) -> GpmReading:
        asked.append(metrics)
        codes = tuple(Code.NOT_SUPPORTED if metric in (11, 60) else 0 for metric in metrics)
        return GpmReading(tuple(None if c else GPM[m][1] for m, c in zip(metrics, codes, strict=True)), codes, 0.1)

    nvml.answers["gpm.read"] = some
    subject = fast(nvml)
    first, second = read(subject.row(0.0)), read(subject.row(0.1))
    assert first.keys() == second.keys() == set(Column) - {Column.FP64_ACTIVE, Column.NVLINK_RX_RATE}
    assert asked[1] == tuple(metric for metric in GPM if metric not in (11, 60))
    assert len(nvml.readers) == 1
    subject.close()
    assert not nvml.readers


def test_an_older_gpm_sample_that_never_compares_is_forgotten() -> None:
    nvml = healthy()
    subject = fast(nvml)
    subject.row(0.0)
    (reader,) = nvml.readers
    nvml.errors["gpm.read"] = Code.UNKNOWN
    for tick in range(1, 11):
        subject.row(float(tick))
    assert reader.resets == 1


def test_gpm_buffers_that_are_not_taken_back_do_not_end_the_row() -> None:
    nvml = healthy()
    nvml.errors["gpm.close"] = Code.UNKNOWN
    nvml.answers["gpm.read"] = lambda _, metrics: GpmReading(
        (None,) * len(metrics), (Code.NOT_SUPPORTED,) * len(metrics), 0.1
    )
    assert read(fast(nvml).row(0.0))[Column.ENERGY] == 5000.25


def test_nothing_answered_is_a_blank_row() -> None:
    nvml = healthy()
    nvml.errors |= dict.fromkeys([*EACH_CALL, "power_usage"], Code.UNKNOWN)
    assert fast(nvml).row(0.0) == BLANK


@given(
    fields=st.dictionaries(st.sampled_from(list(FIELDS)), st.none() | st.integers() | st.floats(allow_nan=False)),
    codes=st.dictionaries(st.sampled_from(list(FIELDS)), st.sampled_from(LASTING)),
    percents=st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=13, max_size=13),
    utilization=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    memory=st.tuples(*[st.integers(0, 2**64 - 1)] * 4),
)
def test_whatever_is_answered_every_value_of_a_row_is_possible(
    fields: dict[int, Any],
    codes: dict[int, int],
    percents: list[float | None],
    utilization: tuple[int, int],
    memory: tuple[int, int, int, int],
) -> None:
    nvml = healthy()
    nvml.field_values.update(fields)
    nvml.field_codes = dict(codes)
    by_metric = dict(zip(GPM, percents, strict=True))
    nvml.answers["gpm.read"] = lambda _, metrics: GpmReading(
        tuple(by_metric[metric] for metric in metrics), (0,) * len(metrics), 0.1
    )
    nvml.answers["utilization"] = Utilization(*utilization)
    nvml.answers["memory"] = Memory(*memory)
    subject = fast(nvml)
    for tick in range(2):
        row = read(subject.row(float(tick)))
        assert all(value >= 0 for column, value in row.items() if column is not Column.TEMPERATURE)
        shares = [
            Column.UTILIZATION,
            Column.MEMORY_BUSY,
            *(GPM[metric][0] for metric in (1, 2, 3, 4, 5, 10, 11, 12, 13)),
        ]
        assert all(row[column] <= 1.0 for column in shares if column in row)
        assert all(value < 2.0**63 for value in row.values())


# --- on the library -------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode.create(tmp_path / "node", "h200", 1, clock="stepped") as created:
        yield created


def test_a_row_costs_the_driver_at_most_twelve_calls_and_one_batch(node: FakeNode) -> None:
    with Child(node) as child:
        child("from gpumon.host.nvml_driver import NvmlDriver; from gpumon.sources.gpu_fast import GpuFast")
        child("from gpumon.sources.capabilities import Capabilities")
        child(f"driver = NvmlDriver({str(node.library)!r}); driver.open()")
        child("fast = GpuFast(driver, driver.device(0), Capabilities('gpu 0'))")
        node.gpu(0).set_utilization(0.5, 0.2)
        for tick in range(3):
            node.step(0.1)
            child(f"fast.row({tick / 10})")
        before = node.all_calls()
        ticks = 20
        for tick in range(ticks):
            node.step(0.1)
            row = child(f"fast.row({10 + tick / 10})")
        calls = {name: count - before.get(name, 0) for name, count in node.all_calls().items()}
        calls = {name: count for name, count in calls.items() if count}
        assert calls["nvmlDeviceGetFieldValues"] == ticks
        assert sum(calls.values()) <= 12 * ticks
        assert {count % ticks for count in calls.values()} == {0}
        assert "nvmlDeviceGetPcieThroughput" not in node.all_calls()
        assert row[Column.UTILIZATION] == 0.5
        assert sum(value is not None for value in row) >= 38
        child("fast.close(); driver.close()")
        assert node.live().gpm_samples == 0
