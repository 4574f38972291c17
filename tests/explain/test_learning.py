"""What is learned of a group, when, and what is not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.expected import LEAST, Look
from gpumon.explain.learning import LATER_S, OVER_S, Learning
from gpumon.explain.load import GroupLoad, Others, Ran
from gpumon.explain.steps import Steps
from gpumon.explain.usual import Usual

NONE = Others(np.empty(0), np.empty(0), np.empty(0))
USUAL_S, SLOW_S = 0.02, 0.05
WAITING_MAX = 4096


class Taught(NamedTuple):
    value: float
    calm: bool


class Noted(Usual):
    """Keeps what it was taught."""

    __slots__ = ("taught",)

    def __init__(self) -> None:
        super().__init__()
        self.taught: list[Taught] = []

    def add(self, value: float, *, calm: bool) -> None:
        self.taught.append(Taught(value, calm))
        super().add(value, calm=calm)


def noted(known: Usual) -> Noted:
    """One that knows as much, to be put in its place."""
    found, value = Noted(), known.value()
    assert value is not None
    for _ in range(10):
        found.add(value, calm=True)
    found.taught.clear()
    return found


def ran(start_s: float, *, wait_s: float = 0.0, prompt_s: float = 0.0, computed: int = 100) -> Ran:
    first_s = start_s + wait_s + prompt_s
    return Ran(start_s, start_s + wait_s, first_s, first_s + 1.0, computed, computed, 50)


def steps_at(start_s: float, gap_s: float, count: int = 20, each: float = 1.0) -> Steps:
    """Steps of one request, one after the other. each: how many decode steps one of them stands for."""
    starts_s = start_s + gap_s * np.arange(count, dtype=np.float64)
    counts = np.full(count, each)
    return Steps(np.zeros(count, dtype=np.intp), starts_s, starts_s + gap_s, counts, counts)


def show(
    learning: Learning,
    at_s: float,
    gap_s: float = USUAL_S,
    *,
    running: float = 4.0,
    context: float = 1000.0,
    others: Others = NONE,
    each: float = 1.0,
) -> None:
    """Steps that ended at a moment, of a batch with so many requests and so much context of each."""
    steps = steps_at(at_s - 20 * gap_s, gap_s, each=each)
    batch = np.full(20, running)
    learning.steps(steps, batch, batch * context, others, at_s)


def expects(learning: Learning, running: float = 4.0, context: float = 1000.0) -> float:
    """Seconds of a step."""
    return float(learning.expected.gaps(np.array([running]), np.array([running * context]))[0])


def begun() -> Learning:
    """Of a group whose first requests came at 900 s: what a prompt takes is known."""
    learning = Learning(GroupLoad())
    learning.requests([ran(900.0, prompt_s=0.2)] * 10, NONE, 901.0)
    learning.settle([], 901.0 + LATER_S)
    return learning


@pytest.fixture
def knowing() -> Learning:
    """Knows since 1,000 s what a step of four takes, and has nothing left to learn. Began at 900 s."""
    learning = begun()
    for second in range(LEAST + 5):
        show(learning, 1000.0 - second)
    learning.settle([], 1000.0 + LATER_S)
    assert expects(learning) == pytest.approx(USUAL_S)
    return learning


def show_slow(learning: Learning, at_s: float) -> None:
    """A change that would be usual if it were learned: more steps than were known."""
    for _ in range(3 * LEAST + 20):
        show(learning, at_s, SLOW_S)


# --- when -------------------------------------------------------------------------------------------------------------


def test_until_anything_is_known_lessons_are_taken_in_at_once() -> None:
    learning = Learning(GroupLoad())
    for second in range(LEAST):
        assert not learning.expected.is_known
        show(learning, 1000.0 + second)
        learning.settle([], 1000.0 + second)
    assert learning.expected.is_known
    assert expects(learning) == pytest.approx(USUAL_S)


@pytest.mark.parametrize("before_s", [LATER_S, 10.0, 0.1])
def test_what_is_known_changes_only_when_a_lesson_is_old_enough(knowing: Learning, before_s: float) -> None:
    show_slow(knowing, 1100.0)
    knowing.settle([], 1100.0 + LATER_S - before_s)
    assert expects(knowing) == pytest.approx(USUAL_S)
    knowing.settle([], 1100.0 + LATER_S)
    assert expects(knowing) == pytest.approx(SLOW_S)


@pytest.mark.parametrize("prompt_s", [0.0, 0.2])
def test_a_server_that_tells_nothing_of_its_prompts_learns_as_late_as_others(prompt_s: float) -> None:
    # All of them cached, or not counted.
    learning = Learning(GroupLoad())
    for second in range(3 * LEAST):
        at_s = 1000.0 + second
        show(learning, at_s)
        learning.requests([ran(at_s - 1.0, prompt_s=prompt_s, computed=0)], NONE, at_s)
        learning.settle([], at_s)
    learning.settle([], 1090.0)
    show_slow(learning, 1100.0)
    learning.settle([], 1110.0)
    assert expects(learning) == pytest.approx(USUAL_S)


def test_each_lesson_is_taken_in_at_its_own_time_and_once(knowing: Learning) -> None:
    waits = knowing.usual.queue_s = noted(knowing.usual.queue_s)
    for second in range(10):
        knowing.requests([ran(1100.0 + second, wait_s=float(second))], NONE, 1100.0 + second)
    for second in range(10):
        knowing.settle([], 1100.0 + LATER_S + second)
        assert [each.value for each in waits.taught] == pytest.approx(range(second + 1))
    knowing.settle([], 2000.0)
    assert len(waits.taught) == 10


# --- what an incident touches -----------------------------------------------------------------------------------------


def test_what_an_incident_touches_that_opened_meanwhile_is_not_learned(knowing: Learning) -> None:
    show_slow(knowing, 1100.0)
    knowing.settle([], 1110.0)  # nobody has found anything yet
    knowing.settle([(1095.0, 1115.0)], 1100.0 + LATER_S)
    assert expects(knowing) == pytest.approx(USUAL_S)


@pytest.mark.parametrize("touched", [(1000.0, 1098.9), (1100.1, 1200.0)])
def test_what_was_before_or_after_an_incident_is_learned(knowing: Learning, touched: tuple[float, float]) -> None:
    show_slow(knowing, 1100.0)
    knowing.settle([touched], 1100.0 + LATER_S)
    assert expects(knowing) == pytest.approx(SLOW_S)


def test_a_group_that_knows_nothing_else_learns_from_what_incidents_touch() -> None:
    learning, touched = begun(), [(0.0, 2000.0)]
    for number in range(3 * LEAST):
        assert not learning.expected.is_known
        show(learning, 1000.0 + number)
        learning.settle(touched, 1000.0 + number)
    assert expects(learning) == pytest.approx(USUAL_S)
    assert learning.usual.running.value() == 4.0
    assert not learning.usual.running.is_calm
    # As soon as there is better, that is what counts.
    for number in range(LEAST + 5):
        show(learning, 1200.0 + number, SLOW_S, running=8.0)
    learning.settle([(0.0, 1100.0)], 1300.0)
    assert expects(learning, running=8.0) == pytest.approx(SLOW_S)
    assert learning.usual.running.value() == 8.0


def test_waits_and_prompts_of_bad_times_are_kept_apart(knowing: Learning) -> None:
    for number in range(20):
        at_s = 1100.0 + number
        knowing.requests([ran(at_s, wait_s=0.1, prompt_s=0.2)], NONE, at_s + 0.3)
    knowing.settle([], 1150.0)
    for number in range(300):
        at_s = 1200.0 + number / 10
        knowing.requests([ran(at_s, wait_s=5.0, prompt_s=3.0)], NONE, at_s + 8.0)
    knowing.settle([(1190.0, 1260.0)], 1300.0)
    usual = knowing.usual
    assert usual.queue_s.value() == pytest.approx(0.1)
    prompt_s = usual.prompt_s.at(np.array([100.0]))
    assert prompt_s is not None
    assert prompt_s[0] == pytest.approx(0.2)


MOMENTS = st.floats(1000.0, 1100.0)


@given(
    st.lists(st.tuples(MOMENTS, MOMENTS), max_size=4), st.lists(st.tuples(MOMENTS, st.floats(0.0, 30.0)), max_size=6)
)
def test_calm_is_what_no_stretch_touches(pairs: list[tuple[float, float]], shown: list[tuple[float, float]]) -> None:
    learning = Learning(GroupLoad())
    waits = learning.usual.queue_s = Noted()
    touched = [(min(pair), max(pair)) for pair in pairs]
    for start_s, wait_s in shown:
        learning.requests([ran(start_s, wait_s=wait_s)], NONE, 1130.0)
    learning.settle(touched, 1130.0 + LATER_S)
    for (start_s, wait_s), lesson in zip(shown, waits.taught, strict=True):
        assert lesson.value == pytest.approx(wait_s)
        assert lesson.calm == all(start_s + wait_s < first_s or start_s > last_s for first_s, last_s in touched)


# --- what -------------------------------------------------------------------------------------------------------------


def test_batch_and_context_are_learned_of_each_request_in_it(knowing: Learning) -> None:
    for number in range(40):
        show(knowing, 1100.0 + number, running=16.0, context=3000.0)
    knowing.settle([], 1200.0)
    assert knowing.usual.running.value() == 16.0
    assert knowing.usual.context.value() == 3000.0


def test_while_an_engine_fills_its_batch_that_is_not_learned_as_its_usual_one() -> None:
    learning = begun()
    batches = learning.usual.running = Noted()
    for second in range(60):
        show(learning, 901.0 + second, running=1.0 + second)
        learning.settle([], 901.0 + second)
    learning.settle([], 1000.0)
    assert learning.expected.is_known
    assert 25 <= len(batches.taught) <= 31
    assert min(each.value for each in batches.taught) >= OVER_S


def test_each_size_of_batch_is_a_look_of_its_own() -> None:
    learning = Learning(GroupLoad())
    for number in range(20):
        at_s = 1000.0 + number
        small, large = steps_at(at_s - 1.0, 0.02), steps_at(at_s - 1.0, 0.04)
        both = Steps(*(np.concatenate(pair) for pair in zip(small, large, strict=True)))
        batch = np.repeat([2.0, 16.0], 20)
        learning.steps(both, batch, batch * 1000.0, NONE, at_s)
    learning.settle([], 1100.0)
    assert expects(learning, running=2.0) == pytest.approx(0.02, rel=0.02)
    assert expects(learning, running=16.0) == pytest.approx(0.04, rel=0.02)


def prompts(at_s: float, tokens: float) -> Others:
    """A prompt of 2,000 tokens of which so many are computed evenly in the second before."""
    return Others(np.array([at_s - 1.0, at_s]), np.array([0.0, tokens]), np.array([0.0, tokens * 2000.0]))


def test_steps_with_prompts_of_others_teach_what_a_prompt_token_costs_and_not_what_a_step_takes(
    knowing: Learning,
) -> None:
    for number in range(20):
        at_s = 1100.0 + number
        # Ten quiet steps, and ten in which 100 tokens each are computed, which cost 0.03 s.
        starts_s = at_s - 1.0 + np.concatenate((0.05 * np.arange(10), 0.5 + 0.05 * np.arange(10)))
        ends_s = starts_s + np.repeat([USUAL_S, 0.05], 10)
        ones, batch = np.ones(20), np.full(20, 4.0)
        others = prompts(at_s, 1000.0)._replace(times=np.array([at_s - 0.5, at_s]))
        knowing.steps(
            Steps(np.zeros(20, dtype=np.intp), starts_s, ends_s, ones, ones), batch, batch * 1e3, others, at_s
        )
    knowing.settle([], 1200.0)
    assert expects(knowing) == pytest.approx(USUAL_S)
    cost_s = knowing.usual.token_s.at(np.array([2000.0]))
    assert cost_s is not None
    assert cost_s[0] == pytest.approx(0.03 / 100, rel=0.02)


def test_a_server_that_always_computes_prompts_beside_is_learned_as_it_is() -> None:
    learning = Learning(GroupLoad())
    for number in range(LEAST):
        at_s = 1000.0 + number
        show(learning, at_s, 0.05, others=prompts(at_s, 1000.0))
        learning.settle([], at_s)
    assert expects(learning) == pytest.approx(0.05)


def test_a_decoding_that_is_told_as_a_whole_is_learned_by_the_step() -> None:
    learning = Learning(GroupLoad())
    for number in range(LEAST):
        at_s = 1000.0 + number
        show(learning, at_s, 50 * USUAL_S, each=50.0, others=prompts(at_s, 1000.0))
        learning.settle([], at_s)
    assert expects(learning) == pytest.approx(USUAL_S)


def test_arrivals_are_learned_when_half_a_minute_of_them_is_known() -> None:
    load = GroupLoad()
    learning = Learning(load)
    arrivals = learning.usual.arrivals = Noted()
    for second in range(60):
        run = ran(1000.0 + second)
        load.add([run], 1001.5 + second)
        learning.requests([run], NONE, 1001.5 + second)
        learning.settle([], 1001.5 + second)
        assert len(arrivals.taught) == max(0, second + 1 - round(OVER_S))
    assert [each.value for each in arrivals.taught] == pytest.approx([1.0] * 30, rel=0.05)
    assert learning.usual.brought.value() == pytest.approx(100.0, rel=0.05)


def test_what_a_prompt_token_costs_at_most_is_known_from_whole_prompts() -> None:
    learning = Learning(GroupLoad())
    assert learning.own_cost_s() == 0.0
    for number in range(20):
        learning.requests([ran(1000.0 + number, prompt_s=0.5, computed=1000)], NONE, 1001.0 + number)
        learning.settle([], 1001.0 + number)
    assert learning.own_cost_s() == pytest.approx(0.5 / 1000)


def test_a_prompt_does_not_cost_the_step_that_it_is_computed_in() -> None:
    learning = Learning(GroupLoad())
    for _ in range(20):
        learning.expected.learn(Look(1.0, 1000.0, 0.2), calm=True)
    for number in range(20):
        learning.requests([ran(1000.0 + number, prompt_s=0.5, computed=1000)], NONE, 1001.0 + number)
        learning.settle([], 1100.0)
    assert learning.own_cost_s() == pytest.approx(0.3 / 1000, rel=0.05)


def test_as_soon_as_waits_are_known_prompts_are() -> None:
    """Of lessons that are taken in at once while nothing is known."""
    learning = Learning(GroupLoad())
    for _ in range(20):
        learning.expected.learn(Look(1.0, 1000.0, 0.2), calm=True)
    for number in range(20):
        learning.requests([ran(1000.0 + number, prompt_s=0.5, computed=1000)], NONE, 1001.0 + number)
        learning.settle([], 1001.0 + number)
        assert (learning.usual.queue_s.value() is None) == (learning.usual.computed.value() is None)


def test_prompts_beside_are_those_of_others() -> None:
    learning = Learning(GroupLoad())
    for number in range(20):
        at_s = 1001.0 + number
        learning.requests([ran(at_s - 1.0, prompt_s=1.0, computed=100)], prompts(at_s, 400.0), at_s)
        learning.settle([], at_s)
    assert learning.usual.beside.value() == pytest.approx(300.0)


def test_a_request_that_tells_nothing_of_its_prompt_teaches_only_its_wait() -> None:
    learning = Learning(GroupLoad())
    for number in range(20):
        learning.requests([ran(1000.0 + number, wait_s=0.3)], NONE, 1001.0 + number)
        learning.settle([], 1001.0 + number)
    assert learning.usual.queue_s.value() == pytest.approx(0.3)
    assert learning.usual.computed.value() is None
    assert learning.usual.prompt_s.at(np.array([100.0])) is None


def test_no_steps_teach_nothing(knowing: Learning) -> None:
    nothing = np.empty(0)
    empty = Steps(np.empty(0, dtype=np.intp), nothing, nothing, nothing, nothing)
    knowing.steps(empty, nothing, nothing, NONE, 1100.0)
    knowing.settle([], 1200.0)
    assert expects(knowing) == pytest.approx(USUAL_S)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_of_more_lessons_than_may_wait_the_newest_are_taken_in(knowing: Learning) -> None:
    waits = knowing.usual.queue_s = noted(knowing.usual.queue_s)
    for number in range(250):
        runs = [ran(1100.0, wait_s=float(20 * number + each)) for each in range(20)]
        knowing.requests(runs, NONE, 1100.0)
    knowing.settle([], 1100.0 + LATER_S)
    assert 1000 <= len(waits.taught) <= WAITING_MAX
    assert waits.taught[-1].value == pytest.approx(4999.0)
    assert min(each.value for each in waits.taught) >= 4999.0 - WAITING_MAX


def test_of_a_thousand_requests_a_second_some_of_each_second_are_learned_from(knowing: Learning) -> None:
    waits = knowing.usual.queue_s = noted(knowing.usual.queue_s)
    seconds = range(1100, 1100 + round(LATER_S) + 10)
    for second in seconds:
        runs = [ran(float(second), wait_s=second + each / 1000) for each in range(1000)]
        knowing.requests(runs, NONE, float(second))
        knowing.settle([], float(second))
    knowing.settle([], seconds[-1] + LATER_S)
    taught = np.array([each.value for each in waits.taught])
    assert sorted({int(value) for value in taught}) == [*seconds]
    assert np.median(taught % 1.0) == pytest.approx(0.5, abs=0.05), "not the first ones only"


def test_a_step_of_detection_with_a_million_tokens_gives_few_lessons(knowing: Learning) -> None:
    batches = knowing.usual.running = Noted()
    count = 1_000_000
    starts_s = np.linspace(1099.0, 1100.0, count)
    ones, batch = np.ones(count), np.linspace(1.0, 4096.0, count)
    steps = Steps(np.zeros(count, dtype=np.intp), starts_s, starts_s + USUAL_S, ones, ones)
    waits = knowing.usual.queue_s = noted(knowing.usual.queue_s)
    knowing.requests([ran(1100.0, wait_s=0.1)], NONE, 1100.0)
    knowing.steps(steps, batch, batch * 1000.0, NONE, 1100.0)
    knowing.settle([], 1100.0 + LATER_S)
    # It has not pushed out what waited before it.
    assert len(batches.taught) == len(waits.taught) == 1
