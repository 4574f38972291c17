"""The verdict in sentences: what was slow, since when, why, and where; and notes on what could not be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gpumon.catalogue import TITLES
from gpumon.detect.incident import Incident
from gpumon.explain.causes import INDEX, TABLE, UNEXPLAINED
from gpumon.explain.diagnosis.figures import LEAST, quantile
from gpumon.explain.diagnosis.gains import Gained, Reason
from gpumon.explain.diagnosis.incidents import concerning, concerns, held_in, meanwhile, more_like, telling
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.losses import WORTH, kind_of, place
from gpumon.explain.diagnosis.model import CauseKind, Interference
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.diagnosis.stretch import Stretch, within
from gpumon.explain.group import Group
from gpumon.shown import percent, shown_clock, shown_seconds

SECOND: Final = 0.15
"""Share of what was gained from which a second cause is named."""
TOLD: Final = 0.01
"""Share of the excess from which it is told that calm time loses it as well."""
GREW: Final = 0.2
"""By which a tenant's share of the requests must have grown to be named."""
FOUND: Final = 2
"""Incidents that are named where no request was slow."""
GOES_ON_S: Final = 30.0
"""What was so until the newest request ended goes on, unless nobody has asked for that long."""
_KINDS: Final[dict[CauseKind, str]] = {"fault": " (a fault)", "load": " (load, no fault)"}
BEARS: Final = 2.0
"""Share of a tenant in the excess over its share in the time: from there on it suffers more than the others."""


def verdict(
    inputs: Inputs, seen: Seen, stretch: Stretch | None, gained: Gained | None, tenants: tuple[Interference, ...]
) -> tuple[str, ...]:
    """One to five sentences."""
    if not len(seen):
        left_out = f" {inputs.dropped:,} were not looked at." if inputs.dropped else ""
        return (f"No request ended in this period{' that was explained' if left_out else ''}.{left_out}",)
    slow = int(seen.slow.sum())
    excess_s, time_s = float(seen.excess_s.sum()), float(seen.duration_s.sum())
    is_much = slow > 0 or excess_s >= WORTH * time_s
    if stretch is None or gained is None or not gained.reasons or not is_much:
        return (_nothing_slow(inputs, seen, slow), *_found_meanwhile(inputs))
    why = gained.reasons
    explained_s = float(np.delete(seen.by_cause, INDEX[UNEXPLAINED], axis=1).sum())
    of_time = excess_s / time_s if time_s > 0 else 1.0
    unexplained = percent(max(0.0, round(1.0 - explained_s / excess_s, 4)))
    who, they = (f"all {len(seen):,} together", "they") if len(seen) > 1 else ("it", "it")
    lost = (
        f"{who} lost {shown_seconds(excess_s)} beyond what is usual, {percent(of_time)} of the {shown_seconds(time_s)} "
        f"that {they} took; {unexplained} of what was lost is unexplained."
    )
    sentences = [
        f"{_slow_of(slow, len(seen))}; {lost}",
        _when(inputs, seen, stretch, gained),
        _why(why, of=f" of the other {shown_seconds(gained.seconds)}" if _tells_usual(stretch, gained) else ""),
    ]
    where = _where(inputs, seen, why[0], stretch)
    sentences += [where] if where else []
    who = _who(seen, stretch, why[0], tenants)
    sentences += [who] if who else []
    return tuple(sentences)


def notes(inputs: Inputs, seen: Seen, stretch: Stretch | None) -> tuple[str, ...]:
    """What could not be told, and why."""
    return tuple(_notes(inputs, seen, stretch))


def named(group: Group, gpu_names: Mapping[str, str]) -> str:
    """``vllm/llama-70b on GPUs 2, 3``. gpu_names: index by UUID."""
    where = place(group, gpu_names)
    return f"{group.name}{' on ' if group.gpus else ', '}{where}" if where else group.name


def _slow_of(slow: int, requests: int) -> str:
    of = f"{requests:,} request{'' if requests == 1 else 's'}"
    return f"{slow:,} of {of} {'was' if slow == 1 else 'were'} slow" if slow else f"None of {of} was slow by itself"


def _nothing_slow(inputs: Inputs, seen: Seen, slow: int) -> str:
    if seen.is_cold:
        return (
            f"{len(seen):,} requests ended, and nothing is known yet of how long they usually take: none of them can "
            "be called slow."
        )
    if slow == 0:
        lost_s = float(seen.excess_s.sum())
        more = f" Together they lost {shown_seconds(lost_s)}, little each." if lost_s > 0 else ""
        if inputs.dropped:
            return (
                f"None of the {len(seen):,} requests that were looked at was slow; {inputs.dropped:,} others were not "
                f"looked at.{more}"
            )
        return f"None of {len(seen):,} requests was slow: all took about as long as is usual under their load.{more}"
    return f"{slow:,} of {len(seen):,} requests were slower than usual, and nothing says why."


