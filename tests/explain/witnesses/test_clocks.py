"""Signs of clocks that were held down: of which reason, how sure, and how much they can have cost."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.clocks import HARDWARE, POWER, THERMAL, Clocks
from gpumon.model import Unit
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

KEY = ("gpu", gpu()[1])
REASONS = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake", "board_limit", "reliability")
CLOCK_HZ = 1.98e9


class Board:
    """One GPU, read every second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(Clocks())

    def run(
        self,
        seconds: int,
        *,
        clock: float | None = CLOCK_HZ,
        busy: float | None = 0.9,
        watts: float | None = None,
        **shares: float,
    ) -> None:
        """shares: of each second, by reason."""
        self.stage.drop(c.GPU_CLOCK, c.GPU_UTILIZATION)
        if clock is not None:
            self.stage.put({(c.GPU_CLOCK, (*gpu(), "sm")): clock})
        if busy is not None:
            self.stage.put({(c.GPU_UTILIZATION, gpu()): busy})
        if watts is not None:
            self.stage.put(
                {(c.GPU_POWER, (*gpu(), "instant")): watts, (c.GPU_POWER_LIMIT, (*gpu(), "enforced")): 700.0}
            )
        for _ in range(seconds):
            self.stage.grow(
                {(c.GPU_THROTTLED_SECONDS, (*gpu(), reason)): shares.get(reason, 0.0) for reason in REASONS}
            )
            self.looks.step(self.stage.step())

    def causes(self) -> dict[str, float]:
        """Greatest evidence by cause since the last call."""
        found: dict[str, float] = {}
        for sign in self.looks.take():
            assert sign.key == KEY
            found[sign.cause] = max(found.get(sign.cause, 0.0), sign.evidence)
        return found


def healthy() -> Board:
    board = Board()
    board.run(30)
    assert board.causes() == {}
    return board


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        (("sw_thermal",), THERMAL),
        (("hw_thermal", "hw_slowdown"), THERMAL),
        (("sw_power_cap",), POWER),
        (("hw_slowdown",), HARDWARE),
        (("hw_power_brake", "hw_slowdown"), HARDWARE),
        (("board_limit",), HARDWARE),
        (("reliability",), HARDWARE),
    ],
)
def test_a_reason_that_costs_clock_is_its_cause_alone(reasons: tuple[str, ...], cause: str) -> None:
    board = healthy()
    board.run(10, clock=0.71 * CLOCK_HZ, **dict.fromkeys(reasons, 1.0))
    signs = board.looks.take()
    assert {sign.cause for sign in signs} == {cause}
    last = signs[-1]
    assert (last.key, last.evidence) == (KEY, 1.0)
    assert last.cap == pytest.approx(0.29)
    assert last.fact is not None
    assert last.fact == ("sm_clock", 0.71 * CLOCK_HZ, Unit.HERTZ, CLOCK_HZ)
    board.run(10)
    assert board.causes() == {}


def test_the_stretch_is_that_between_two_readings() -> None:
    board = healthy()
    began_s = board.stage.at_s
    board.run(1, clock=0.8 * CLOCK_HZ, sw_thermal=0.6)
    (sign,) = board.looks.take()
    assert (sign.start_s, sign.end_s) == (began_s, began_s + 1.0)
    assert sign.cap == pytest.approx(0.6 * 0.2)


def test_the_power_limit_counts_when_it_lasts_and_then_from_its_beginning() -> None:
    board = healthy()
    for _ in range(5):  # prefills
        board.run(1, clock=0.7 * CLOCK_HZ, sw_power_cap=0.6)
        board.run(2)
    assert board.causes() == {}
    began_s = board.stage.at_s
    board.run(10, clock=0.8 * CLOCK_HZ, sw_power_cap=1.0)
    signs = board.looks.take()
    assert min(sign.start_s for sign in signs) == began_s
    assert signs[0].end_s == began_s + 3.0


def test_a_limit_that_costs_no_clock_is_no_sign() -> None:
    board = healthy()
    board.run(30, clock=CLOCK_HZ, sw_power_cap=1.0)
    board.run(30, clock=CLOCK_HZ - 30e6, sw_power_cap=1.0)
    assert board.causes() == {}


