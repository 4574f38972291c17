"""The whole terminal for a while: its second screen, no cursor, keys as they are pressed; afterwards all as before.

Needs a terminal as input and output (termios). Restored on every way out that a process can see, also when it is
stopped (Ctrl-Z) and goes on. A terminal that has gone away is no error: there is nothing left to restore.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

_READ_BYTES = 1024


class TerminalScreen:
    """Taken with ``with``."""

    def __init__(self, console: Console, keyboard: int, output: int) -> None:
        """keyboard, output: file descriptors of the terminal; console writes to the latter."""
        self._console = console
        self._keyboard = keyboard
        self._output = output
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines now; 80 by 24 where the terminal does not know."""
        try:
            width, height = os.get_terminal_size(self._output)
        except OSError:
            width, height = 0, 0
        return width or 80, height or 24

    def read(self) -> bytes:
        """What was typed; nothing once the terminal has gone away."""
        try:
            return os.read(self._keyboard, _READ_BYTES)
        except OSError:
            return b""

    def draw(self, lines: Sequence[Text]) -> None:
        """One line of the screen each, in one write."""
        console = self._console
        console.size = self.size
        with console:
            console.control(Control.home())
            for number, line in enumerate(lines):
                # Erased before it is written: at the right margin, erasing after it takes the last character.
                console.control(Control((ControlType.ERASE_IN_LINE, 2)))
                console.print(line, end="\n" if number + 1 < len(lines) else "", no_wrap=True, overflow="crop")

    def stop(self) -> None:
        """As Ctrl-Z would; comes back when the process goes on."""
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._keyboard)
        tty.setcbreak(self._keyboard)  # signals by keys stay
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, before)
        with contextlib.suppress(OSError):
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
