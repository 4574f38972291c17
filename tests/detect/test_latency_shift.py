"""``latency_shift``: on a small server that batches, with what slows it and what does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import process_time

import pytest

from gpumon.detect.detector import Finding
from gpumon.detect.latency_shift import LatencyShift
from gpumon.model import RequestRecord
from gpumon.requests.windows import Signal
from tests.detect.load import OF_TIME, Server, always, play
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence


def between(from_s: float, to_s: float, factor: float) -> OF_TIME:
    return lambda at_s: factor if from_s <= at_s < to_s else 1.0


def told(found: list[tuple[float, Finding]]) -> list[Finding]:
    return [finding for _, finding in found]


def test_described() -> None:
    check_described(LatencyShift)


def test_the_measured_case_of_a_p99_that_jumped() -> None:
    """P99 45 ms → 255 ms (+467 %)."""
    detector, stage = LatencyShift(), Stage()

    def requests(slow: bool) -> Callable[[], list[RequestRecord]]:
        """Every second one whose gaps are mostly 20 ms, one in 30 of them long."""

        def ended() -> list[RequestRecord]:
            gaps = [(0.255 if slow else 0.045) if i % 30 == 0 else 0.02 for i in range(150)]
            return [request(stage.at_s - 3.0 - (7.0 if slow else 0.0), gap_s=gaps, model="llama-70b")]

        return ended

    assert stage.run(detector, 120.0, requests=requests(slow=False)) == []
    found = stage.run(detector, 30.0, requests=requests(slow=True))
    assert found
    last = found[-1]
    assert last.entity == ("server", "vllm/llama-70b", "", "")
    p99 = evidence(last, "inter_token_p99")
    assert p99.baseline == pytest.approx(0.045, rel=0.03)
    assert p99.observed == pytest.approx(0.255, rel=0.03)
    assert last.summary.startswith("inter-token P99 4")
    assert last.summary.endswith(" %)")
    assert 430 < float(last.summary.split("(+")[1].split()[0]) < 510


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_slows_down_by_two_thirds(seed: int) -> None:
    """As a throttled one does: 7.2 → 11.8 ms."""
    server = Server(slower=between(200, 260, 11.8 / 7.2), seed=seed)
    found = play(LatencyShift(), server, for_s=320)
    first_s, first = found[0]
    assert 200 < first_s <= 225
    assert first.since_s == pytest.approx(BEGIN_S + 200, abs=10)
    ongoing = [finding for at_s, finding in found if at_s < 255]
    ratios = [finding.evidence for finding in ongoing][-1]
    (p50,) = [each for each in ratios if each.name == "inter_token_p50"]
    assert p50.baseline is not None
    assert p50.observed / p50.baseline == pytest.approx(11.8 / 7.2, rel=0.15)
    assert ongoing[-1].weight >= p50.observed / p50.baseline
    assert [finding.over for finding in told(found)].count(True) == 1
    assert found[-1][1].over
    assert found[-1][0] < 290


@pytest.mark.parametrize("seed", range(3))
def test_a_strong_shift_is_found_within_three_windows(seed: int) -> None:
    found = play(LatencyShift(), Server(slower=between(200, 240, 5.0), seed=seed), for_s=240)
    assert 200 < found[0][0] <= 216


@pytest.mark.parametrize("seed", range(3))
def test_longer_prompts_are_a_shift_of_the_first_token(seed: int) -> None:
    def prompts(at_s: float, luck: float) -> int:
        return (1024 if luck < 0.6 else 2048) * (8 if at_s > 200 else 1)

    found = play(LatencyShift(), Server(prompts=prompts, seed=seed), for_s=260)
    assert 200 < found[0][0] <= 235
    assert any(each.name.startswith("time_to_first_token") for each in found[-1][1].evidence)


@pytest.mark.parametrize(
    "per_s",
    [
        always(2.0),
        always(6.0),
        always(0.2),
        lambda at_s: 6.0 if at_s % 40 < 8 else 1.0,
        lambda at_s: 8.0 if at_s % 90 < 15 else 1.5,
        lambda at_s: 3 + 2 * math.sin(at_s / 900 * 2 * math.pi),
    ],
    ids=["steady", "busy", "sparse", "bursts", "long bursts", "wave"],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_load_is_silent(per_s: OF_TIME, seed: int) -> None:
    assert play(LatencyShift(), Server(per_s=per_s, seed=seed), for_s=1200) == []


def test_requests_without_token_times_have_their_first_token_alone() -> None:
    detector, stage = LatencyShift(), Stage()

    def ended(first_s: float) -> Callable[[], list[RequestRecord]]:
        return lambda: [request(stage.at_s - first_s - 1.0, first_s=first_s * (1 + i / 10)) for i in range(3)]

    assert stage.run(detector, 120.0, requests=ended(0.2)) == []
    found = stage.run(detector, 40.0, requests=ended(1.5))
    assert {each.name.rpartition("_")[0] for each in found[-1].evidence} == {"time_to_first_token"}


def test_a_server_that_starts_anew_is_left_alone_for_a_minute() -> None:
    def per_s(at_s: float) -> float:
        return 0.0 if 200 <= at_s < 240 else 2.0

    server = Server(per_s=per_s, slower=between(240, 275, 4.0), seed=1)
    assert play(LatencyShift(), server, for_s=330) == []


def test_models_are_judged_apart() -> None:
    slow = Server(slower=between(200, 260, 4.0), model="slow", seed=1)
    found = play(LatencyShift(), slow, Server(model="fast", seed=2), for_s=250)
    assert {finding.entity.name for finding in told(found)} == {"vllm/slow"}


@pytest.mark.parametrize("step_s", [2.0, 5.0, 10.0])
def test_slower_steps_find_the_same(step_s: float) -> None:
    found = play(LatencyShift(), Server(slower=between(200, 260, 4.0), seed=1), for_s=320, step_s=step_s)
    assert 200 < found[0][0] <= 230
    assert found[-1][1].over


def test_a_shift_whose_traffic_ends_is_over() -> None:
    server = Server(per_s=lambda at_s: 2.0 if at_s < 230 else 0.0, slower=between(200, 300, 5.0), seed=1)
    found = play(LatencyShift(), server, for_s=400)
    assert [finding.over for finding in told(found)].count(True) == 1
    assert found[-1][1].over


def test_nothing_is_known() -> None:
    assert Stage().run(LatencyShift(), 30.0) == []


def test_four_servers_cost_little() -> None:
    servers = [Server(per_s=always(4.0), model=f"m{i}", seed=i) for i in range(4)]
    told_of = sorted((pair for server in servers for pair in server.requests(60.0)), key=lambda pair: pair[0])
    detector, stage, spent_s = LatencyShift(), Stage(), 0.0
    for second in range(1, 61):
        scene = stage.step(1.0, [record for at_s, record in told_of if second - 1 < at_s <= second])
        began = process_time()
        list(detector.step(scene))
        spent_s += process_time() - began
    assert sum(model.totals(Signal.INTER_TOKEN, model.newest)[0] for model in scene.latencies.models()) > 0
    assert spent_s / 60 < 2e-3
