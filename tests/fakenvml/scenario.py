"""The mapped scenario file: clock, wake-ups and lines. Needs Linux (futex, shared mappings)."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakenvml import build, layout

_FUTEX_WAKE = 1
_SYS_FUTEX = 98 if platform.machine() == "aarch64" else 202
_libc = ctypes.CDLL(None, use_errno=True)


class Scenario:
    """One mapped state file. All writing happens under ``lock``."""

    def __init__(self, path: Path, *, create: bool) -> None:
        size = ctypes.sizeof(layout.State)
        if create:
            # A new inode: processes still attached to an older scenario keep their own.
            path.unlink(missing_ok=True)
            with path.open("wb") as file:
                file.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self.path = path
        self.state = layout.State.from_buffer(self._map)
        self.lock = threading.RLock()
        if create:
            self.state.layout_hash = build.layout_hash()
            self.state.magic = layout.MAGIC
        elif self.state.magic != layout.MAGIC or self.state.layout_hash != build.layout_hash():
            raise ValueError(f"{path} was made for another build of the fake library")

    def now_ns(self) -> int:
        return self.state.clock_ns if self.state.clock_stepped else time.time_ns()

    def wake(self) -> None:
        """Makes every wait and hang in the library look at the scenario again."""
        with self.lock:
            self.state.wake_sequence = (self.state.wake_sequence + 1) & 0xFFFFFFFF
            address = ctypes.addressof(self.state) + layout.offset(layout.State, "wake_sequence")
            _libc.syscall(
                ctypes.c_long(_SYS_FUTEX), ctypes.c_void_p(address), ctypes.c_int(_FUTEX_WAKE),
                ctypes.c_int(0x7FFFFFFF), None, None, ctypes.c_int(0),
            )  # fmt: skip

    def words(self, offset: int, size: int) -> memoryview:
        """A window of the file as 64-bit words, for bulk reading."""
        return memoryview(self._map)[offset : offset + size].cast("Q")

    def close(self) -> None:
        self.state.closing = 1
        self.wake()


def line_value(line: layout.Line, now_ns: int) -> float:
    return line.base + line.rate * (now_ns - line.t_ref_ns) * 1e-9


def set_line(line: layout.Line, now_ns: int, value: float, rate: float = 0.0) -> None:
    line.base = value
    line.rate = rate
    line.t_ref_ns = now_ns
    line.flags = 0


def set_rate(line: layout.Line, now_ns: int, rate: float) -> None:
    """A new slope from now on; the value stays continuous."""
    set_line(line, now_ns, line_value(line, now_ns), rate)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Blocks until something happens in another thread or process; fails after the limit."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not come true")
        os.sched_yield()
        time.sleep(0.0005)
