"""Log-spaced buckets: error of quantiles, merging, and exact buckets of classic histograms."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.requests.logbuckets import RELATIVE_ERROR, SIZE, ClassicBuckets, log_buckets, quantiles

SHARES = (0.5, 0.95, 0.99)
BOUNDS = (
    catalogue.INTER_TOKEN_BOUNDS,
    catalogue.FIRST_TOKEN_BOUNDS,
    catalogue.PHASE_BOUNDS,
    catalogue.REQUEST_BOUNDS,
)

durations = st.lists(st.floats(1e-4, 600.0), min_size=1, max_size=200)
edges = [2.0 ** (i / 16) for i in range(-230, 160)]


def row_of(values: list[float]) -> NDArray[np.int64]:
    return np.bincount(log_buckets(np.array(values)), minlength=SIZE)


@given(durations)
def test_quantiles_are_as_near_as_is_said(values: list[float]) -> None:
    found = quantiles(row_of(values)[None, :], SHARES)[0]
    for share, quantile in zip(SHARES, found, strict=True):
        true = sorted(values)[math.ceil(share * len(values)) - 1]
        assert abs(quantile - true) <= true * (RELATIVE_ERROR + 1e-9)


def test_the_error_that_is_said_is_reached() -> None:
    assert 0.0218 < RELATIVE_ERROR < 0.022
    edge = 2.0 ** (-6)
    assert quantiles(row_of([edge])[None, :], (0.5,))[0, 0] == pytest.approx(edge / (1 + RELATIVE_ERROR))


@given(durations, durations)
def test_rows_merge_by_addition(some: list[float], others: list[float]) -> None:
    assert (row_of(some) + row_of(others)).tolist() == row_of(some + others).tolist()


def test_what_is_beyond_the_ends_is_in_the_last_buckets() -> None:
    assert log_buckets(np.array([0.0, 1e-12, 1e-5])).tolist() == [0, 0, 0]
    assert log_buckets(np.array([609.1, 3600.0, 1e9])).tolist() == [SIZE - 1] * 3
    assert log_buckets(np.array([1e-4, 609.0])).tolist() == [0, SIZE - 1]


def test_a_bucket_is_that_of_native_histograms_of_schema_4() -> None:
    # Bucket 0 of schema 4 is (2^(-1/16), 1], at position 212 here.
    assert log_buckets(np.array([1.0, 2.0, 0.96, 0.957])).tolist() == [212, 228, 212, 211]


def test_an_empty_row_has_no_quantiles_and_spoils_no_other() -> None:
    found = quantiles(np.array([row_of([0.01]), np.zeros(SIZE, dtype=np.int64)]), SHARES)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[0]).all()
    assert quantiles(np.empty((0, SIZE), dtype=np.int64), SHARES).shape == (0, 3)


@pytest.mark.parametrize("bounds", BOUNDS, ids=["inter_token", "first_token", "phase", "request"])
@given(values=st.lists(st.floats(0.0, 4000.0) | st.sampled_from(edges), max_size=100))
@example(values=[])
def test_classic_buckets_are_exact_at_their_bounds(bounds: tuple[float, ...], values: list[float]) -> None:
    for bound in bounds:
        values = [*values, bound, math.nextafter(bound, 0.0), math.nextafter(bound, math.inf)]
    seconds = np.array(values)
    found = ClassicBuckets(bounds).of(seconds, log_buckets(seconds))
    assert found.tolist() == [bisect_left(bounds, value) for value in values]


@pytest.mark.parametrize("bounds", BOUNDS, ids=["inter_token", "first_token", "phase", "request"])
def test_whole_nanoseconds_fall_on_the_bounds(bounds: tuple[float, ...]) -> None:
    classic = ClassicBuckets(bounds)
    for position, bound in enumerate(bounds):
        seconds = np.array([round(bound * 1e9) / 1e9])
        assert classic.of(seconds, log_buckets(seconds)).tolist() == [position]
