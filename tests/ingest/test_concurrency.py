"""Concurrency at a moment equals a count over the intervals; forgetting the oldest changes no later answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumon.ingest.concurrency import Concurrency

TIMES = st.integers(0, 200)
INTERVALS = st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair) + 1)), max_size=40)


@given(INTERVALS, st.lists(TIMES, max_size=10))
def test_equals_a_plain_count(intervals: list[tuple[int, int]], begun: list[int]) -> None:
    concurrency = Concurrency()
    for start, end in intervals:
        concurrency.add(start, end)
    for start in begun:
        assert concurrency.begin(start)
    for at in range(0, 210, 7):
        expected = sum(start <= at < end for start, end in intervals) + sum(start <= at for start in begun)
        assert concurrency.at(at) == expected
    for start in begun:
        concurrency.forget(start)
    assert concurrency.open == 0
    assert concurrency.at(100) == sum(start <= 100 < end for start, end in intervals)


@given(INTERVALS)
def test_forgetting_the_oldest_changes_nothing_after_their_end(intervals: list[tuple[int, int]]) -> None:
    concurrency = Concurrency(size=5)
    for start, end in intervals:
        concurrency.add(start, end)
    forgotten = sorted(intervals, key=lambda one: (one[1], one[0]))[: max(0, len(intervals) - 5)]
    since = max((end for _, end in forgotten), default=0)
    for at in range(since, 220, 9):
        assert concurrency.at(at) == sum(start <= at < end for start, end in intervals)


def test_open_requests_without_room_are_not_counted() -> None:
    concurrency = Concurrency(size=2)
    assert [concurrency.begin(i) for i in range(3)] == [True, True, False]
    assert concurrency.open == 2
