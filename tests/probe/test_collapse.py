"""Where it collapses: at the right rung, by the detector's rule, and what was different there."""

from __future__ import annotations

import pytest

from gpumon.probe.climbing import Climbed, State
from gpumon.probe.collapse import changes, collapses, figures
from gpumon.probe.model import Collapse
from tests.probe.answers import answered, climbed, conditions, failed, rungs

GAPS = [0.02] * 31


def ladder(*firsts_s: float, start: int = 1024, ratio: int = 2, each: int = 5) -> list[Climbed]:
    """A rung for each time to first token."""
    return [
        climbed(start * ratio**n, [answered(first_s * (1 + 0.01 * k), GAPS) for k in range(each)])
        for n, first_s in enumerate(firsts_s)
    ]


def found(made: list[Climbed]) -> list[Collapse]:
    return collapses(rungs(*made), made)


def test_a_ladder_in_step_with_the_work_has_none() -> None:
    assert found(ladder(0.1, 0.2, 0.4, 0.8)) == []
    assert found(ladder(0.1, 0.23, 0.54, 1.3)) == []  # attention adds to it


def test_it_is_found_at_its_rung() -> None:
    (only,) = found(ladder(0.1, 0.2, 1.2, 2.4))
    assert (only.before_tokens, only.beyond_tokens, only.measure) == (2048, 4096, "time_to_first_token")
    assert only.growth == pytest.approx(6.0)
    assert (only.work, only.allowed, only.few) == (2.0, 2.5, False)


def test_larger_steps_are_allowed_to_grow_more() -> None:
    assert found(ladder(0.1, 0.4, 1.6, ratio=4)) == []
    (only,) = found(ladder(0.1, 0.4, 2.4, ratio=4))
    assert (only.beyond_tokens, only.allowed) == (1024 * 16, 5.0)


def test_the_work_is_by_the_lengths_that_the_server_counted() -> None:
    made = ladder(0.1, 0.29)
    for each, prompt in zip(made, (1000, 3000), strict=True):
        for answer in each.answers:
            answer.prompt_tokens = prompt
    assert found(made) == []  # three times the work, and not twice


def test_gaps_between_tokens_collapse_too() -> None:
    made = [climbed(n, [answered(0.1, [gap] * 31) for _ in range(5)]) for n, gap in ((1024, 0.02), (2048, 0.08))]
    (only,) = found(made)
    assert only.measure == "inter_token"
    assert only.growth == pytest.approx(4.0)


def test_one_slow_request_is_none() -> None:
    made = ladder(0.1, 0.2, 0.4)
    made[2].answers[0] = answered(9.0, GAPS)
    assert found(made) == []


def test_few_requests_are_a_hint() -> None:
    (only,) = found(ladder(0.1, 1.0, each=2))
    assert only.few


def test_rungs_that_are_no_neighbours_are_not_compared() -> None:
    made = ladder(0.1, 0.2, 4.0)
    made[1] = climbed(2048, [failed("timeout")], state=State.FAILED)
    assert found(made) == []


def test_each_concurrency_is_a_ladder_of_its_own() -> None:
    low, high = ladder(0.1, 0.2), ladder(0.1, 2.0)
    for each in high:
        each.cell = each.cell._replace(concurrency=8)
    assert [each.concurrency for each in found([*low, *high])] == [8]


def test_answers_without_time_between_them_are_no_ground_for_anything() -> None:
    made = [climbed(n, [answered(0.1, [0.0] * 31) for _ in range(5)]) for n in (1024, 2048)]
    assert found(made) == []


def test_what_was_different_is_told_side_by_side() -> None:
    before = conditions(kv_usage=0.4, preemptions=None, process_major_faults=0.0)
    told = {each.name: (each.before, each.beyond) for each in changes(before, conditions())}
    assert told["kv_usage"] == (0.4, 0.97)
    assert told["process_major_faults"] == (0.0, 25.0)  # each second
    assert told["preemptions"] == (None, 2.0)
    assert told["throttled"] == (0.25, 0.25)
    assert changes(None, conditions()) == changes(conditions(), None) == []


def test_of_several_gpus_the_busiest_is_told() -> None:
    (gpu,) = conditions().gpus
    idle = gpu.model_copy(update={"uuid": "GPU-2", "sm_active": 0.01, "clock_hertz": 3e8, "throttled_seconds": {}})
    assert figures(conditions(gpus=[idle, gpu]))["clock_hertz"][1] == 1.98e9
    nothing = figures(conditions(gpus=[], process_major_faults=None))
    assert (nothing["sm_active"][1], nothing["throttled"][1], nothing["process_major_faults"][1]) == (None, None, None)
