"""What the worst stretch lost beyond what calm time loses as well."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.gains import Gained, gained
from gpumon.explain.diagnosis.stretch import worst
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def told(requests: list[Explained]) -> Gained:
    of = seen(requests)
    stretch = worst(of)
    assert stretch is not None
    return gained(of, stretch)


def story(calm: dict[str, float], worse: dict[str, float], *, start_s: int = 300, end_s: int = 400) -> list[Explained]:
    """Ten minutes, a request of a second every five; the worst stretch is from 300 to 400 s: 20 requests."""
    return [request(float(at), 1.0, slow=worse if start_s <= at < end_s else calm) for at in range(0, 600, 5)]


def test_background_is_taken_off() -> None:
    found = told(story({"prefill_interference": 0.3}, {"prefill_interference": 0.4, "pcie": 0.3}))
    assert [(each.cause, round(each.seconds, 3)) for each in found.reasons] == [
        ("pcie", 6.0),
        ("prefill_interference", 2.0),
    ]
    assert [each.share for each in found.reasons] == pytest.approx([0.75, 0.25])
    assert (found.usual_s, found.seconds) == pytest.approx((6.0, 8.0))
    assert found.calm_per_minute is not None
    assert found.calm_per_minute["prefill_interference"] == pytest.approx(0.3 * 12)
    assert found.calm_per_minute["pcie"] == 0.0


def test_nothing_is_taken_off_where_no_time_was_calm() -> None:
    found = told(story({}, {"pcie": 0.3}, start_s=0, end_s=600))
    assert (found.usual_s, found.calm_per_minute) == (0.0, None)
    assert found.seconds == pytest.approx(120 * 0.3)


def test_calm_time_after_it_counts_where_there_is_none_before() -> None:
    found = told(story({"prefill_interference": 0.1}, {"prefill_interference": 0.1, "pcie": 0.5}, start_s=0))
    assert [each.cause for each in found.reasons] == ["pcie"]
    assert found.usual_s == pytest.approx(80 * 0.1)


def test_a_fault_is_told_before_load_that_gained_about_as_much() -> None:
    assert [each.cause for each in told(story({}, {"batch_growth": 0.3, "pcie": 0.25})).reasons] == [
        "pcie",
        "batch_growth",
    ]
    assert told(story({}, {"batch_growth": 0.4, "pcie": 0.25})).reasons[0].cause == "batch_growth"


def test_each_engine_has_its_own_background() -> None:
    """The other one asks more in the stretch, and loses as ever."""
    other = [
        request(at / 2, 1.0, slow={"prefill_interference": 0.3}, gpus=("GPU-8",))
        for at in range(1200)
        if 600 <= at < 800 or at % 4 == 0
    ]
    found = told([*story({}, {"pcie": 0.5}), *other])
    assert found.reasons[0].cause == "pcie"
    assert found.reasons[0].share > 0.99
    assert found.usual_s == pytest.approx(200 * 0.3, rel=0.02)
