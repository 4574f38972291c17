"""Real faults, done to one process from outside: its pages taken, its CPU taken, the process itself stopped.

Each is a context manager that gives an ``Episode``: when it was, by the wall clock, and what it did by the kernel's own
counters, which is what gpumon's numbers are compared with. Whatever a test does meanwhile, the process is left as it
was: running, on its own CPUs, without a quota.

- ``paged_out``: process_madvise(2) with MADV_PAGEOUT on the mapping of the weights. It needs CAP_SYS_NICE and ptrace
  access; where that is refused, the process is asked to do the same to itself. Clean pages of a file leave the page
  cache at once, so they come back by major faults: dropping the file's cache (POSIX_FADV_DONTNEED) would add nothing,
  for that spares pages that are mapped. Nobody else must map the file, or the kernel leaves its pages.
- ``starved_cpu``: sched_setaffinity(2) of all threads and of busy loops onto one CPU; no privilege.
- ``throttled_cpu``: a quota on the process's cgroup, one of its own (``tests.live.cgroup``, which needs privileges).
- ``stopped``: SIGSTOP, then SIGCONT.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.waiting import eventually, settle
from tests.live.cgroup import Cgroup
from tests.live.maps import mappings, runqueue_wait_s, stat, threads
from tests.live.server import LlamaServer

_PROCESS_MADVISE = 440  # on every architecture
_MADV_PAGEOUT = 21
_BACK = 0.5
"""Share of the pages that must be back: some of them stay (just read, or asked for meanwhile)."""
_BACK_WITHIN_S = 0.5
"""A server without work does not want them."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Episode:
    """What was done to a process, and when, unix nanoseconds."""

    start_ns: int
    end_ns: int = 0
    major_faults: int = 0
    """Of the process meanwhile."""
    waited_s: float = 0.0
    """For a CPU, all threads together."""
    stopped_s: float = 0.0
    """From SIGSTOP to SIGCONT."""
    throttled_s: float = 0.0
    """By the quota of its cgroup."""

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@contextmanager
def paged_out(server: LlamaServer, *, pages: int = 1024, pause_s: float = 0.05) -> Iterator[Episode]:
    """Take so many pages of its weights away, over and over: another stretch of them each time, so long after most of
    the last one are back, that a slow disk makes it slow, but not stand still."""
    with _counted(server.pid) as episode, _Pager(server, pages, pause_s):
        yield episode


@contextmanager
def starved_cpu(pid: int, *, loops: int = 4, cgroup: Cgroup | None = None) -> Iterator[Episode]:
    """Every thread of the process on one CPU, which it shares with so many busy loops.

    cgroup: of the process, where it has its own. The loops join it: the scheduler shares a CPU among groups first, and
    then all of them together would get no more than the process alone.
    """
    before = {tid: os.sched_getaffinity(tid) for tid in threads(pid)}
    cpu = max(os.sched_getaffinity(pid))
    # For the same reason each has a session of its own: those are groups, too (sched(7), autogroup).
    busy = [
        subprocess.Popen([sys.executable, "-S", "-E", "-c", _BUSY_LOOP, str(cpu)], start_new_session=True)
        for _ in range(loops)
    ]
    try:
        for loop in busy:
            if cgroup is not None:
                cgroup.add(loop.pid)
        eventually(lambda: all(os.sched_getaffinity(loop.pid) == {cpu} for loop in busy), "the busy loops to begin")
        with _counted(pid) as episode:
            for tid in before:
                os.sched_setaffinity(tid, {cpu})
            yield episode
    finally:
        for loop in busy:
            loop.kill()
        for loop in busy:
            loop.wait()
        for tid, cpus in before.items():
            try:
                os.sched_setaffinity(tid, cpus)
            except ProcessLookupError:
                pass  # a thread may end at any time


@contextmanager
def throttled_cpu(pid: int, cgroup: Cgroup, *, cpus: float = 0.15) -> Iterator[Episode]:
    """No more than so many CPUs. cgroup: of the process."""
    before_s = cgroup.throttled_s
    with _counted(pid) as episode, cgroup.limited(cpus):
        yield episode
    episode.throttled_s = cgroup.throttled_s - before_s


@contextmanager
def stopped(pid: int, seconds: float) -> Iterator[Episode]:
    """Stopped for so long when the block begins; how long it was is in the episode."""
    with _counted(pid) as episode:
        begun_s = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: stat(pid).state == "T", "the process to stop", every_s=0.001)
            settle(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        episode.stopped_s = time.monotonic() - begun_s
        yield episode


@contextmanager
def _counted(pid: int) -> Iterator[Episode]:
    faults, waited_s = stat(pid).major_faults, runqueue_wait_s(pid)
    episode = Episode(time.time_ns())
    try:
        yield episode
    finally:
        episode.end_ns = time.time_ns()
        episode.major_faults = stat(pid).major_faults - faults
        episode.waited_s = runqueue_wait_s(pid) - waited_s


class _Pager:
    """Pages out in a thread, from the beginning to the end of its block."""

    def __init__(self, server: LlamaServer, pages: int, pause_s: float) -> None:
        ranges = mappings(server.pid, server.weights)
        assert ranges, f"{server.weights} is not mapped by process {server.pid}"
        self._server = server
        self._start, self._end = max(ranges, key=lambda found: found[1] - found[0])
        self._pages = pages
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="pager", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the pager did not end"

    def _go_on(self) -> None:
        pidfd = os.pidfd_open(self._server.pid)
        begin = self._start
        try:
            while not self._stop.wait(self._pause_s):
                length = min(self._pages * PAGE_BYTES, self._end - begin)
                faults = stat(self._server.pid).major_faults
                if not _page_out(pidfd, begin, length):
                    self._server.page_out(begin, length)
                begin = begin + length if begin + length < self._end else self._start
                self._await_faults(faults + length // PAGE_BYTES * _BACK)
        finally:
            os.close(pidfd)

    def _await_faults(self, count: float) -> None:
        until_s = time.monotonic() + _BACK_WITHIN_S
        while stat(self._server.pid).major_faults < count and time.monotonic() < until_s:
            if self._stop.wait(0.005):
                return


class _Stretch(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _page_out(pidfd: int, start: int, length: int) -> bool:
    """Of another process; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    stretch = _Stretch(start, length)
    done = libc.syscall(
        *(ctypes.c_long(_PROCESS_MADVISE), ctypes.c_int(pidfd), ctypes.byref(stretch), ctypes.c_size_t(1)),
        *(ctypes.c_int(_MADV_PAGEOUT), ctypes.c_uint(0)),
    )
    return int(done) >= 0


_BUSY_LOOP = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: nothing else would end it
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    pass
"""
