"""Uneven expert-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.detect.moe import MoeImbalance
from gpumon.model import RequestRecord
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence
from tests.requests.records import request

SERVER = ("sglang", "qwen", "127.0.0.1:30000")


def test_what_is_told_of_it_is_complete() -> None:
    check_described(MoeImbalance)


class Server:
    """One server's balance, second by second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.detector = MoeImbalance()

    def play(
        self,
        seconds: int,
        balance: float,
        *,
        running: float | None = 20.0,
        step_s: float = 1.0,
        requests: Sequence[RequestRecord] = (),
    ) -> list[Finding]:
        """Findings of the last step. requests: of every step."""
        found: list[Finding] = []
        for _ in range(round(seconds / step_s)):
            self.stage.put({(catalogue.SERVER_EXPERT_BALANCE, SERVER): balance})
            if running is not None:
                self.stage.put({(catalogue.SERVER_RUNNING, SERVER): running})
            found = list(self.detector.step(self.stage.step(step_s, requests)))
        return found

    def ended(self, gap_s: float, *, model: str = "qwen", server: str = "sglang") -> RequestRecord:
        """A request of two seconds that ended at the next second, with this time between its tokens."""
        end_ns = self.stage.at_ns + 1_000_000_000
        return request(
            server=server,
            model=model,
            start_ns=end_ns - 2_100_000_000,
            first_token_ns=end_ns - 2_000_000_000,
            end_ns=end_ns,
            completion_tokens=1 + round(2.0 / gap_s),
        )


@pytest.mark.parametrize("step_s", [1.0, 2.0, 5.0])
def test_an_imbalance_is_found_with_its_figures(step_s: float) -> None:
    server = Server()
    assert server.play(60, 0.82, step_s=step_s) == []
    assert server.play(5, 0.4, step_s=step_s) == []
    (finding,) = server.play(5, 0.4, step_s=step_s)
    assert finding.entity == Entity("server", "sglang/qwen at 127.0.0.1:30000")
    assert finding.severity is Severity.WARNING
    assert finding.since_s == BEGIN_S + 60 + step_s
    assert evidence(finding, "expert_balance")[1] == 0.4
    assert evidence(finding, "expert_balance").baseline == pytest.approx(0.82)
    assert evidence(finding, "fullest_rank_over_mean").observed == pytest.approx(2.5)
    assert finding.summary == "the fullest expert-parallel rank has 2.5 times the mean"


def test_it_lasts_and_ends_with_the_imbalance() -> None:
    server = Server()
    server.play(60, 0.8)
    assert server.play(600, 0.3), "ten minutes of it do not become usual"
    (finding,) = server.play(1, 0.45)
    assert evidence(finding, "lowest_balance").observed == 0.3
    assert finding.weight == pytest.approx(0.55)
    assert evidence(finding, "expert_balance").baseline == pytest.approx(0.8)
    server.play(12, 0.8)
    assert server.play(60, 0.8) == []


@pytest.mark.parametrize(("balance", "running"), [(0.55, 20.0), (0.3, 0.0)], ids=["even enough", "nothing runs"])
def test_what_is_no_imbalance(balance: float, running: float) -> None:
    assert Server().play(120, balance, running=running) == []


def test_a_few_seconds_of_it_are_none() -> None:
    server = Server()
    for _ in range(10):
        assert server.play(4, 0.3) == []
        assert server.play(12, 0.8) == []


def test_its_correlation_with_the_time_between_tokens_is_told_where_it_is_known() -> None:
    server = Server()
    for _ in range(5):
        for balance in (0.8, 0.45, 0.35, 0.3):
            gap_s = 0.02 / balance
            server.play(3, balance)
            server.play(1, balance, requests=[server.ended(gap_s), server.ended(0.5, model="other")])
    (finding,) = server.play(12, 0.3)
    assert evidence(finding, "correlation_with_inter_token").observed > 0.9


def test_of_few_requests_and_of_equal_ones_there_is_no_correlation() -> None:
    server = Server()
    for _ in range(40):
        found = server.play(1, 0.3, requests=[server.ended(0.02, model="")])
    assert found
    assert "correlation_with_inter_token" not in {figure.name for figure in found[0].evidence}


def test_without_the_running_batch_it_is_judged_and_a_gone_server_is_forgotten() -> None:
    server = Server()
    assert server.play(20, 0.3, running=None)
    server.stage.drop(catalogue.SERVER_EXPERT_BALANCE)
    assert server.stage.run(server.detector, 100) == []
    assert len(server.detector._experts) == 0


def test_a_balance_of_zero_is_no_balance() -> None:
    assert Server().play(30, 0.0) == []
