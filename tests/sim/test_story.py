from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sim import noise
from gpumon.sim.story import STORY, STORY_S, Event, Kind, active, events, load, load_total, rate_total


def test_every_event_lies_within_the_story() -> None:
    for event in STORY:
        assert 0 <= event.start_s <= event.end_s <= STORY_S
        assert 0 <= event.gpu < 8


def test_events_of_one_kind_on_one_gpu_do_not_overlap() -> None:
    for kind in Kind:
        for gpu in range(8):
            rows = events(kind, gpu)
            assert all(one.end_s <= other.start_s for one, other in pairwise(rows))


@given(st.floats(-1000, 100_000), st.floats(0.001, 10))
def test_load_total_is_the_integral_of_load(story_s: float, step_s: float) -> None:
    middle = load(story_s + step_s / 2) * step_s
    assert load_total(story_s + step_s) - load_total(story_s) == pytest.approx(middle, rel=1e-2, abs=1e-6)
    assert 0.2 < load(story_s) < 1.0


@given(st.floats(-600, 6000), st.floats(0, 600))
def test_rate_total_never_falls(story_s: float, step_s: float) -> None:
    rows = events(Kind.PAGE_FAULTS)
    assert rate_total(rows, story_s + step_s) >= rate_total(rows, story_s) - 1e-6


def test_rate_total_counts_an_event_by_the_time_it_lasted_in_every_repetition() -> None:
    rows = [Event(Kind.PAGE_FAULTS, 0, 10.0, 20.0, 3.0)]
    assert rate_total(rows, 10.0) == 0.0
    assert rate_total(rows, 15.0) == 15.0
    assert rate_total(rows, 100.0) == 30.0
    assert rate_total(rows, 2 * STORY_S + 15.0) == 75.0
    assert active(rows, STORY_S + 10.0) is rows[0]
    assert active(rows, STORY_S + 20.0) is None


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0.5, 50))
def test_ticks_never_fall_and_keep_their_period(seconds: float, step_s: float, period_s: float) -> None:
    before, after = noise.ticks(seconds, period_s, 1), noise.ticks(seconds + step_s, period_s, 1)
    assert before <= after
    assert abs(after - (seconds + step_s) / period_s) <= 1


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4))
def test_noise_is_in_its_range(keys: list[int]) -> None:
    assert 0 <= noise.bits(*keys) < 1 << 64
    assert 0.0 <= noise.unit(*keys) < 1.0
    assert -1.0 <= noise.signed(*keys) < 1.0
    assert len(noise.digits(37, *keys)) == 37


def test_noise_is_spread_evenly_and_differs_by_key() -> None:
    draws = [noise.unit(3, key) for key in range(4000)]
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)
    assert len(set(draws)) == len(draws)
