"""The order of requests, and when it is enough: with a server that answers at once, as it is told."""

from __future__ import annotations

import asyncio
import itertools
import random
from array import array
from collections.abc import Callable

import pytest

from gpumon.probe.asking import SLACK, Admits, Answer
from gpumon.probe.budget import Budget
from gpumon.probe.climbing import GONE_AFTER, Climb, Ended, State
from gpumon.probe.ladder import Cell, cells
from gpumon.probe.prompts import Prompts

PROMPTS = Prompts(random.Random(1))


class Asks:
    """Answers as ``outcome`` says, of the number of the request, its words and its text."""

    def __init__(self, outcome: Callable[[int, int], str] = lambda number, words: "ok") -> None:
        self.outcome = outcome
        self.texts: list[str] = []
        self.under_way = self.most = 0
        self.per_word = 1.0
        self.hang = False
        self.beyond = 0
        """Tokens that it makes more than asked for, if it is let."""

    def start(self, words: int) -> Answer:
        return Answer("0" * 32, words)

    async def ask(self, answer: Answer, text: str, max_tokens: int | None, admits: Admits) -> None:
        assert max_tokens is not None
        number = len(self.texts)
        self.texts.append(text)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            answer.sent = True
            if self.hang and max_tokens > 1:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            answer.outcome = self.outcome(number, answer.words)
            for _ in range(self.beyond if max_tokens > 1 else 0):
                answer.came += 1
                if not admits(1):
                    answer.outcome, answer.came = "over_max_tokens", answer.came + max_tokens
                    return
            if answer.is_ok:
                answer.token_ns, answer.end_ns = array("q", range(1, max_tokens + 1)), max_tokens
                answer.prompt_tokens = round(self.per_word * answer.words)
                answer.completion_tokens = max_tokens
        finally:
            self.under_way -= 1


