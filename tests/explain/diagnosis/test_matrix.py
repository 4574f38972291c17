"""The matrix: means over slow requests and the others, r, and what is made of them."""

from __future__ import annotations

import math

import pytest

from gpumon.explain.diagnosis.matrix import matrix
from gpumon.explain.diagnosis.model import MatrixRow
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import Signal, inputs, request

HOT = Signal("temperature", "GPU temperature", "celsius", "< 85", 85.0)
CLOCK = Signal("sm_clock", "SM clock", "hertz", "> 1.3e9", 1.3e9, high_is_bad=False)


def rows(requests: list[Explained], *dimensions: Signal) -> dict[str, MatrixRow]:
    told = inputs(requests, dimensions=dimensions)
    return {row.dimension: row for row in matrix(told, Seen(told), None)}


def half_slow(slow_values: list[float], other_values: list[float]) -> list[Explained]:
    """100 requests of 101 tokens, every second one slower by half; with one signal."""
    return [
        request(
            float(i),
            3.0 if i % 2 else 2.0,
            slow={"thermal_throttle": 1.0} if i % 2 else {},
            signals=[(slow_values if i % 2 else other_values)[i // 2 % len(slow_values)]],
        )
        for i in range(100)
    ]


def test_a_dimension_past_its_bound_on_the_slow_requests_alone_is_bad() -> None:
    row = rows(half_slow([90.0, 92.0], [70.0, 72.0]), HOT)["temperature"]
    assert (row.slow_mean, row.other_mean, row.r, row.n) == pytest.approx((91.0, 71.0, 0.995, 100), abs=0.001)
    assert row.effect == 10.0
    assert (row.verdict, row.healthy, row.title, row.unit) == ("bad", "< 85", "GPU temperature", "celsius")


def test_below_a_lower_bound_is_as_bad() -> None:
    row = rows(half_slow([1.0e9, 1.1e9], [1.4e9, 1.5e9]), CLOCK)["sm_clock"]
    assert row.verdict == "bad"
    assert row.r is not None
    assert row.r < -0.9


def test_a_dimension_that_is_always_past_its_bound_is_not_to_blame() -> None:
    assert rows(half_slow([90.0, 92.0], [92.0, 90.0]), HOT)["temperature"].verdict == "ok"


def test_within_its_bound_what_goes_with_slowness_is_suspect() -> None:
    assert rows(half_slow([80.0, 82.0], [50.0, 52.0]), HOT)["temperature"].verdict == "suspect"
    assert rows(half_slow([80.0, 82.0], [70.0, 72.0]), HOT._replace(bound=None))["temperature"].verdict == "suspect"


def test_healthy_on_both_sides_and_about_the_same_is_ok() -> None:
    assert rows(half_slow([80.0, 82.0], [70.0, 72.0]), HOT)["temperature"].verdict == "ok"
    assert rows(half_slow([1.4e9, 1.41e9], [1.5e9, 1.51e9]), CLOCK)["sm_clock"].verdict == "ok"


def test_what_goes_along_and_is_about_the_same_on_slow_requests_is_ok() -> None:
    requests = [
        request(float(i), 2.0 + i / 50, slow={"pcie": 1.0} if i % 2 else {}, signals=[0.019 + i / 1e5])
        for i in range(100)
    ]
    row = rows(requests, Signal("stalled"))["stalled"]
    assert row.r is not None
    assert row.r > 0.9
    assert row.verdict == "ok"


def test_what_is_next_to_nothing_on_both_sides_is_ok_however_it_goes_along() -> None:
    cache = Signal("kv_cache_usage", "KV cache in use", "ratio", "< 0.95", 0.95)
    assert rows(half_slow([0.031, 0.032], [0.012, 0.013]), cache)["kv_cache_usage"].verdict == "ok"
    assert rows(half_slow([0.31, 0.32], [0.12, 0.13]), cache)["kv_cache_usage"].verdict == "suspect"
    stalled = Signal("host_io_stalled", "host stalled for I/O", "s/s")
    assert rows(half_slow([0.0154, 0.0155], [0.003, 0.0031]), stalled)["host_io_stalled"].verdict == "ok"
    assert rows(half_slow([0.154, 0.155], [0.03, 0.031]), stalled)["host_io_stalled"].verdict == "suspect"
    slow = [each for each in half_slow([0.031, 0.032], [0.012, 0.013]) if each.excess_s]
    assert rows(slow, cache)["kv_cache_usage"].verdict == "unknown"


def test_what_nobody_says_a_bound_of_must_differ_by_a_tenth() -> None:
    utilization = Signal("gpu_utilization", "GPU utilization")
    assert rows(half_slow([0.911, 0.912], [0.882, 0.883]), utilization)["gpu_utilization"].verdict == "ok"
    assert rows(half_slow([0.991, 0.992], [0.882, 0.883]), utilization)["gpu_utilization"].verdict == "suspect"


def test_a_temperature_that_is_lower_on_the_slow_requests_is_never_suspect() -> None:
    assert rows(half_slow([30.0, 32.0], [70.0, 72.0]), HOT)["temperature"].verdict == "ok"
    margin = Signal("margin", "margin to thermal limit", "celsius", "> 0", 0.0, high_is_bad=False)
    assert rows(half_slow([60.0, 62.0], [20.0, 22.0]), margin)["margin"].verdict == "ok"
    assert rows(half_slow([20.0, 22.0], [60.0, 62.0]), margin)["margin"].verdict == "suspect"


def test_only_requests_of_one_engine_are_compared() -> None:
    """On the other engine's GPUs everything differs."""
    mine = [
        request(float(i), 3.0 if i % 2 else 2.0, slow={"pcie": 1.0} if i % 2 else {}, signals=[70.0 + i // 2 % 2])
        for i in range(100)
    ]
    others = [request(float(i), 2.0, signals=[20.0], gpus=("GPU-8",)) for i in range(200)]
    told = inputs([*mine, *others], dimensions=(HOT,))
    of = Seen(told)
    engine = int(of.group[0])
    assert of.rows.groups[engine].gpus == ("GPU-0",)
    (row,) = matrix(told, of, engine)
    assert (row.slow_mean, row.other_mean, row.n, row.verdict) == (70.5, 70.5, 100, "ok")
    (larger,) = matrix(told, of, None)
    assert (larger.slow_mean, larger.other_mean) == (None, 20.0)


def test_what_is_better_on_the_slow_requests_is_not_bad_although_past_its_bound() -> None:
    slow = half_slow([1.1e9, 1.2e9], [0.5e9, 0.6e9])
    assert rows(slow, CLOCK)["sm_clock"].verdict == "suspect"


def test_a_constant_has_no_r_and_is_ok() -> None:
    row = rows(half_slow([70.0], [70.0]), HOT)["temperature"]
    assert (row.r, row.effect, row.verdict) == (None, 0.0, "ok")


def test_what_is_not_known_is_left_out_and_said_to_be_unknown() -> None:
    row = rows(half_slow([math.nan], [math.nan]), HOT)["temperature"]
    assert row == MatrixRow(
        dimension="temperature",
        title="GPU temperature",
        unit="celsius",
        healthy="< 85",
        slow_mean=None,
        other_mean=None,
        effect=None,
        r=None,
        n=0,
        verdict="unknown",
    )
    assert rows(half_slow([90.0, math.nan], [70.0, math.nan]), HOT)["temperature"].n == 50


def test_below_twenty_requests_there_is_no_r() -> None:
    assert rows(half_slow([90.0, 92.0], [70.0, 72.0])[:19], HOT)["temperature"].r is None
    assert rows(half_slow([90.0, 92.0], [70.0, 72.0])[:20], HOT)["temperature"].r is not None


def test_where_all_are_slow_what_is_past_its_bound_is_suspect() -> None:
    slow = [each for each in half_slow([90.0, 92.0], [70.0, 72.0]) if each.excess_s]
    row = rows(slow, HOT)["temperature"]
    assert (row.other_mean, row.effect, row.verdict) == (None, None, "suspect")
    cool = [each for each in half_slow([60.0, 62.0], [70.0, 72.0]) if each.excess_s]
    assert rows(cool, HOT)["temperature"].verdict == "unknown"


def test_one_outlier_does_not_make_a_correlation() -> None:
    even = [request(float(i), 2.0, signals=[70.0 + i % 2]) for i in range(99)]
    row = rows([*even, request(99.0, 400.0, signals=[500.0])], HOT)["temperature"]
    assert row.r is not None
    assert row.r < 1.0
    far = rows([*even, request(99.0, 400.0, signals=[71.0])], HOT)["temperature"]
    assert far.r is not None
    assert abs(far.r) < 0.2


def test_the_worst_comes_first() -> None:
    requests = [
        request(float(i), 2.0 + i % 2, slow={"pcie": 1.0} if i % 2 else {}, signals=[i % 2, 70 + 20 * (i % 2), 1.0])
        for i in range(40)
    ]
    told = inputs(requests, dimensions=(Signal("goes_along"), HOT, Signal("still")))
    assert [(row.dimension, row.verdict) for row in matrix(told, Seen(told), None)] == [
        ("temperature", "bad"),
        ("goes_along", "suspect"),
        ("still", "ok"),
    ]
