"""What is wrong, in ``gpumon top``: the incidents that are open, and what tokens were late by in the last minutes.

On a screen each has a line; in full, texts are wrapped and what to do stands below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from gpumon.shown import percent, shown_duration, shown_seconds
from gpumon.terminal import LONG, bar, colour_of, heading, printable
from gpumon.top.answers import CauseLost, Incident, Lost
from gpumon.top.table import Column, cut, table, wrapped

CAUSES_SHOWN: Final = 5
"""On a screen."""
_SEVERITIES: Final = ("critical", "warning", "info")
_COLOURS: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_COLUMNS: Final = (
    Column("severity", is_text=True, least=8),
    Column("for"),
    Column("what", is_text=True, least=12),
    Column("of", is_text=True, least=8),
    Column("now", is_text=True, least=16, rank=1),
)
_BAR: Final = 16
_TITLE: Final = 22
_INDENT: Final = "  "


def incident_lines(incidents: Sequence[Incident], at: float, width: int, *, in_full: bool) -> list[Text]:
    """The worst first, then the newest. at: unix seconds now."""
    if not incidents:
        return [cut(Text("No incident is open.", style="green"), width)]
    worst = sorted(incidents, key=lambda each: (_rank(each.severity), -each.since))
    if not in_full:
        return table(_COLUMNS, [_row(each, at) for each in worst], width)
    lines = [cut(heading("Incidents"), width)]
    for each in worst:
        severity, lasted, kind, entity, _ = _row(each, at)
        lines.append(cut(Text("  ").join([severity, lasted, Text.assemble(kind, " on ", entity)]), width))
        lines += wrapped(printable(each.summary, LONG), width, _INDENT)
        lines += wrapped(f"What to do: {printable(each.action, LONG)}", width, _INDENT) if each.action else []
    return lines


def lost_lines(lost: Lost, width: int, *, in_full: bool) -> list[Text]:
    """Seconds lost, by cause."""
    known_s = lost.until - max(lost.since, lost.since if lost.known_since is None else lost.known_since)
    period = f"the last {shown_duration(max(1.0, known_s))}"
    if not lost.causes:
        none = f"{lost.requests:,} requests ended in {period}, and none was late."
        said = printable(lost.verdict[0], LONG) if lost.verdict else none
        return wrapped(said, width) if in_full else [cut(Text(said), width)]
    title = heading(f"{shown_seconds(lost.excess_seconds)} lost")
    title.append(f" in {period}, by {lost.slow_requests:,} of {lost.requests:,} requests together", style="not bold")
    chosen = lost.causes if in_full else lost.causes[:CAUSES_SHOWN]
    columns = (
        Column("", is_text=True, least=_TITLE),
        Column("", is_text=True, least=_BAR, rank=2),
        Column(""),
        Column(""),
        Column("", is_text=True, least=5),
        Column("", is_text=True, least=24, rank=1),
    )
    rows = [_cause(each) for each in chosen]
    if in_full:
        lines = wrapped(title.plain, width, style="bold")
        told = table(columns[:-1], [row[:-1] for row in rows], width)[1:]
        for line, each in zip(told, chosen, strict=True):
            lines += [line, *wrapped(printable(each.fact, LONG), width, _INDENT)]
        return lines
    lines = [cut(title, width), *table(columns, rows, width)[1:]]
    rest = lost.causes[len(chosen) :]
    if rest:
        seconds = shown_seconds(sum(each.seconds for each in rest))
        lines.append(cut(Text(f"{len(rest)} more, {seconds} together", style="dim"), width))
    return lines


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


def _row(incident: Incident, at: float) -> list[Text]:
    return [
        Text(printable(incident.severity, 8), style=_COLOURS.get(incident.severity, "")),
        Text(shown_duration(max(0.0, at - incident.since))),
        Text(printable(incident.kind)),
        Text(printable(incident.entity.name)),
        Text(printable(incident.summary, LONG), style="dim"),
    ]


def _cause(each: CauseLost) -> list[Text]:
    return [
        Text(printable(each.title or each.cause)),
        Text(bar(min(each.share, 1.0), _BAR), style=colour_of(each.cause)),
        Text(shown_seconds(each.seconds)),
        Text(percent(each.share)),
        Text(printable(each.kind, 12) if each.kind != "unexplained" else ""),
        Text(printable(each.fact, LONG), style="dim"),
    ]
