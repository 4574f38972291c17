"""The report on a terminal: a line for what works, a paragraph for what does not. Plain 80 columns in a pipe."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from typing import TextIO

from rich.console import Console
from rich.text import Text

from gpumon import __version__
from gpumon.doctor.report import PROBLEMS, SECTIONS, Check, Report, Status

PLAIN_WIDTH = 80
WIDTH_MAX = 110
_STYLES = {Status.OK: "green", Status.DEGRADED: "yellow", Status.MISSING: "bold red", Status.UNSUPPORTED: "dim"}
_TITLES = {"gpu": "GPU", "host": "Host", "gpumon": "gpumon"}
_STATUS_WIDTH = 12
_TITLE_WIDTH = 24
_SHOWN_CAPABILITIES = ("SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG", "SYS_ADMIN")
"""Those that anything here may need."""


def render(report: Report, stream: TextIO) -> None:
    """Write the report: with colours for a terminal, without any control sequence for anything else."""
    if stream.isatty():
        console = Console(file=stream, highlight=False)
        console.width = min(console.width, WIDTH_MAX)
    else:
        console = Console(file=stream, width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)
    width = console.width
    lines = [*_wrapped(_heading(report), width, 0)]
    for section in SECTIONS:
        checks = [check for check in report.checks if check.section == section]
        if checks:
            lines += [Text(), Text(_TITLES[section], style="bold")]
        for check in checks:
            lines += _lines(check, width)
    counts = Counter(check.status for check in report.checks)
    told = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    lines += [Text(), Text(report.verdict, style="bold")]
    lines += _wrapped(f"{told}. Exit status {report.exit_code}; --json tells the metrics behind each line.", width, 0)
    for line in lines:
        console.print(line, soft_wrap=True)


def _heading(report: Report) -> str:
    held = [name for name in _SHOWN_CAPABILITIES if name in report.capabilities]
    where = "in a container on" if report.container else "on"
    return (
        f"gpumon {__version__} {where} {os.uname().nodename}, as uid {report.uid} with "
        f"{', '.join(held) or 'no capability that matters'}. Run it as gpumon will run: same user, same container."
    )


def _lines(check: Check, width: int) -> list[Text]:
    line = Text(f"{check.status:<{_STATUS_WIDTH}}", style=_STYLES[check.status])
    line.append(check.title, style="bold" if check.status in PROBLEMS else "default")
    if check.status in PROBLEMS:
        detail = _wrapped(_printable(check.detail), width, _STATUS_WIDTH)
        fix = _wrapped(f"fix: {_printable(check.fix)}", width, _STATUS_WIDTH)
        return [line, *detail, *fix]
    line.append(" " * max(1, _TITLE_WIDTH - len(check.title)) + _printable(check.detail), style="default")
    line.truncate(width, overflow="ellipsis")
    return [line]


def _wrapped(text: str, width: int, indent: int) -> list[Text]:
    lines = textwrap.wrap(text, width - indent, break_long_words=True, break_on_hyphens=False)
    return [Text(" " * indent + line) for line in lines]


def _printable(text: str) -> str:
    """What hardware and files say may hold anything, control sequences too."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
