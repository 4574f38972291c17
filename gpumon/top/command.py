"""``gpumon top``: how a look is told. Live on a terminal; once, as plain text, in a pipe; once, as JSON, for scripts.

Exit status: 0 shown; ApiError where no gpumon answers the first time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console

from gpumon.api_client import DEFAULT_URL, Api
from gpumon.terminal import console_for
from gpumon.top.asking import TIMEOUT_S, Asking
from gpumon.top.frame import whole
from gpumon.top.live import Live
from gpumon.top.terminal_screen import TerminalScreen

EVERY_S = 2.0


def main(
    url: str | None, environ: Mapping[str, str], ca: Path | None, every_s: float, *, once: bool, json_output: bool
) -> int:
    """Raises ApiError."""
    asking = Asking(Api(url or DEFAULT_URL, environ, ca, timeout_s=TIMEOUT_S))
    first = asking.look()
    if json_output:
        sys.stdout.write(first.model_dump_json(indent=2) + "\n")
        return 0
    if once or not _is_live(sys.stdin, sys.stdout):
        console = console_for(sys.stdout)
        for line in whole(first, console.width):
            console.print(line, no_wrap=True, overflow="crop")
        return 0
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    keyboard = sys.stdin.fileno()
    terminal = TerminalScreen(console, keyboard, sys.stdout.fileno())
    return Live(terminal, first.url, first, every_s).run(asking.look, keyboard)


def _is_live(keyboard: TextIO | None, output: TextIO) -> bool:
    """Whether there is a terminal that can move its cursor, and keys."""
    return keyboard is not None and keyboard.isatty() and output.isatty() and os.environ.get("TERM", "dumb") != "dumb"
