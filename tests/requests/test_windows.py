"""The last hour in minutes: against a plain model, over an hour's end, and when the pool is too small."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumon.requests.logbuckets import SIZE
from gpumon.requests.windows import MINUTES, WIDTH_S, Ladder, Signal, Windows, merged

SLOTS = 2
Point = tuple[int, int, float, int, int]
"""Slot, position, time, log bucket, weight."""

points = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.floats(0.0, 9000.0), st.integers(0, 3), st.integers(1, 5)),
    max_size=30,
)


def put(windows: Windows, given: list[Point], signal: Signal = Signal.INTER_TOKEN, *, weighed: bool = True) -> None:
    slots, positions, at_s, logs, weights = (np.array(column) for column in zip(*given, strict=True))
    places = windows.places(
        slots.astype(np.intp), at_s.astype(np.float64), logs.astype(np.intp), weights if weighed else None
    )
    windows.insert(signal, Ladder.CONCURRENCY, positions.astype(np.intp), places)


def held(windows: Windows, since_s: float, at_s: float) -> dict[tuple[int, int, float, int], int]:
    return {
        (row.slot, row.position, row.start_s, log): int(row.counts[log])
        for row in windows.rows(Ladder.CONCURRENCY, since_s, at_s)
        for log in np.flatnonzero(row.counts).tolist()
    }


@given(st.lists(points.filter(bool), min_size=1, max_size=6))
def test_rows_are_what_a_plain_model_holds(batches: list[list[Point]]) -> None:
    windows = Windows(SLOTS, 10_000)
    model: Counter[tuple[int, int, float, int]] = Counter()
    newest = late = 0
    for batch in batches:
        put(windows, batch)
        newest = max(newest, *(int(point[2] // WIDTH_S) for point in batch))
        for slot, position, at_s, log, weight in batch:
            if at_s // WIDTH_S > newest - MINUTES:
                model[slot, position, at_s // WIDTH_S * WIDTH_S, log] += weight
            else:
                late += weight
        for key in [key for key in model if key[2] // WIDTH_S <= newest - MINUTES]:
            del model[key]
    assert held(windows, 0.0, newest * WIDTH_S) == dict(model)
    assert windows.late == late
    assert windows.evicted == 0
    assert windows.used == len({key[:3] for key in model})


def test_minutes_asked_for_are_those_that_end_later() -> None:
    windows = Windows(SLOTS, 100)
    put(windows, [(0, 0, 30.0, 5, 1), (0, 0, 90.0, 5, 1)])
    assert [start for _, _, start, _ in held(windows, 59.0, 100.0)] == [0.0, 60.0]
    assert [start for _, _, start, _ in held(windows, 60.0, 100.0)] == [60.0]
    # Sixty minutes, the current one among them.
    assert held(windows, 0.0, 59.9 + 3600.0) == {(0, 0, 60.0, 5): 1}
    assert held(windows, 0.0, 60.0 + 3600.0) == {}


def test_an_hour_later_every_row_is_free_again_and_empty() -> None:
    windows = Windows(SLOTS, 100)
    put(windows, [(0, i, 10.0, 3, 1) for i in range(7)])
    put(windows, [(1, 6, 10.0 + 3600.0, 3, 1)])
    assert windows.used == 1
    put(windows, [(0, 0, 3600.0, 4, 1)])
    assert held(windows, 0.0, 3700.0) == {(1, 6, 3600.0, 3): 1, (0, 0, 3600.0, 4): 1}


def test_a_full_pool_loses_the_oldest_minute_and_counts_it() -> None:
    windows = Windows(1, 0)
    for minute in range(6):
        put(windows, [(0, position, minute * 60.0, 0, 2) for position in range(7)])
    assert windows.used <= 34  # one minute of everything
    assert windows.evicted == 2 * 7 * 2
    assert {start for _, _, start, _ in held(windows, 0.0, 300.0)} == {120.0, 180.0, 240.0, 300.0}


def test_what_is_older_than_all_of_a_full_pool_does_not_push_anything_out() -> None:
    windows = Windows(1, 0)
    for minute in range(10, 14):
        put(windows, [(0, position, minute * 60.0, 0, 1) for position in range(7)])
    put(windows, [(0, position, 14 * 60.0, 0, 1) for position in range(6)])
    assert windows.used == 34
    before = held(windows, 0.0, 900.0)
    put(windows, [(0, 0, 60.0, 0, 3)])
    assert held(windows, 0.0, 900.0) == before
    assert windows.evicted == 3


def test_forgetting_a_series_leaves_the_others() -> None:
    windows = Windows(SLOTS, 100)
    put(windows, [(0, 1, 10.0, 3, 1), (1, 1, 10.0, 3, 1)])
    windows.clear(0)
    assert held(windows, 0.0, 20.0) == {(1, 1, 0.0, 3): 1}
    assert windows.used == 1


def test_signals_and_ladders_are_apart() -> None:
    windows = Windows(SLOTS, 100)
    put(windows, [(0, 1, 10.0, 3, 1)], Signal.FIRST_TOKEN, weighed=False)
    put(windows, [(0, 1, 10.0, 4, 2)])
    rows = windows.rows(Ladder.CONCURRENCY, 0.0, 20.0)
    assert [(row.signal, int(row.counts.sum())) for row in rows] == [(Signal.FIRST_TOKEN, 1), (Signal.INTER_TOKEN, 2)]
    assert windows.rows(Ladder.CONTEXT, 0.0, 20.0) == []


def test_merging_adds_up_a_minute() -> None:
    windows = Windows(SLOTS, 100)
    put(windows, [(0, 1, 10.0, 3, 1), (0, 2, 10.0, 3, 4), (0, 2, 70.0, 5, 1), (1, 0, 10.0, 3, 1)])
    rows = merged(windows.rows(Ladder.CONCURRENCY, 0.0, 80.0))
    assert [(row.slot, row.start_s, int(row.counts.sum())) for row in rows] == [(0, 0.0, 5), (0, 60.0, 1), (1, 0.0, 1)]


def test_memory_is_what_was_said() -> None:
    windows = Windows(17, 5000)
    assert windows.capacity_bytes < 8 << 20
    assert SIZE * 4 == 1444
