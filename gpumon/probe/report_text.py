"""``gpumon probe`` on a terminal: what there is to know in sentences, the ladder, GPU and host, what to ask next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gpumon.grid import Grid
from gpumon.probe.ladder import length_text
from gpumon.probe.model import Report, Rung, Slow
from gpumon.probe.words import (
    MEANWHILE,
    TITLES,
    cells,
    change,
    length,
    meanwhile,
    refusals,
    remark,
    setting,
    sides,
    verdict,
    watched,
)
from gpumon.shown import shown_seconds
from gpumon.terminal import heading, printable


def render(console: Console, said: Report, command: str) -> None:
    """Write all of it. command: what a trace id completes; empty where nobody can be asked."""
    for sentence in verdict(said):
        console.print(Text(sentence, style="bold"))
    console.print(Text(printable(setting(said), 400), style="dim"))
    measured = [rung for rung in said.rungs if rung.requests]
    has_levels = len({rung.concurrency for rung in said.rungs}) > 1
    if measured:
        console.print()
        _latencies(console, said, measured, has_levels=has_levels)
    for rung in said.rungs:
        if told := remark(rung):
            level = f", {rung.concurrency} at a time" if has_levels else ""
            console.print(Text(f"{length(rung)}{level}: {told}"))
    for reason in refusals(said.rungs):
        console.print(Text(reason))
    if watched(said):
        console.print()
        console.print(heading("Meanwhile"))
        kept = _columns(MEANWHILE, has_levels=has_levels)
        conditions = Grid(*(MEANWHILE[number] for number in kept))
        conditions.add_texts(MEANWHILE[-1], 12)
        for rung in watched(said):
            row = meanwhile(rung)
            conditions.add_row(*(Text(row[number]) for number in kept), Text(row[-1]))
        console.print(conditions)
    _differences(console, said)
    if said.slowest:
        console.print()
        console.print(heading("The slowest requests: first token, in all"))
        for slow in said.slowest:
            console.print(Text(slow_line(slow, command)))
    for note in said.notes:
        console.print(Text(f"Note: {printable(note, 400)}", style="dim"))


def _latencies(console: Console, said: Report, measured: Sequence[Rung], *, has_levels: bool) -> None:
    kept = _columns(TITLES, has_levels=has_levels)  # the last one is said below it
    grid = Grid(*(TITLES[number] for number in kept))
    marked = {(each.concurrency, each.beyond_tokens) for each in said.collapses}
    for rung in measured:
        style = "bold red" if (rung.concurrency, rung.aim_tokens) in marked else ""
        row = cells(rung)
        grid.add_row(*(Text(row[number], style=style) for number in kept))
    console.print(grid)


def _columns(titles: Sequence[str], *, has_levels: bool) -> list[int]:
    """All but the last one, and concurrency only where there are several."""
    return [number for number in range(len(titles) - 1) if number != 1 or has_levels]


def _differences(console: Console, said: Report) -> None:
    for each in said.collapses:
        if each.changes:
            console.print()
            console.print(heading(sides(each)))
            grid = Grid("Signal", length_text(each.before_tokens), length_text(each.beyond_tokens))
            for row in map(change, each.changes):
                grid.add_row(*map(Text, row))
            console.print(grid)


def slow_line(slow: Slow, command: str) -> str:
    """``gpumon explain 0af7…  32k: 2.1 s, 4.9 s``."""
    asked = f"{command} {slow.trace_id}" if command else f"trace {slow.trace_id}"
    first, whole = shown_seconds(slow.time_to_first_token), shown_seconds(slow.response_time)
    return f"{asked}  {length_text(slow.aim_tokens)}: {first}, {whole}"
