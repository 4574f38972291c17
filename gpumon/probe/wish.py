"""What a probe is asked to do, checked before anything is asked of anybody: target, ladder, budget, permission.

Nothing runs without a budget. The most that the ladder costs is worked out from it alone and said beforehand. Whatever
is not this machine is asked only by somebody who says so. What is not to be done raises WishError, with one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpumon.probe.endpoint import Endpoint, EndpointError, Interface, parse_endpoint
from gpumon.probe.ladder import CONCURRENCY_MAX, Cell, Cost, LadderError, cells, cost, length_text, parse_ladder
from gpumon.probe.prompts import TOKENS_OF_A_WORD, calibration

DEFAULT_RATIO: Final = 2.0


class WishError(Exception):
    """It cannot be done as it was said. One line."""


@dataclass(frozen=True, slots=True)
class Wish:
    """As the command line has it."""

    endpoint: str
    ladder: str
    ratio: float = DEFAULT_RATIO
    weights: str = ""
    repetitions: int = 5
    concurrency: str = "1"
    interface: Interface = Interface.COMPLETIONS
    model: str = ""
    max_tokens: int = 64
    ignore_eos: bool = False
    is_cached: bool = False
    timeout_s: float = 300.0
    budget_tokens: int | None = None
    budget_s: float | None = None
    gpumon: str | None = None
    """Which one to ask; None: the local one, where the endpoint is on this machine."""
    ca: Path | None = None
    yes: bool = False
    json_output: bool = False
    html: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be done."""

    endpoint: Endpoint
    cells: tuple[Cell, ...]
    cost: Cost


def plan(wish: Wish, environ: Mapping[str, str]) -> Plan:
    """Raises WishError."""
    if wish.budget_tokens is None and wish.budget_s is None:
        raise WishError("a probe costs time and tokens: expected --budget-tokens, --budget-s, or both")
    try:
        endpoint = parse_endpoint(wish.endpoint, environ)
        rungs = parse_ladder(wish.ladder, wish.ratio)
        planned = cells(rungs, _levels(wish.concurrency), wish.repetitions, _weights(wish.weights))
    except EndpointError as error:
        raise WishError(f"--endpoint: {error}") from error
    except LadderError as error:
        raise WishError(f"--ladder: {error}") from error
    if wish.ca is not None and endpoint.scheme != "https":
        raise WishError("--ca is of TLS: expected an https:// endpoint with it")
    if wish.html is not None and not wish.html.parent.is_dir():  # said before anything is spent
        raise WishError(f"--html: {wish.html.parent}: there is no such folder")
    return Plan(endpoint, planned, cost(planned, wish.max_tokens, _beside(planned, wish)))


def announcement(made: Plan, wish: Wish) -> list[str]:
    """What it is going to cost, and how far the budget goes."""
    rungs = sorted({cell.aim for cell in made.cells})
    levels = sorted({cell.concurrency for cell in made.cells})
    ladder = f"{len(rungs)} rungs from {length_text(rungs[0])} to {length_text(rungs[-1])} tokens"
    lines = [
        f"{ladder}, {' and '.join(map(str, levels))} at a time: {made.cost.requests:,} requests, at most "
        f"{made.cost.tokens:,} tokens, {made.cost.completion_tokens:,} of them to be made, by {made.endpoint}"
    ]
    if wish.budget_tokens is not None and wish.budget_tokens < made.cost.tokens:
        left = wish.budget_tokens - cost((), 0, _short(made.cells)).tokens
        for cell in made.cells:
            left -= cost([cell], wish.max_tokens, [cell.aim] if wish.is_cached else []).tokens
            if left < 0:
                break
        lines.append(
            f"the budget of {wish.budget_tokens:,} tokens ends in rung {length_text(cell.aim)}, {cell.concurrency} at "
            "a time"
        )
    if wish.budget_s is not None:
        lines.append(f"it ends after {wish.budget_s:g} s, wherever it is then")
    if made.endpoint.key and made.endpoint.scheme == "http" and not made.endpoint.is_loopback:
        lines.append("the key goes over the network in the clear: https:// would hide it")
    return lines


def _short(planned: Sequence[Cell]) -> list[int]:
    """Tokens of the requests before the ladder, at most."""
    return [TOKENS_OF_A_WORD * words for words in calibration(min(cell.aim for cell in planned))]


def _beside(planned: Sequence[Cell], wish: Wish) -> list[int]:
    """Likewise of all that are not timed: those, and the first of each rung where prompts are to be cached."""
    return [*_short(planned), *([cell.aim for cell in planned] if wish.is_cached else [])]


def _levels(text: str) -> list[int]:
    levels = []
    for each in text.split(","):
        number = int(each) if each.strip().isascii() and each.strip().isdigit() and len(each) < 8 else 0
        if not 1 <= number <= CONCURRENCY_MAX:
            raise LadderError(f"concurrency {each.strip()[:20]!r}: expected a number from 1 to {CONCURRENCY_MAX}")
        levels.append(number)
    return levels


def _weights(text: str) -> list[float]:
    weights = []
    for each in text.split(",") if text.strip() else []:
        try:
            weight = float(each)
        except ValueError:
            weight = 0.0
        if not 0.0 < weight <= 1e4:
            raise LadderError(f"weight {each.strip()[:20]!r}: expected a number above 0")
        weights.append(weight)
    return weights
