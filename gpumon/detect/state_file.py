"""What detection knows over a restart of gpumon: counters of incidents, and which are open. ``incidents.json``.

A source of the runner, so that a disk that hangs holds up nothing else: ``keep`` only notes what is to be written, and
``read``, once a second, writes it if it is new. A new file is written beside the old one, brought to the medium and
renamed, so that a kill at any moment leaves one of the two whole. A file that cannot be read, is not ours, or is of
another version is moved aside as ``incidents.json.corrupt-<n>``, of which the newest four stay, and counting begins
anew. Times in it are unix seconds. While it cannot be written, ``gpumon_state_folder_ok`` is 0 and it is tried again
every ten seconds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gpumon import catalogue
from gpumon.model import Item, Miss, Reason, Sample

log = logging.getLogger(__name__)

NAME: Final = "incidents.json"
VERSION: Final = 1
SIZE_MAX: Final = 1 << 20
"""256 open incidents are 0.2 MB at most."""
RETRY_S: Final = 10.0
CORRUPT_KEPT: Final = 4

_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Remembered(msgspec.Struct, frozen=True):
    """An open incident."""

    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,120}\Z")]
    kind: _Text
    severity: _Text
    scope: _Text
    name: _Text
    gpu: _Text
    uuid: _Text
    since_unix_s: _Unix
    opened_unix_s: _Unix
    seen_unix_s: _Unix


class Memory(msgspec.Struct):
    """What is kept. Kinds and severities are those of the catalogue."""

    counts: dict[str, dict[str, _Count]] = msgspec.field(default_factory=dict)
    """``gpumon_incidents_total`` by kind and severity, those above 0."""
    open: Annotated[list[Remembered], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=list)


class _Version(msgspec.Struct):
    version: int


class _File(Memory, kw_only=True):
    version: int = VERSION


class ForeignError(Exception):
    """The file cannot be taken; the text says why."""


def parse_memory(data: bytes) -> Memory:
    """A file's content. What this version does not know, kinds and severities, is left out.

    Raises:
        ForeignError: it is not such a file, or of another version.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise ForeignError(f"of version {version}, expected {VERSION}")
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ForeignError(f"not a file of gpumon's: {error}") from error
    kinds, severities = frozenset(catalogue.INCIDENT_KINDS), frozenset(catalogue.SEVERITIES)
    counts = {
        kind: {severity: count for severity, count in told.items() if severity in severities}
        for kind, told in file.counts.items()
        if kind in kinds
    }
    return Memory(counts, [each for each in file.open if each.kind in kinds and each.severity in severities])


def render_memory(memory: Memory) -> bytes:
    """The content of a file, which ``parse_memory`` reads."""
    return msgspec.json.format(msgspec.json.encode(_File(memory.counts, memory.open)), indent=1) + b"\n"


class StateFile:
    """``load`` first; ``keep`` from any thread; ``read`` and ``flush`` not at once."""

    name = "state"
    """As a source of the runner."""

    def __init__(self, folder: Path) -> None:
        """folder: ``state.folder``; made when it is first written to."""
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._wanted: Memory | None = None
        self._failure: Miss | None = None
        self._tried_s: float | None = None

    def load(self) -> Memory:
        """What was kept in an earlier life; empty where there is nothing that can be read. Never raises."""
        try:
            return parse_memory(self._content())
        except (FileNotFoundError, NotADirectoryError):
            return Memory()  # where nothing can be written either, the first write says so
        except OSError as error:
            detail = error.strerror or str(error)
        except ForeignError as error:
            detail = str(error)
        aside = self._move_aside()
        log.warning("state=corrupt path=%r moved_to=%r detail=%r counters begin anew", str(self._path), aside, detail)
        return Memory()

    def keep(self, memory: Memory) -> None:
        """This is to be in the file from the next pass on."""
        with self._lock:
            self._wanted = memory

    def read(self, at_s: float) -> Iterator[Item]:
        """Write what is new. Before the first write it is not known whether one can: no sample."""
        waits = self._failure is not None and self._tried_s is not None and at_s - self._tried_s < RETRY_S
        if not waits and self._wanted is not None:
            self._tried_s = at_s
            self.flush()
        if self._failure is not None:
            yield self._failure
        if self._tried_s is not None:
            yield Sample(catalogue.STATE_OK, (), float(self._failure is None))

    def flush(self) -> None:
        """Write what is new now: at the end of gpumon."""
        with self._lock:
            wanted = self._wanted
        if wanted is None:
            return
        try:
            self._write(render_memory(wanted))
        except OSError as error:
            reason = Reason.DENIED if error.errno in _DENIED else Reason.UNAVAILABLE
            self._failure = Miss(str(self._path), reason, error.strerror or str(error))
            return
        self._failure = None
        with self._lock:
            if self._wanted is wanted:
                self._wanted = None

    def _content(self) -> bytes:
        # Not blocking: whatever lies there, a pipe for one, may not hold up the start.
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ForeignError("no regular file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(SIZE_MAX + 1)
        finally:
            os.close(fd)
        if len(data) > SIZE_MAX:
            raise ForeignError(f"larger than {SIZE_MAX} bytes")
        return data

    def _write(self, data: bytes) -> None:
        folder = self._path.parent
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        fresh = folder / f"{NAME}.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(fresh, self._path)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def _move_aside(self) -> str:
        """Where to; empty where it could not be moved."""
        pattern = re.compile(re.escape(NAME) + r"\.corrupt-([0-9]{1,9})")
        try:
            names = os.listdir(self._path.parent)
            numbers = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
            aside = self._path.with_name(f"{NAME}.corrupt-{numbers[-1] + 1 if numbers else 1}")
            os.replace(self._path, aside)
        except OSError:
            return ""
        for number in numbers[: 1 - CORRUPT_KEPT]:
            with contextlib.suppress(OSError):  # a folder that somebody put there, for one
                os.unlink(self._path.with_name(f"{NAME}.corrupt-{number}"))
        return str(aside)
