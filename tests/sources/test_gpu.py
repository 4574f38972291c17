from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.host.nvml import Bar1, Code
from gpumon.model import Distribution, Item, Kind, Metric, Miss, Reason, Rejection, Sample, Unit
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_state import GpuState
from tests.fake_port import FIELDS, GIB, HEALTHY, FakeNvml, device

GPU = ("0", "GPU-a")


def slow(nvml: FakeNvml, state: GpuState | None = None) -> GpuSlow:
    return GpuSlow(nvml, device(), GPU, Capabilities("gpu 0"), state or GpuState())


def values(items: list[Item], metric: Metric) -> dict[tuple[str, ...], Any]:
    """Values of the metric's series, by the labels after gpu and uuid."""
    series = [item for item in items if isinstance(item, Sample) and item.metric is metric]
    assert all(sample.labels[:2] == GPU for sample in series)
    assert len({sample.labels for sample in series}) == len(series)
    return {sample.labels[2:]: sample.value for sample in series}


def rejected(items: list[Item]) -> list[str]:
    return [item.field for item in items if isinstance(item, Rejection)]


@pytest.fixture(scope="module")
def healthy() -> list[Item]:
    return slow(FakeNvml()).read(1000.0)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (
            catalogue.GPU_ECC_ERRORS,
            {
                ("corrected", "volatile"): 101,
                ("uncorrected", "volatile"): 102,
                ("corrected", "aggregate"): 103,
                ("uncorrected", "aggregate"): 104,
            },
        ),
        (catalogue.GPU_RETIRED_PAGES, {("single_bit",): 1, ("double_bit",): 2}),
        (catalogue.GPU_RETIRED_PAGES_PENDING, {(): 0}),
        (catalogue.GPU_PCIE_REPLAYS, {(): 301}),
        (catalogue.GPU_REMAPPED_ROWS, {("correctable",): 3, ("uncorrectable",): 4}),
        (catalogue.GPU_ROW_REMAP_PENDING, {(): 1}),
        (catalogue.GPU_ROW_REMAP_FAILED, {(): 0}),
        (
            catalogue.GPU_TEMPERATURE_MARGIN_LIMIT,
            {("shutdown",): -8, ("slowdown",): -2, ("memory_max",): 0, ("gpu_max",): 0},
        ),
        (
            catalogue.GPU_NVLINK_ERRORS,
            {("crc_flit",): 201, ("crc_data",): 202, ("replay",): 203, ("recovery",): 204, ("ecc_data",): 205},
        ),
        (catalogue.GPU_RECOVERY_ACTION, {(): 0}),
        (
            catalogue.GPU_POWER_LIMIT,
            {("enforced",): 700, ("requested",): 690, ("default",): 680, ("min",): 200, ("max",): 750},
        ),
        (catalogue.GPU_PCIE_GENERATION, {("current",): 4, ("max",): 5}),
        (catalogue.GPU_PCIE_WIDTH, {("current",): 8, ("max",): 16}),
        (catalogue.GPU_PERFORMANCE_STATE, {(): 2}),
        (
            catalogue.GPU_CODEC_UTILIZATION,
            {("encoder",): 0.11, ("decoder",): 0.22, ("jpeg",): 0.33, ("ofa",): 0.44},
        ),
        (
            catalogue.GPU_CLOCK_MAX,
            {("graphics",): 1980e6, ("sm",): 1981e6, ("memory",): 3201e6, ("video",): 1545e6},
        ),
        (
            catalogue.GPU_TEMPERATURE_LIMIT,
            {("shutdown",): 92, ("slowdown",): 89, ("memory_max",): 95, ("gpu_max",): 87},
        ),
        (catalogue.GPU_TEMPERATURE_MARGIN, {(): 35}),
        (catalogue.GPU_BAR1, {("used",): 33 * GIB, ("free",): 223 * GIB}),
        (catalogue.GPU_FAN, {("0",): 0.3, ("1",): 1.3}),
        (catalogue.GPU_NVLINKS, {("active",): 17, ("inactive",): 1}),
        (catalogue.GPU_BUSY_SECONDS, {(): 0}),
    ],
    ids=lambda parameter: parameter.stem if isinstance(parameter, Metric) else "",
)
def test_every_value_comes_once_in_base_units(
    healthy: list[Item], metric: Metric, expected: dict[tuple[str, ...], float]
) -> None:
    assert values(healthy, metric) == pytest.approx(expected)