def _found_meanwhile(inputs: Inputs) -> tuple[str, ...]:
    """What was wrong all the same."""
    found = meanwhile(held_in(concerning(inputs), inputs.from_s, inputs.to_s))
    return tuple(f"Yet {_found(each)}: {each.summary}." for each in found[:FOUND])


def _found(incident: Incident) -> str:
    return f"{TITLES[incident.kind]} on {incident.entity.name}"


def _tells_usual(stretch: Stretch, gained: Gained) -> bool:
    """Whether calm time loses so much that it is told."""
    return gained.usual_s >= TOLD * stretch.excess_s


def _when(inputs: Inputs, seen: Seen, stretch: Stretch, gained: Gained) -> str:
    on = f"most of it on {named(seen.of(stretch.engine), inputs.gpu_names)}"
    start_s, end_s = seen.cells.period(stretch.first, stretch.last)
    # Nothing is known of what came after the newest request that has ended.
    newest_s = min(float(seen.end_s.max()), inputs.to_s)
    is_last = end_s >= newest_s
    lost = f"{shown_seconds(stretch.excess_s)} lost ({percent(stretch.excess_s / float(seen.excess_s.sum()))} of all)"
    if _tells_usual(stretch, gained):
        lost += f", {shown_seconds(gained.usual_s)} of it as in calm minutes"
    if is_last and stretch.first == 0:
        return f"It was so all the time, {on}."
    start, newest = (shown_clock(inputs.to_unix(each)) for each in (start_s, newest_s))
    if is_last and inputs.to_s - newest_s < GOES_ON_S:
        until = f"still held at {newest} UTC" if inputs.is_live else "held until the end"
        return f"It began about {start} UTC and {until}, {on}: {lost}."
    if is_last:
        return f"It began about {start} UTC and was so until the last request ended, at {newest} UTC, {on}: {lost}."
    return f"The worst was from {start} to {shown_clock(inputs.to_unix(end_s))} UTC, {on}: {lost}."


def _why(why: tuple[Reason, ...], of: str) -> str:
    first = why[0]
    if kind_of(first.cause) == "unexplained":
        told = f"Nothing that was watched explains {percent(first.share)}{of or ' of it'}"
        known = [each for each in why[1:] if each.share >= SECOND]
        return f"{told}; {_reason(known[0])}." if known else f"{told}."
    more = [each for each in why[1:] if each.share >= SECOND][:1]
    return f"Why: {_reason(first, of)}" + "".join(f"; then {_reason(each)}" for each in more) + "."


def _reason(each: Reason, of: str = "") -> str:
    called = _KINDS.get(kind_of(each.cause), "")
    told = f"{TABLE[each.cause].title}{called}, {percent(each.share)}{of}"
    return f"{told}: {each.fact}" if each.fact else told


def _where(inputs: Inputs, seen: Seen, main: Reason, stretch: Stretch) -> str:
    """What incidents say of the engine that lost most to the main cause: where it was found, and, of load, which fault
    it may have grown behind. That must have begun before it: what begins in its midst is a coincidence, or follows.
    """
    engine = seen.of(main.engine)
    period = seen.cells.period(*stretch.run)
    held = [each for each in held_in(concerning(inputs), *period) if concerns(each, engine, inputs.held)]
    found = telling(held, main.cause)
    told = [f"Found on {found[0].entity.name}: {found[0].summary}{more_like(found)}"] if found else []
    if kind_of(main.cause) != "fault":
        # Excess is spread over a request's time: the stretch begins a request before what slowed it.
        mine = within(seen, main.engine, period)
        early_s = max(seen.cells.width_s, quantile(seen.duration_s[mine], 0.5) or 0.0)
        behind = [each for each in meanwhile(held) if each.since_s <= period[0] + early_s and each not in found]
        if behind:
            told.append(f"meanwhile {_found(behind[0])}, which may be behind it: {behind[0].summary}")
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _who(seen: Seen, stretch: Stretch, main: Reason, tenants: tuple[Interference, ...]) -> str:
    """The tenant whose requests grew, where it is load; else one that suffers more than the others."""
    if kind_of(main.cause) == "load" and stretch.before is not None:
        mine = within(seen, stretch.engine, seen.cells.period(stretch.first, stretch.last))
        quiet = within(seen, stretch.engine, seen.cells.period(*stretch.before))
        if min(int(mine.sum()), int(quiet.sum())) >= LEAST:
            size = len(seen.rows.tenants)
            now = np.bincount(seen.tenant[mine], minlength=size) / mine.sum()
            before = np.bincount(seen.tenant[quiet], minlength=size) / quiet.sum()
            most = int(np.argmax(now - before))
            if now[most] - before[most] > GREW and seen.rows.tenants[most]:
                return (
                    f"Tenant {seen.rows.tenants[most]} made {percent(now[most])} of the requests meanwhile, "
                    f"{percent(before[most])} before."
                )
    for engine in tenants:
        worst = engine.tenants[0] if engine.tenants else None
        if worst is not None and worst.verdict == "bad" and worst.slope is not None:
            return (
                f"Tenants slow one another down: {worst.tenant or 'requests without a tenant'} loses "
                f"{-worst.slope:.3g} of {worst.tokens_per_second:.3g} tokens/s with each other that is active."
            )
    return _bears(seen)


