"""How much more excess there is with a condition than without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.explain.board import Board
from gpumon.explain.causes import INDEX
from gpumon.explain.group import Key
from gpumon.explain.lift import SECONDS, Slowness, weight
from gpumon.explain.signs import Sign

GPU: Key = ("gpu", "GPU-a")
BEGIN = 5000
Excess = Callable[[int], float]
"""Of the expected time of a second, by second."""


def slowness(
    excess: Excess, seconds: int = SECONDS, *, begin: int = BEGIN, busy: Excess = lambda second: 1.0
) -> Slowness:
    """Ten steps a second, each expected to take 0.1 s."""
    found = Slowness()
    for second in range(seconds):
        moments = begin + second + np.arange(10) / 10 + 0.05
        expected = np.full(10, 0.1 * busy(second))
        found.add(moments, expected * excess(second), expected)
    return found


def board_of(*held: tuple[str, int, int], seconds: int = SECONDS, begin: int = BEGIN, evidence: float = 0.9) -> Board:
    """Causes, each from one second to another."""
    signs = [Sign(cause, GPU, begin + first, begin + last, evidence, 0.5) for cause, first, last in held]
    board = Board()
    board.put(signs, float(begin + seconds))
    return board


def lift(found: Slowness, board: Board, cause: str = "thermal_throttle") -> float | None:
    return found.lifts(board, [GPU]).get(INDEX[cause])


def between(first: int, last: int, high: float, low: float = 0.0) -> Excess:
    return lambda second: high if first <= second < last else low


HOT = ("thermal_throttle", 100, 150)


def test_a_condition_that_costs_has_a_high_lift() -> None:
    found = lift(slowness(between(100, 150, 0.4)), board_of(HOT))
    assert found is not None
    assert found > 5
    assert weight(found) == 1.0


def test_a_condition_that_costs_nothing_has_a_lift_of_one_and_counts_for_little() -> None:
    for base in (0.0, 0.02, 0.3):
        found = lift(slowness(between(0, 0, 0.0, base)), board_of(HOT))
        assert found == pytest.approx(1.0)
        assert weight(found) < 0.3


def test_a_harmless_condition_is_none_where_another_one_costs() -> None:
    both = board_of(HOT, ("power_throttle", 20, 80), ("power_throttle", 160, 220))
    found = slowness(between(100, 150, 0.4, 0.01))
    harmless, costly = lift(found, both, "power_throttle"), lift(found, both)
    assert harmless == pytest.approx(1.0)
    assert costly is not None
    assert costly > 5


def test_two_conditions_at_the_same_time_have_the_same_lift() -> None:
    both = board_of(HOT, ("pcie", 100, 150))
    found = slowness(between(100, 150, 0.4))
    assert lift(found, both) == lift(found, both, "pcie")


def test_the_more_it_costs_the_higher_the_lift() -> None:
    lifts = [lift(slowness(between(100, 150, high, 0.02)), board_of(HOT)) for high in (0.02, 0.05, 0.1, 0.5)]
    known = [each for each in lifts if each is not None]
    assert len(known) == 4
    assert known == sorted(set(known))


def test_a_condition_that_always_held_has_no_lift() -> None:
    assert lift(slowness(between(100, 150, 0.4)), board_of(("thermal_throttle", -50, 350), seconds=360)) is None


def test_a_condition_that_never_held_has_no_lift() -> None:
    found = slowness(between(100, 150, 0.4))
    assert found.lifts(board_of(HOT), [("gpu", "GPU-b")]) == {}
    assert found.lifts(Board(), [GPU]) == {}
    assert found.lifts(board_of(HOT), []) == {}


def test_a_condition_that_held_for_a_moment_only_has_no_lift() -> None:
    assert lift(slowness(between(100, 150, 0.4)), board_of(("thermal_throttle", 100, 101))) is None


def test_a_condition_that_is_unlikely_did_not_hold() -> None:
    assert lift(slowness(between(100, 150, 0.4)), board_of(HOT, evidence=0.2)) is None


def test_time_in_which_the_server_did_nothing_says_nothing() -> None:
    found = slowness(between(100, 150, 0.4), busy=lambda second: float(not 100 <= second < 150))
    assert lift(found, board_of(HOT)) is None


def test_only_the_last_minutes_count() -> None:
    found = slowness(between(100, 150, 0.4))
    assert lift(found, board_of(HOT)) is not None
    for second in range(SECONDS, SECONDS + 200):
        found.add(np.array([BEGIN + second + 0.5]), np.array([0.0]), np.array([1.0]))
    assert lift(found, board_of(HOT, seconds=SECONDS + 200)) is None


@pytest.mark.parametrize("seconds", [40, 100, 299])
def test_right_after_the_machine_began_all_is_as_later(seconds: int) -> None:
    found = slowness(between(20, 30, 0.4), seconds, begin=0)
    high = lift(found, board_of(("thermal_throttle", 20, 30), seconds=seconds, begin=0))
    assert high is not None
    assert high > 5


def test_nothing_was_slow_where_nothing_was_told() -> None:
    found = Slowness()
    found.add(np.zeros(0), np.zeros(0), np.zeros(0))
    assert found.lifts(board_of(HOT), [GPU]) == {}


def test_steps_of_long_ago_change_nothing() -> None:
    found, late = slowness(between(100, 150, 0.4)), slowness(between(100, 150, 0.4))
    old = np.concatenate([BEGIN - np.arange(1, 200), [BEGIN - 1e6, 0.0]])
    late.add(old, np.full(len(old), 1e6), np.full(len(old), 1e6))
    assert lift(late, board_of(HOT)) == lift(found, board_of(HOT))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 299), st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=60))
def test_it_does_not_matter_in_which_order_or_together_with_what_steps_come(
    steps: list[tuple[int, float, float]],
) -> None:
    one, other = slowness(lambda second: 0.01), slowness(lambda second: 0.01)
    seconds, excess, expected = (np.array(column, dtype=np.float64) for column in zip(*steps, strict=True))
    one.add(BEGIN + seconds, excess, expected)
    for second, late_s, usual_s in reversed(steps):
        other.add(np.array([BEGIN + second + 0.9]), np.array([late_s]), np.array([usual_s]))
    board = board_of(HOT)
    assert lift(one, board) == pytest.approx(lift(other, board))


@settings(max_examples=40)
@given(st.lists(st.floats(-0.9, 5.0), min_size=SECONDS, max_size=SECONDS))
def test_steps_that_came_early_make_no_lift_that_cannot_be(ratios: list[float]) -> None:
    found = lift(slowness(ratios.__getitem__), board_of(HOT))
    assert found is not None
    assert 0 < found < 1e6


def test_a_server_that_is_a_little_early_on_the_whole_has_the_same_lift() -> None:
    early, on_time = (lift(slowness(between(100, 150, 0.4, low)), board_of(HOT)) for low in (-0.02, 0.0))
    assert early == pytest.approx(on_time)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_higher_lift_counts_for_no_less_and_never_for_nothing(one: float, other: float) -> None:
    assert 0 < weight(min(one, other)) <= weight(max(one, other)) <= 1


def test_where_no_lift_is_known_a_claim_counts_in_full() -> None:
    assert weight(None) == 1.0