def test_a_healthy_gpu_has_no_misses_and_no_rejections(healthy: list[Item]) -> None:
    assert [item for item in healthy if not isinstance(item, Sample)] == []
    assert set(values(healthy, catalogue.GPU_FIELD_SUPPORTED).values()) == {1.0}


def test_what_cannot_change_is_asked_once_a_minute_and_what_can_at_every_pass() -> None:
    nvml = FakeNvml()
    source = slow(nvml)
    for tick in range(13):
        items = source.read(1000.0 + 5 * tick)
        assert len(values(items, catalogue.GPU_CLOCK_MAX)) == 4
    assert nvml.log.count("max_clock_sm") == 2
    assert nvml.log.count("ecc_mode") == 2
    assert nvml.log.count("power_enforced") == 13
    assert nvml.log.count("fields.read") == 13


def test_what_is_not_supported_costs_one_call_per_generation() -> None:
    nvml = FakeNvml(fields={})
    for name in (*HEALTHY, "fields.read"):
        nvml.errors[name] = Code.NOT_SUPPORTED
    source = slow(nvml)
    source.read(1000.0)
    nvml.log.clear()
    items = source.read(1005.0)
    assert nvml.log == []
    assert {item.metric for item in items if isinstance(item, Sample)} == {catalogue.GPU_FIELD_SUPPORTED}
    assert set(values(items, catalogue.GPU_FIELD_SUPPORTED).values()) == {0.0}


def test_refused_fields_are_left_out_of_the_next_batch() -> None:
    nvml = FakeNvml()
    nvml.field_codes = {29: Code.NOT_SUPPORTED, 30: Code.INVALID_ARGUMENT, 230: Code.UNKNOWN}
    source = slow(nvml)
    source.read(1000.0)
    nvml.log.clear()
    items = source.read(1005.0)
    asked = {name for name in nvml.log if name.startswith("field:")}
    assert "field:29" not in asked
    assert "field:30" not in asked
    assert "field:230" in asked
    assert values(items, catalogue.GPU_PCIE_REPLAYS) == {(): 301}


def test_names_of_fields_are_few_enough_for_the_budget(healthy: list[Item]) -> None:
    assert len(values(healthy, catalogue.GPU_FIELD_SUPPORTED)) <= 40


# --- ECC --------------------------------------------------------------------------------------------------------


def test_with_ecc_off_uninitialised_counters_are_unsupported_not_zero() -> None:
    nvml = FakeNvml()
    nvml.answers["ecc_mode"] = (0, 1)
    nvml.field_values |= {3: 0.0, 4: 5e-324, 5: 0.0, 6: 0.0}
    source = slow(nvml)
    items = source.read(1000.0)
    assert values(items, catalogue.GPU_ECC_ERRORS) == {}
    assert values(items, catalogue.GPU_FIELD_SUPPORTED)["ecc_errors",] == 0.0
    assert rejected(items) == []
    nvml.log.clear()
    items = source.read(1005.0)
    assert not {"field:3", "field:4", "field:5", "field:6", "ecc_mode"} & set(nvml.log)
    assert not any(isinstance(item, Miss) for item in items)


def test_without_the_ecc_mode_a_count_that_is_no_whole_number_is_malformed() -> None:
    nvml = FakeNvml()
    nvml.errors["ecc_mode"] = Code.UNKNOWN
    nvml.field_values |= {3: 0.0}
    items = slow(nvml).read(1000.0)
    assert ("corrected", "volatile") not in values(items, catalogue.GPU_ECC_ERRORS)
    assert len(values(items, catalogue.GPU_ECC_ERRORS)) == 3
    assert Rejection("ecc_errors", Reason.MALFORMED) in items


# --- counters over generations ------------------------------------------------------------------------------------


def test_error_counters_go_on_over_a_driver_reload() -> None:
    nvml, state = FakeNvml(), GpuState()
    slow(nvml, state).read(1000.0)
    nvml.field_values |= {3: 1, 94: 0, 38: 2}
    items = slow(nvml, state).read(1060.0)
    assert values(items, catalogue.GPU_ECC_ERRORS)["corrected", "volatile"] == 102
    assert values(items, catalogue.GPU_ECC_ERRORS)["corrected", "aggregate"] == 103
    assert values(items, catalogue.GPU_PCIE_REPLAYS) == {(): 301}
    assert values(items, catalogue.GPU_NVLINK_ERRORS)["crc_flit",] == 203


