"""``context_cliff``: the measured case, and ladders that only get steeper as they should."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.detect.context_cliff import ContextCliff
from gpumon.detect.detector import Finding, Severity
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import Stage, check_described, evidence, gpu

K = 1024


class Ladder:
    """Requests of several lengths, each with its mean time to first token, spread a little."""

    def __init__(
        self, first_s: Mapping[int, float], *, gap_s: Mapping[int, float] | None = None, per_step: int = 1
    ) -> None:
        self.stage = Stage()
        self.detector = ContextCliff()
        self._first_s = first_s
        self._gap_s = gap_s or {}
        self._per_step = per_step
        self._random = np.random.default_rng(5)
        self.stage.put({(catalogue.GPU_DRAM_ACTIVE, gpu(0)): 0.98, (catalogue.GPU_SM_ACTIVE, gpu(0)): 0.53})
        self.stage.put({(catalogue.GPU_DRAM_ACTIVE, gpu(1)): 0.1, (catalogue.GPU_SM_ACTIVE, gpu(1)): 0.1})

    def run(self, seconds: float) -> list[Finding]:
        return self.stage.run(self.detector, seconds, requests=self._ended)

    def _ended(self) -> list[RequestRecord]:
        found = []
        for prompt, mean_s in self._first_s.items():
            for _ in range(self._per_step):
                first_s = mean_s * float(self._random.lognormal(0.0, 0.1))
                gaps = self._gap_s.get(prompt, 0.01) * self._random.lognormal(0.0, 0.1, 40)
                length = int(prompt * self._random.uniform(1.0, 1.2))
                start_s = self.stage.at_s - first_s - float(gaps.sum())
                found.append(
                    request(start_s, first_s=first_s, gap_s=gaps.tolist(), prompt_tokens=length, gpus=[gpu(0)[1]])
                )
        return found


def test_described() -> None:
    check_described(ContextCliff)


def test_the_measured_case_from_64k_to_128k() -> None:
    """P95 3.2 → 10.2 s with DRAM 98 % and SM 53 %."""
    mean_s = {16 * K: 0.55, 32 * K: 1.2, 64 * K: 3.2 / 1.18 - 0.4, 128 * K: 10.2 / 1.18 - 0.4}
    ladder = Ladder(mean_s)
    found = ladder.run(60.0)
    last = found[-1]
    assert last.entity == ("server", "vllm/m", "", "")
    assert last.severity is Severity.WARNING
    response = evidence(last, "response_time_p95")
    assert response.baseline == pytest.approx(3.2, rel=0.08)
    assert response.observed == pytest.approx(10.2, rel=0.08)
    assert evidence(last, "dram_active").observed == pytest.approx(0.98)
    assert evidence(last, "sm_active").observed == pytest.approx(0.53)
    assert evidence(last, "context_tokens").observed == 128 * K
    assert "at contexts of 64k → 128k: 3." in last.summary
    assert last.summary.endswith(", DRAM 98 %, SM 53 %")
    rise = float(last.summary.split("(+")[1].split()[0])
    assert rise == pytest.approx(217, abs=30)
    assert found[0].since_s < ladder.stage.at_s - 20.0


def test_a_ladder_whose_steps_double_is_silent() -> None:
    ladder = Ladder({prompt * K: 0.1 * prompt for prompt in (1, 2, 4, 8, 16, 32)}, per_step=2)
    assert ladder.run(120.0) == []


def test_attention_alone_makes_no_cliff() -> None:
    """Linear work and a quadratic part that is a quarter of it at 64k."""
    ladder = Ladder({prompt * K: 0.05 * prompt * (1 + prompt / 256) for prompt in (1, 2, 4, 8, 16, 32, 64)})
    assert ladder.run(120.0) == []


def test_lengths_that_are_no_neighbours_are_not_compared() -> None:
    assert Ladder({1 * K: 0.1, 16 * K: 3.0}).run(120.0) == []


def test_few_requests_are_no_cliff() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0})
    assert ladder.run(19.0) == []


def test_a_few_slow_requests_are_no_cliff() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 0.2})
    for _ in range(6):
        assert ladder.run(18.0) == []
        slow = [request(ladder.stage.at_s - 5.0, first_s=4.0, prompt_tokens=9 * K) for _ in range(2)]
        assert list(ladder.detector.step(ladder.stage.step(1.0, slow))) == []


def test_a_cliff_of_the_inter_token_latency() -> None:
    ladder = Ladder({4 * K: 0.2, 8 * K: 0.4}, gap_s={4 * K: 0.01, 8 * K: 0.04}, per_step=3)
    last = ladder.run(60.0)[-1]
    assert evidence(last, "inter_token_p95").observed == pytest.approx(0.04 * 1.18, rel=0.08)
    assert evidence(last, "inter_token_p95").baseline == pytest.approx(0.01 * 1.18, rel=0.08)
    assert "4k → 8k" in last.summary


def test_few_requests_beyond_the_cliff_are_for_information() -> None:
    ladder = Ladder({1 * K: 0.1, 2 * K: 0.2, 4 * K: 0.4}, per_step=12)
    ladder.run(100.0)
    slow = [request(ladder.stage.at_s - 5.0, first_s=4.0, prompt_tokens=9 * K) for _ in range(30)]
    list(ladder.detector.step(ladder.stage.step(1.0, slow)))
    assert {finding.severity for finding in ladder.run(30.0)} == {Severity.INFO}


def test_a_cliff_that_is_no_more_is_forgotten_after_the_window() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0})
    assert ladder.run(60.0)
    ladder._first_s = {4 * K: 0.1, 8 * K: 0.2}
    ladder.run(700.0)
    assert ladder.run(60.0) == []


def test_without_activity_the_cliff_alone_is_told() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0})
    ladder.stage.drop(catalogue.GPU_DRAM_ACTIVE, catalogue.GPU_SM_ACTIVE)
    assert ladder.run(60.0)[-1].summary.endswith(" %)")


def test_slower_steps_find_the_same() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0}, per_step=5)
    ended: Callable[[], list[RequestRecord]] = ladder._ended
    assert ladder.stage.run(ladder.detector, 100.0, step_s=10.0, requests=ended)


def test_nothing_is_known() -> None:
    assert Stage().run(ContextCliff(), 30.0) == []


def test_a_cliff_of_a_model_that_nobody_asks_any_more_ends_with_its_window() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0})
    found = ladder.run(60.0)
    ladder.stage.put({(catalogue.GPU_DRAM_ACTIVE, gpu(0)): 0.0, (catalogue.GPU_SM_ACTIVE, gpu(0)): 0.0})
    ladder.stage.run(ladder.detector, 700.0)
    assert found
    assert ladder.stage.run(ladder.detector, 60.0) == []


def test_the_activities_told_are_of_the_time_in_which_the_cliff_was_last_seen() -> None:
    ladder = Ladder({4 * K: 0.1, 8 * K: 1.0})
    ladder.run(60.0)
    ladder._first_s = {4 * K: 0.6, 8 * K: 0.6}
    ladder._per_step = 40  # the cliff is drowned at once
    ladder.stage.put({(catalogue.GPU_DRAM_ACTIVE, gpu(0)): 0.1, (catalogue.GPU_SM_ACTIVE, gpu(0)): 0.1})
    last = ladder.run(50.0)[-1]
    assert evidence(last, "dram_active").observed > 0.8
