"""Token times of many requests as one column."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.token_times import TokenTimes, token_times


def told(*requests: tuple[int, float, list[int]]) -> TokenTimes:
    """Of each request its begin by the server's clock and in steady seconds, and its token times."""
    return token_times(
        [np.array(times, dtype=np.int64) for _, _, times in requests],
        np.array([start_ns for start_ns, _, _ in requests], dtype=np.int64),
        np.array([start_s for _, start_s, _ in requests]),
    )


def test_tokens_are_told_in_steady_time_and_gaps_end_where_a_request_does() -> None:
    begin_ns = 1_800_000_000 * 10**9
    one = (begin_ns, 1000.0, [begin_ns + 100_000_000, begin_ns + 150_000_000, begin_ns + 250_000_000])
    other = (begin_ns + 10**9, 1001.0, [begin_ns + 10**9, begin_ns + 10**9 + 20_000_000])
    found = told(one, other)
    np.testing.assert_allclose(found.made_s, [1000.1, 1000.15, 1000.25, 1001.0, 1001.02])
    assert found.is_gap.tolist() == [True, True, False, True]
    assert found.gaps_ns[found.is_gap].tolist() == [50_000_000, 100_000_000, 20_000_000]
    assert found.lengths.tolist() == [3, 2]


def test_one_token_has_no_gap() -> None:
    found = told((0, 5.0, [7]))
    assert (len(found.made_s), len(found.gaps_ns), len(found.is_gap)) == (1, 0, 0)
    assert told((0, 5.0, [7]), (0, 6.0, [8])).is_gap.tolist() == [False]


@given(st.lists(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=6), min_size=1, max_size=5))
def test_every_gap_is_of_one_request(times: list[list[int]]) -> None:
    found = told(*((0, 0.0, each) for each in times))
    gaps = [later - earlier for each in times for earlier, later in pairwise(each)]
    assert found.gaps_ns[found.is_gap].tolist() == gaps
    assert len(found.made_s) == sum(found.lengths)
