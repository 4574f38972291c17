"""``gpumon top`` on a terminal: asks in a thread, so that keys work while an answer is awaited, and draws when
something is new: an answer, a key, another size.

Signals and answers wake the same pipe. q, Ctrl-C and the terminal's going away end it; so does SIGTERM, with the
terminal as it was before.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rich.text import Text

from gpumon.api_client import ApiError
from gpumon.top.answers import Snapshot
from gpumon.top.frame import Looks, help_screen, screen, scrolled, silent_screen
from gpumon.top.gpus import ORDERS
from gpumon.top.keys import Key, keys
from gpumon.top.terminal_screen import TerminalScreen

Found = Snapshot | ApiError
Ask = Callable[[], Snapshot]
_NEWS: Final = b"\0"
"""No number of a signal."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH)


class _Asker:
    """Asks every so often in a thread of its own, which nobody waits for."""

    def __init__(self, ask: Ask, every_s: float, first: Found, wake: Callable[[], None]) -> None:
        self._ask = ask
        self._every_s = every_s
        self._wake = wake
        self._changed = threading.Event()
        self._is_paused = False
        self._is_ended = False
        self.found = first
        self.thread = threading.Thread(target=self._run, name="asking", daemon=True)

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._changed.set()

    def end(self) -> None:
        self._is_ended = True
        self._changed.set()

    def _look(self) -> None:
        try:
            self.found = self._ask()
        except ApiError as error:
            self.found = error
        self._wake()

    def _run(self) -> None:
        try:
            while True:
                self._changed.wait(self._every_s)
                self._changed.clear()
                if self._is_ended:
                    return
                if not self._is_paused:
                    self._look()
        finally:
            self._wake()


class Live:
    """State of what is looked at; ``run`` until it ends."""

    def __init__(self, terminal: TerminalScreen, url: str, first: Snapshot, every_s: float) -> None:
        self._terminal = terminal
        self._url = url
        self._shown: Found = first
        self._last_at: float | None = first.node.at
        self._looks = Looks(every_s=every_s)

    def run(self, ask: Ask, keyboard: int) -> int:
        """Exit status. keyboard: descriptor to wait for keys on."""
        with _woken() as (waked, wake), self._terminal:
            asker = _Asker(ask, self._looks.every_s, self._shown, wake)
            asker.thread.start()
            try:
                return self._until_ended(asker, waked, keyboard)
            finally:
                asker.end()

    def _until_ended(self, asker: _Asker, waked: int, keyboard: int) -> int:
        while True:
            self._terminal.draw(self._lines())
            ready, _, _ = select.select([keyboard, waked], [], [])
            if waked in ready:
                status = self._after(os.read(waked, 1024), asker)
                if status is not None:
                    return status
            if keyboard in ready:
                data = self._terminal.read()
                if not data:
                    return 1
                for key in keys(data):
                    if key is Key.QUIT:
                        return 0
                    self._do(key, asker)

    def _after(self, woken_by: bytes, asker: _Asker) -> int | None:
        """What signals and answers ask for; a status where it is to end."""
        if signal.SIGINT in woken_by:
            return 0
        if signal.SIGTERM in woken_by or signal.SIGHUP in woken_by:
            return 1
        if signal.SIGTSTP in woken_by:
            self._terminal.stop()
        if not asker.thread.is_alive():
            raise RuntimeError("the thread that asks has ended")
        if not self._looks.is_paused:
            self._shown = asker.found
            if isinstance(self._shown, Snapshot):
                self._last_at = self._shown.node.at
        return None

    def _do(self, key: Key, asker: _Asker) -> None:
        looks = self._looks
        if looks.is_help or key is Key.HELP:
            self._looks = looks._replace(is_help=not looks.is_help)
        elif key is Key.PAUSE:
            self._looks = looks._replace(is_paused=not looks.is_paused)
            asker.pause(self._looks.is_paused)
        elif key is Key.SORT:
            self._looks = looks._replace(order=ORDERS[(ORDERS.index(looks.order) + 1) % len(ORDERS)])
        elif isinstance(self._shown, Snapshot):
            width, height = self._terminal.size
            page = max(1, height - 3)
            by = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page}[key]
            self._looks = looks._replace(offset=scrolled(self._shown, looks, by, width, height))

    def _lines(self) -> list[Text]:
        width, height = self._terminal.size
        if self._looks.is_help:
            return help_screen(self._looks, width, height)
        if isinstance(self._shown, Snapshot):
            return screen(self._shown, self._looks, width, height)
        return silent_screen(str(self._shown), self._url, self._last_at, self._looks, width, height)


@contextmanager
def _woken() -> Iterator[tuple[int, Callable[[], None]]]:
    """A pipe that signals write their number to, and whoever calls the function a zero; all as before afterwards."""
    waked, waking = os.pipe()
    os.set_blocking(waked, False)
    os.set_blocking(waking, False)
    lock = threading.Lock()
    is_open = True

    def wake() -> None:
        with lock:
            if is_open:  # the thread that asks may outlive the pipe
                try:
                    os.write(waking, _NEWS)
                except BlockingIOError:
                    pass  # full: it will be woken

    handlers = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    try:
        yield waked, wake
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with lock:
            is_open = False
            os.close(waked)
            os.close(waking)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Its number is in the pipe; a handler must be there for that."""
