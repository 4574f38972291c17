"""/api/v1/bound, /api/v1/scatter, and the hour of activity that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.model import Sample
from gpumon.web.activity import GPUS, POINTS, STEP_S, Activity
from gpumon.web.bound import POINTS_MAX, Latencies, Steps, joined, steps
from tests.web.known import GPU, OFFSET_S, START_S, Known, bound_seconds, gpu_sample

NEAR = pytest.approx


def busy(second: int, *, sm: float = 0.5, dram: float = 0.7, gpu: tuple[str, str] = GPU) -> list[Sample]:
    """Counters after so many seconds, a tenth of them idle and the rest bound by memory."""
    return [
        *bound_seconds([0.0, 0.9 * second, 0.0, 0.0, 0.1 * second], gpu),
        gpu_sample(catalogue.GPU_SM_ACTIVE_SECONDS, sm * second, gpu=gpu),
        gpu_sample(catalogue.GPU_DRAM_ACTIVE_SECONDS, dram * second, gpu=gpu),
    ]


def test_without_gpus_there_is_nothing_but_the_time() -> None:
    known = Known()
    for path in ("bound", "scatter"):
        told = known.get(path, "minutes=10")
        assert (told["gpus"], told["end"] - told["start"], told["step_seconds"]) == ([], 600.0, 5.0)
        assert told["end"] == START_S + OFFSET_S


def test_shares_are_told_by_step_and_add_up_to_one() -> None:
    known = Known()
    known.run("gpus", 21, busy)
    (gpu,) = known.get("bound", "minutes=1")["gpus"]
    assert (gpu["gpu"], gpu["uuid"]) == GPU
    assert gpu["at"] == [START_S + OFFSET_S + second for second in (0, 5, 10, 15)]
    assert gpu["shares"]["memory"] == [0.9] * 4
    assert gpu["shares"]["idle"] == [0.1] * 4
    assert gpu["shares"]["starved"] == [0.0] * 4
    assert set(gpu["shares"]) == set(catalogue.BOUND_STATES)


def test_activities_are_means_over_the_step() -> None:
    known = Known()
    known.run("gpus", 21, busy)
    (gpu,) = known.get("scatter", "minutes=1")["gpus"]
    assert (gpu["sm_active"], gpu["dram_active"]) == ([0.5] * 4, [0.7] * 4)
    assert gpu["inter_token_p95_seconds"] == [None] * 4


def test_a_gpu_without_gpm_is_left_out_and_one_can_be_chosen() -> None:
    known = Known()
    other = ("1", "GPU-1")
    no_gpm = [gpu_sample(catalogue.GPU_UTILIZATION, 0.5, gpu=("2", "GPU-2"))]
    known.run("gpus", 21, lambda second: [*busy(second), *busy(second, gpu=other), *no_gpm])
    assert [gpu["gpu"] for gpu in known.get("bound")["gpus"]] == ["1", "3"]
    assert [gpu["gpu"] for gpu in known.get("bound", "uuid=GPU-1")["gpus"]] == ["1"]
    assert known.get("scatter", "uuid=GPU-2")["gpus"] == []


def test_the_time_in_which_a_gpu_was_lost_has_no_points() -> None:
    known = Known()
    known.run("gpus", 15, busy)
    known.store.drop("gpus")
    known.run("others", 20, lambda second: [])
    known.run("gpus", 15, lambda second: busy(100 + second))
    (gpu,) = known.get("bound", "minutes=2")["gpus"]
    assert [at - START_S - OFFSET_S for at in gpu["at"]] == [0.0, 5.0, 10.0, 40.0, 45.0]


def test_counters_that_began_anew_cost_their_step() -> None:
    known = Known()
    known.run("gpus", 15, lambda second: busy(100 + second))
    known.run("gpus", 15, busy)
    (gpu,) = known.get("bound", "minutes=2")["gpus"]
    assert [at - START_S - OFFSET_S for at in gpu["at"]] == [0.0, 5.0, 10.0, 20.0, 25.0]


def test_the_same_step_is_the_same_answer() -> None:
    known = Known()
    known.run("gpus", 21, busy)
    first = known.ask("bound", "minutes=60").body
    known.run("gpus", 2, lambda second: busy(21 + second))
    assert known.ask("bound", "minutes=60").body == first


def test_an_hour_is_kept_and_no_more_however_often_it_is_looked_at() -> None:
    known = Known()
    for number in range(POINTS + 50):
        known.clock.step(STEP_S)
        known.put("gpus", *busy(round(STEP_S * number)))
        for _ in range(3):
            known.activity.take(known.store.view(known.clock.now_s()))
    (gpu,) = known.get("bound", "minutes=60")["gpus"]
    assert len(gpu["at"]) == POINTS_MAX
    (past,) = known.activity.past(0, int(known.clock.now_s() // STEP_S), 1)
    assert int((~np.isnan(past.sm_active)).sum()) == POINTS


def test_of_too_many_gpus_the_one_that_was_silent_longest_gives_way() -> None:
    known = Known()
    for number in range(GPUS + 1):
        gpu = (str(number), f"GPU-{number}")
        known.run("gpus", 11, lambda second, gpu=gpu: busy(second, gpu=gpu))
    last = int(known.clock.now_s() // STEP_S)
    assert [past.uuid for past in known.activity.past(last - POINTS + 1, last, 1)] == [
        f"GPU-{n}" for n in range(1, GPUS + 1)
    ]


@given(st.floats(0.0, 1e9), st.integers(1, 60))
def test_steps_are_over_and_as_many_as_were_asked_for(at_s: float, minutes: int) -> None:
    of = steps(at_s, minutes)
    assert (of.last + 1) * STEP_S <= at_s + 1e-6
    assert at_s - (of.last + 1) * STEP_S < of.step_s + 1e-6
    assert (of.last - of.first + 1) % of.width == 0
    assert len(of.starts_s) <= POINTS_MAX
    assert len(of.starts_s) * of.step_s >= min(60.0 * minutes, POINTS * STEP_S)


def test_latencies_come_by_the_second_where_they_are_known_and_else_by_the_minute() -> None:
    of = Steps(24, 59, 1)  # two minutes to five
    minutes = np.array([120.0, 180.0]), np.array([0.02, 0.03])
    worse = np.array([120.0]), np.array([0.05])
    seconds = np.arange(180.0, 200.0), np.where(np.arange(20) % 5 == 0, np.nan, 0.01)
    found = joined(of, Latencies([minutes, worse], [seconds]))
    assert found[:12].tolist() == [0.05] * 12
    assert found[12:16] == NEAR(0.01)
    assert found[16:24].tolist() == [0.03] * 8
    assert np.isnan(found[24:]).all()


def test_activity_of_nothing_is_nothing() -> None:
    assert Activity().past(0, 10, 1) == []


@pytest.mark.parametrize("path", ["bound", "scatter"])
@pytest.mark.parametrize("query", ["minutes=0", "minutes=61", "minutes=x", "minutes=1e9", "uuid=" + "x" * 97])
def test_a_question_that_cannot_be_answered_is_refused(path: str, query: str) -> None:
    assert Known().ask(path, query).status == 422
