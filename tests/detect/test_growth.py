"""The rule of a cliff: a ratio, and neither by chance nor without the median."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.detect.growth import ALIKE, MEDIAN, P95, RATIO, SHARE, Pair, allowed, is_cliff, shares
from gpumon.requests.windows import Signal

FIRST = MEDIAN[Signal.FIRST_TOKEN]


def steady(value_s: float) -> P95:
    """A rung whose requests are all alike."""
    return P95(value_s, value_s, value_s, value_s, 5)


@pytest.mark.parametrize(("beyond_s", "found"), [(0.249, False), (0.251, True)])
def test_the_ratio_decides_where_all_are_alike(beyond_s: float, found: bool) -> None:
    assert is_cliff(Pair(steady(0.1), steady(beyond_s)), RATIO, FIRST) is found


def test_what_may_be_chance_is_no_cliff() -> None:
    wide = P95(0.15, 0.3, 0.5, 0.28, 5)
    assert not is_cliff(Pair(steady(0.1), wide), RATIO, FIRST)
    assert is_cliff(Pair(steady(0.1), wide._replace(low_s=0.21)), RATIO, FIRST)


def test_some_slow_requests_are_no_cliff() -> None:
    assert not is_cliff(Pair(steady(0.1), P95(0.3, 0.3, 0.3, 0.2, 5)), RATIO, FIRST)


def test_more_is_allowed_where_the_work_grows_more() -> None:
    assert allowed(RATIO, 2.0) == RATIO
    assert allowed(RATIO, 4.0) == 2 * RATIO
    assert not is_cliff(Pair(steady(0.1), steady(0.4)), allowed(RATIO, 4.0), FIRST)


@given(st.integers(1, 10**9), st.sampled_from(sorted(ALIKE.values())))
def test_the_ends_enclose_the_quantile_and_come_closer_with_more(observations: int, alike: float) -> None:
    low, share, high, median = shares(observations, alike)
    assert 0.0 <= low <= share <= high <= 1.0
    assert (share, median) == (SHARE, 0.5)
    assert shares(4 * observations, alike)[0] >= low
