"""Makes a run's report of what was measured, watched and explained. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpumon import __version__
from gpumon.probe.climbing import Climb, succeeded
from gpumon.probe.collapse import collapses
from gpumon.probe.ladder import Cell
from gpumon.probe.measured import causes_of, rung, slowest
from gpumon.probe.model import SCHEMA, CauseSeconds, Conditions, Report, Rung, Spent
from gpumon.probe.wish import Plan, Wish
from gpumon.shown import percent

_CACHED: Final = 0.05
"""Share of the prompts in the prefix cache that is told where there should be none."""
_PACKED: Final = 1.05
"""Tokens to an event, from which on it is told."""
_OFF: Final = 0.1
"""Of the aim, by which prompts may miss it before it is told."""


class Told(NamedTuple):
    """What there is to report of."""

    wish: Wish
    plan: Plan
    model: str
    started: float
    spent_tokens: int
    climb: Climb
    conditions: Mapping[Cell, Conditions]
    failed_looks: int
    causes: Mapping[str, Mapping[str, CauseSeconds]]
    gpumon: str | None
    notes: Sequence[str]


def report(told: Told) -> Report:
    """All of it."""
    wish, climb = told.wish, told.climb
    climbed = climb.climbed
    rungs = [rung(each, told.conditions.get(each.cell), causes_of(each, told.causes)) for each in climbed]
    answers = [answer for each in climbed for answer in succeeded(each)]
    failure = climb.failure
    return Report(
        schema_version=SCHEMA,
        version=__version__,
        started=told.started,
        duration_seconds=(climb.ended_ns - climb.began_ns) / 1e9,
        endpoint=str(told.plan.endpoint),
        interface=wish.interface.value,
        model=told.model,
        max_tokens=wish.max_tokens,
        cached=wish.is_cached,
        lengths_from="usage" if any(each.prompt_tokens is not None for each in answers) else "aim",
        tokens_from="usage" if any(each.completion_tokens is not None for each in answers) else "chunks",
        ended=climb.ended.value,
        failure=f"{failure.outcome}: {failure.said}".removesuffix(": ") if failure is not None else "",
        budget=Spent(
            tokens=wish.budget_tokens,
            seconds=wish.budget_s,
            spent_tokens=told.spent_tokens,
            planned_requests=told.plan.cost.requests,
            planned_tokens=told.plan.cost.tokens,
        ),
        gpumon=told.gpumon,
        rungs=rungs,
        collapses=collapses(rungs, climbed),
        slowest=slowest(climbed),
        notes=[*told.notes, *_notes(rungs, wish, told.failed_looks)],
    )


def _notes(rungs: Sequence[Rung], wish: Wish, failed_looks: int) -> list[str]:
    """What a reader of the figures must know."""
    found = []
    shares = [each.cached_share for each in rungs if each.cached_share is not None]
    if shares and not wish.is_cached and max(shares) > _CACHED:
        found.append(
            f"up to {percent(max(shares))} of a rung's prompts were in the server's prefix cache, though no two are "
            "alike: their cost is not all there"
        )
    if wish.is_cached and shares and max(shares) <= _CACHED:
        found.append("the server found none of the prompts in its prefix cache, though they were there to be found")
    packed = max((each.tokens_per_chunk or 0.0 for each in rungs), default=0.0)
    if packed > _PACKED:
        found.append(f"the server sends up to {packed:.3g} tokens at a time: gaps are those between such events")
    off = [each for each in rungs if each.prompt_tokens and abs(each.prompt_tokens / each.aim_tokens - 1) > _OFF]
    if off:
        found.append("prompts are not as long as was aimed at: the server's tokenizer is unlike a line")
    if any(each.requests and each.inter_token is None for each in rungs):
        found.append("answers of one token have no gaps: --max-tokens and --ignore-eos ask for more")
    if failed_looks:
        found.append(f"gpumon did not answer {failed_looks} times")
    return found
