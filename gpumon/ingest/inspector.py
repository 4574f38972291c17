"""Follows NCCL Inspector's files: ``<folder>/<hostname>-pid<pid>.log``, JSON lines, appended to without end.

Needs ``NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS`` set in the traced job, which else writes only when it ends,
and read access to the folder. A file that is there at the first look is followed from its end, one that appears later
from its beginning. The last line is taken when its newline has come. A file replaced or cut is read anew. Reads a
bounded amount each time; of a backlog larger than ``MAX_BEHIND`` only the newest part is read, and ``skipped`` counted
once. Links are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.host.errnos import reason_of
from gpumon.ingest.nccl import MAX_LINE, Collectives
from gpumon.model import Item, Miss, Reason, SourceError

MAX_FILES = 256
"""Most files followed; of more, the first by name."""
MAX_READ = 1 << 20
"""Bytes read of one file at a time."""
MAX_BEHIND = 16 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


@dataclass(slots=True)
class _Followed:
    inode: int
    offset: int
    in_long_line: bool = False
    """Whether the line at ``offset`` is one too long, of which the rest is to be passed over."""


class InspectorSource:
    """Source ``nccl_inspector``: per-rank counters of collective operations; records go to ``collectives``'s sink."""

    name = "nccl_inspector"

    def __init__(self, folder: str, collectives: Collectives) -> None:
        self._folder = folder
        self._collectives = collectives
        self._followed: dict[str, _Followed] | None = None

    def read(self, at_s: float) -> Iterator[Item]:  # noqa: ARG002 - what the lines tell has its own times
        names = self._names()
        first = self._followed is None
        followed = self._followed or {}
        self._followed = {name: state for name, state in followed.items() if name in names[:MAX_FILES]}
        for name in names[:MAX_FILES]:
            try:
                self._follow(name, from_end=first)
            except OSError as err:
                yield Miss("nccl inspector file", reason_of(err), os.strerror(err.errno or 0))
        if len(names) > MAX_FILES:
            yield Miss("nccl inspector files", Reason.UNAVAILABLE, f"{len(names)} files, {MAX_FILES} followed")
        yield from self._collectives.samples()

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted(entry.name for entry in entries if entry.name.endswith(".log") and "-pid" in entry.name)
        except OSError as err:
            self._followed = self._followed or {}  # files of a folder that appears later are new
            raise SourceError(reason_of(err), f"{self._folder}: {os.strerror(err.errno or 0)}") from err

    def _follow(self, name: str, *, from_end: bool) -> None:
        assert self._followed is not None
        fd = os.open(os.path.join(self._folder, name), _FLAGS)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return
            state = self._followed.get(name)
            if state is None:
                state = _Followed(status.st_ino, status.st_size if from_end else 0, in_long_line=from_end)
                if from_end and (status.st_size == 0 or os.pread(fd, 1, status.st_size - 1) == b"\n"):
                    state.in_long_line = False
            elif state.inode != status.st_ino or status.st_size < state.offset:
                state = _Followed(status.st_ino, 0)
            self._followed[name] = state
            if status.st_size - state.offset > MAX_BEHIND:
                state.offset, state.in_long_line = status.st_size - MAX_READ, True
                self._collectives.drop("skipped")
            if status.st_size > state.offset:
                self._take(os.pread(fd, MAX_READ, state.offset), state)
        finally:
            os.close(fd)

    def _take(self, data: bytes, state: _Followed) -> None:
        begin = 0
        if state.in_long_line:
            begin = data.find(b"\n") + 1
            if begin == 0:
                state.offset += len(data)
                return
            state.in_long_line = False
        end = data.rfind(b"\n") + 1
        for line in data[begin:end].split(b"\n"):
            if line.strip():
                self._collectives.add_line(line)
        end = max(end, begin)
        if len(data) - end > MAX_LINE:  # a line that will not end within what is believed to be one
            self._collectives.drop("oversize")
            state.in_long_line = True
            end = len(data)
        state.offset += end
