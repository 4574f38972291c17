"""Medians and quantiles against those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.quantiles import median, medians, quantiles

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=70)


@given(VALUES)
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)


@given(VALUES, st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]) | st.floats(0.0, 1.0), max_size=4))
def test_quantiles_are_those_of_numpy_to_the_last_digit(values: list[float], shares: list[float]) -> None:
    assert quantiles(np.array(values), shares) == np.quantile(values, shares).tolist()


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), min_size=1, max_size=20))
def test_medians_of_parts_are_those_of_each(parts: list[list[float]]) -> None:
    found = medians(np.concatenate([np.array(part) for part in parts]), np.array([len(part) for part in parts]))
    assert found.tolist() == pytest.approx([float(np.median(part)) for part in parts], rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [1.0], [2.0, 1.0]])
def test_the_values_stay_as_they_are(values: list[float]) -> None:
    given_in = np.array(values)
    median(given_in)
    quantiles(given_in, [0.5])
    assert given_in.tolist() == values
