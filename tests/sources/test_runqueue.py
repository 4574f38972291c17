"""The run-queue counter against threads that come, go, are reborn, unreadable or too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumon.sources.runqueue import RunQueueCounter


def update(counter: RunQueueCounter, waits: dict[int, int], *, partial: bool = False) -> int:
    counter.update(waits, waits, partial=partial)
    return counter.total_ns


def test_the_first_reading_is_the_kernels_total() -> None:
    assert update(RunQueueCounter(), {1: 10, 2: 5}) == 15


def test_what_an_ended_thread_waited_stays_counted() -> None:
    counter = RunQueueCounter()
    update(counter, {1: 10, 2: 5})
    assert update(counter, {1: 12}) == 17
    assert update(counter, {1: 12}) == 17


def test_a_new_thread_counts_from_its_start() -> None:
    counter = RunQueueCounter()
    update(counter, {1: 10})
    assert update(counter, {1: 10, 3: 4}) == 14


def test_a_reborn_thread_number_is_a_new_thread() -> None:
    counter = RunQueueCounter()
    update(counter, {1: 10, 2: 100})
    assert update(counter, {1: 10, 2: 3}) == 113


def test_a_thread_that_could_not_be_read_once_is_not_added_twice() -> None:
    counter = RunQueueCounter()
    counter.update({1: 10, 2: 100}, [1, 2], partial=False)
    counter.update({1: 10}, [1, 2], partial=False)
    counter.update({1: 10, 2: 101}, [1, 2], partial=False)
    assert counter.total_ns == 111


def test_a_thread_that_was_there_unasked_brings_nothing_from_before() -> None:
    counter = RunQueueCounter()
    update(counter, {1: 10}, partial=True)
    assert update(counter, {1: 10, 2: 1000}, partial=False) == 10
    assert update(counter, {1: 10, 2: 1007}, partial=False) == 17


passes = st.lists(st.tuples(st.dictionaries(st.integers(1, 6), st.integers(0, 10**15)), st.booleans()), max_size=12)


@given(passes)
def test_it_never_falls_whatever_is_read(readings: list[tuple[dict[int, int], bool]]) -> None:
    counter = RunQueueCounter()
    before = 0
    for waits, partial in readings:
        after = update(counter, waits, partial=partial)
        assert after >= before
        before = after
