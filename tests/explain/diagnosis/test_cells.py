"""A period in cells: what is spread over them is what was there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.diagnosis.cells import MOST, Cells


def test_an_amount_is_spread_evenly_over_its_time() -> None:
    told = Cells(100.0, 140.0).spread(np.array([105.0]), np.array([125.0]), np.array([4.0]))
    assert told.tolist() == [pytest.approx([1.0, 2.0, 1.0, 0.0])]


def test_owners_are_told_apart_and_what_lies_outside_is_left_out() -> None:
    start_s, end_s = np.array([0.0, 30.0, -10.0, 500.0]), np.array([10.0, 40.0, 10.0, 510.0])
    told = Cells(0.0, 40.0).spread(start_s, end_s, np.ones(4), np.array([0, 1, 1, 0]), 2)
    assert told[0] == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert told[1] == pytest.approx([0.5, 0.0, 0.0, 1.0])


def test_what_took_no_time_is_in_the_cell_of_its_moment() -> None:
    told = Cells(0.0, 30.0).spread(np.array([15.0]), np.array([15.0]), np.array([3.0]))
    assert told[0] == pytest.approx([0.0, 3.0, 0.0])


@given(
    st.lists(st.tuples(st.floats(0.0, 1000.0), st.floats(0.0, 500.0), st.floats(0.0, 100.0)), min_size=1, max_size=30)
)
def test_nothing_is_lost_or_added_within_the_period(told: list[tuple[float, float, float]]) -> None:
    start_s, lasted_s, amounts = np.array(told).T
    cells = Cells(0.0, 2000.0)
    assert cells.spread(start_s, start_s + lasted_s, amounts).sum() == pytest.approx(amounts.sum(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("span_s", "count", "width_s"), [(0.0, 1, 10.0), (-5.0, 1, 10.0), (1800.0, 180, 10.0), (7200.0, 360, 20.0)]
)
def test_longer_periods_have_wider_cells(span_s: float, count: int, width_s: float) -> None:
    cells = Cells(50.0, 50.0 + span_s)
    assert (cells.count, cells.width_s) == (count, width_s)
    assert Cells(0.0, 1e9).count <= MOST


def test_moments_outside_count_to_the_nearest_cell() -> None:
    assert Cells(0.0, 30.0).at(np.array([-5.0, 0.0, 9.9, 10.0, 30.0, 99.0])).tolist() == [0, 0, 0, 1, 2, 2]
