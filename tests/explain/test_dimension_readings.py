"""Counters that are published more often than they are read: their rates, and when nothing is known yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.explain.dimension_readings import Repeated
from tests.detect.scenes import BEGIN_S, Stage

WORKER = ("10", "vllm", "", "", "0123456789ab")
FRONT = ("11", "front", "", "", "0123456789ab")
METRIC = catalogue.PROCESS_RUNQUEUE_SECONDS
PERIOD_S = 5

Stretch = tuple[float, float, float] | None


class Node:
    """Two processes whose counters are published every second and read every five."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.repeated = Repeated(METRIC)
        self.stage.put({(METRIC, each): 0.0 for each in (WORKER, FRONT)})

    def step(self, **grown: float) -> None:
        names = {"worker": WORKER, "front": FRONT}
        self.stage.grow({(METRIC, names[name]): amount for name, amount in grown.items()})
        self.repeated.step(self.stage.step())

    def told(self) -> Stretch:
        """Value, and since when and until when, in seconds since the stage began."""
        found = self.repeated.of([WORKER, FRONT], sum)
        return None if found is None else (round(found[0], 9), max(0.0, found[1] - BEGIN_S), found[2] - BEGIN_S)


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0, 7.0]), min_size=4, max_size=40))
def test_what_the_counter_grew_is_what_the_rates_add_up_to(amounts: list[float]) -> None:
    node, filled_s, total = Node(), 0.0, 0.0
    for amount in [1.0, 1.0, *amounts, 0.0, 0.0, 0.0]:
        for second in range(PERIOD_S):
            node.step(worker=amount if second == PERIOD_S - 1 else 0.0)
            if (told := node.told()) is not None:
                value, since_s, until_s = told
                since_s = max(since_s, filled_s)
                total += value * max(0.0, until_s - since_s)
                filled_s = max(filled_s, until_s)
    assert total == pytest.approx(2.0 + sum(amounts))


def test_a_series_that_moves_is_not_known_until_its_next_jump() -> None:
    node = Node()
    for _ in range(2):
        for _ in range(PERIOD_S - 1):
            node.step()
        node.step(worker=1.0)
    assert node.told() == (0.2, 5.0, 10.0)
    for _ in range(PERIOD_S - 1):
        node.step()
        assert node.told() is None
    node.step(worker=2.0, front=1.0)
    assert node.told() == (0.6, 10.0, 15.0)


def test_one_that_jumped_only_once_comes_to_rest() -> None:
    node = Node()
    node.step()
    node.step(worker=5.0)
    assert node.told() == (5.0, 1.0, 2.0)
    found = []
    for _ in range(3 * PERIOD_S):
        node.step()
        found.append(node.told())
    assert found[0] is None
    assert found[-1] == (0.0, 0.0, 2.0 + 2 * PERIOD_S)


def test_series_that_are_gone_or_unknown_say_nothing() -> None:
    node = Node()
    node.step(worker=1.0)
    node.stage.drop(METRIC, labels=WORKER)
    node.step()
    assert node.told() == (0.0, 0.0, 2.0 - PERIOD_S), "the other one rests"
    node.stage.drop(METRIC)
    node.step()
    assert node.told() is None
    assert node.repeated.of([], sum) is None


def test_a_counter_that_began_anew_is_not_taken_for_growth() -> None:
    node = Node()
    node.step(worker=100.0)
    node.stage.put({(METRIC, WORKER): 1.0})
    node.step()
    told = node.told()
    assert told is None or told[0] == 0.0


def test_the_period_is_learned_from_the_jumps() -> None:
    node = Node()
    for _ in range(6):
        node.step()
        node.step(worker=1.0)
    assert node.told() == (0.5, 10.0, 12.0)
    for _ in range(20):
        node.step()
    assert node.told() == (0.0, 0.0, 30.0), "two seconds before now"
