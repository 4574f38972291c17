"""A pseudo-terminal with `gpumon top` on it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.e2e.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
EVERY = ("--every", "0.2")
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LEFT = "\x1b[?1049l"


class Terminal:
    """A pseudo-terminal with `gpumon top` on it, and what is written there. Ends with ``with``."""

    def __init__(
        self, url: str, *arguments: str, columns: int = 80, lines: int = 24, every: tuple[str, ...] = EVERY
    ) -> None:
        self.ours, self.theirs = os.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.theirs)
        self._written = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpumon", "top", "--url", url, *every, *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            preexec_fn=_own_terminal,
            start_new_session=True,
        )
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ending.set()
        self._reader.join()
        os.close(self.theirs)
        if self.ours >= 0:
            os.close(self.ours)

    @property
    def is_deaf(self) -> bool:
        """Nobody reads what is written there any more."""
        return not self._reader.is_alive()

    @property
    def written(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def screen(self) -> list[str]:
        """What was drawn last, as far as it is whole."""
        drawn = self.written.split("\x1b[H")
        lines = drawn[-1].split("\x1b[2K")[1:] if len(drawn) > 1 else []
        return [_STYLE.sub("", line).rstrip() for line in lines]

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, data: bytes) -> None:
        os.write(self.ours, data)

    def await_screen(self, holds: Callable[[list[str]], object], what: str) -> list[str]:
        """Until it holds of the screen; that screen."""

        def look() -> list[str] | None:
            assert self.process.poll() is None, self.written
            seen = self.screen
            return seen if seen and holds(seen) else None

        return eventually(look, what, every_s=0.01)

    def await_shown(self) -> list[str]:
        return self.await_screen(lambda seen: seen[-1].startswith("q quit"), "a whole screen")

    def await_foot(self, text: str) -> list[str]:
        return self.await_screen(lambda seen: seen[-1].endswith(text), text)

    def end(self) -> int:
        """Its exit status; the terminal must be as it was before."""
        status = self.process.wait(20)
        eventually(lambda: self.written.endswith(LEFT), "the first screen is back", every_s=0.01)
        assert "\x1b[?25h" in self.written[-40:], "the cursor is back"
        assert termios.tcgetattr(self.theirs) == self.before
        return status

    def _read(self) -> None:
        while not self._ending.is_set():
            if self.ours < 0:
                return
            ready, _, _ = select.select([self.ours], [], [], 0.02)
            if ready:
                try:
                    self._written += os.read(self.ours, 65536)
                except OSError:
                    return


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
