"""What was lost: seconds by cause, by engine and by request, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gpumon.catalogue import CAUSES, TITLES
from gpumon.explain.causes import INDEX, LOAD, TABLE, UNEXPLAINED
from gpumon.explain.diagnosis.facts import fact_text
from gpumon.explain.diagnosis.figures import Floats, known
from gpumon.explain.diagnosis.gains import Gained
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.model import Action, CauseKind, CauseLost, Engine, SlowRequest
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.group import Group
from gpumon.shown import shown_seconds

ENGINES: Final = 32
SLOWEST: Final = 10
ACTIONS: Final = 5
WORTH: Final = 0.05
"""Share of the excess below which a cause is not worth an action."""
MORE: Final = 1.1
"""Times what it cost in the worst stretch: what a cause cost in all is told from here on."""
_TOUCHED_S: Final = 1e-6


def kind_of(cause: str) -> CauseKind:
    """Whether a cause is a fault."""
    if cause == UNEXPLAINED:
        return "unexplained"
    return "load" if cause in LOAD else "fault"


def causes(seen: Seen, gained: Gained | None = None) -> tuple[CauseLost, ...]:
    """Those that cost anything, the most seconds first. Their shares add up to 1. gained: in the worst stretch."""
    calm = gained.calm_per_minute if gained is not None else None
    phases = seen.cause_s.sum(axis=0)
    # Excess that came without shares is unexplained, too: nothing is lost between the two. Less is rounding.
    excess = seen.rows.column("excess_s").sum(axis=0)
    rest = excess - phases.sum(axis=1)
    phases[:, INDEX[UNEXPLAINED]] += np.where(rest > 1e-5 * excess, rest, 0.0)
    seconds = phases.sum(axis=0)
    total_s = float(seconds.sum())
    touched = (seen.by_cause > _TOUCHED_S).sum(axis=0)
    return tuple(
        CauseLost(
            cause=cause,
            title=TABLE[cause].title,
            kind=kind_of(cause),
            seconds=float(seconds[i]),
            first_token_seconds=float(phases[0, i]),
            decode_seconds=float(phases[1, i]),
            share=float(seconds[i]) / total_s,
            requests=int(touched[i]),
            calm_seconds_per_minute=None if calm is None else calm[cause],
            fact=fact_text(seen.rows.fact(i)),
            action=TABLE[cause].action,
        )
        for i in np.argsort(-seconds, kind="stable").tolist()
        if seconds[i] > 0
        for cause in (CAUSES[i],)
    )


def actions(lost: tuple[CauseLost, ...], gained: Gained | None = None) -> tuple[Action, ...]:
    """What to do: first about what gained most in the worst stretch, then about what cost most.

    What nothing explains comes last. Each says in which of these orders it stands.
    """
    worst = {each.cause: each.seconds for each in gained.reasons if each.share >= WORTH} if gained is not None else {}
    order = [*worst]
    worth = [each for each in lost if each.share >= WORTH or each.cause in worst]
    worth.sort(key=lambda each: order.index(each.cause) if each.cause in worst else len(order))
    worth.sort(key=lambda each: each.kind == "unexplained")
    return tuple(
        Action(
            text=each.action,
            cause=each.cause,
            title=each.title,
            seconds=each.seconds,
            worst_seconds=worst.get(each.cause, 0.0),
            reason=_reason(each, worst.get(each.cause, 0.0)),
        )
        for each in worth[:ACTIONS]
    )


def _reason(each: CauseLost, worst_s: float) -> str:
    """``GPU too hot: 25.1 s of the worst stretch, 32.4 s in all``; without the second where it is the same."""
    told = [f"{shown_seconds(worst_s)} of the worst stretch"] if worst_s else []
    if not told or each.seconds > MORE * worst_s:
        told.append(f"{shown_seconds(each.seconds)} in all")
    return f"{each.title}: {', '.join(told)}"


def engines(inputs: Inputs, seen: Seen) -> tuple[Engine, ...]:
    """The groups, the most excess first."""
    found = []
    for i in seen.engines:
        mine = seen.members(i)
        group = seen.of(i)
        cause, _ = main_cause(seen.by_cause[mine].sum(axis=0))
        found.append(
            Engine(
                server=group.server,
                model=group.model,
                place=place(group, inputs.gpu_names),
                gpus=group.gpus,
                pid=group.pid,
                container=group.container,
                requests=int(mine.sum()),
                slow_requests=int((mine & seen.slow).sum()),
                token_seconds=float(seen.duration_s[mine].sum()),
                excess_seconds=float(seen.excess_s[mine].sum()),
                cause=cause,
                title=TITLES.get(cause, ""),
            )
        )
    return tuple(sorted(found, key=lambda each: (-each.excess_seconds, -each.requests))[:ENGINES])


def slowest(inputs: Inputs, seen: Seen) -> tuple[SlowRequest, ...]:
    """Slow requests to look at: of each main cause the slowest, then of each the next, so that what costs most does not
    hide the others. Slowest is by excess; where nothing is expected yet, by time per token.
    """
    weights = seen.response if seen.is_cold else seen.excess_s
    candidates = np.flatnonzero(seen.slow)
    order = candidates[np.argsort(-weights[candidates], kind="stable")].tolist()
    # Where nothing is expected nothing has a cause: they are of one.
    causes = seen.by_cause.argmax(axis=1)
    rounds: dict[int, int] = {}
    turns = []
    for row in order:
        turns.append(rounds.setdefault(int(causes[row]), 0))
        rounds[int(causes[row])] += 1
    chosen = [row for _, row in sorted(zip(turns, order, strict=True), key=lambda each: each[0])]
    return tuple(_slow_request(inputs, seen, row) for row in chosen[:SLOWEST])


def place(group: Group, gpu_names: Mapping[str, str]) -> str:
    """``GPUs 2, 3``, ``pid 4711``; empty where nobody knows. gpu_names: index by UUID, of which one is long enough."""
    names = sorted((gpu_names[uuid] for uuid in group.gpus if uuid in gpu_names), key=lambda name: (len(name), name))
    if group.gpus and len(names) == len(group.gpus):
        return f"GPU{'s' if len(names) > 1 else ''} {', '.join(names)}"
    if group.gpus:
        more = len(group.gpus) - 1
        return group.gpus[0] + (f" and {more} more GPU{'s' if more > 1 else ''}" if more else "")
    return f"pid {group.pid}" if group.pid else f"container {group.container[:12]}" if group.container else ""


def main_cause(seconds: Floats) -> tuple[str, float]:
    """The cause with the most seconds and its share; an empty one where there are none. seconds: (causes,)."""
    total_s = float(seconds.sum())
    if total_s <= 0:
        return "", 0.0
    best = int(np.argmax(seconds))
    return CAUSES[best], float(seconds[best]) / total_s


def _slow_request(inputs: Inputs, seen: Seen, row: int) -> SlowRequest:
    rows = seen.rows
    group = seen.of(seen.group[row])
    cause, share = main_cause(seen.by_cause[row])
    figures = rows.table[row]
    prompt, completion = int(figures["prompt_tokens"]), int(figures["completion_tokens"])
    return SlowRequest(
        trace_id=rows.trace_id(row),
        span_id=rows.span_id(row),
        request_id=rows.request_id(row),
        server=group.server,
        model=group.model,
        tenant=rows.tenants[seen.tenant[row]],
        gpus=group.gpus,
        started=inputs.to_unix(float(seen.start_s[row])),
        duration_seconds=float(seen.duration_s[row]),
        first_token_seconds=known(float(figures["first_token_s"])),
        worst_gap_seconds=known(float(figures["gap_max_s"])),
        prompt_tokens=prompt if prompt >= 0 else None,
        completion_tokens=completion if completion >= 0 else None,
        excess_seconds=float(seen.excess_s[row]),
        cause=cause,
        title=TITLES.get(cause, ""),
        cause_share=share,
    )