class Watch:
    """Keeps between what it watched."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Cell]] = []

    async def begin(self, cell: Cell) -> None:
        self.told.append(("begin", cell))

    async def end(self, cell: Cell) -> None:
        self.told.append(("end", cell))


def climbing(
    asks: Asks,
    planned: tuple[Cell, ...],
    *,
    tokens: int | None = None,
    seconds: float | None = None,
    is_cached: bool = False,
    watch: Watch | None = None,
) -> tuple[Climb, Budget]:
    budget, clock = Budget(tokens, seconds), itertools.count()
    climb = Climb(
        asks,
        planned,
        PROMPTS,
        budget,
        watch or Watch(),
        lambda: next(clock),
        max_tokens=8,
        is_cached=is_cached,
        on_answer=lambda cell, answer: None,
    )
    return climb, budget


def states(climb: Climb) -> list[str]:
    return [each.state.value for each in climb.climbed]


def test_every_rung_is_climbed_with_prompts_of_its_length() -> None:
    asks, watch = Asks(), Watch()
    planned = cells((100, 200), (1, 3), 2, ())
    climb, _ = climbing(asks, planned, tokens=10**6, watch=watch)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.DONE
    assert states(climb) == ["measured"] * 4
    assert [len(each.answers) for each in climb.climbed] == [2, 2, 6, 6]
    assert [len(text.split()) for text in asks.texts] == [3, 50, *[100] * 2, *[200] * 2, *[100] * 6, *[200] * 6]
    assert watch.told == [(when, cell) for cell in planned for when in ("begin", "end")]
    assert all(each.ended_ns > each.began_ns for each in climb.climbed)


def test_as_many_run_at_a_time_as_was_said_and_no_more() -> None:
    asks = Asks()
    climb, _ = climbing(asks, (Cell(7, 100, 50),), tokens=10**6)
    asyncio.run(climb.climb())
    assert asks.most == 7
    assert len(climb.climbed[0].answers) == 50


def test_no_two_prompts_are_alike_unless_they_are_to_be_cached() -> None:
    asks = Asks()
    climb, _ = climbing(asks, (Cell(1, 100, 5),), tokens=10**6)
    asyncio.run(climb.climb())
    assert len(set(asks.texts)) == 7
    cached = Asks()
    climb, _ = climbing(cached, cells((100, 200), (1,), 5, ()), tokens=10**6, is_cached=True)
    asyncio.run(climb.climb())
    assert [len(set(cached.texts[at : at + 6])) for at in (2, 8)] == [1, 1]  # the first of six is not timed
    assert [len(each.answers) for each in climb.climbed] == [5, 5]


def test_words_follow_the_servers_tokens() -> None:
    asks = Asks()
    asks.per_word = 1.25
    climb, _ = climbing(asks, (Cell(1, 1000, 1),), tokens=10**6)
    asyncio.run(climb.climb())
    assert len(asks.texts[-1].split()) == pytest.approx(800, abs=8)
    assert climb.climbed[0].answers[0].prompt_tokens == pytest.approx(1000, abs=8)


@pytest.mark.parametrize("budget", [0, 500, 1000, 2500, 3700])
def test_the_budget_of_tokens_is_never_exceeded(budget: int) -> None:
    climb, kept = climbing(Asks(), cells((100, 200, 400), (1, 2), 2, ()), tokens=budget)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.BUDGET_TOKENS
    assert kept.spent <= budget
    answers = [answer for each in climb.climbed for answer in each.answers]
    assert sum((answer.prompt_tokens or 0) + answer.tokens for answer in answers) <= kept.spent
    assert states(climb) == sorted(states(climb), key=["measured", "partial", "not_tried"].index)


def test_a_budget_that_just_suffices_does() -> None:
    climb, kept = climbing(Asks(), (Cell(2, 100, 4),), tokens=4 * 108 + 108)
    asyncio.run(climb.climb())
    assert (climb.ended, states(climb)) == (Ended.DONE, ["measured"])
    assert kept.spent == 4 * 108 + 4 + 51


@pytest.mark.parametrize("budget", [400, 1000])
def test_an_answer_that_does_not_end_is_cut_when_the_budget_is_used_up(budget: int) -> None:
    asks = Asks()
    asks.beyond = 10**6
    climb, kept = climbing(asks, (Cell(1, 100, 50),), tokens=budget)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.BUDGET_TOKENS
    assert budget <= kept.spent <= budget + 1
    assert [answer.outcome for answer in climb.climbed[0].answers] == ["over_max_tokens"]
    assert kept.hold(0) == (kept.spent <= budget), "what was held beyond is settled"


def test_slack_is_charged() -> None:
    asks = Asks()
    asks.beyond = SLACK
    climb, kept = climbing(asks, (Cell(1, 100, 1),), tokens=10**6)
    asks.outcome = lambda number, words: "ok" if number < 2 else "closed"
    asyncio.run(climb.climb())
    assert kept.spent == 4 + 51 + 100 + SLACK


def test_a_server_that_does_not_end_short_answers_is_not_asked_again() -> None:
    asks = Asks(lambda number, words: "over_max_tokens")
    climb, _ = climbing(asks, cells((100,), (1,), 5, ()), tokens=10**6)
    asyncio.run(climb.climb())
    assert (climb.ended, states(climb), len(asks.texts)) == (Ended.ENDLESS, ["not_tried"], 1)
    assert climb.failure is not None


def test_what_is_under_way_is_held_against_the_budget() -> None:
    budget = Budget(100, None)
    assert budget.hold(60)
    assert not budget.hold(41)
    assert budget.hold(40)
    budget.settle(60, 10)
    assert (budget.spent, budget.hold(51), budget.hold(50)) == (10, False, True)
    assert Budget(None, 1.0).hold(10**12)


def test_the_end_of_the_time_cuts_off_what_is_under_way_and_keeps_the_rest() -> None:
    asks, watch = Asks(), Watch()
    asks.hang = True
    climb, budget = climbing(asks, cells((100, 200), (2,), 3, ()), seconds=0.05, watch=watch)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.BUDGET_TIME
    assert states(climb) == ["partial", "not_tried"]
    assert len(climb.climbed[0].cut) == 2
    assert budget.spent == 4 + 51 + 2 * 100  # a prompt that was sent is taken for spent
    assert [when for when, _ in watch.told] == ["begin", "end"]


def test_an_interruption_ends_it_and_keeps_what_there_is() -> None:
    asks = Asks()
    climb, _ = climbing(asks, cells((100, 200), (1,), 3, ()), tokens=10**6)

    def outcome(number: int, words: int) -> str:
        if number == 6:
            climb.interrupt()
        return "ok"

    asks.outcome = outcome
    asyncio.run(climb.climb())
    assert climb.ended is Ended.INTERRUPTED
    assert states(climb) == ["measured", "partial"]
    assert len(climb.climbed[0].answers) == 3


def test_a_prompt_that_does_not_fit_ends_the_ladder_there_for_every_concurrency() -> None:
    asks = Asks(lambda number, words: "context_too_long" if words >= 200 else "ok")
    climb, _ = climbing(asks, cells((100, 200, 400), (1, 4), 3, ()), tokens=10**6)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.DONE
    assert states(climb) == ["measured", State.TOO_LONG, State.TOO_LONG] * 2
    assert len(asks.texts) == 2 + 3 + 1 + 12


def test_a_rung_without_success_ends_the_ladder_for_its_concurrency_alone() -> None:
    asks = Asks(lambda number, words: "timeout" if words >= 200 and number < 10 else "ok")
    climb, _ = climbing(asks, cells((100, 200, 400), (1, 2), 2, ()), tokens=10**6)
    asyncio.run(climb.climb())
    assert states(climb) == ["measured", "failed", "not_tried", "measured", "measured", "measured"]


@pytest.mark.parametrize("reason", ["connect", "closed"])
def test_a_server_that_is_gone_ends_it(reason: str) -> None:
    asks = Asks(lambda number, words: "ok" if number < 6 else reason)
    climb, _ = climbing(asks, cells((100, 200), (1,), 20, ()), tokens=10**6)
    asyncio.run(climb.climb())
    assert climb.ended is Ended.GONE
    assert states(climb) == ["partial", "not_tried"]
    assert len(climb.climbed[0].answers) == 4 + GONE_AFTER
    assert climb.failure is not None
    assert climb.failure.outcome == reason


def test_single_broken_answers_do_not_end_it() -> None:
    asks = Asks(lambda number, words: "closed" if number % 2 else "ok")
    asks.outcome = lambda number, words: "closed" if number > 1 and number % 2 else "ok"
    climb, _ = climbing(asks, (Cell(1, 100, 30),), tokens=10**6)
    asyncio.run(climb.climb())
    assert (climb.ended, states(climb)) == (Ended.DONE, ["measured"])


@pytest.mark.parametrize(
    ("outcome", "ended"), [("http_401", Ended.REFUSED), ("connect", Ended.GONE), ("redirect", Ended.REFUSED)]
)
def test_a_server_that_refuses_the_first_short_request_is_not_asked_again(outcome: str, ended: Ended) -> None:
    asks = Asks(lambda number, words: outcome)
    climb, _ = climbing(asks, cells((100,), (1,), 5, ()), tokens=10**6)
    asyncio.run(climb.climb())
    assert (climb.ended, states(climb), len(asks.texts)) == (ended, ["not_tried"], 1)


def test_a_first_token_without_text_is_no_refusal() -> None:
    climb, _ = climbing(Asks(lambda number, words: "empty" if number < 2 else "ok"), (Cell(1, 100, 1),), tokens=10**6)
    asyncio.run(climb.climb())
    assert states(climb) == ["measured"]


def test_refused_requests_cost_nothing_and_silent_ones_their_prompt() -> None:
    outcomes = ["ok", "ok", "http_429", "timeout", "ok"]
    climb, budget = climbing(Asks(lambda number, words: outcomes[number]), (Cell(1, 100, 3),), tokens=10**6)
    asyncio.run(climb.climb())
    assert budget.spent == 4 + 51 + 0 + 100 + 108
