"""GPUs bound by memory, and starved ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumon import catalogue as c
from gpumon.detect.bound import MemoryBound, StarvedGpu
from gpumon.detect.detector import Severity
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu


def active(stage: Stage, sm: float, dram: float, *, index: int = 0, step_s: float = 1.0) -> Callable[[], None]:
    """To do before each step: activity in it."""

    def grow() -> None:
        stage.grow(
            {
                (c.GPU_SM_ACTIVE_SECONDS, gpu(index)): sm * step_s,
                (c.GPU_DRAM_ACTIVE_SECONDS, gpu(index)): dram * step_s,
            }
        )

    return grow


def bound(stage: Stage, index: int = 0, **seconds: float) -> Callable[[], None]:
    """To do before each step: seconds by bound state."""
    states = dict.fromkeys(c.BOUND_STATES, 0.0) | seconds

    def grow() -> None:
        stage.grow({(c.GPU_BOUND_SECONDS, (*gpu(index), state)): amount for state, amount in states.items()})

    return grow


def server(stage: Stage, pid: str, used: float = 120e9, index: int = 0) -> None:
    stage.put({(c.PROCESS_GPU_MEMORY, (*gpu(index), pid, "VLLM::Worker_TP", "", "", "")): used})


# --- memory ---------------------------------------------------------------------------------------------------------


def test_full_memory_bandwidth_with_idle_sms_is_found_within_ten_seconds_with_its_figures() -> None:
    stage, detector = Stage(), MemoryBound()
    stage.run(detector, 20, each=active(stage, 0.7, 0.75))
    began_s = stage.at_s
    assert stage.run(detector, 6, each=active(stage, 0.53, 0.98)) == []
    found = stage.run(detector, 5, each=active(stage, 0.53, 0.98))[-1]
    assert (found.kind, found.severity, found.entity.gpu) == ("memory_bound", Severity.INFO, "0")
    assert found.since_s == began_s
    assert evidence(found, "dram_active").observed == pytest.approx(0.98)
    assert evidence(found, "sm_active").observed == pytest.approx(0.53)
    assert found.summary == "bound by memory: DRAM 98 %, SM 53 %"


def test_nothing_is_said_before_ten_seconds_are_known() -> None:
    stage, detector = Stage(), MemoryBound()
    assert stage.run(detector, 10, each=active(stage, 0.53, 0.98)) == []
    assert len(stage.run(detector, 1, each=active(stage, 0.53, 0.98))) == 1


def test_prefills_in_between_change_little_and_a_light_load_ends_it() -> None:
    stage, detector = Stage(), MemoryBound()
    stage.run(detector, 14, each=active(stage, 0.5, 0.98))
    assert len(stage.run(detector, 2, each=active(stage, 0.95, 0.7))) == 2  # SM 59 % on the mean
    assert stage.run(detector, 1, each=active(stage, 0.95, 0.7)) == []
    assert stage.run(detector, 30, each=active(stage, 0.3, 0.4)) == []
    (found,) = stage.run(detector, 10, each=active(stage, 0.53, 0.98))[:1]
    assert found.since_s > BEGIN_S + 40


def test_a_short_break_does_not_end_it() -> None:
    stage, detector = Stage(), MemoryBound()
    stage.run(detector, 14, each=active(stage, 0.5, 0.98))
    assert stage.run(detector, 1, each=active(stage, 0.5, 0.1)) == []
    assert stage.run(detector, 20, each=active(stage, 0.5, 0.98))[-1].since_s == BEGIN_S + 1


@pytest.mark.parametrize(("sm", "dram"), [(0.53, 0.89), (0.61, 0.98), (0.0, 0.0), (1.0, 1.0)])
def test_other_activity_is_not_bound_by_memory(sm: float, dram: float) -> None:
    stage, detector = Stage(), MemoryBound()
    assert stage.run(detector, 60, each=active(stage, sm, dram)) == []


def test_memory_bound_at_steps_of_ten_seconds() -> None:
    stage, detector = Stage(), MemoryBound()
    stage.run(detector, 20, step_s=10.0, each=active(stage, 0.5, 0.7, step_s=10.0))
    (found,) = stage.run(detector, 10, step_s=10.0, each=active(stage, 0.5, 0.95, step_s=10.0))
    assert found.since_s == stage.at_s - 10.0


def test_memory_bound_without_gpm_after_a_reset_and_for_a_gpu_that_vanished() -> None:
    stage, detector = Stage(), MemoryBound()
    stage.put({(c.GPU_UTILIZATION, gpu()): 1.0})
    assert stage.run(detector, 20) == []
    stage.put({(c.GPU_DRAM_ACTIVE_SECONDS, gpu()): 5000.0})  # and no SM activity
    assert stage.run(detector, 20, each=lambda: stage.grow({(c.GPU_DRAM_ACTIVE_SECONDS, gpu()): 1.0})) == []
    assert stage.run(detector, 20, each=active(stage, 0.5, 0.95))
    stage.put({(c.GPU_DRAM_ACTIVE_SECONDS, gpu()): 0.0, (c.GPU_SM_ACTIVE_SECONDS, gpu()): 0.0})
    assert stage.run(detector, 1) == []
    stage.drop(c.GPU_DRAM_ACTIVE_SECONDS)
    assert stage.run(detector, 2) == []
    assert stage.run(detector, 10, each=active(stage, 0.5, 0.95)) == []  # counted anew


# --- starved --------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_starved_is_found_within_five_seconds() -> None:
    stage, detector = Stage(), StarvedGpu()

    def both(sm: float, **states: float) -> Callable[[], None]:
        return lambda: [grow() for grow in (bound(stage, 0, **states), active(stage, sm, sm))].clear()

    assert stage.run(detector, 60, each=both(0.7, balanced=0.9, starved=0.1)) == []
    began_s = stage.at_s
    found = stage.run(detector, 8, each=both(0.15, starved=1.0))
    assert stage.at_s - len(found) + 1 - began_s <= 5.0
    assert found[0].since_s == pytest.approx(began_s)
    assert found[-1].severity is Severity.WARNING
    assert evidence(found[-1], "starved").observed == pytest.approx(1.0)
    assert evidence(found[-1], "starved").baseline == pytest.approx(0.1)
    assert evidence(found[-1], "sm_active").observed == pytest.approx(0.15)
    assert len(stage.run(detector, 30, each=both(0.7, balanced=1.0))) == 2  # what the last 5 s still hold


def test_a_server_so_light_that_it_never_fills_its_gpu_is_not_starved() -> None:
    stage, detector = Stage(), StarvedGpu()
    assert stage.run(detector, 120, each=bound(stage, idle=1.0)) == []
    assert stage.run(detector, 300, each=bound(stage, starved=1.0)) == []
    assert stage.run(detector, 60, each=bound(stage, idle=0.5, starved=0.5)) == []


def test_a_light_load_with_gaps_is_not_starved() -> None:
    stage, detector = Stage(), StarvedGpu()
    step = 0

    def light() -> None:
        nonlocal step
        step += 1
        shares = ({"idle": 1.0}, {"starved": 0.6, "memory": 0.4}, {"starved": 0.3, "memory": 0.7})[step % 3]
        bound(stage, 0, **shares)()

    assert stage.run(detector, 300, each=light) == []


def test_two_starved_seconds_are_no_incident() -> None:
    stage, detector = Stage(), StarvedGpu()
    stage.run(detector, 60, each=bound(stage, balanced=1.0))
    assert stage.run(detector, 2, each=bound(stage, starved=1.0)) == []
    assert stage.run(detector, 10, each=bound(stage, balanced=1.0)) == []


def test_nothing_is_known_before_half_a_minute_of_work() -> None:
    stage, detector = Stage(), StarvedGpu()
    stage.run(detector, 20, each=bound(stage, balanced=1.0))
    assert stage.run(detector, 20, each=bound(stage, starved=1.0)) == []


def test_another_server_on_the_gpu_begins_a_new_history() -> None:
    stage, detector = Stage(), StarvedGpu()
    server(stage, "41")
    server(stage, "99", used=1e9)
    stage.run(detector, 60, each=bound(stage, balanced=1.0))
    stage.drop(c.PROCESS_GPU_MEMORY, labels=(*gpu(), "99"))  # not its largest: the same server
    assert stage.run(detector, 4, each=bound(stage, starved=1.0))
    stage.drop(c.PROCESS_GPU_MEMORY)
    server(stage, "42")
    assert stage.run(detector, 60, each=bound(stage, starved=1.0)) == []


def test_starved_without_open_requests_known_after_a_reset_and_for_a_gpu_that_vanished() -> None:
    stage, detector = Stage(), StarvedGpu()
    assert stage.run(detector, 60, each=bound(stage, idle=1.0)) == []
    stage.run(detector, 60, each=bound(stage, balanced=1.0))
    stage.put({(c.GPU_BOUND_SECONDS, (*gpu(), state)): 0.0 for state in c.BOUND_STATES})
    assert stage.run(detector, 1) == []
    stage.drop(c.GPU_BOUND_SECONDS)
    assert stage.run(detector, 2) == []
    assert stage.run(detector, 20, each=bound(stage, starved=1.0)) == []  # of its past nothing is known


def test_one_starved_gpu_says_nothing_of_another() -> None:
    stage, detector = Stage(), StarvedGpu()

    def both(**second: float) -> Callable[[], None]:
        return lambda: [grow() for grow in (bound(stage, balanced=1.0), bound(stage, 1, **second))].clear()

    stage.run(detector, 60, each=both(balanced=1.0))
    assert {found.entity.gpu for found in stage.run(detector, 10, each=both(starved=1.0))} == {"1"}


def test_all_is_described() -> None:
    check_described(MemoryBound, StarvedGpu)
