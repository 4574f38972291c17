"""Latency by context length: the numbers of a cliff between 64k and 128k."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.contexts import contexts
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def of_length(prompt: int, duration_s: float, count: int = 40, **told: object) -> list[Explained]:
    return [request(float(i), duration_s, prompt=prompt, **told) for i in range(count)]  # type: ignore[arg-type]


def test_the_growth_of_the_p95_from_one_bucket_to_the_next_is_told_and_the_cliff_is_named() -> None:
    (told,) = contexts(seen([*of_length(40_000, 1.72), *of_length(70_000, 3.44), *of_length(140_000, 10.2)]))
    assert [row.bucket for row in told.rows] == ["32k", "64k", "128k"]
    assert [row.response_p95 for row in told.rows] == pytest.approx([1.72, 3.44, 10.2])
    assert [row.growth for row in told.rows] == [None, pytest.approx(2.0), pytest.approx(2.965, abs=0.001)]
    assert told.cliff == "128k"


def test_a_p95_is_that_of_the_rank_and_a_mean_that_of_all() -> None:
    (told,) = contexts(seen([*of_length(2048, 1.0, 94), *of_length(2048, 3.0, 6)]))
    assert (told.rows[0].response_p95, told.rows[0].response_mean) == pytest.approx((3.0, 1.12))
    (told,) = contexts(seen([*of_length(2048, 1.0, 95), *of_length(2048, 3.0, 5)]))
    assert told.rows[0].response_p95 == pytest.approx(1.0)


def test_throughput_is_normalised_by_the_context_over_eight_thousand_tokens() -> None:
    long = of_length(65_536 - 101, 2.5, first_s=0.5, tokens=101)
    short = of_length(4000, 2.5, first_s=0.5, tokens=101)
    (told,) = contexts(seen([*short, *long]))
    assert [row.decode_tokens_per_second for row in told.rows] == pytest.approx([50.0, 50.0])
    assert [row.normalised_throughput for row in told.rows] == pytest.approx([50.0, 50.0 / 8.0])


def test_buckets_that_are_not_neighbours_have_no_growth() -> None:
    (told,) = contexts(seen([*of_length(1500, 1.0), *of_length(40_000, 9.0)]))
    assert [row.growth for row in told.rows] == [None, None]
    assert told.cliff == ""


def test_few_requests_are_no_cliff() -> None:
    (told,) = contexts(seen([*of_length(70_000, 1.0), *of_length(140_000, 10.0, 19)]))
    assert told.rows[1].growth == pytest.approx(10.0)
    assert told.cliff == ""


def test_requests_that_failed_or_do_not_count_their_prompt_are_left_out() -> None:
    failed = of_length(2048, 9.0, outcome="error")
    (told,) = contexts(seen([*failed, *of_length(2048, 1.0, 5), request(1.0, 9.0, prompt=None)]))
    assert (told.rows[0].requests, told.rows[0].response_p95) == (5, 1.0)
    assert contexts(seen(failed)) == ()


def test_without_tokens_latency_is_told_all_the_same() -> None:
    (told,) = contexts(seen(of_length(2048, 1.0, tokens=None, first_s=None)))
    row = told.rows[0]
    assert (row.decode_tokens_per_second, row.normalised_throughput, row.first_token_p95) == (None, None, None)
    assert row.response_mean == 1.0