def _bears(seen: Seen) -> str:
    size = len(seen.rows.tenants)
    excess = np.bincount(seen.tenant, seen.excess_s, size)
    time = np.bincount(seen.tenant, seen.duration_s, size)
    if (time > 0).sum() < 2 or not excess.sum() or not time.sum():
        return ""
    most = int(np.argmax(excess))
    has, had = excess[most] / excess.sum(), time[most] / time.sum()
    if has > 0.5 and has > BEARS * had and seen.rows.tenants[most]:
        return f"Tenant {seen.rows.tenants[most]} bears {percent(has)} of it, with {percent(had)} of the request time."
    return ""


def _notes(inputs: Inputs, seen: Seen, stretch: Stretch | None) -> Iterator[str]:
    count = len(seen)
    if inputs.dropped:
        yield (
            f"{inputs.dropped:,} requests were not explained for want of room: more engines, or more requests at a "
            "time, than are kept (gpumon_explained_requests_total, outcome dropped)."
        )
    if inputs.kept_from_s is not None and inputs.kept_from_s > max(inputs.from_s, inputs.began_s or inputs.from_s):
        since = shown_clock(inputs.to_unix(inputs.kept_from_s))
        yield f"Requests that ended before {since} UTC are not kept any more: the period begins there."
    elif inputs.began_s is not None and inputs.known_s > inputs.from_s:
        since = shown_clock(inputs.to_unix(inputs.began_s))
        yield (
            f"gpumon began at {since} UTC: the period begins there, and in its first minute little was known of what "
            "is usual."
        )
    if not count:
        late = " They are explained some seconds after their end (explain.delay_s)." if inputs.is_live else ""
        yield f"Without requests there is nothing to explain: see whether traces arrive (gpumon doctor).{late}"
        return
    if inputs.is_live:
        newest = shown_clock(inputs.to_unix(float(seen.end_s.max())))
        yield f"The newest request here ended at {newest} UTC: they are explained some seconds after their end."
    if seen.is_cold:
        yield (
            "Nothing is expected of any request yet, as gpumon has seen too few like them: the slowest 5 % by time per "
            "token are called slow, and no excess is told."
        )
    elif (cold := int((seen.expected_s <= 0).sum())) > WORTH * count:
        yield f"Of {cold:,} of {count:,} requests nothing was expected, being the first of their kind: no excess."
    unbound = int(np.isin(seen.group, [i for i in seen.engines if not _is_bound(seen.of(i))]).sum())
    if unbound:
        yield (
            f"{unbound:,} of {count:,} requests are not bound to a GPU, process or container of this node: only their "
            "server can explain them. docs/TOKENS.md says how to bind them."
        )
    untimed = int(np.isnan(seen.rows.column("gap_max_s")).sum())
    if untimed:
        yield f"{untimed:,} of {count:,} requests came without times of their tokens: of these no gap is known."
    if not seen.tells_tokens:
        yield "Most requests do not say how many tokens they made: r is with the time of the whole request."
    if count < LEAST:
        yield f"Fewer than {LEAST} requests: no correlation is told."
    engine = stretch.engine if stretch is not None else seen.engines[0]
    slow = seen.slow[seen.members(engine)]
    if slow.all():
        yield f"Every request of {seen.of(engine).name} was slow: there are no others to compare with."
    elif stretch is not None and not slow.any():
        yield (
            f"No request of {seen.of(engine).name} was slow by 30 % of what was expected and 100 ms: what was "
            "different on slow ones cannot be told."
        )
    if stretch is not None and stretch.before is None:
        after = "; what is usual is taken from the time after" if stretch.calm is not None else ""
        yield f"There is no quiet time before the worst{after}: look at a longer period to see what changed."
    if not inputs.dimensions or not np.isfinite(seen.rows.signals).any():
        yield "No signal of a GPU, host or server is known of these requests: the matrix has nothing to say."


def _is_bound(group: Group) -> bool:
    return bool(group.gpus or group.pid or group.container)