# --- remapped rows ------------------------------------------------------------------------------------------------


def test_remapped_rows_come_by_call_where_the_fields_are_refused() -> None:
    nvml = FakeNvml(fields={id_: value for id_, value in FIELDS.items() if id_ not in (142, 143, 144, 145)})
    source = slow(nvml)
    for at_s in (1000.0, 1005.0):
        items = source.read(at_s)
        assert values(items, catalogue.GPU_REMAPPED_ROWS) == {("correctable",): 1, ("uncorrectable",): 2}
        assert values(items, catalogue.GPU_ROW_REMAP_PENDING) == {(): 0}
        assert values(items, catalogue.GPU_ROW_REMAP_FAILED) == {(): 1}
    supported = values(items, catalogue.GPU_FIELD_SUPPORTED)
    assert (supported["remapped_rows",], supported["row_remap_failed",]) == (1.0, 1.0)


def test_the_call_fills_only_what_the_fields_refuse() -> None:
    nvml = FakeNvml(fields={id_: value for id_, value in FIELDS.items() if id_ != 145})
    items = slow(nvml).read(1000.0)
    assert values(items, catalogue.GPU_REMAPPED_ROWS) == {("correctable",): 3, ("uncorrectable",): 4}
    assert values(items, catalogue.GPU_ROW_REMAP_FAILED) == {(): 1}


def test_without_field_values_at_all_the_calls_still_answer() -> None:
    nvml = FakeNvml()
    nvml.errors["fields.read"] = Code.FUNCTION_NOT_FOUND
    source = slow(nvml)
    source.read(1000.0)
    items = source.read(1005.0)
    assert nvml.log.count("fields.read") == 1
    assert len(values(items, catalogue.GPU_REMAPPED_ROWS)) == 2
    assert values(items, catalogue.GPU_NVLINKS) == {("active",): 17, ("inactive",): 1}


# --- links and fans -----------------------------------------------------------------------------------------------


def test_a_link_that_cannot_be_read_now_is_not_a_link_down() -> None:
    nvml = FakeNvml()
    source = slow(nvml)
    source.read(1000.0)
    nvml.errors["nvlink_state_3"] = Code.UNKNOWN
    assert values(source.read(1005.0), catalogue.GPU_NVLINKS) == {}
    del nvml.errors["nvlink_state_3"]
    assert values(source.read(1010.0), catalogue.GPU_NVLINKS) == {("active",): 17, ("inactive",): 1}


def test_links_are_probed_to_the_end_where_the_count_is_not_told() -> None:
    nvml = FakeNvml(fields={id_: value for id_, value in FIELDS.items() if id_ != 91})
    nvml.errors["nvlink_state_5"] = Code.NOT_SUPPORTED  # a hole
    source = slow(nvml)
    source.read(1000.0)
    nvml.log.clear()
    assert values(source.read(1005.0), catalogue.GPU_NVLINKS) == {("active",): 16, ("inactive",): 1}
    assert sum(name.startswith("nvlink_state") for name in nvml.log) == 17


def test_a_gpu_without_links_has_no_link_series() -> None:
    nvml = FakeNvml()
    nvml.field_values[91] = 0
    items = slow(nvml).read(1000.0)
    assert values(items, catalogue.GPU_NVLINKS) == {}
    assert not any(name.startswith("nvlink_state") for name in nvml.log)


def test_a_link_state_that_is_no_state_is_rejected() -> None:
    nvml = FakeNvml()
    nvml.answers["nvlink_state_0"] = 7
    items = slow(nvml).read(1000.0)
    assert values(items, catalogue.GPU_NVLINKS) == {}
    assert rejected(items) == ["nvlink_links"]


def test_a_board_without_fans_is_unsupported_and_asked_once() -> None:
    nvml = FakeNvml()
    nvml.answers["fans"] = 0
    source = slow(nvml)
    source.read(1000.0)
    items = source.read(1100.0)
    assert values(items, catalogue.GPU_FAN) == {}
    assert values(items, catalogue.GPU_FIELD_SUPPORTED)["fan",] == 0.0
    assert nvml.log.count("fans") == 1


