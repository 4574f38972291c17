"""Prompts as long as is wanted, unlike one another from their first words on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.probe.prompts import WORDS, Lengths, Prompts, calibration, lengths

PROMPTS = Prompts(random.Random(7))


@settings(max_examples=30)
@given(st.one_of(st.integers(1, 40), st.integers(65_500, 65_600), st.integers(130_000, 132_000)))
def test_a_prompt_has_as_many_words_as_was_said(words: int) -> None:
    made = PROMPTS.make(words).split(" ")
    assert len(made) == words
    assert set(made) <= set(WORDS)


def test_no_two_prompts_begin_alike() -> None:
    begins = {tuple(PROMPTS.make(500).split()[:8]) for _ in range(2000)}
    assert len(begins) == 2000


def test_prompts_differ_behind_their_salt_too() -> None:
    assert len({" ".join(PROMPTS.make(64).split()[16:]) for _ in range(100)}) > 90


def test_the_same_generator_makes_the_same_prompts() -> None:
    first, second = (Prompts(random.Random(3)) for _ in range(2))
    assert [first.make(100) for _ in range(3)] == [second.make(100) for _ in range(3)]


@given(st.floats(0.6, 19.0), st.floats(0.0, 50.0), st.integers(1, 40), st.integers(100, 5000))
def test_the_line_through_two_counts_foretells_the_words_of_a_length(
    per_word: float, beside: float, few: int, many: int
) -> None:
    line = lengths(tuple((words, round(per_word * words + beside)) for words in (few, many)))
    assert line.counted
    wanted = 3000
    assert abs(per_word * line.words(wanted) + beside - wanted) < 0.1 * wanted


@pytest.mark.parametrize(
    "counts",
    [
        (),
        ((32, 40),),
        ((32, 40), (32, 40)),
        ((32, 40), (512, 40)),
        ((32, 40), (512, 10)),
        ((1, 1), (2, 500)),
        ((1, 0), (500, 9)),
    ],
)
def test_what_is_no_count_of_tokens_is_not_believed(counts: tuple[tuple[int, int], ...]) -> None:
    assert lengths(counts) == Lengths(1.0, 0.0, counted=False)


@pytest.mark.parametrize(("least", "words"), [(8192, (32, 512)), (100, (3, 50)), (40, (1, 20)), (2, (1,)), (1, (1,))])
def test_short_requests_are_no_longer_than_the_lowest_rung(least: int, words: tuple[int, ...]) -> None:
    assert calibration(least) == words


def test_no_prompt_is_empty() -> None:
    assert Lengths(1.0, 100.0).words(5) == 1
