"""The ladder of prompt lengths, and what climbing it costs. Pure: texts in, rungs and tokens out.

``8k..256k`` doubles from rung to rung, or grows by another ratio; the last rung is as said, whatever the ratio.
``1k,3k,10k`` are the rungs themselves. ``k`` is 1,024 tokens and ``m`` 1,024 k, as context lengths are named. What is
not a ladder raises LadderError, with one line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

RUNGS_MAX: Final = 64
TOKENS_MAX: Final = 4 << 20
"""Of one prompt."""
REQUESTS_MAX: Final = 20_000
"""Of one run: every one is kept until its end."""
RATIO_LEAST: Final = 1.05
CONCURRENCY_MAX: Final = 1024
_LENGTH: Final = re.compile(r"([0-9]{1,8})([km]?)", re.ASCII)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}


class LadderError(ValueError):
    """What was said is no ladder. One line."""


class Cell(NamedTuple):
    """One rung at one concurrency."""

    concurrency: int
    """Requests that run at a time."""
    aim: int
    """Tokens of each prompt."""
    requests: int


class Cost(NamedTuple):
    """The most that something takes."""

    requests: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def parse_ladder(text: str, ratio: float) -> tuple[int, ...]:
    """Prompt lengths in tokens, ascending. ratio: from rung to rung, where only the ends are said."""
    first, dots, last = text.strip().lower().partition("..")
    rungs = _geometric(_length(first), _length(last), ratio) if dots else [_length(each) for each in text.split(",")]
    if any(later <= earlier for earlier, later in itertools.pairwise(rungs)):
        raise LadderError(f"{text[:60]!r}: expected every rung to be longer than the one before")
    if len(rungs) > RUNGS_MAX:
        raise LadderError(f"{text[:60]!r}: expected at most {RUNGS_MAX} rungs, not {len(rungs)}")
    return tuple(rungs)


def cells(rungs: Sequence[int], levels: Sequence[int], repetitions: int, weights: Sequence[float]) -> tuple[Cell, ...]:
    """What is measured, in this order: the whole ladder at the lowest concurrency first.

    weights: of each rung's repetitions; none: all alike. A rung is climbed at least once by each of the requests that
    run at a time.
    """
    if weights and len(weights) != len(rungs):
        raise LadderError(f"expected a weight for each of the {len(rungs)} rungs, not {len(weights)} weights")
    each = weights or [1.0] * len(rungs)
    found = tuple(
        Cell(level, aim, level * max(1, round(repetitions * weight)))
        for level in sorted(set(levels))
        for aim, weight in zip(rungs, each, strict=True)
    )
    requests = sum(cell.requests for cell in found)
    if requests > REQUESTS_MAX:
        raise LadderError(f"expected at most {REQUESTS_MAX:,} requests, not {requests:,}")
    return found


def cost(planned: Sequence[Cell], max_tokens: int, beside: Sequence[int] = ()) -> Cost:
    """Of all of them. max_tokens: of each answer. beside: prompts of requests for one token that are not timed."""
    requests = sum(cell.requests for cell in planned)
    prompts = sum(cell.requests * cell.aim for cell in planned) + sum(beside)
    return Cost(requests + len(beside), prompts, requests * max_tokens + len(beside))


def length_text(tokens: int) -> str:
    """``8k``; the number itself where it is no such."""
    for name, factor in (("m", 1 << 20), ("k", 1 << 10)):
        if tokens >= factor and tokens % factor == 0:
            return f"{tokens // factor}{name}"
    return f"{tokens:,}"


def _geometric(first: int, last: int, ratio: float) -> list[int]:
    if not ratio >= RATIO_LEAST:
        raise LadderError(f"expected a ratio of at least {RATIO_LEAST}, not {ratio:g}")
    rungs = [first]
    at = first * ratio
    while round(at) < last and len(rungs) <= RUNGS_MAX:
        if round(at) > rungs[-1]:  # of a few tokens, some steps are less than one
            rungs.append(round(at))
        at *= ratio
    return [*rungs, last] if last != first else rungs


def _length(text: str) -> int:
    told = _LENGTH.fullmatch(text.strip().lower())
    tokens = int(told[1]) * _FACTORS[told[2]] if told is not None else 0
    if not 1 <= tokens <= TOKENS_MAX:
        raise LadderError(f"{text.strip()[:40]!r}: expected a length such as 8k, at most {TOKENS_MAX >> 20}m tokens")
    return tokens