def test_a_condition_that_always_held_is_usual() -> None:
    board = Board()
    board.run(60, clock=0.7 * CLOCK_HZ, sw_power_cap=1.0)
    assert board.causes() == {}
    board.run(10, clock=0.5 * CLOCK_HZ, sw_power_cap=1.0)  # the limit was lowered still further
    assert board.causes() == {POWER: 1.0}


def test_a_long_throttling_does_not_become_usual() -> None:
    board = healthy()
    board.run(600, clock=0.7 * CLOCK_HZ, sw_thermal=1.0)
    board.causes()
    board.run(1, clock=0.7 * CLOCK_HZ, sw_thermal=1.0)
    assert board.causes() == {THERMAL: 1.0}


def test_a_lower_clock_without_a_reason_is_no_sign() -> None:
    board = healthy()
    board.run(10, clock=0.5 * CLOCK_HZ)
    assert board.causes() == {}


def test_two_reasons_at_once_count_by_their_time() -> None:
    board = healthy()
    for part, expected in ((0.25, {THERMAL: 0.8, POWER: 0.2 * 0.8}), (1.0, {THERMAL: 0.5, POWER: 0.5})):
        board.run(5, clock=0.7 * CLOCK_HZ, sw_thermal=1.0, sw_power_cap=part, watts=698.0)
        board.causes()
        board.run(2, clock=0.7 * CLOCK_HZ, sw_thermal=1.0, sw_power_cap=part, watts=698.0)
        assert board.causes() == pytest.approx(expected)


def test_a_board_that_draws_less_than_its_limit_is_not_held_down_by_it() -> None:
    board = healthy()
    board.run(10, clock=0.7 * CLOCK_HZ, sw_thermal=1.0, sw_power_cap=1.0, watts=430.0)
    assert board.causes() == {THERMAL: 1.0}


def test_an_idle_gpu_is_not_judged() -> None:
    board = healthy()
    board.run(10, clock=345e6, busy=0.05, sw_thermal=1.0)
    assert board.causes() == {}


def test_without_a_clock_the_time_alone_is_told_with_less_evidence() -> None:
    board = Board()
    board.run(10, clock=None)
    board.run(10, clock=None, sw_thermal=0.8)
    signs = board.looks.take()
    assert signs
    assert {(sign.cause, sign.fact) for sign in signs} == {(THERMAL, None)}
    assert max(sign.evidence for sign in signs) == 0.5
    assert max(sign.cap for sign in signs) == pytest.approx(0.8)


def test_without_counters_nothing_is_said() -> None:
    board = healthy()
    board.stage.drop(c.GPU_THROTTLED_SECONDS)
    board.stage.put({(c.GPU_CLOCK, (*gpu(), "sm")): 1e9})
    for _ in range(10):
        board.looks.step(board.stage.step())
    assert board.causes() == {}


def test_an_open_incident_makes_a_weak_sign_sure_and_none_of_none() -> None:
    board = healthy()
    board.run(2, clock=0.965 * CLOCK_HZ, sw_thermal=1.0)
    assert 0.1 < board.causes()[THERMAL] < 0.5
    board.looks.incidents = [gpu_incident(THERMAL)]
    board.run(2, clock=0.965 * CLOCK_HZ, sw_thermal=1.0)
    assert board.causes() == {THERMAL: 0.8}
    board.run(2)
    assert board.causes() == {}
    board.looks.incidents = [gpu_incident(THERMAL, 1), gpu_incident(POWER), gpu_incident(THERMAL, closed_s=1.0)]
    board.run(2, clock=0.965 * CLOCK_HZ, sw_thermal=1.0)
    assert board.causes()[THERMAL] < 0.5


@pytest.mark.parametrize("clock", [0.0, -1.0, 1e300, 1.0])
def test_impossible_clocks_do_no_harm(clock: float) -> None:
    board = healthy()
    board.run(5, clock=clock, sw_thermal=1.0, sw_power_cap=1e9)
    board.run(5, clock=clock, watts=-5.0, sw_thermal=1.0, sw_power_cap=1.0)
    board.run(5)
    board = Board()
    board.run(10, clock=clock, sw_thermal=1.0)
    board.run(10, sw_thermal=1.0)


def test_gpus_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), Clocks()
    for index in range(300):
        stage.drop(c.GPU_THROTTLED_SECONDS)
        for _ in range(2):
            stage.grow({(c.GPU_THROTTLED_SECONDS, (*gpu(index), "sw_thermal")): 0.5})
            list(witness.look(stage.step(), ()))
    assert len(witness._gpus) <= 64
