"""The row of tokens of ``gpumon explain``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.explained import Account, Explained, SlowGap
from gpumon.explained_row import row
from gpumon.web.explanation import Explanation, Tokens, trace
from tests.explained import ON_TIME, START_S, THERMAL, TRACE, explained, to_unix, token_times

HOUR_STEPS = 30_000
LETTERS = {"thermal_throttle": "A", "prefill_interference": "B", "page_faults": "C"}


def told(found: Explained) -> Explanation:
    (request,) = trace(TRACE, [found], to_unix).requests
    return request


def drawn(found: Explained, width: int = 80) -> list[str]:
    request = told(found)
    assert request.tokens is not None
    lines = [line.plain for line in row(request, request.tokens, LETTERS, width)]
    assert all(len(line) <= max(width, 15) for line in lines[1:-1])
    return lines


def test_it_is_high_where_a_gap_was_long_and_says_by_letter_why() -> None:
    assert drawn(explained()) == [
        "Tokens (100 steps; ▁ 20 ms as expected, or less; █ 420 ms)",
        "··········▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁███████████▅▅▅▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁████████▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
        "                        AAAAAAAAAAAAAAA                  BBBBBBBBB",
        "0 s                                                                       3.18 s",
        "A GPU too hot  B prefill of others",
    ]


def test_without_slow_gaps_there_is_no_legend() -> None:
    on_time = Account(1.98, 1.98, 0.0, ())
    lines = drawn(explained(slow_gaps=(), decode=on_time, token_s=token_times()))
    assert len(lines) == 3
    assert set(lines[1]) <= set("·▁ ")


def test_all_gaps_together_longer_than_expected_are_above_the_lowest() -> None:
    """Its own median would hide that every token was late."""
    late = explained(slow_gaps=(), token_s=token_times(gap_s=0.03))
    assert drawn(late)[0] == "Tokens (100 steps; ▁ 20 ms as expected, or less; █ 30 ms)"
    assert set(drawn(late)[1]) == set("·▃")


def test_where_nothing_was_expected_its_own_median_is_the_lowest() -> None:
    cold = explained(slow_gaps=(), decode=Account(None, 2.97, 0.0, ()), token_s=token_times(gap_s=0.03))
    assert drawn(cold)[0] == "Tokens (100 steps; ▁ 30 ms its median, or less; █ 30 ms)"
    assert set(drawn(cold)[1]) == set("·▁")


def test_small_differences_do_not_look_like_stalls() -> None:
    rng = np.random.default_rng(7)
    gaps = rng.uniform(0.018, 0.024, 150)
    usual = Account(149 * 0.021, float(gaps[1:].sum()), 0.0, ())
    lines = drawn(explained(slow_gaps=(), decode=usual, token_s=START_S + np.cumsum(gaps)))
    assert set(lines[1]) <= set("·▁▂ ")


def test_a_stretch_of_late_tokens_is_marked_and_not_drawn_as_one_long_gap() -> None:
    stretch = SlowGap(START_S + 0.4, START_S + 1.4, 50, 0.5, 0.5, (THERMAL,))
    lines = drawn(explained(slow_gaps=(stretch,), token_s=token_times()))
    assert set(lines[1]) <= set("·▁ ")
    assert lines[2].strip() == "A" * 26


def test_a_long_gap_among_short_ones_of_the_same_column_is_seen() -> None:
    times = token_times(2000, 0.01, late=((1000, 0.2),))
    lines = drawn(explained(slow_gaps=(), decode=Account(20.0, 20.2, 0.0, ()), token_s=times), width=100)
    assert lines[0].endswith("█ 210 ms)")
    assert "█" in lines[1]


def hour(**late: float) -> Explained:
    """One of an hour: every token 0.11 s after the last, prompts of others every nine seconds."""
    gaps = np.full(HOUR_STEPS, 0.11)
    gaps[::80] += late.get("prompts", 0.35)
    gaps[12_000:17_000] *= late.get("stretch", 1.0)
    gaps[22_000] += late.get("stall", 0.0)
    times = START_S + 1.0 + np.concatenate([[0.0], np.cumsum(gaps)])
    slow = tuple(
        SlowGap(
            times[n], times[n + 1], 1, 0.11, gaps[n] - 0.11, (THERMAL._replace(cause=cause, seconds=gaps[n] - 0.11),)
        )
        for n, cause in [(22_000, "page_faults"), *((80 * k, "prefill_interference") for k in range(63))]
        if gaps[n] > 0.2
    )
    found = explained(slow_gaps=slow, decode=Account(HOUR_STEPS * 0.11, gaps.sum(), 1.0, (THERMAL,)), token_s=times)
    return found._replace(end_s=float(times[-1]))


def test_of_an_hour_the_mean_tells_what_the_longest_gaps_hide() -> None:
    title, longest, mean, *_ = drawn(hour(stretch=1.4))
    assert title.startswith("Tokens (30,001 steps; ▁ 110 ms as expected, or less; █ ")
    assert title.endswith(" longest, 160 ms mean)")
    # Each column of 45 s holds prompts of others, and so is as high as the next one.
    assert longest.startswith("longest ")
    assert set(longest[8:]) <= set("▆▇█")
    assert mean.startswith("mean    ")
    heights = mean[8:]
    slow = round(0.385 * len(heights)), round(0.58 * len(heights))
    assert set(heights[slow[0] + 1 : slow[1] - 1]) <= set("▄▅▆")
    assert set(heights[: slow[0] - 1] + heights[slow[1] + 1 :]) <= set("▁ ")


def test_of_an_hour_a_single_stall_stands_out() -> None:
    title, longest, _, marks, axis, legend = drawn(hour(stall=6.0))
    assert "█ 6.46 s longest" in title
    assert longest.count("█") == 1
    assert marks[longest.index("█")] == "C"
    assert axis.endswith("57 min 18 s")
    assert legend == "B prefill of others  C major page faults  (of the 64 slowest gaps)"


@pytest.mark.parametrize("width", [1, 5, 19, 20, 40, 110])
def test_any_width_and_any_length_is_drawn(width: int) -> None:
    for found in (explained(), hour(stall=1.0, stretch=1.2), explained(token_s=token_times(2), slow_gaps=())):
        lines = drawn(found, width)
        assert len(lines[1]) == width


NUMBERS = st.floats(-1e9, 1e12, allow_nan=False)


@given(
    st.lists(st.tuples(NUMBERS, st.none() | NUMBERS), max_size=30),
    st.integers(0, 10**9),
    st.none() | st.floats(0.0, 1e9),
    st.integers(1, 110),
)
def test_whatever_another_gpumon_answers_is_drawn(
    points: list[tuple[float, Any]], steps: int, expected_s: float | None, width: int
) -> None:
    request = told(explained(first_token=ON_TIME))
    decode = request.decode.model_copy(update={"expected_seconds": expected_s})
    tokens = Tokens(steps=steps, ms=[ms for ms, _ in points], gap_ms=[gap for _, gap in points], note="")
    lines = row(request.model_copy(update={"decode": decode}), tokens, LETTERS, width)
    assert all(len(line.plain) <= width for line in lines[1:3] if line.no_wrap)
