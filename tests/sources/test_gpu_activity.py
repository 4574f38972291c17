"""Rows into samples: gauges of the newest row, totals of every row, and totals that never fall."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.model import Distribution, GpuUuid, Kind
from gpumon.sources.gpu_activity import GpuActivity
from gpumon.sources.gpu_fast import Column

UUID = GpuUuid("GPU-1")
NAN = math.nan
Key = tuple[str, tuple[str, ...]]


def row(values: dict[Column, float] | None = None) -> list[float]:
    cells = [NAN] * len(Column)
    for column, value in (values or {}).items():
        cells[column] = value
    return cells


def told(activity: GpuActivity) -> dict[Key, float | Distribution]:
    """What is exported now, by name and the labels after gpu and uuid."""
    samples = list(activity.samples(lambda at_s: at_s + 1000.0))
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)
    keys = [(sample.metric.name, sample.labels[2:]) for sample in samples]
    assert len(keys) == len(set(keys))
    return {key: sample.value for key, sample in zip(keys, samples, strict=True)}


def feed(activity: GpuActivity, rows: Iterable[dict[Column, float]], step_s: float = 0.1, from_s: float = 0.0) -> None:
    for number, values in enumerate(rows):
        activity.add(round((from_s + number * step_s) * 1e9), row(values))


ACTIVE = {Column.SM_ACTIVE: 0.5, Column.DRAM_ACTIVE: 0.25, Column.TENSOR_ACTIVE: 0.125, Column.GPM_INTERVAL: 0.1}


def test_gauges_are_those_of_the_newest_row() -> None:
    activity = GpuActivity("3", UUID)
    feed(
        activity,
        [{Column.UTILIZATION: 0.1}, {Column.UTILIZATION: 0.9, Column.CLOCK_SM: 1.5e9, Column.TEMPERATURE: 0.0}],
    )
    samples = list(activity.samples(lambda at_s: at_s))
    assert {sample.labels[:2] for sample in samples} == {("3", "GPU-1")}
    values = {(sample.metric, sample.labels[2:]): sample.value for sample in samples}
    assert values[catalogue.GPU_UTILIZATION, ()] == 0.9
    assert values[catalogue.GPU_CLOCK, ("sm",)] == 1.5e9
    assert values[catalogue.GPU_TEMPERATURE, ("gpu",)] == 0.0
    assert (catalogue.GPU_CLOCK, ("memory",)) not in values
    assert (catalogue.GPU_POWER, ("average",)) not in values


def test_nothing_new_says_nothing() -> None:
    activity = GpuActivity("0", UUID)
    assert told(activity) == {}
    feed(activity, [ACTIVE])
    assert told(activity)
    assert told(activity) == {}


def test_the_last_rows_time_is_told_in_unix_time_and_every_row_counts() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{}] * 7, from_s=50.0)
    values = told(activity)
    assert values["gpumon_gpu_samples_total", ()] == 7
    assert values["gpumon_gpu_last_sample_timestamp_seconds", ()] == pytest.approx(1050.6)


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.floats(0, 1),
            st.none() | st.floats(0, 1),
            st.none() | st.floats(0, 1),
            st.none() | st.floats(0.001, 3.0),
        ),
        max_size=60,
    )
)
def test_integrals_histograms_and_bound_states_are_plain_sums(
    rows: list[tuple[float | None, float | None, float | None, float | None]],
) -> None:
    activity = GpuActivity("0", UUID, longest_gap_s=1.0)
    columns = (Column.SM_ACTIVE, Column.DRAM_ACTIVE, Column.TENSOR_ACTIVE, Column.GPM_INTERVAL)
    feed(activity, [{c: v for c, v in zip(columns, r, strict=True) if v is not None} for r in rows])
    counted = [r for r in rows if r[3] is not None and r[3] <= 1.0]
    values = told(activity)
    for position, name in ((0, "sm"), (1, "dram"), (2, "tensor")):
        read = [(r[position], r[3]) for r in counted if r[position] is not None]
        total = values.get((f"gpumon_gpu_{name}_active_seconds_total", ()))
        assert (total is None) == (not read)
        if total is not None:
            assert total == pytest.approx(sum(a * b for a, b in read if a is not None and b is not None))
        if name != "tensor":
            seen = values.get((f"gpumon_gpu_{name}_active_sample_ratio", ()))
            assert (seen is None) == (not read)
            if isinstance(seen, Distribution):
                assert sum(seen.counts) == len(read)
                assert seen.total == pytest.approx(sum(a for a, _ in read if a is not None))
    both = [r[3] for r in counted if r[0] is not None and r[1] is not None]
    bound = [value for (name, _), value in values.items() if name == "gpumon_gpu_bound_seconds_total"]
    if both:
        assert len(bound) == len(catalogue.BOUND_STATES)
        assert sum(v for v in bound if isinstance(v, float)) == pytest.approx(sum(s for s in both if s is not None))


@pytest.mark.parametrize(
    ("sm", "dram", "open_requests", "state"),
    [
        (0.0, 0.0, None, "idle"),
        (0.29, 0.29, False, "idle"),
        (0.29, 0.29, True, "starved"),
        (0.3, 0.0, True, "balanced"),
        (0.59, 0.6, None, "memory"),
        (0.9, 0.95, None, "memory"),
        (0.95, 0.9, None, "balanced"),
        (0.6, 0.59, None, "compute"),
        (0.0, 1.0, True, "memory"),
    ],
)
def test_what_binds_the_gpu(sm: float, dram: float, open_requests: bool | None, state: str) -> None:
    ask = None if open_requests is None else lambda uuid: uuid == UUID and bool(open_requests)
    activity = GpuActivity("0", UUID, requests_open=ask)
    feed(activity, [{Column.SM_ACTIVE: sm, Column.DRAM_ACTIVE: dram, Column.GPM_INTERVAL: 0.2}])
    values = told(activity)
    assert {labels[0] for (name, labels), v in values.items() if name == "gpumon_gpu_bound_seconds_total" and v} == {
        state
    }


# --- totals that never fall -------------------------------------------------------------------------------------------

COUNTED = {
    Column.ENERGY: ("gpumon_gpu_energy_joules_total", ()),
    Column.PCIE_TX: ("gpumon_gpu_pcie_bytes_total", ("tx",)),
    Column.NVLINK_RX: ("gpumon_gpu_nvlink_bytes_total", ("rx",)),
    Column.THROTTLED_SW_THERMAL: ("gpumon_gpu_throttled_seconds_total", ("sw_thermal",)),
    Column.THROTTLED_LOW_UTILIZATION: ("gpumon_gpu_throttled_seconds_total", ("low_utilization",)),
}
CELLS = (
    *COUNTED,
    Column.REASONS,
    Column.PCIE_TX_RATE,
    Column.NVLINK_RX_RATE,
    Column.GPM_INTERVAL,
    Column.SM_ACTIVE,
    Column.DRAM_ACTIVE,
    Column.POWER_AVERAGE,
    Column.POWER_INSTANT,
)


def cell(column: Column) -> st.SearchStrategy[float | None]:
    if column is Column.REASONS:
        return st.none() | st.integers(0, 0x7FF).map(float)
    if column is Column.GPM_INTERVAL:
        return st.none() | st.floats(0.0, 2.0)
    if column in (Column.SM_ACTIVE, Column.DRAM_ACTIVE):
        return st.none() | st.floats(0.0, 1.0)
    return st.none() | st.floats(0.0, 1e15) | st.just(0.0)


@settings(max_examples=150)
@given(
    rows=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.booleans(), st.fixed_dictionaries({c: cell(c) for c in CELLS})), max_size=40
    )
)
def test_no_total_ever_falls_whatever_the_hardware_says_and_leaves_out(
    rows: list[tuple[float, bool, dict[Column, float | None]]],
) -> None:
    activity = GpuActivity("0", UUID)
    highest: dict[Key, float] = {}
    at_s = 0.0
    for gap_s, publish, values in rows:
        at_s += gap_s
        activity.add(round(at_s * 1e9), row({c: v for c, v in values.items() if v is not None}))
        if not publish:
            continue
        for sample in list(activity.samples(lambda s: s)):
            if sample.metric.kind is Kind.GAUGE:
                continue
            key = (sample.metric.name, sample.labels)
            value = sample.value
            total = float(sum(value.counts)) if isinstance(value, Distribution) else value
            assert total >= highest.get(key, 0.0)
            highest[key] = total


@pytest.mark.parametrize("column", COUNTED)
def test_a_hardware_counter_is_absolute_and_goes_on_after_it_fell(column: Column) -> None:
    activity = GpuActivity("0", UUID)
    seen = []
    for number, value in enumerate((500.0, 700.0, 10.0, 30.0)):
        activity.add(number * 10**8, row({column: value}))
        seen.append(told(activity)[COUNTED[column]])
    assert seen == [500.0, 700.0, 710.0, 730.0]


@pytest.mark.parametrize("column", COUNTED)
def test_a_counter_that_is_not_read_any_more_is_not_exported_any_more(column: Column) -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{column: 5.0}])
    assert COUNTED[column] in told(activity)
    feed(activity, [{Column.UTILIZATION: 0.5}], from_s=1.0)
    assert COUNTED[column] not in told(activity)
    feed(activity, [{column: 6.0}], from_s=2.0)
    assert told(activity)[COUNTED[column]] == 6.0


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (Column.SM_ACTIVE, ["gpumon_gpu_sm_active_seconds_total", "gpumon_gpu_sm_active_sample_ratio"]),
        (Column.DRAM_ACTIVE, ["gpumon_gpu_dram_active_seconds_total", "gpumon_gpu_dram_active_sample_ratio"]),
        (Column.TENSOR_ACTIVE, ["gpumon_gpu_tensor_active_seconds_total"]),
        (Column.POWER_INSTANT, ["gpumon_gpu_power_sample_watts"]),
    ],
)
def test_sums_of_what_is_not_read_any_more_stop(column: Column, names: list[str]) -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{column: 0.5, Column.GPM_INTERVAL: 0.1}])
    assert {(name, ()) for name in names} <= told(activity).keys()
    feed(activity, [{Column.UTILIZATION: 0.5}], from_s=1.0)
    assert not {(name, ()) for name in names} & told(activity).keys()


# --- throttling -------------------------------------------------------------------------------------------------------


def throttled(activity: GpuActivity) -> dict[str, float | Distribution]:
    return {key[1][0]: v for key, v in told(activity).items() if key[0] == "gpumon_gpu_throttled_seconds_total"}


def test_without_hardware_counters_the_bit_mask_is_summed() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.REASONS: float(0x20 | 0x4)}] * 6 + [{Column.REASONS: float(0x4)}] * 5)
    values = throttled(activity)
    assert values["sw_thermal"] == pytest.approx(0.5)
    assert values["sw_power_cap"] == pytest.approx(1.0)
    assert values["hw_thermal"] == 0.0
    assert "low_utilization" not in values  # no bit says that


def test_a_hardware_counter_that_comes_later_goes_on_from_what_was_summed() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.REASONS: float(0x20)}] * 51)
    assert throttled(activity)["sw_thermal"] == pytest.approx(5.0)
    feed(activity, [{Column.REASONS: 0.0, Column.THROTTLED_SW_THERMAL: 2.0}], from_s=5.1)
    assert throttled(activity)["sw_thermal"] == pytest.approx(5.0)
    feed(activity, [{Column.REASONS: 0.0, Column.THROTTLED_SW_THERMAL: 2.75}], from_s=5.2)
    assert throttled(activity)["sw_thermal"] == pytest.approx(5.75)


def test_a_hardware_counter_that_stumbles_is_not_replaced_by_the_mask() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.REASONS: 0.0}])  # the fields failed at first
    feed(activity, [{Column.REASONS: 0.0, Column.THROTTLED_SW_THERMAL: 500.0}], from_s=0.1)
    assert throttled(activity)["sw_thermal"] == 500.0
    feed(activity, [{Column.REASONS: float(0x20)}], from_s=0.2)
    assert "sw_thermal" not in throttled(activity)


def test_idle_and_clocks_held_by_wish_are_no_throttling() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.REASONS: float(0x1 | 0x2 | 0x100)}] * 10)
    assert not any(throttled(activity).values())


def test_active_reasons_are_those_of_the_newest_mask() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.REASONS: float(0x20)}, {Column.REASONS: float(0x8 | 0x400)}])
    active = {k[1][0] for k, v in told(activity).items() if k[0] == "gpumon_gpu_throttle_active" and v == 1.0}
    assert active == {"hw_slowdown", "reliability"}


# --- gaps and fall-backs ----------------------------------------------------------------------------------------------


def test_a_gap_is_not_filled() -> None:
    activity = GpuActivity("0", UUID, longest_gap_s=1.0)
    feed(activity, [{Column.REASONS: float(0x20)}] * 2)
    feed(activity, [{Column.REASONS: float(0x20), **ACTIVE, Column.GPM_INTERVAL: 60.0}], from_s=60.0)
    values = told(activity)
    assert values["gpumon_gpu_throttled_seconds_total", ("sw_thermal",)] == pytest.approx(0.1)
    assert ("gpumon_gpu_sm_active_seconds_total", ()) not in values
    assert values["gpumon_gpu_sm_active_ratio", ()] == 0.5  # the mean over the gap is true all the same


def test_a_clock_that_goes_back_adds_nothing() -> None:
    activity = GpuActivity("0", UUID)
    activity.add(10 * 10**9, row({Column.REASONS: float(0x20)}))
    activity.add(9 * 10**9, row({Column.REASONS: float(0x20)}))
    assert throttled(activity)["sw_thermal"] == 0.0


def test_bytes_are_the_hardwares_where_it_counts_and_summed_rates_where_not() -> None:
    activity = GpuActivity("0", UUID)
    rates = {Column.PCIE_TX_RATE: 1000.0, Column.NVLINK_TX_RATE: 50.0, Column.GPM_INTERVAL: 0.5}
    feed(activity, [{**rates, Column.PCIE_TX: 7.0}] * 4)
    values = told(activity)
    assert values["gpumon_gpu_pcie_bytes_total", ("tx",)] == 7.0
    assert values["gpumon_gpu_nvlink_bytes_total", ("tx",)] == pytest.approx(100.0)


def test_power_is_observed_once_a_row_instant_before_average() -> None:
    activity = GpuActivity("0", UUID)
    feed(activity, [{Column.POWER_INSTANT: 300.0, Column.POWER_AVERAGE: 200.0}, {Column.POWER_AVERAGE: 100.0}, {}])
    seen = told(activity)["gpumon_gpu_power_sample_watts", ()]
    assert isinstance(seen, Distribution)
    assert (sum(seen.counts), seen.total) == (2, 400.0)


def test_another_index_keeps_the_totals() -> None:
    activity = GpuActivity("4", UUID)
    feed(activity, [ACTIVE])
    activity.rename("3")
    feed(activity, [ACTIVE], from_s=0.1)
    samples = {sample.metric: sample for sample in activity.samples(lambda s: s)}
    assert samples[catalogue.GPU_SM_ACTIVE_SECONDS].labels == ("3", "GPU-1")
    assert samples[catalogue.GPU_SM_ACTIVE_SECONDS].value == pytest.approx(0.1)
