"""Climbs the ladder: which request goes when, how many at a time, and when it is enough.

The whole ladder at the lowest concurrency first, from its lowest rung up, so that a budget that runs out leaves whole
ladders behind. A rung whose prompts do not fit the server's context ends the ladder there, for every concurrency. A
rung none of whose requests succeeded ends it for its concurrency. A server that is gone, a budget that is used up, and
whoever interrupts end the run; what was measured until then stays. Before the ladder, two short requests tell how many
tokens a word is, and whether the server answers at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from gpumon.probe.asking import GONE, OK, OVER, TOO_LONG, Admits, Answer
from gpumon.probe.budget import Budget
from gpumon.probe.exchange import NowNs
from gpumon.probe.ladder import Cell
from gpumon.probe.prompts import TOKENS_OF_A_WORD, Lengths, Prompts, calibration, lengths

GONE_AFTER: Final = 5
"""Failures in a row, of the kinds that a server has which is no more."""


class State(StrEnum):
    """What became of a rung."""

    MEASURED = "measured"
    PARTIAL = "partial"
    """The run ended in it."""
    FAILED = "failed"
    """None of its requests succeeded."""
    TOO_LONG = "context_too_long"
    NOT_TRIED = "not_tried"


class Ended(StrEnum):
    """Why a run is over."""

    DONE = "done"
    REFUSED = "refused"
    """The server answered none of the short requests before the ladder."""
    ENDLESS = "server_endless"
    """It makes more tokens than it is asked for, of the short requests already."""
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_TIME = "budget_s"
    GONE = "server_gone"
    INTERRUPTED = "interrupted"


@dataclass(slots=True)
class Climbed:
    """One rung at one concurrency, and what came of it. Times are steady nanoseconds."""

    cell: Cell
    state: State = State.NOT_TRIED
    answers: list[Answer] = field(default_factory=list)
    """Those that are over."""
    cut: list[Answer] = field(default_factory=list)
    """Those that the end of the run cut off."""
    began_ns: int = 0
    ended_ns: int = 0


class Asks(Protocol):
    """What asks a server."""

    def start(self, words: int) -> Answer: ...

    async def ask(self, answer: Answer, text: str, max_tokens: int | None, admits: Admits) -> None: ...


class Watch(Protocol):
    """What looks at GPU and host meanwhile. Raises nothing."""

    async def begin(self, cell: Cell) -> None: ...

    async def end(self, cell: Cell) -> None: ...


class Climb:
    """One run. ``climb`` once; ``climbed`` has what there is, at any time."""

    def __init__(
        self,
        asks: Asks,
        cells: Sequence[Cell],
        prompts: Prompts,
        budget: Budget,
        watch: Watch,
        now_ns: NowNs,
        *,
        max_tokens: int,
        is_cached: bool = False,
        on_answer: Callable[[Cell, Answer], None],
    ) -> None:
        """cells: at least one. is_cached: a rung's requests all have one prompt, which the server has seen before they
        are timed.
        """
        self.climbed = [Climbed(cell) for cell in cells]
        self.ended = Ended.DONE
        self.failure: Answer | None = None
        """What told that the server is gone, or refuses."""
        self.began_ns = self.ended_ns = 0
        self._asks = asks
        self._prompts = prompts
        self._budget = budget
        self._watch = watch
        self._now_ns = now_ns
        self._max_tokens = max_tokens
        self._is_cached = is_cached
        self._on_answer = on_answer
        self._counts: list[tuple[int, int]] = []
        self._in_row = 0
        self._stop: Ended | None = None
        self._under_way: Cell | None = None
        self._limit: asyncio.Timeout | None = None

    @property
    def lengths(self) -> Lengths:
        """What a prompt's words are in tokens, by what the server has counted so far."""
        return lengths(tuple(self._counts))

    def learn(self, words: int, tokens: int | None) -> None:
        """What the server counted of a prompt."""
        if tokens is not None and (len(self._counts) < 2 or words > max(self._counts)[0]):
            self._counts.append((words, tokens))

    def interrupt(self) -> None:
        """End the run now; requests that are under way are cut off."""
        self._stop = Ended.INTERRUPTED
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def climb(self) -> None:
        """Until it is done, or its time is up."""
        self.began_ns = self._now_ns()
        try:
            async with asyncio.timeout(self._budget.seconds) as self._limit:
                await self._all()
        except TimeoutError:
            self._stop = Ended.INTERRUPTED if self._stop is Ended.INTERRUPTED else Ended.BUDGET_TIME
        self._limit = None
        self.ended = self._stop or Ended.DONE
        self.ended_ns = self._now_ns()
        if self._under_way is not None:
            await self._watch.end(self._under_way)

    async def _all(self) -> None:
        await self._calibrate()
        too_long, ends_at = float("inf"), {each.cell.concurrency: float("inf") for each in self.climbed}
        for each in self.climbed:
            cell = each.cell
            if self._stop is not None:
                return
            if cell.aim >= too_long:
                each.state = State.TOO_LONG
            elif cell.aim < ends_at[cell.concurrency]:
                await self._rung(each)
                if each.state is State.TOO_LONG:
                    too_long = cell.aim
                if each.state is State.FAILED:
                    ends_at[cell.concurrency] = cell.aim

    async def _calibrate(self) -> None:
        for words in calibration(min(each.cell.aim for each in self.climbed)):
            answer = await self._asked(Cell(1, words * TOKENS_OF_A_WORD, 1), self._prompts.make(words), 1)
            if answer is None:
                return
            # One token may well be no text, or the end of it.
            if answer.outcome not in (OK, "empty", TOO_LONG):
                refused = Ended.ENDLESS if answer.outcome == OVER else Ended.REFUSED
                self._stop = Ended.GONE if answer.outcome in GONE else refused
                self.failure = answer
                return

    async def _rung(self, each: Climbed) -> None:
        cell = each.cell
        shared = self._prompts.make(self.lengths.words(cell.aim)) if self._is_cached else None
        if shared is not None and not await self._seen_before(each, shared):
            return
        self._under_way = cell
        await self._watch.begin(cell)
        each.state, each.began_ns = State.PARTIAL, self._now_ns()
        left = iter(range(cell.requests))

        async def user() -> None:
            for _ in left:
                if self._stop is not None or each.state is State.TOO_LONG or not await self._one(each, shared):
                    return

        try:
            async with asyncio.TaskGroup() as users:
                for _ in range(min(cell.concurrency, cell.requests)):
                    users.create_task(user())
            if each.state is not State.TOO_LONG and self._stop is None:
                each.state = State.MEASURED if any(answer.is_ok for answer in each.answers) else State.FAILED
        finally:
            each.ended_ns = self._now_ns()
            if not each.answers and not each.cut:
                each.state = State.NOT_TRIED
        self._under_way = None
        await self._watch.end(cell)

    async def _seen_before(self, each: Climbed, shared: str) -> bool:
        """Let the server see the prompt; whether to go on."""
        answer = await self._asked(each.cell, shared, 1)
        if answer is None or answer.is_ok:
            return answer is not None
        each.answers.append(answer)
        each.state = State.TOO_LONG if answer.outcome == TOO_LONG else State.FAILED
        return False

    async def _one(self, each: Climbed, shared: str | None) -> bool:
        text = shared if shared is not None else self._prompts.make(self.lengths.words(each.cell.aim))
        answer = await self._asked(each.cell, text, self._max_tokens, each.cut)
        if answer is None:
            return False
        each.answers.append(answer)
        if answer.outcome == TOO_LONG:
            each.state = State.TOO_LONG
        self._on_answer(each.cell, answer)
        return True

    async def _asked(self, cell: Cell, text: str, max_tokens: int, cut: list[Answer] | None = None) -> Answer | None:
        """None where the budget does not admit it."""
        most = cell.aim + max_tokens
        if not self._budget.hold(most):
            self._stop = self._stop or Ended.BUDGET_TOKENS
            return None
        answer = self._asks.start(text.count(" ") + 1)
        held = most

        def admits(beyond: int) -> bool:
            nonlocal held
            held += beyond
            is_left = self._budget.hold_anyway(beyond)
            if not is_left:
                self._stop = self._stop or Ended.BUDGET_TOKENS
            return is_left

        try:
            await self._asks.ask(answer, text, max_tokens, admits)
        except asyncio.CancelledError:
            if cut is not None:
                cut.append(answer)
            raise
        finally:
            self._budget.settle(held, _took(answer, cell.aim))
        self.learn(answer.words, answer.prompt_tokens)
        self._in_row = self._in_row + 1 if answer.outcome in GONE else 0
        if self._in_row >= GONE_AFTER:
            self._stop, self.failure = Ended.GONE, answer
        return answer


def _took(answer: Answer, aim: int) -> int:
    """Tokens that it cost, or may have: a server that refused has computed nothing, one that went silent may have."""
    refused = answer.outcome == TOO_LONG or answer.outcome.startswith("http_") or answer.outcome == "redirect"
    if not answer.sent or refused:
        return 0
    return (answer.prompt_tokens if answer.prompt_tokens is not None else aim) + answer.most_tokens


def succeeded(each: Climbed) -> list[Answer]:
    """Those that count."""
    return [answer for answer in each.answers if answer.outcome == OK]
