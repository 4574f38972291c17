"""What a step is expected to take: learned from noisy looks of a law that the test knows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.explain.expected import LEAST, LOOKS, Expected, Look, sizes_of

BASE_S, PER_REQUEST_S, PER_TOKEN_S = 0.010, 0.0003, 4e-8


def law(running: float, context: float) -> float:
    """A step of a real server: the weights, something for each request, and the KV cache of all of them."""
    return BASE_S + PER_REQUEST_S * running + PER_TOKEN_S * context


def looks(
    count: int,
    sizes: Iterable[int] = range(1, 33),
    *,
    seed: int = 1,
    noise: float = 0.02,
    each: tuple[float, float] = (500.0, 4000.0),
) -> list[Look]:
    """With so many requests, of so much context each."""
    random = np.random.default_rng(seed)
    running = random.choice(np.array(list(sizes)), count).astype(float)
    context = running * random.uniform(*each, count)
    factors = 1 + noise * random.standard_normal(count)
    return [
        Look(batch, tokens, law(batch, tokens) * factor)
        for batch, tokens, factor in zip(running.tolist(), context.tolist(), factors.tolist(), strict=True)
    ]


def learned(told: Iterable[Look], *, calm: bool = True) -> Expected:
    expected = Expected()
    for look in told:
        expected.learn(look, calm=calm)
    return expected


def gap(expected: Expected, running: float, context: float) -> float:
    (found,) = expected.gaps(np.array([running]), np.array([context]))
    return float(found)


def off(expected: Expected, running: float, context: float) -> float:
    """By how much of the truth it is off."""
    return gap(expected, running, context) / law(running, context) - 1


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("running", [1, 4, 8, 16, 32])
def test_what_a_step_of_a_known_size_takes_is_learned(running: float, seed: int) -> None:
    expected = learned(looks(2000, seed=seed))
    for each in (500.0, 2000.0, 4000.0):
        assert abs(off(expected, running, running * each)) < 0.05


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("running", [6, 12, 24])
def test_between_known_sizes_it_is_interpolated(running: float, seed: int) -> None:
    expected = learned(looks(2000, (4, 8, 16, 32), seed=seed))
    assert abs(off(expected, running, running * 2000.0)) < 0.06


@pytest.mark.parametrize("seed", range(3))
def test_beyond_known_sizes_the_line_goes_on(seed: int) -> None:
    expected = learned(looks(2000, range(8, 33), seed=seed))
    assert abs(off(expected, 64, 64 * 2000.0)) < 0.15
    assert abs(off(expected, 2, 2 * 2000.0)) < 0.15
    assert gap(expected, 64, 64_000) > gap(expected, 32, 64_000)


def test_a_longer_context_takes_longer_and_a_larger_batch_does() -> None:
    expected = learned(looks(2000))
    contexts = [gap(expected, 16, context) for context in (16e3, 32e3, 64e3, 128e3)]
    assert contexts == sorted(contexts)
    assert contexts[-1] - contexts[0] == pytest.approx(PER_TOKEN_S * 112e3, rel=0.3)
    sizes = [gap(expected, running, 64e3) for running in (1, 2, 8, 32, 128)]
    assert sizes == sorted(sizes)


def test_without_any_slope_in_the_looks_none_is_made_up() -> None:
    told = [Look(8.0, 8 * 2000.0, 0.02) for _ in range(200)]
    expected = learned(told)
    assert gap(expected, 8, 16_000) == pytest.approx(0.02)
    assert gap(expected, 8, 32_000) == pytest.approx(0.02, rel=0.05)
    assert gap(expected, 80, 16_000) == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("running", [8, 64])
def test_noise_in_a_steady_load_is_not_taken_for_a_slope(running: int, seed: int) -> None:
    # Requests of one length only: what context costs cannot be seen, and it may cost little or nothing.
    expected = learned(looks(500, (running,), seed=seed, noise=0.02, each=(1960.0, 2040.0)))
    for each in (1000.0, 4000.0):
        assert abs(off(expected, running, running * each)) < 0.4


@pytest.mark.parametrize("seed", range(5))
def test_one_look_in_ten_that_something_unknown_slowed_moves_nothing(seed: int) -> None:
    told = looks(1500, seed=seed)
    spoiled = [look._replace(gap_s=10 * look.gap_s) if n % 10 == 3 else look for n, look in enumerate(told)]
    plain, moved = learned(told), learned(spoiled)
    for running in (2, 8, 16, 31):
        assert gap(moved, running, running * 2000.0) == pytest.approx(gap(plain, running, running * 2000.0), rel=0.05)


def test_a_new_normal_is_learned_when_the_old_looks_are_gone() -> None:
    expected = learned(looks(1000, (8,)))
    for look in looks(2 * LOOKS, (8,), seed=2):
        expected.learn(look._replace(gap_s=1.5 * look.gap_s), calm=True)
    assert gap(expected, 8, 16_000) == pytest.approx(1.5 * law(8, 16_000), rel=0.05)


def test_of_two_histories_with_the_same_newest_looks_the_same_is_expected() -> None:
    newest = looks(10 * LOOKS, (8, 16), seed=3)
    before = looks(1000, (8, 16), seed=4)
    assert gap(learned(before + newest), 11, 22_000) == pytest.approx(gap(learned(newest), 11, 22_000), rel=1e-9)


# --- little is known --------------------------------------------------------------------------------------------------


def test_nothing_is_expected_before_there_are_enough_looks() -> None:
    expected = Expected()
    for number, look in enumerate(looks(LEAST)):
        assert not expected.is_known, number
        expected.learn(look, calm=True)
    assert expected.is_known


@pytest.mark.parametrize("seed", range(5))
def test_the_first_looks_do_roughly(seed: int) -> None:
    expected = learned(looks(LEAST, seed=seed))
    for running in (4, 8, 16, 24):
        assert abs(off(expected, running, running * 2000.0)) < 0.3


def test_looks_that_are_all_of_one_size_do_for_that_size() -> None:
    expected = learned(looks(LEAST, (8,)))
    assert abs(off(expected, 8, 16_000)) < 0.05
    assert gap(expected, 1, 2000) > 0
    assert gap(expected, 1000, 2e6) > 0


def test_a_size_that_was_seen_once_does_not_count_against_its_neighbours() -> None:
    expected = learned([*looks(600, (4, 8, 16)), Look(11.0, 22_000.0, 0.5)])
    assert abs(off(expected, 11, 22_000.0)) < 0.1
    assert abs(off(expected, 8, 16_000.0)) < 0.05


def test_a_size_with_few_looks_leans_on_its_neighbours() -> None:
    some = [Look(11.0, 22_000.0, 1.5 * law(11, 22_000))] * 4
    assert 0.0 < off(learned([*looks(600, (4, 8, 16)), *some]), 11, 22_000.0) < 0.4
    assert off(learned([*looks(600, (4, 8, 16)), *some * 20]), 11, 22_000.0) > 0.4


def test_where_incidents_were_there_from_the_beginning_more_looks_are_needed() -> None:
    expected = learned(looks(LEAST), calm=False)
    assert not expected.is_known
    expected = learned(looks(10 * LEAST), calm=False)
    assert expected.is_known


def test_of_looks_that_incidents_touch_the_faster_ones_tell_what_is_usual() -> None:
    told = looks(600, (8,))
    slowed = [look._replace(gap_s=3 * look.gap_s) if n % 2 else look for n, look in enumerate(told)]
    assert abs(off(learned(slowed, calm=False), 8, 16_000)) < 0.1


def test_calm_looks_count_alone_as_soon_as_there_are_enough() -> None:
    expected = learned([look._replace(gap_s=5 * look.gap_s) for look in looks(600)], calm=False)
    assert off(expected, 8, 16_000) > 2
    for look in looks(LEAST, (8,)):
        expected.learn(look, calm=True)
    assert abs(off(expected, 8, 16_000)) < 0.1


def test_touched_looks_change_nothing_where_calm_ones_are_known() -> None:
    expected, plain = learned(looks(600)), learned(looks(600))
    for look in looks(600, seed=9):
        expected.learn(look._replace(gap_s=5 * look.gap_s), calm=False)
    assert gap(expected, 8, 16_000) == gap(plain, 8, 16_000)


# --- whatever comes ---------------------------------------------------------------------------------------------------

GAPS = st.floats(1e-5, 100.0)
SIZES = st.floats(1.0, 10_000.0)
CONTEXTS = st.floats(0.0, 1e8)


def column(values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


@given(
    st.lists(st.builds(Look, SIZES, CONTEXTS, GAPS), min_size=LEAST, max_size=40),
    st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.0, 1e10)), min_size=1, max_size=8),
)
def test_a_step_is_always_expected_to_take_some_time(told: list[Look], asked: list[tuple[float, float]]) -> None:
    found = learned(told).gaps(column([running for running, _ in asked]), column([context for _, context in asked]))
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_a_step_is_expected_to_take_some_time_whatever_noise_made_of_the_slope() -> None:
    random = np.random.default_rng(7)
    for _ in range(150):
        told = [
            Look(*(float(value) for value in random.uniform((1.0, 0.0, 0.001), (64.0, 1e6, 0.1)))) for _ in range(25)
        ]
        assert (learned(told).gaps(column([1.0, 8.0, 64.0, 200.0]), np.zeros(4)) > 0).all()


def test_a_step_without_context_is_expected_to_take_some_time_where_context_is_all_that_costs() -> None:
    expected = learned(Look(8.0, context, 1e-7 * context) for context in np.linspace(1e5, 4e5, 200).tolist())
    assert gap(expected, 8, 2e5) == pytest.approx(0.02, rel=0.1)
    assert gap(expected, 8, 0.0) > 0
    assert gap(expected, 1, 100.0) > 0


@settings(max_examples=60)
@given(st.lists(st.builds(Look, SIZES, CONTEXTS, GAPS), min_size=LEAST, max_size=40), SIZES, CONTEXTS, CONTEXTS)
def test_more_context_is_never_expected_to_be_faster(told: list[Look], running: float, one: float, two: float) -> None:
    expected = learned(told)
    assert gap(expected, running, max(one, two)) >= gap(expected, running, min(one, two))


@settings(max_examples=30)
@given(st.lists(st.builds(Look, SIZES, CONTEXTS, GAPS), min_size=LEAST, max_size=30))
def test_asking_changes_nothing(told: list[Look]) -> None:
    asked, silent = Expected(), Expected()
    for look in told:
        silent.learn(look, calm=True)
        asked.learn(look, calm=True)
        if asked.is_known:
            gap(asked, 3.0, 1000.0)
    assert gap(asked, 5.0, 1000.0) == gap(silent, 5.0, 1000.0)


def test_no_steps_no_answer() -> None:
    assert len(learned(looks(50)).gaps(np.zeros(0), np.zeros(0))) == 0


@given(st.lists(st.floats(-10, 1e18), min_size=2))
def test_larger_batches_have_higher_places_and_there_is_a_last_one(sizes: list[float]) -> None:
    places = sizes_of(column([0.0, 1.0, *sorted(sizes), 1e18])).tolist()
    assert places[:2] == [0, 0]
    assert places[2:] == sorted(places[2:])
    assert min(places) == 0


def test_a_size_has_neighbours_that_are_near() -> None:
    eight, sixteen, many, one_more = sizes_of(column([8.0, 16.0, 64.0, 65.0])).tolist()
    assert eight != sixteen
    assert many == one_more


# --- beyond what is known ---------------------------------------------------------------------------------------------


def by_doubling(running: float) -> float:
    """As with experts: the more requests, the more of them are read already."""
    return 0.004 + 0.007 * float(np.log2(running))


@pytest.mark.parametrize("seed", range(3))
def test_where_every_doubling_adds_as_much_so_does_the_next_one(seed: int) -> None:
    told = [look._replace(gap_s=by_doubling(look.running)) for look in looks(2000, range(2, 19), seed=seed)]
    expected = learned(told)
    for running in (24.0, 36.0, 48.0):
        assert gap(expected, running, 2000 * running) == pytest.approx(by_doubling(running), rel=0.05)


def test_no_size_beyond_takes_less_than_the_largest_known() -> None:
    told = [look._replace(gap_s=0.03 - 0.0002 * look.running) for look in looks(2000, range(8, 33))]
    expected = learned(told)
    assert gap(expected, 64, 64_000) >= gap(expected, 32, 64_000)


def guessed(expected: Expected, running: float, context: float = 1000.0) -> tuple[float, float]:
    batch_s, context_s = expected.guesses(np.array([running]), np.array([context]), np.array([0.02]))
    return float(batch_s[0]), float(context_s[0])


def test_beyond_the_largest_batch_known_a_step_may_be_longer_by_as_much_as_the_batch_is_larger() -> None:
    expected = learned(looks(600, (8, 16)))
    assert guessed(expected, 8.0) == guessed(expected, 16.0) == (0.0, 0.0)
    assert guessed(expected, 24.0) == pytest.approx((0.01, 0.0))
    assert guessed(expected, 32.0) == pytest.approx((0.02, 0.0))


def test_beyond_the_longest_context_known_likewise() -> None:
    expected = learned(looks(600, (8,), each=(1000.0, 1001.0)))
    assert guessed(expected, 8.0, 8000.0) == (0.0, 0.0)
    assert guessed(expected, 8.0, 16_000.0) == pytest.approx((0.0, 0.02), rel=0.01)
