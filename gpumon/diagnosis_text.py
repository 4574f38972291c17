"""``gpumon diagnose`` on a terminal: the verdict first, then what to do, then what both rest on.

What is told is ``explain.diagnosis.model.Diagnosis``. A part that has nothing to say is left out, and of long lists the
first rows are told, unless everything is asked for. The response surface is told where it is asked for. 80 columns are
enough; on fewer, what stands side by side there stands below one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gpumon.diagnosis_tables import (
    batch_jitter,
    before_during,
    compared,
    context_profile,
    correlations,
    engines,
    matrix,
    quality,
    response_surface,
    tenants,
)
from gpumon.diagnosis_words import Lines, begin, counted, engine, known_s, lasted, period, rest, some
from gpumon.explain.causes import UNEXPLAINED
from gpumon.explain.diagnosis.model import Action, CauseLost, Diagnosis, IncidentBrief, SlowRequest, Timeline
from gpumon.shown import percent, shown_clock, shown_seconds
from gpumon.terminal import LONG, bar, colour_of, printable, title_of

_SLOWEST = 5
ORDER: Final = "first about the worst stretch, then about what cost most"
"""Of what to do."""
LOOK_AT: Final = "the slowest of each cause, then the next of each"
"""Requests."""
_SIDE_BY_SIDE: Final = 78
"""Columns of a cause with its bar and figures on one line."""
_LITTLE: Final = 0.005
"""Of the excess: a cause that has less is left out."""
_HARDLY_S: Final = 0.1
"""Lost a minute."""
_AS_MUCH: Final = 0.8
"""Of what a cause costs a minute on the mean."""
_NOT_CALM: Final = 2.0
"""Likewise."""
_ALL_BUT: Final = 0.01
"""Of the seconds of a cause: what is less of one phase is not told."""
_WIDEST = 4
"""Columns of a cell of time, where there are few of them."""
_SEVERITIES: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_TRACE = re.compile(r"[0-9a-f]{32}", re.ASCII)


def render(
    console: Console, said: Diagnosis, command: str, everything: bool = False, *, with_surface: bool = False
) -> None:
    """Write it. command: what a trace id completes, such as ``gpumon explain``; empty where nobody can be asked."""
    for line in lines(said, command, console.width, everything, with_surface=with_surface):
        # Commands stay whole, to be copied.
        console.print(line, soft_wrap=isinstance(line, Text) and line.no_wrap is True)


def lines(said: Diagnosis, command: str, width: int, everything: bool, *, with_surface: bool = False) -> Lines:
    """All of it. width: columns."""
    told = verdict(said)
    told += _actions(said.actions)
    told += _causes(said.causes, known_s(said), width, everything)
    if said.timeline is not None:
        told += _timeline(said.timeline, width)
    told += matrix(said.matrix, compared(said), everything)
    if said.before_during is not None:
        told += before_during(said.before_during, everything)
    told += _slowest(said.slowest, command, everything, with_server=len(said.engines) > 1)
    told += _incidents(said.incidents, width, everything)
    told += engines(said.engines, everything)
    if everything:
        told += correlations(said.correlations)
    for found in said.tenants:
        told += tenants(found, everything)
    for batch in said.batches:
        told += batch_jitter(batch, everything)
    for profile in said.contexts:
        told += context_profile(profile, everything)
    if said.surface is not None and (with_surface or everything):
        told += response_surface(said.surface)
    told += quality(said.quality, everything)
    return told + _notes(said.notes)


def verdict(said: Diagnosis) -> Lines:
    """Of whom and when, what was slow and why, and how much it cost."""
    told: Lines = [Text.assemble((printable(said.node), "bold"), f": {period(said)}")]
    for number, sentence in enumerate(said.verdict):
        told.append(Text(printable(sentence, LONG), style="bold" if number == 0 else ""))
    return told


def cause_told(each: CauseLost) -> str:
    """What kind of cause, where it struck, and the figure behind it."""
    parts: list[str] = [] if each.kind == UNEXPLAINED else [each.kind]
    first = each.first_token_seconds / each.seconds if each.seconds > 0.0 else 0.0
    if first >= 1.0 - _ALL_BUT:
        parts.append("until first tokens")
    elif first >= _ALL_BUT:
        parts.append(f"{shown_seconds(each.first_token_seconds)} of it until first tokens")
    if each.fact:
        parts.append(printable(each.fact, LONG))
    return "; ".join(parts)


def action_told(each: Action) -> str:
    """What to do, and what for."""
    return f"{each.text} ({each.reason})"


def ready(command: str, trace_id: str) -> str:
    """The command that tells more of a request; empty where there is none."""
    return f"{command} {trace_id}" if command and _TRACE.fullmatch(trace_id) is not None else ""


def calm_told(each: CauseLost, period_s: float) -> str:
    """What a cause costs in calm minutes; empty where none were calm, or none for this cause: it may be of another
    engine than the worst stretch. period_s: in which it cost what it cost."""
    calm = each.calm_seconds_per_minute
    usual = 60.0 * each.seconds / max(period_s, 1.0)
    if calm is None or calm > _NOT_CALM * usual:
        return ""
    if calm < _HARDLY_S:
        return "hardly any in calm minutes"
    return "as much in calm minutes" if calm >= _AS_MUCH * usual else f"{shown_seconds(calm)} a minute in calm ones"


def _causes(causes: Sequence[CauseLost], period_s: float, width: int, everything: bool) -> Lines:
    if not causes:
        return []
    told = begin("Causes")
    chosen = some([each for each in causes if everything or each.share >= _LITTLE], everything)
    for each in chosen:
        lost, share, requests = shown_seconds(each.seconds), percent(each.share), counted(each.requests, "request")
        line = Text(f"{printable(each.title, 26):<26} ")
        more = [cause_told(each), calm_told(each, period_s)]
        if width >= _SIDE_BY_SIDE:
            line.append(f"{bar(each.share, 16):<16}", style=colour_of(each.cause))
            line.append(f" {lost:>11} {share:>6}")
            line.append(f"{requests:>16}", style="dim")
        else:
            line.append(bar(each.share, max(1, min(16, width - line.cell_len))), style=colour_of(each.cause))
            more = [f"{lost}, {share}", requests, *more]
        told.append(line)
        if any(more):
            below = Text("; ".join(part for part in more if part), style="dim")
            told.append(Padding(below, (0, 0, 0, 2), expand=False))
    return told + rest(chosen, causes)


def _timeline(timeline: Timeline, width: int) -> Lines:
    cells = timeline.excess
    most = max(cells, default=0.0)
    if most <= 0.0:
        return []
    per = max(1, -(-len(cells) // width))
    each_s = per * timeline.step_seconds
    wide = max(1, min(_WIDEST, width // len(cells)))
    blocks = Text(no_wrap=True)
    for first in range(0, len(cells), per):
        part = slice(first, first + per)
        worst = max(cells[part])
        sums = {cause: sum(values[part]) for cause, values in timeline.by_cause.items()}
        cause = max(sums, key=lambda name: sums[name], default="")
        height = min(len(_BLOCKS) - 1, int(worst / most * len(_BLOCKS)))
        block = " " if worst <= 0.0 else _BLOCKS[height]
        blocks.append(wide * block, style=colour_of(cause) if sums.get(cause) else "")
    start, end = shown_clock(timeline.start), shown_clock(timeline.start + len(cells) * timeline.step_seconds)
    axis = Text(f"{start} {end:>{max(1, len(blocks) - len(start) - 1)}}", style="dim")
    return [
        *begin("Time lost", f"each {shown_seconds(each_s)}; {_BLOCKS[-1]} {shown_seconds(most)} lost"),
        blocks,
        axis,
    ]


def _slowest(requests: Sequence[SlowRequest], command: str, everything: bool, *, with_server: bool) -> Lines:
    if not requests:
        return []
    told = begin("Requests to look at", LOOK_AT)
    chosen = some(requests, everything, _SLOWEST)
    for each in chosen:
        line = Text(f"{shown_clock(each.started)}  ")
        line.append(f"late by {shown_seconds(each.excess_seconds)}", style="red")
        line.append(f" of {shown_seconds(each.duration_seconds)}")
        if each.cause:
            line.append(f", {title_of(each.cause)} {percent(each.cause_share)}", style=colour_of(each.cause))
        asked = ready(command, each.trace_id) or f"trace {printable(each.trace_id)}"
        told += [line, Text(f"  {asked}", no_wrap=True)]
        whose = [engine(each.server, each.model)] if with_server else []
        whose += [f"tenant {printable(each.tenant, 30)}"] if each.tenant else []
        if whose:
            told.append(Padding(Text(", ".join(whose), style="dim"), (0, 0, 0, 2), expand=False))
    return told + rest(chosen, requests)


def _incidents(incidents: Sequence[IncidentBrief], width: int, everything: bool) -> Lines:
    if not incidents:
        return []
    told = begin("Incidents")
    chosen = some(incidents, everything)
    for each in chosen:
        line = Text(f"{shown_clock(each.opened)}  ")
        line.append(f"{each.severity:8}", style=_SEVERITIES[each.severity])
        line.append(f" {printable(each.title)} on {printable(each.entity)}, ")
        line.append(f"{lasted(each)}")
        behind = f"; late meanwhile by: {', '.join(map(title_of, each.causes))}" if each.causes else ""
        summary = Text(f"{printable(each.summary, LONG)}{behind}", style="dim")
        told += [line, Padding(summary, (0, 0, 0, 10 if width >= _SIDE_BY_SIDE else 2), expand=False)]
    return told + rest(chosen, incidents)


def _actions(actions: Sequence[Action]) -> Lines:
    if not actions:
        return []
    told = begin("What to do", ORDER)
    for number, each in enumerate(actions, start=1):
        told.append(Text(f"{number}. {printable(action_told(each), LONG)}"))
    return told


def _notes(notes: Sequence[str]) -> Lines:
    if not notes:
        return []
    return [
        *begin("Not told"),
        *(Padding(Text(printable(note, LONG), style="dim"), (0, 0, 0, 2), expand=False) for note in notes),
    ]
