"""Arithmetic against numpy's own and against what is known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpumon.explain.diagnosis import figures

VALUES = st.floats(-1e6, 1e6, width=32) | st.just(math.nan)


@given(arrays.arrays(np.float64, (30, 11), elements=VALUES), arrays.arrays(np.float64, 30, elements=VALUES))
def test_correlations_are_those_of_numpy_over_the_rows_that_both_know(table: np.ndarray, values: np.ndarray) -> None:
    r, counts = figures.correlations(table, values, least=3)
    for column in range(table.shape[1]):
        both = np.isfinite(table[:, column]) & np.isfinite(values)
        assert counts[column] == both.sum()
        x, y = table[both, column], values[both]
        if math.isfinite(r[column]):
            assert abs(r[column] - np.corrcoef(x, y)[0, 1]) < 1e-5
        else:
            flat = [len(part) < 3 or part.std() <= 2e-5 * abs(part.mean()) + 1e-300 for part in (x, y)]
            assert any(flat)


@pytest.mark.parametrize(("sign", "r"), [(1.0, 1.0), (-1.0, -1.0)])
def test_a_line_has_its_slope(sign: float, r: float) -> None:
    x = np.arange(30.0)
    x[3] = math.nan
    told = figures.line(x, 5.0 + sign * 2.0 * x)
    assert told == pytest.approx((r, sign * 2.0, 29))


def test_too_few_or_constant_values_have_no_correlation() -> None:
    assert figures.line(np.arange(19.0), np.arange(19.0)) == (None, None, 19)
    assert figures.line(np.arange(20.0), np.full(20, 0.1)) == (None, None, 20)
    assert figures.line(np.full(20, 1.4e9), np.arange(20.0)) == (None, None, 20)


def test_an_effect_is_the_difference_in_pooled_deviations() -> None:
    some, others = np.array([[4.0], [5.0], [6.0]]), np.array([[1.0], [2.0], [3.0]])
    assert figures.effects(some, others)[0] == pytest.approx(3.0 / math.sqrt(2.0 / 3.0))
    assert figures.effects(others, some)[0] == pytest.approx(-3.0 / math.sqrt(2.0 / 3.0))


def test_what_differs_without_varying_has_the_largest_effect_and_what_does_not_has_none() -> None:
    assert figures.effects(np.full((3, 1), 2.0), np.full((3, 1), 1.0))[0] == figures.EFFECT_MOST
    assert figures.effects(np.full((3, 1), 1.0), np.full((3, 1), 2.0))[0] == -figures.EFFECT_MOST
    assert figures.effects(np.full((3, 1), 1.0), np.full((3, 1), 1.0))[0] == 0.0


def test_an_effect_needs_a_few_values_on_both_sides() -> None:
    assert math.isnan(figures.effects(np.array([[1.0], [math.nan], [2.0]]), np.array([[1.0], [2.0], [3.0]]))[0])
    assert math.isnan(figures.effects(np.zeros((0, 1)), np.ones((5, 1)))[0])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_the_value_of_its_rank(values: list[float], share: float) -> None:
    expected = sorted(values)[max(math.ceil(round(share * len(values), 6)), 1) - 1]
    assert figures.quantile(np.array([*values, math.nan, math.inf]), share) == expected


def test_of_nothing_nothing_is_known() -> None:
    assert figures.quantile(np.array([math.nan]), 0.5) is None
    assert figures.mean(np.array([math.inf])) is None
    assert figures.known(math.nan) is figures.known(math.inf) is None
    assert np.isnan(figures.means(np.full((4, 2), math.nan))).all()
    assert len(figures.means(np.zeros((4, 0)))) == 0
