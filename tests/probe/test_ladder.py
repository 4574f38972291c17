"""Ladders of prompt lengths, and what they cost."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.probe.ladder import (
    REQUESTS_MAX,
    RUNGS_MAX,
    TOKENS_MAX,
    Cell,
    LadderError,
    cells,
    cost,
    length_text,
    parse_ladder,
)


@pytest.mark.parametrize(
    ("text", "ratio", "rungs"),
    [
        ("8k..256k", 2.0, (8192, 16384, 32768, 65536, 131072, 262144)),
        ("8K..20k", 2.0, (8192, 16384, 20480)),
        ("1k..16k", 4.0, (1024, 4096, 16384)),
        ("100..200", 1.5, (100, 150, 200)),
        ("1k..1k", 2.0, (1024,)),
        ("1k,3k,10k", 2.0, (1024, 3072, 10240)),
        (" 512 , 1m ", 2.0, (512, 1 << 20)),
        ("7", 2.0, (7,)),
    ],
)
def test_a_ladder_in_words(text: str, ratio: float, rungs: tuple[int, ...]) -> None:
    assert parse_ladder(text, ratio) == rungs


@pytest.mark.parametrize(
    ("text", "ratio", "said"),
    [
        ("", 2.0, "expected a length"),
        ("8k..", 2.0, "expected a length"),
        ("0", 2.0, "expected a length"),
        ("5m", 2.0, "at most 4m tokens"),
        ("-1k", 2.0, "expected a length"),
        ("8q", 2.0, "expected a length"),
        ("1k,,2k", 2.0, "expected a length"),
        ("8k..4k", 2.0, "longer than the one before"),
        ("2k,2k", 2.0, "longer than the one before"),
        ("1..2", 1.0, "a ratio of at least 1.05"),
        ("1..2", float("nan"), "a ratio of at least 1.05"),
        ("1k..4m", 1.05, f"at most {RUNGS_MAX} rungs"),
        ("٣k", 2.0, "expected a length"),
    ],
)
def test_what_is_no_ladder_is_refused_in_a_line(text: str, ratio: float, said: str) -> None:
    with pytest.raises(LadderError, match=said) as caught:
        parse_ladder(text, ratio)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40), st.floats())
def test_any_text_is_a_ladder_or_refused(text: str, ratio: float) -> None:
    try:
        rungs = parse_ladder(text, ratio)
    except LadderError:
        return
    assert 1 <= len(rungs) <= RUNGS_MAX
    assert list(rungs) == sorted(set(rungs))
    assert rungs[0] >= 1
    assert rungs[-1] <= TOKENS_MAX


@given(st.integers(1, 10**5), st.integers(1, 10**6), st.floats(1.05, 100))
def test_both_ends_are_rungs_and_no_step_is_larger_than_the_ratio(first: int, more: int, ratio: float) -> None:
    try:
        rungs = parse_ladder(f"{first}..{first + more}", ratio)
    except LadderError:
        assert math.log((first + more) / first, ratio) > RUNGS_MAX - 2
        return
    assert (rungs[0], rungs[-1]) == (first, first + more)
    assert all(b <= (a + 1) * ratio + 1 for a, b in itertools.pairwise(rungs))


def test_the_whole_ladder_is_climbed_at_the_lowest_concurrency_first() -> None:
    assert cells((100, 200), (4, 1, 4), 3, ()) == (Cell(1, 100, 3), Cell(1, 200, 3), Cell(4, 100, 12), Cell(4, 200, 12))


def test_weights_are_of_repetitions_and_leave_one_at_least() -> None:
    assert [cell.requests for cell in cells((1, 2, 3), (2,), 4, (2, 1, 0.1))] == [16, 8, 2]
    with pytest.raises(LadderError, match="a weight for each of the 3 rungs, not 2"):
        cells((1, 2, 3), (1,), 4, (2, 1))


def test_too_many_requests_are_refused() -> None:
    with pytest.raises(LadderError, match="at most 20,000 requests, not 20,001"):
        cells((1,), (1,), REQUESTS_MAX + 1, ())


def test_the_cost_is_of_all_prompts_and_answers() -> None:
    made = cost((Cell(1, 100, 3), Cell(4, 200, 12)), 64)
    assert made == (15, 2700, 960)
    assert made.tokens == 3660


@pytest.mark.parametrize(
    ("tokens", "text"), [(8192, "8k"), (1 << 20, "1m"), (1000, "1,000"), (1536, "1,536"), (1, "1")]
)
def test_lengths_are_told_as_people_say_them(tokens: int, text: str) -> None:
    assert length_text(tokens) == text
