"""Scores that fall with the token rate, by prompt group."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.quality import quality
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def scored(count: int = 30, *, sign: float = 1.0, **told: object) -> list[Explained]:
    """Requests of 50, 51, … tokens/s, whose score is a hundredth of that, or a hundredth less."""
    return [
        request(
            float(i),
            0.5 + 100 / (50 + i),
            tokens=101,
            evaluations={"faithfulness": 0.5 + sign * i / 100},
            **told,  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def test_a_score_that_goes_with_the_rate_is_bad() -> None:
    (told,) = quality(seen(scored(prompt_hash="a" * 40)))
    assert (told.evaluation, told.n, told.prompts) == ("faithfulness", 30, "a" * 16)
    assert (told.r, told.slope) == pytest.approx((1.0, 0.01), abs=1e-3)
    assert (told.score_mean, told.tokens_per_second_mean) == pytest.approx((0.645, 64.5), abs=1e-3)
    assert told.verdict == "bad"


def test_a_score_that_rises_as_answers_get_slower_is_no_harm() -> None:
    (told,) = quality(seen(scored(sign=-1.0)))
    assert told.r == pytest.approx(-1.0, abs=1e-3)
    assert told.verdict == "ok"


def test_prompt_groups_models_and_evaluations_are_told_apart() -> None:
    requests = [*scored(prompt_hash="a"), *scored(prompt_hash="b"), *scored(model="n", prompt_hash="a"), *scored()]
    told = quality(seen(requests))
    assert {(each.model, each.prompts) for each in told} == {("m", "a"), ("m", "b"), ("n", "a"), ("m", "")}


def test_few_scores_have_no_r_and_very_few_no_line() -> None:
    (told,) = quality(seen(scored(10)))
    assert (told.n, told.r, told.verdict) == (10, None, "unknown")
    assert quality(seen(scored(4))) == ()
    assert quality(seen([request()])) == ()
