from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import RATIO_BOUNDS
from gpumon.sources.gpu_state import BYTES_MAX, CarryCounter, Cursor, GpuState, Histogram, possible


@pytest.mark.parametrize(
    "value",
    [
        *(0xFFFFFFFF, 0x7FFFFFF0, 0x7FFFFFF3, 0x7FFFFFFFFFFFFFF0, (1 << 63) - 1, (1 << 64) - 1, 140737488355328.0),
        *(math.nan, math.inf, -math.inf),
    ],
)
def test_sentinels_are_impossible_however_wide_the_range(value: float) -> None:
    assert not possible(value, -1e300, 1e300)


@pytest.mark.parametrize(("value", "answer"), [(-1, False), (0, True), (100, True), (100.01, False)])
def test_range_includes_its_ends(value: float, answer: bool) -> None:
    assert possible(value, 0, 100) is answer


def test_no_memory_of_one_gpu_is_out_of_range_and_the_blank_double_is() -> None:
    assert possible(288 * 2**30, 0, BYTES_MAX)
    assert not possible(2.0**47, 0, BYTES_MAX)


def test_counter_begins_at_the_absolute_value_and_goes_on_over_a_reset() -> None:
    counter = CarryCounter()
    assert [counter.feed(raw) for raw in (100, 100, 130, 5, 9, 0)] == [100, 100, 130, 135, 139, 139]


@given(st.lists(st.integers(0, 2**48), max_size=50))
def test_counter_never_falls(raws: list[int]) -> None:
    counter = CarryCounter()
    totals = [counter.feed(raw) for raw in raws]
    assert totals == sorted(totals)
    assert all(total >= raw for total, raw in zip(totals, raws, strict=True))


def test_counters_of_a_gpu_are_apart() -> None:
    state = GpuState()
    assert state.carry("a", 10) == 10
    assert state.carry("b", 3) == 3
    assert state.carry("a", 4) == 14


@given(st.lists(st.floats(0, 1), max_size=30))
def test_histogram_counts_each_value_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    counts, total, _ = histogram.distribution()
    for i, bound in enumerate(RATIO_BOUNDS):
        assert sum(counts[: i + 1]) == sum(value <= bound for value in values)
    assert sum(counts) == len(values)
    assert total == pytest.approx(sum(values))


def test_cursor_moves_only_forward() -> None:
    cursor = Cursor(quiet_s=30.0)
    assert cursor.since(1000.0) == 0
    cursor.advance(1000.0, 50)
    cursor.advance(1001.0, 40)
    assert cursor.since(1002.0) == 50


def test_cursor_begins_again_when_nothing_passes_it_for_long() -> None:
    cursor = Cursor(quiet_s=30.0)
    cursor.advance(1000.0, 10**18)
    assert cursor.since(1030.0) == 10**18
    assert cursor.since(1030.1) == 0
    cursor.advance(1030.1, 77)
    assert cursor.since(1031.0) == 77
