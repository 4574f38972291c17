"""What is usual: medians of the newest values, from calm times where there are any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.explain.usual import ByLength, Load, Ring, Usual

FIGURES = st.floats(0, 1e12)


def usual(calm: list[float], touched: list[float] | None = None, size: int = 256) -> Usual:
    found = Usual(size)
    for value in touched or []:
        found.add(value, calm=False)
    for value in calm:
        found.add(value, calm=True)
    return found


@given(st.lists(FIGURES, max_size=60), st.integers(8, 30))
def test_figures_are_those_of_the_newest_values(values: list[float], size: int) -> None:
    ring = Ring(size)
    for value in values:
        ring.add(value)
    newest = values[-size:]
    assert len(ring) == len(newest)
    figures = ring.figures()
    if figures is None:
        assert len(newest) < 8
        return
    assert figures[:3] == pytest.approx((np.median(newest), np.mean(newest), np.quantile(newest, 0.95)))
    away = [abs(value - np.median(newest)) for value in newest]
    assert figures.spread == pytest.approx(1.4826 * np.median(away))


def test_a_figure_follows_what_is_added_after_it_was_asked_for() -> None:
    found = usual([1.0] * 8, size=8)
    assert found.value() == 1.0
    for _ in range(8):
        found.add(3.0, calm=True)
    assert (found.value(), found.mean(), found.high()) == (3.0, 3.0, 3.0)


def test_of_too_few_values_nothing_is_known() -> None:
    found = usual([1.0] * 5)
    assert (found.value(), found.mean(), found.high()) == (None, None, None)
    assert usual([]).value() is None


def test_where_no_time_was_calm_all_values_have_to_do() -> None:
    assert usual([], [2.0] * 20).value() == 2.0


def test_calm_values_count_alone_as_soon_as_there_are_enough() -> None:
    assert usual([1.0] * 7, [5.0] * 20).value() == 5.0
    found = usual([1.0] * 20, [5.0] * 200)
    assert found.value() == 1.0
    for _ in range(500):
        found.add(9.0, calm=False)
    assert (found.value(), found.mean(), found.high()) == (1.0, 1.0, 1.0)


def test_one_value_in_ten_moves_the_median_by_nothing_and_the_mean_by_something() -> None:
    found = usual([1.0] * 90 + [100.0] * 10)
    assert found.value() == 1.0
    assert found.mean() == pytest.approx(10.9)
    assert found.high() == 100.0


def test_more_than_chance_is_well_over_the_median_and_over_what_it_varies_by() -> None:
    steady, busy = usual([10.0] * 50), usual([5.0, 15.0] * 25)
    assert steady.above(1.5, 3.0) == pytest.approx(15.0)
    assert steady.above(1.5, 3.0, 2.0) == pytest.approx(17.0)
    more, most = busy.above(1.1, 1.0), busy.above(1.1, 3.0)
    assert more is not None
    assert most is not None
    assert 10.0 < more < most
    assert usual([]).above(1.5, 3.0) is None


# --- by length --------------------------------------------------------------------------------------------------------


def by_length(told: dict[float, float], each: int = 20, *, in_proportion: bool = False) -> ByLength:
    found = ByLength(in_proportion=in_proportion)
    for _ in range(each):
        for length, seconds in told.items():
            found.add(length, seconds, calm=True)
    return found


def at(found: ByLength, *lengths: float) -> list[float]:
    values = found.at(np.array(lengths))
    assert values is not None
    return [float(value) for value in values]


def test_of_no_prompts_nothing_is_known() -> None:
    assert ByLength(in_proportion=True).at(np.array([100.0])) is None
    assert by_length({100.0: 0.1}, each=7).at(np.array([100.0])) is None


def test_between_lengths_it_is_interpolated_and_beyond_them_the_nearest_counts() -> None:
    found = by_length({100.0: 0.1, 1000.0: 1.0})
    assert at(found, 100, 550, 1000, 10, 1e6) == pytest.approx([0.1, 0.55, 1.0, 0.1, 1.0])


def test_a_prompt_longer_than_any_takes_longer_in_proportion_where_that_is_asked_for() -> None:
    found = by_length({100.0: 0.1, 1000.0: 1.0}, in_proportion=True)
    assert at(found, 50, 550, 1000, 4000) == pytest.approx([0.1, 0.55, 1.0, 4.0])


def test_a_length_that_came_only_while_something_was_wrong_does_not_count_beside_calm_ones() -> None:
    found = by_length({1000.0: 1.0})
    for _ in range(20):
        found.add(16_000.0, 160.0, calm=False)
    assert at(found, 16_000) == pytest.approx([1.0])
    only = ByLength(in_proportion=False)
    for _ in range(20):
        only.add(16_000.0, 16.0, calm=False)
    assert at(only, 16_000) == pytest.approx([16.0])


def test_lengths_of_one_doubling_count_together() -> None:
    found = by_length({130.0: 0.1, 250.0: 0.3})
    assert at(found, 190) == pytest.approx([0.2])


def test_a_new_value_is_seen_after_it_was_asked_for() -> None:
    found = by_length({100.0: 0.1})
    assert at(found, 1000) == [0.1]
    for _ in range(20):
        found.add(1000.0, 1.0, calm=True)
    assert at(found, 1000) == pytest.approx([1.0])


@pytest.mark.parametrize("length", [-5.0, 0.0, 0.5, 1.0, 1e18, 1e300])
def test_lengths_beyond_the_table_have_their_place(length: float) -> None:
    found = by_length({length: 0.1, 1000.0: 1.0})
    assert at(found, length) == pytest.approx([0.1])
    assert at(found, 1000) == pytest.approx([1.0])


LENGTHS = st.floats(1.0, 1e7)


@given(st.lists(st.tuples(LENGTHS, st.floats(0, 100)), max_size=80), st.lists(LENGTHS, max_size=10))
def test_nothing_is_beyond_what_was_told(told: list[tuple[float, float]], asked: list[float]) -> None:
    found = ByLength(in_proportion=False)
    for length, seconds in told:
        found.add(length, seconds, calm=True)
    values: NDArray[np.float64] | None = found.at(np.array(asked))
    if values is None:
        assert len(told) < 8 * 24
        return
    assert len(values) == len(asked)
    seconds_told = [seconds for _, seconds in told]
    assert all(min(seconds_told) - 1e-9 <= value <= max(seconds_told) + 1e-9 for value in values.tolist())


def test_of_a_new_group_nothing_is_usual() -> None:
    load = Load()
    figures = (load.running, load.context, load.arrivals, load.brought, load.queue_s, load.computed, load.beside)
    assert all(figure.value() is None for figure in figures)
    assert load.prompt_s.at(np.ones(1)) is None
    assert load.token_s.at(np.ones(1)) is None
