"""``quality_drop``: scores and token rates that fall together, and those that fall alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpumon.detect.detector import Finding
from gpumon.detect.quality import FORGET_S, GROUPS, QualityDrop
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import Stage, check_described, evidence

SPREAD = 0.03


class Evaluated:
    """A request each second, with a score around a mean and a token each ``gap_s``."""

    def __init__(self, *, seed: int = 1) -> None:
        self.stage = Stage()
        self.detector = QualityDrop()
        self._random = np.random.default_rng(seed)

    def run(
        self, seconds: float, *, score: float = 0.86, gap_s: float = 0.02, prompts: str = "5f2c", step_s: float = 1.0
    ) -> list[Finding]:
        def ended() -> list[RequestRecord]:
            gaps = gap_s * self._random.lognormal(0.0, 0.05, 50)
            start_s = self.stage.at_s - float(gaps.sum())
            given = score * float(self._random.normal(1.0, SPREAD))
            return [
                request(start_s, gap_s=gaps.tolist(), prompt_hash=prompts, evaluations={"relevance": given}),
                request(start_s, gap_s=gaps.tolist(), prompt_hash=prompts),
            ]

        return self.stage.run(self.detector, seconds, step_s=step_s, requests=ended)


def test_described() -> None:
    check_described(QualityDrop)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_whose_answers_get_worse_and_slower(seed: int) -> None:
    load = Evaluated(seed=seed)
    assert load.run(120.0) == []
    begun_s = load.stage.at_s
    found = load.run(30.0, score=0.6, gap_s=0.03)
    assert found[0].since_s == pytest.approx(begun_s, abs=6.0)
    last = found[-1]
    assert last.entity == ("server", "vllm/m", "", "")
    assert evidence(last, "score").observed == pytest.approx(0.6, rel=0.04)
    assert evidence(last, "score").baseline == pytest.approx(0.86, rel=0.03)
    assert evidence(last, "tokens_per_second").observed == pytest.approx(33, rel=0.1)
    assert evidence(last, "tokens_per_second").baseline == pytest.approx(50, rel=0.1)
    assert last.summary.startswith("relevance of prompts 5f2c: score 0.8")
    load.run(6.0)
    assert load.run(60.0) == []


@pytest.mark.parametrize(
    ("score", "gap_s"), [(0.6, 0.02), (0.86, 0.03), (0.85, 0.03)], ids=["score", "rate", "a little"]
)
def test_what_falls_alone_is_none(score: float, gap_s: float) -> None:
    load = Evaluated()
    load.run(120.0)
    assert load.run(60.0, score=score, gap_s=gap_s) == []


@pytest.mark.parametrize("seed", range(4))
def test_scores_that_vary_are_silent(seed: int) -> None:
    assert Evaluated(seed=seed).run(2000.0) == []


def test_groups_are_judged_apart() -> None:
    load = Evaluated()
    load.run(100.0, prompts="a")
    load.run(100.0, prompts="b")
    found = load.run(20.0, prompts="b", score=0.6, gap_s=0.03)
    assert {finding.summary[:22] for finding in found} == {"relevance of prompts b"}


def test_without_a_prompt_hash_all_prompts_are_one_group() -> None:
    load = Evaluated()
    load.run(100.0, prompts="")
    assert "of all prompts" in load.run(20.0, prompts="", score=0.6, gap_s=0.03)[-1].summary


def test_what_is_compared_with_stays_as_it_was() -> None:
    load = Evaluated()
    load.run(120.0)
    found = load.run(200.0, score=0.6, gap_s=0.03)
    assert evidence(found[-1], "score").baseline == pytest.approx(0.86, rel=0.03)


def test_too_few_answers_are_nothing_to_compare_with() -> None:
    load = Evaluated()
    load.run(10.0)
    assert load.run(9.0, score=0.6, gap_s=0.03) == []


def test_scores_that_are_no_numbers_are_left_out() -> None:
    load = Evaluated()
    load.run(50.0)
    for score in (float("nan"), float("-inf"), float("inf")):
        odd = request(load.stage.at_s, gap_s=0.1, tokens=20, prompt_hash="5f2c", evaluations={"relevance": score})
        assert list(load.detector.step(load.stage.step(requests=[odd] * 10))) == []


@pytest.mark.parametrize(
    "told", [{"gap_s": 0.0, "tokens": 5, "end_s": 900.0}, {"tokens": 0}, {"tokens": 0, "completion_tokens": 1}]
)
def test_requests_without_a_rate_are_left_out(told: dict[str, float]) -> None:
    load = Evaluated()
    record = request(1000.0, evaluations={"relevance": 0.1}, **told)  # type: ignore[arg-type]
    assert list(load.detector.step(load.stage.step(requests=[record] * 50))) == []
    assert load.detector._groups == {}


def test_groups_are_bounded_and_forgotten() -> None:
    load = Evaluated()
    many = [request(1000.0, gap_s=0.1, tokens=9, prompt_hash=f"g{i}", evaluations={"x": 0.5}) for i in range(200)]
    list(load.detector.step(load.stage.step(requests=many)))
    assert len(load.detector._groups) == GROUPS
    list(load.detector.step(load.stage.step(FORGET_S + 1.0)))
    assert load.detector._groups == {}


def test_slower_steps_find_the_same() -> None:
    load = Evaluated()
    load.run(300.0, step_s=5.0)
    assert load.run(60.0, score=0.6, gap_s=0.03, step_s=5.0)


def test_half_of_the_fall_regained_is_the_end() -> None:
    load = Evaluated()
    load.run(120.0)
    assert load.run(60.0, score=0.5, gap_s=0.03)
    load.run(10.0, score=0.6, gap_s=0.03)
    assert load.run(20.0, score=0.6, gap_s=0.03), "a quarter of it"
    load.run(10.0, score=0.76, gap_s=0.03)
    assert load.run(20.0, score=0.76, gap_s=0.03), "most of it, and still a fall"
    load.run(10.0, score=0.82, gap_s=0.03)
    assert load.run(20.0, score=0.82, gap_s=0.03) == [], "within 5 % of before, though not within 2.5"


def test_half_of_the_lost_rate_regained_is_the_end_too() -> None:
    load = Evaluated()
    load.run(120.0)
    assert load.run(60.0, score=0.6, gap_s=0.04)
    assert load.run(20.0, score=0.6, gap_s=0.03)
    load.run(10.0, score=0.6, gap_s=0.0215)
    assert load.run(20.0, score=0.6, gap_s=0.0215) == []


def test_a_level_that_lasts_is_the_usual_one_and_what_falls_from_it_is_found() -> None:
    load = Evaluated()
    load.run(120.0)
    assert load.run(890.0, score=0.6, gap_s=0.03)[-1].entity.name == "vllm/m"
    load.run(30.0, score=0.6, gap_s=0.03)
    assert load.run(120.0, score=0.6, gap_s=0.03) == []
    last = load.run(30.0, score=0.4, gap_s=0.045)[-1]
    assert evidence(last, "score").baseline == pytest.approx(0.6, rel=0.05)
