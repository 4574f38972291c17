"""A KV cache that is full, and one that is held without use."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.detect.kv import KvMismatch, KvPressure
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence

SERVER = ("vllm", "llama-70b", "127.0.0.1:8000")
ENTITY = Entity("server", "vllm/llama-70b at 127.0.0.1:8000")


def test_what_is_told_of_them_is_complete() -> None:
    check_described(KvPressure, KvMismatch)


def test_lengths_of_time_are_above_zero() -> None:
    with pytest.raises(ValueError, match="recent_s"):
        KvPressure(recent_s=0.0)


class Server:
    """A page of one server, second by second."""

    def __init__(self, detector: KvPressure | KvMismatch) -> None:
        self.stage = Stage()
        self.detector = detector

    def play(
        self,
        seconds: int,
        *,
        usage: float,
        preemptions: float = 0.0,
        tokens: float = 900.0,
        waiting: float = 0.0,
        step_s: float = 1.0,
    ) -> list[Finding]:
        """preemptions, tokens: per second. Findings of the last step."""
        found: list[Finding] = []
        for _ in range(round(seconds / step_s)):
            self.stage.put({(catalogue.SERVER_KV_USAGE, SERVER): usage, (catalogue.SERVER_WAITING, SERVER): waiting})
            self.stage.grow(
                {
                    (catalogue.SERVER_PREEMPTIONS, SERVER): preemptions * step_s,
                    (catalogue.SERVER_TOKENS, (*SERVER, "generation")): tokens * step_s,
                    (catalogue.SERVER_TOKENS, (*SERVER, "prompt")): 10 * tokens * step_s,
                }
            )
            found = list(self.detector.step(self.stage.step(step_s)))
        return found


@pytest.mark.parametrize("step_s", [1.0, 2.0, 5.0])
def test_a_full_cache_with_preemptions_is_found_with_its_figures(step_s: float) -> None:
    server = Server(KvPressure())
    assert server.play(60, usage=0.7, step_s=step_s) == []
    (finding,) = server.play(10, usage=0.98, preemptions=3.0, tokens=700.0, waiting=5.0, step_s=step_s)
    assert (finding.entity, finding.severity) == (ENTITY, Severity.WARNING)
    assert finding.since_s == BEGIN_S + 60
    assert evidence(finding, "kv_usage").observed == 0.98
    assert evidence(finding, "preemptions").observed == 30.0
    assert evidence(finding, "preemptions_per_second").observed == pytest.approx(3.0)
    rate = evidence(finding, "tokens_per_second")
    assert rate.observed == pytest.approx(700.0)
    assert rate.baseline == pytest.approx(900.0)
    assert evidence(finding, "waiting").observed == 5.0
    assert "30 requests preempted" in finding.summary


def test_tokens_per_second_are_told_as_a_fall_only_where_they_fell() -> None:
    server = Server(KvPressure())
    server.play(60, usage=0.7)
    (rose,) = server.play(10, usage=0.98, preemptions=3.0, tokens=1100.0)
    assert rose.summary == "KV cache 98 % full, 30 requests preempted"
    assert evidence(rose, "tokens_per_second").observed == pytest.approx(1100.0)
    (fell,) = server.play(20, usage=0.98, preemptions=5.0, tokens=600.0)
    assert fell.summary.endswith(", tokens/s 900 → 600")
    assert (rose.weight, fell.weight) == pytest.approx((30.0, 50.0))


def test_it_is_critical_when_throughput_collapses_and_the_usual_rate_is_not_taken_from_then() -> None:
    server = Server(KvPressure())
    server.play(60, usage=0.7)
    (finding,) = server.play(300, usage=0.99, preemptions=10.0, tokens=300.0)
    assert finding.severity is Severity.CRITICAL
    assert evidence(finding, "tokens_per_second").baseline == pytest.approx(900.0)
    assert evidence(finding, "preemptions").observed == 3000.0


def test_the_usual_rate_is_not_taken_from_a_time_with_a_few_preemptions_either() -> None:
    server = Server(KvPressure())
    server.play(60, usage=0.7)
    for _ in range(20):
        server.play(1, usage=0.9, preemptions=1.0, tokens=300.0)
        assert server.play(7, usage=0.9, tokens=300.0) == []
    (finding,) = server.play(10, usage=0.99, preemptions=10.0, tokens=300.0)
    assert evidence(finding, "tokens_per_second").baseline == pytest.approx(900.0)


def test_it_is_over_some_seconds_after_the_last_preemption() -> None:
    server = Server(KvPressure())
    server.play(30, usage=0.7)
    assert server.play(10, usage=0.98, preemptions=2.0)
    assert server.play(9, usage=0.9)
    assert server.play(15, usage=0.9) == []


@pytest.mark.parametrize(
    ("usage", "preemptions"),
    [(1.0, 0.0), (0.94, 5.0), (0.99, 0.05)],
    ids=["full and nothing preempted", "preempted and not full", "one in twenty seconds"],
)
def test_what_is_no_pressure(usage: float, preemptions: float) -> None:
    server = Server(KvPressure())
    server.play(30, usage=0.7)
    assert server.play(60, usage=usage, preemptions=preemptions) == []


def test_a_cache_that_was_full_between_preemptions_counts() -> None:
    """What the page says is of one moment: a preemption has just made room."""
    server = Server(KvPressure())
    server.play(30, usage=0.7)
    for _ in range(5):
        server.play(1, usage=0.97)
        found = server.play(1, usage=0.85, preemptions=2.0)
    assert found


def test_without_counters_of_preemptions_or_tokens_nothing_fails() -> None:
    stage, detector = Stage(), KvPressure()
    stage.put({(catalogue.SERVER_KV_USAGE, SERVER): 1.0})
    assert stage.run(detector, 20) == []
    stage.grow({(catalogue.SERVER_PREEMPTIONS, SERVER): 0.0})
    stage.step()
    (finding, *_) = stage.run(detector, 5, each=lambda: stage.grow({(catalogue.SERVER_PREEMPTIONS, SERVER): 4.0}))
    assert {figure.name for figure in finding.evidence} == {"kv_usage", "preemptions", "preemptions_per_second"}
    stage.drop(catalogue.SERVER_KV_USAGE)
    assert stage.run(detector, 200) == []
    assert len(detector._caches) == 0


# --- mismatch -------------------------------------------------------------------------------------------------------

CAPACITY = 400_000.0


def hold(
    stage: Stage, *, live: float, usage: float, running: float | None = 10.0, waiting: float | None = None
) -> None:
    stage.put(
        {
            (catalogue.SERVER_KV_LIVE, SERVER): live,
            (catalogue.SERVER_KV_USAGE, SERVER): usage,
            (catalogue.SERVER_KV_CAPACITY, SERVER): CAPACITY,
        }
    )
    for metric, value in ((catalogue.SERVER_RUNNING, running), (catalogue.SERVER_WAITING, waiting)):
        stage.drop(metric)
        if value is not None:
            stage.put({(metric, SERVER): value})


@pytest.mark.parametrize("step_s", [1.0, 5.0, 10.0])
def test_a_cache_that_holds_nothing_is_found_after_ten_minutes(step_s: float) -> None:
    stage, detector = Stage(), KvMismatch()
    hold(stage, live=30_000.0, usage=0.5)
    assert stage.run(detector, 500, step_s=step_s) == []
    found = stage.run(detector, 200, step_s=step_s)
    finding = found[-1]
    assert (finding.entity, finding.severity) == (ENTITY, Severity.INFO)
    assert BEGIN_S <= finding.since_s <= BEGIN_S + 110
    assert evidence(finding, "redundancy").observed == pytest.approx(0.85)
    assert evidence(finding, "live_tokens").observed == pytest.approx(30_000.0)
    assert evidence(finding, "reserved_tokens").observed == pytest.approx(200_000.0)
    assert "85 %" in finding.summary


def test_it_is_a_warning_while_requests_wait_for_the_cache() -> None:
    stage, detector = Stage(), KvMismatch(window_s=60.0)
    hold(stage, live=30_000.0, usage=0.9, waiting=4.0)
    assert stage.run(detector, 70)[-1].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("live", "usage", "running"),
    [(60_000.0, 0.5, 10.0), (1_000.0, 0.04, 10.0), (30_000.0, 0.5, 0.0), (250_000.0, 0.5, 10.0)],
    ids=["0.7 is not above 0.8", "nearly empty", "nothing runs", "prefixes are shared: more live than reserved"],
)
def test_what_is_no_mismatch(live: float, usage: float, running: float) -> None:
    stage, detector = Stage(), KvMismatch(window_s=60.0)
    hold(stage, live=live, usage=usage, running=running)
    assert stage.run(detector, 300) == []


def test_pauses_of_the_load_are_left_out_and_a_long_one_begins_anew() -> None:
    stage, detector = Stage(), KvMismatch(window_s=600.0)
    found: list[Finding] = []
    for _ in range(20):
        hold(stage, live=30_000.0, usage=0.5)
        found += stage.run(detector, 30)
        hold(stage, live=0.0, usage=0.0, running=0.0)
        found += stage.run(detector, 20)
    assert found, "two thirds of the time it ran, and held nothing"
    hold(stage, live=0.0, usage=0.0, running=0.0)
    stage.run(detector, 90)
    hold(stage, live=30_000.0, usage=0.5)
    assert stage.run(detector, 100) == []


def test_it_recovers_when_the_cache_is_used_again() -> None:
    stage, detector = Stage(), KvMismatch(window_s=120.0)
    hold(stage, live=30_000.0, usage=0.5)
    assert stage.run(detector, 130)
    hold(stage, live=190_000.0, usage=0.5)
    stage.run(detector, 30)
    assert stage.run(detector, 120) == []


def test_without_live_tokens_or_capacity_nothing_is_said() -> None:
    stage, detector = Stage(), KvMismatch(window_s=60.0)
    stage.put({(catalogue.SERVER_KV_USAGE, SERVER): 0.9, (catalogue.SERVER_KV_LIVE, SERVER): 10.0})
    assert stage.run(detector, 100) == []