def test_more_fans_than_a_board_has_room_for_are_rejected() -> None:
    nvml = FakeNvml()
    nvml.answers["fans"] = 1_000_000
    items = slow(nvml).read(1000.0)
    assert values(items, catalogue.GPU_FAN) == {}
    assert rejected(items) == ["fan"]


# --- ranges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "field"),
    [
        ("power_enforced", 0, "power_limit"),
        ("power_enforced", 0xFFFFFFFF, "power_limit"),
        ("power_requested", 140737488355328, "power_limit"),
        ("pcie_generation", 0, "pcie_link_generation"),
        ("pcie_width", 255, "pcie_link_width"),
        ("encoder", (101, 0), "codec_utilization"),
        ("max_clock_sm", 0xFFFFFFFF, "clock_max"),
        ("threshold_slowdown", 0xFFFFFFFF, "temperature_limit"),
        ("threshold_slowdown", -51, "temperature_limit"),
        ("temperature_margin", 2147483632, "temperature_margin"),
        ("performance_state", 16, "performance_state"),
        ("fan_0", 201, "fan"),
        ("bar1", Bar1(256 * GIB, 300 * GIB, 223 * GIB), "bar1"),
        ("bar1", Bar1((1 << 64) - 1, (1 << 64) - 1, 223 * GIB), "bar1"),
    ],
)
def test_an_impossible_answer_is_one_rejection_and_no_sample(name: str, answer: Any, field: str) -> None:
    nvml = FakeNvml()
    nvml.answers[name] = answer
    before = [item for item in slow(FakeNvml()).read(1000.0) if isinstance(item, Sample)]
    items = slow(nvml).read(1000.0)
    assert rejected(items) == [field]
    assert next(item for item in items if isinstance(item, Rejection)).reason is Reason.OUT_OF_RANGE
    assert len([item for item in items if isinstance(item, Sample)]) == len(before) - 1


@pytest.mark.parametrize("id_", [id_ for id_ in FIELDS if id_ != 91])
@pytest.mark.parametrize("value", [0xFFFFFFFF, (1 << 64) - 1, 140737488355328.0, math.nan, math.inf, -1e300])
def test_an_impossible_field_value_is_one_rejection_and_no_sample(id_: int, value: float) -> None:
    nvml = FakeNvml()
    nvml.field_values[id_] = value
    items = slow(nvml).read(1000.0)
    assert len(rejected(items)) == 1
    assert not any(isinstance(item, Sample) and item.value == value for item in items)


def test_an_unknown_performance_state_is_no_reading() -> None:
    nvml = FakeNvml()
    nvml.answers["performance_state"] = 32
    items = slow(nvml).read(1000.0)
    assert values(items, catalogue.GPU_PERFORMANCE_STATE) == {}
    assert rejected(items) == []


NUMBERS = st.integers(-(2**31), 2**64 - 1) | st.sampled_from([0, 1, 0xFFFFFFFF, 0x7FFFFFF0, 2**47, 2**63 - 16])
RAW = NUMBERS | st.floats()
SCALARS = sorted(name for name, answer in HEALTHY.items() if isinstance(answer, int))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(SCALARS), NUMBERS), st.dictionaries(st.sampled_from(sorted(FIELDS)), RAW)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_garbage_gives_only_possible_values_and_no_counter_falls(
    passes: list[tuple[dict[str, int], dict[int, float]]],
) -> None:
    nvml = FakeNvml()
    source = slow(nvml)
    totals: dict[tuple[str, tuple[str, ...]], float] = {}
    for tick, (answers, fields) in enumerate(passes):
        nvml.answers |= answers
        nvml.field_values |= fields
        for item in source.read(1000.0 + 61 * tick):
            if not isinstance(item, Sample) or isinstance(item.value, Distribution):
                continue
            assert len(item.labels) == len(item.metric.labels)
            assert math.isfinite(item.value)
            if item.metric.unit is Unit.RATIO:
                assert 0 <= item.value <= 2
            if item.metric.kind is Kind.COUNTER:
                key = (item.metric.name, item.labels)
                assert item.value >= totals.get(key, 0)
                totals[key] = item.value
