"""Latency and tokens per second of the requests on a GPU, before a moment and since."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpumon.detect.pace import BEGINNINGS_MAX, GROUPS_MAX, KEPT_S, Pace
from gpumon.model import Binding, GpuUuid, RequestRecord
from tests.detect.scenes import Stage


def request(
    end_ns: int,
    gap_ms: float = 10.0,
    *,
    gpus: Sequence[str] = ("GPU-a",),
    tokens: int | None = 100,
    counts: Sequence[int] | None = None,
    per_token: bool = True,
    steps: int = 100,
) -> RequestRecord:
    times = end_ns - np.arange(steps - 1, -1, -1, dtype=np.int64) * round(gap_ms * 1e6)
    return RequestRecord(
        bytes(16),
        "",
        "vllm",
        "m",
        0.0,
        int(times[0]),
        end_ns,
        token_ns=times,
        token_counts=None if counts is None else np.array(counts, np.int32),
        per_token=per_token,
        completion_tokens=tokens,
        binding=Binding("config", gpus=tuple(GpuUuid(uuid) for uuid in gpus)),
    )


def feed(stage: Stage, pace: Pace, seconds: int, gap_ms: float = 10.0, gpus: Sequence[str] = ("GPU-a",)) -> None:
    """A request that ends in every second."""
    for _ in range(seconds):
        end_ns = stage.at_ns + 500_000_000
        pace.feed(stage.step(1.0, [request(end_ns, gap_ms, gpus=gpus)]))


def figures(pace: Pace, uuid: str, since_s: float, at_s: float) -> dict[str, tuple[float, float]]:
    return {
        each.name: (each.observed, each.baseline if each.baseline is not None else -1.0)
        for each in pace.evidence(uuid, since_s, at_s)
    }


def test_latency_and_rate_before_and_since() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 60, 10.0)
    since_s = stage.at_s
    feed(stage, pace, 30, 15.0)
    found = figures(pace, "GPU-a", since_s, stage.at_s)
    assert found["inter_token_latency"] == pytest.approx((0.015, 0.010))
    assert found["tokens_per_second"] == pytest.approx((100.0, 100.0), rel=0.05)


def test_a_server_on_several_gpus_counts_for_each_and_for_no_other() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 40, gpus=("GPU-a", "GPU-b"))
    for uuid in ("GPU-a", "GPU-b"):
        assert "inter_token_latency" in figures(pace, uuid, stage.at_s - 20, stage.at_s)
    assert pace.evidence("GPU-c", stage.at_s - 20, stage.at_s) == ()


def test_a_rate_needs_time_and_requests_on_both_sides() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 60)
    since_s = stage.at_s
    feed(stage, pace, 10)
    assert [*figures(pace, "GPU-a", since_s, stage.at_s)] == ["inter_token_latency"]
    assert figures(pace, "GPU-a", stage.at_s, stage.at_s) == {}


def test_steps_of_several_tokens_count_by_their_tokens() -> None:
    stage, pace = Stage(), Pace()
    for gap_ms in (10.0, 20.0):
        since_s = stage.at_s
        end_ns = stage.at_ns + 1_900_000_000
        pace.feed(stage.step(5.0, [request(end_ns, gap_ms, counts=[2] * 100)]))
    found = figures(pace, "GPU-a", since_s, stage.at_s)
    assert found["inter_token_latency"] == pytest.approx((0.010, 0.005))


def test_requests_that_say_nothing_are_left_out() -> None:
    stage, pace = Stage(), Pace()
    at_ns = stage.at_ns
    useless = [
        request(at_ns, gpus=()),
        request(at_ns, per_token=False, tokens=None),
        request(at_ns, steps=1, tokens=None),
    ]
    pace.feed(stage.step(1.0, useless))
    pace.feed(stage.step(5.0, useless))
    assert pace.evidence("GPU-a", stage.at_s - 5, stage.at_s) == ()


def test_a_clock_that_is_wrong_and_late_requests_do_no_harm() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 5)
    pace.feed(stage.step(1.0, [request(10**18), request(1), request(stage.at_ns - 10**12)]))
    feed(stage, pace, 5)
    pace.feed(stage.step(KEPT_S + 10.0, [request(1)]))
    pace.feed(stage.step(1.0))
    assert pace.evidence("GPU-a", stage.at_s - 100, stage.at_s) == ()


def test_sets_of_gpus_are_bounded_and_old_ones_make_room() -> None:
    stage, pace = Stage(), Pace()
    end_ns = stage.at_ns
    for index in range(GROUPS_MAX + 5):
        pace.feed(stage.step(0.001, [request(end_ns, gpus=(f"GPU-{index}",))]))
    since_s = stage.at_s
    feed(stage, pace, 5, gpus=(f"GPU-{GROUPS_MAX + 1}",))
    assert pace.evidence(f"GPU-{GROUPS_MAX + 1}", since_s, stage.at_s) == ()
    pace.feed(stage.step(KEPT_S + 10.0))
    feed(stage, pace, 10, gpus=("GPU-new",))
    assert pace.evidence("GPU-new", stage.at_s - 5, stage.at_s)


def test_what_was_before_stays_as_it_was_however_long_it_lasts() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 60, 10.0)
    since_s = stage.at_s
    for _ in range(20):
        feed(stage, pace, 20, 15.0)
        found = figures(pace, "GPU-a", since_s, stage.at_s)
    assert stage.at_s - since_s > 2 * KEPT_S
    assert found["inter_token_latency"] == pytest.approx((0.015, 0.010))
    assert found["tokens_per_second"] == pytest.approx((100.0, 100.0), rel=0.05)


def test_beginnings_are_bounded() -> None:
    stage, pace = Stage(), Pace()
    feed(stage, pace, 5)
    for beginning in range(BEGINNINGS_MAX + 20):
        pace.evidence("GPU-a", stage.at_s - 0.01 * beginning, stage.at_s)
    assert len(pace._before) == BEGINNINGS_MAX
