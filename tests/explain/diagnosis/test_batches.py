"""Batches that are not full, and whom that makes wait."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.batches import batches
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def mixed(rare_first_s: float, *, concurrency: int = 4, most: int = 16, **told: object) -> list[Explained]:
    """200 queries alike and 40 that come once each. The last hundredth of each kind waits longer."""
    frequent = [
        request(2.0 * i, 1.0, first_s=0.2 if i >= 190 else 0.1, prompt_hash="often", concurrency=concurrency, **told)  # type: ignore[arg-type]
        for i in range(200)
    ]
    rare = [
        request(5.0 * i, 1.0, first_s=rare_first_s if i >= 30 else 0.1, prompt_hash=f"once-{i}", concurrency=most)
        for i in range(40)
    ]
    return [*frequent, *rare]


def test_fill_is_the_mean_of_what_is_open_over_the_most_there_was() -> None:
    (told,) = batches(seen(mixed(0.6)))
    assert (told.open_most, told.fill) == pytest.approx((16, (200 * 4 + 40 * 16) / 240 / 16))
    assert (told.server, told.model, told.classed_by) == ("vllm", "m", "prompt_hash")


def test_rare_queries_that_wait_longer_are_found() -> None:
    (told,) = batches(seen(mixed(0.6)))
    assert (told.frequent.requests, told.rare.requests) == (200, 40)
    assert (told.frequent.first_token_p50, told.frequent.first_token_jitter_p99) == pytest.approx((0.1, 0.1))
    assert told.rare.first_token_jitter_p99 == pytest.approx(0.5)
    assert told.rare_over_frequent == pytest.approx(5.0)
    assert told.verdict == "bad"


@pytest.mark.parametrize(("rare_first_s", "verdict"), [(0.2, "ok"), (0.27, "suspect"), (0.35, "bad")])
def test_how_bad_it_is_goes_by_how_much_longer_they_wait(rare_first_s: float, verdict: str) -> None:
    assert batches(seen(mixed(rare_first_s)))[0].verdict == verdict


def test_on_a_full_batch_waiting_is_what_a_queue_does() -> None:
    assert batches(seen(mixed(0.6, concurrency=15)))[0].verdict == "ok"


def test_gaps_count_as_waiting_does() -> None:
    often = [request(i, 1.0, prompt_hash="often", gaps_s=[0.1, 0.1, 0.2], concurrency=1) for i in range(100)]
    once = [request(i, 1.0, prompt_hash=f"once-{i}", gaps_s=[0.1, 0.1, 0.8], concurrency=4) for i in range(25)]
    (told,) = batches(seen([*often, *once]))
    assert told.frequent.gap_jitter_p99 == pytest.approx(0.2 - 0.4 / 3)
    assert told.rare.gap_jitter_p99 == pytest.approx(0.8 - 1.0 / 3)
    assert told.rare_over_frequent == pytest.approx(7.0)
    assert told.verdict == "bad"


def test_without_hashes_tenants_make_the_classes() -> None:
    requests = [request(i, 1.0, tenant="large" if i % 10 else "small") for i in range(100)]
    (told,) = batches(seen(requests))
    assert (told.classed_by, told.frequent.requests, told.rare.requests) == ("tenant", 90, 10)
    assert told.verdict == "unknown"


def test_queries_that_are_all_as_frequent_are_one_class() -> None:
    (told,) = batches(seen([request(i, 1.0, prompt_hash=f"{i % 4}") for i in range(100)]))
    assert (told.classed_by, told.rare.requests, told.rare_over_frequent, told.verdict) == ("none", 0, None, "unknown")


def test_spacing_jitter_is_that_of_the_arrivals() -> None:
    even = batches(seen([request(float(i), 1.0) for i in range(50)]))[0]
    assert even.spacing_jitter == pytest.approx(0.0, abs=1e-6)
    pairs = batches(seen([request(float(i // 2), 1.0) for i in range(50)]))[0]
    assert pairs.spacing_jitter == pytest.approx(1.02, abs=0.01)
    assert batches(seen([request(5.0, 1.0) for _ in range(50)]))[0].spacing_jitter is None


def test_few_requests_say_nothing() -> None:
    assert batches(seen([request(i, 1.0) for i in range(19)])) == ()
    assert batches(seen([])) == ()
