"""Conditions that hold for a while, against a plain reading of the definition; and robust baselines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.detect.hysteresis import Baseline, Held

LOOKS = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60)


@given(LOOKS, st.integers(0, 6), st.integers(0, 6))
def test_what_holds_is_what_was_true_for_long_enough_and_not_untrue_for_too_long(
    looks: list[tuple[bool, int]], on_s: int, off_s: int
) -> None:
    held: Held[str] = Held(on_s=on_s, off_s=off_s)
    at_s = 0.0
    history: list[tuple[float, bool]] = []
    since_s: float | None = None
    holds = False
    for is_true, dt_s in looks:
        at_s += dt_s
        history.append((at_s, is_true))
        if is_true and since_s is None:
            since_s = at_s
        if is_true and since_s is not None:
            holds = holds or at_s - since_s >= on_s
        last_s = max((time for time, value in history if value), default=0.0)
        if not is_true and (not holds or at_s - last_s >= off_s):
            since_s, holds = None, False
        assert held.feed("it", is_true, at_s) == (since_s if holds else None)


def test_a_reading_of_the_time_before_counts_from_where_that_began() -> None:
    held: Held[str] = Held(on_s=10.0, off_s=0.0)
    assert held.feed("it", True, 105.0, 100.0) is None
    assert held.feed("it", True, 110.0, 105.0) == 100.0
    assert held.feed("at once", True, 110.0, 100.0) == 100.0
    assert held.feed("not from later", True, 110.0, 120.0) is None
    assert held.feed("not from later", True, 120.0) == 110.0


def test_what_is_gone_is_forgotten() -> None:
    held: Held[str] = Held(on_s=0.0, off_s=100.0)
    assert held.feed("a", True, 1.0) == 1.0
    assert held.feed("b", True, 1.0) == 1.0
    held.keep(["b"])
    assert held.feed("a", True, 5.0) == 5.0
    assert held.feed("b", True, 5.0) == 1.0


def test_a_baseline_is_known_from_enough_values_and_few_outliers_move_nothing() -> None:
    baseline = Baseline(size=10, least=3)
    assert (baseline.median, baseline.spread, baseline.known) == (None, None, False)
    for value in (9.0, 10.0, 11.0):
        baseline.feed(value)
    assert baseline.median == 10.0
    assert baseline.spread == pytest.approx(1.4826)
    baseline.feed(1e9)
    assert baseline.median == 10.5
    for _ in range(100):
        baseline.feed(20.0)
    assert len(baseline) == 10
    assert (baseline.median, baseline.spread) == (20.0, 0.0)
    baseline.clear()
    assert baseline.median is None
