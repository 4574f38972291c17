"""A queue on disk that outlives the process: segment files of records, each with its length and CRC-32.

A record is written by one ``writev``, so a process killed at any moment leaves whole records and at most one torn one
at the end of a file, which is ignored. Whatever was taken and not committed is there again after a restart: records
are delivered once or more, never altered. Machine crashes are covered as far as ``fsync_s`` says.

Layout of the folder, all files of mode 0600: ``<number>.seg`` the segments, ``cursor`` how far delivery went, ``lock``
held while a process uses the folder, ``aside/`` files that are not ours or cannot be read. Segments that are delivered
are removed; when the bound is reached, the oldest segment is, and its items are counted.

Not for two threads at once, except ``sync``.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpumon.export.spool_segment import (
    MAGIC,
    MAX_RECORD_BYTES,
    Corrupt,
    Record,
    Segment,
    pack,
    scan,
)

Position = tuple[int, int]
"""Number of a segment, and an offset in it."""

_CURSOR = struct.Struct("<QQI")  # segment, offset, CRC-32 of the two
_SUFFIX = ".seg"
_KEPT_ASIDE = 8
"""Unreadable segments kept for a person to look at; older ones are removed."""


class SpoolError(Exception):
    """The disk did not do it; the text names the operation and the error."""


class Damage(NamedTuple):
    """Files and tails found that are no good; label values of ``gpumon_forward_spool_damaged_total``."""

    torn: int = 0
    corrupt: int = 0
    foreign: int = 0


class Spool:
    """One folder. Nothing is touched before ``open``."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        fsync_s: float | None,
        dropped: Callable[[str, int, str], None],
    ) -> None:
        """max_bytes: of all segments together; fsync_s: longest time that data is only in the page cache, None: any.

        dropped: told of (signal, items, reason) when a segment is removed undelivered: spool_full, spool_corrupt.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = min(64 << 20, max(64 << 10, max_bytes // 16))
        self._fsync_s = fsync_s
        self._dropped = dropped
        self._segments: deque[Segment] = deque()
        self._reading: int | None = None
        self._lock_fd: int | None = None
        self._cursor_fd: int | None = None
        self._write_fd: int | None = None
        self._next_number = 1
        self._unsynced_since_s: float | None = None
        self.unsynced = False
        """Whether something is only in the page cache that ``sync`` is to bring to the medium."""
        self.damage = Damage()

    @property
    def is_open(self) -> bool:
        """Whether the folder is ours."""
        return self._lock_fd is not None

    @property
    def size(self) -> int:
        """Bytes on disk and not yet handed over."""
        return sum(segment.size - max(segment.offset, len(MAGIC)) for segment in list(self._segments))

    @property
    def items(self) -> int:
        """On disk and not yet handed over."""
        return sum(sum(segment.left.values()) for segment in list(self._segments))

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the folder and find what is in it; again: nothing.

        Raises:
            SpoolError: it cannot be used; another call may.
        """
        if self.is_open:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._cursor_fd = os.open(self.folder / "cursor", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self._recover()
        except OSError as error:
            self._let_go()
            text = "another process uses the folder" if isinstance(error, BlockingIOError) else f"open: {_text(error)}"
            raise SpoolError(text) from error

    def close(self) -> None:
        """Let go of the folder; what is in it stays."""
        self._end_segment()
        self._remove_delivered()
        self._let_go()

    def _let_go(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        for fd in (self._cursor_fd, self._lock_fd):
            if fd is not None:
                os.close(fd)
        self._cursor_fd = self._lock_fd = None

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, signal: str, data: bytes, items: int, at_s: float) -> None:
        """Add a record.

        Raises:
            SpoolError: it is not there; the spool is as it was before.
        """
        header = pack(signal, data, items, at_s)
        size = len(header) + len(data)
        if size + len(MAGIC) > self._max_bytes or len(data) > MAX_RECORD_BYTES:
            raise SpoolError(f"a record of {len(data)} bytes is larger than the spool may be")
        self._make_room(size)
        try:
            if self._write_fd is None:
                self._begin_segment()
            segment = self._segments[-1]
            assert self._write_fd is not None
            written = os.writev(self._write_fd, (header, data))
            if written != size:
                os.ftruncate(self._write_fd, segment.size)
                raise SpoolError("write: no space left on device")
        except OSError as error:
            self._end_segment()
            raise SpoolError(f"write: {_text(error)}") from error
        segment.size += size
        segment.left[signal] += items
        self.unsynced = True
        if segment.size >= self._segment_bytes:
            self._end_segment()

    def sync(self, now_s: float) -> None:
        """Bring to the medium what has been in the page cache for ``fsync_s``. May run beside the other methods.

        Raises:
            SpoolError: the medium did not take it.
        """
        fd = self._write_fd
        if self._fsync_s is None or fd is None or not self.unsynced:
            return
        if self._unsynced_since_s is None:
            self._unsynced_since_s = now_s
        if now_s - self._unsynced_since_s >= self._fsync_s:
            self.unsynced, self._unsynced_since_s = False, None
            try:
                os.fdatasync(fd)
            except OSError as error:
                raise SpoolError(f"fsync: {_text(error)}") from error

    # --- reading ------------------------------------------------------------------------------------------------

    def next_at_s(self) -> float | None:
        """When the next record came; None when there is none.

        Raises:
            SpoolError: the disk does not tell now.
        """
        record = self._peek()
        return None if record is None else record.at_s

    def take(self, max_bytes: int, max_items: int, until_s: float) -> tuple[list[Record], Position | None]:
        """The next records of one signal that came by ``until_s``, and where they end.

        max_bytes, max_items: not passed, unless by a single record.

        Raises:
            SpoolError: the disk does not tell now.
        """
        records: list[Record] = []
        size = items = 0
        position: Position | None = None
        while (record := self._peek()) is not None:
            size += len(record.data)
            items += record.items
            if records and (size > max_bytes or items > max_items or record.signal != records[0].signal):
                break
            if record.at_s > until_s:
                break
            segment = self._current()
            assert segment is not None
            segment.advance(record)
            records.append(record)
            position = (segment.number, segment.offset)
        return records, position

    def commit(self, position: Position) -> None:
        """Everything up to here is done with. Never fails: at worst it is delivered again after a restart."""
        number, offset = position
        if self._cursor_fd is not None:
            content = struct.pack("<QQ", number, offset)
            try:
                os.pwrite(self._cursor_fd, content + struct.pack("<I", zlib.crc32(content)), 0)
            except OSError:
                pass  # then more is delivered again
        while self._segments and self._segments[0].number < number:
            self._remove(self._segments.popleft())
        if self._segments and self._segments[0].number == number:
            self._segments[0].committed = offset
        self._remove_delivered()

    # --- segments -----------------------------------------------------------------------------------------------

    def _current(self) -> Segment | None:
        """The segment that is read; those before it are read to their end and wait for their commit."""
        return next((segment for segment in self._segments if segment.offset < segment.size), None)

    def _peek(self) -> Record | None:
        while (segment := self._current()) is not None:
            try:
                return segment.peek()
            except (Corrupt, FileNotFoundError):
                self._set_aside(segment)
            except OSError as error:  # of the process or the medium: another time it may work
                raise SpoolError(f"read: {_text(error)}") from error
        return None

    def _make_room(self, size: int) -> None:
        while self._segments and sum(segment.size for segment in self._segments) + size > self._max_bytes:
            if len(self._segments) == 1:
                self._end_segment()
            segment = self._segments.popleft()
            for signal, items in segment.left.items():
                self._dropped(signal, items, "spool_full")
            self._remove(segment)

    def _begin_segment(self) -> None:
        number = self._next_number
        path = self.folder / f"{number:012d}{_SUFFIX}"
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._next_number += 1
        try:
            if os.write(fd, MAGIC) != len(MAGIC):
                raise OSError(28, "no space left on device")
            if self._fsync_s is not None:
                self._sync_folder()
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._write_fd = fd
        self._segments.append(Segment(number, path, size=len(MAGIC)))

    def _end_segment(self) -> None:
        if self._write_fd is not None:
            fd, self._write_fd = self._write_fd, None
            if self._fsync_s is not None and self.unsynced:
                try:
                    os.fdatasync(fd)
                except OSError:
                    pass  # the records are in the page cache, which is all that can be said
            self.unsynced, self._unsynced_since_s = False, None
            os.close(fd)

    def _remove_delivered(self) -> None:
        while self._segments:
            first = self._segments[0]
            if first.committed < first.size or (len(self._segments) == 1 and self._write_fd is not None):
                break
            self._remove(self._segments.popleft())

    def _remove(self, segment: Segment) -> None:
        segment.close()
        try:
            if segment.damaged:
                self._move_aside(segment.path)
            else:
                segment.path.unlink(missing_ok=True)
        except OSError:
            pass  # found again, and at worst delivered again, at the next start

    def _set_aside(self, segment: Segment) -> None:
        """From here on the segment cannot be read."""
        self._count(corrupt=1)
        for signal, items in segment.left.items():
            self._dropped(signal, items, "spool_corrupt")
        if self._segments[-1] is segment:
            self._end_segment()
        segment.damaged = True
        segment.left.update(dict.fromkeys(segment.left, 0))
        segment.size = segment.offset  # read to its end: removed when what was taken from it is committed
        segment.close()
        if segment.committed >= segment.offset or segment.offset <= len(MAGIC):
            self._segments.remove(segment)
            self._remove(segment)

    # --- recovery -----------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        segments: list[Segment] = []
        for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
            if entry.name in ("lock", "cursor", "aside"):
                continue
            stem = entry.name.removesuffix(_SUFFIX)
            if not (entry.name.endswith(_SUFFIX) and len(stem) == 12 and stem.isascii() and stem.isdigit()):
                self._count(foreign=1)
                self._move_aside(Path(entry.path))
                continue
            segment = scan(int(stem), Path(entry.path)) if entry.is_file(follow_symlinks=False) else None
            if segment is None:
                self._count(corrupt=1)
                self._move_aside(Path(entry.path))
                continue
            self._count(torn=segment.torn, corrupt=int(segment.damaged))
            segments.append(segment)
        number, offset = self._read_cursor()
        for segment in segments:
            if segment.number < number:
                self._remove(segment)
                continue
            if segment.number == number:
                segment.skip_to(offset)
            self._segments.append(segment)
        self._next_number = max([number, *(segment.number for segment in segments)]) + 1
        self._remove_delivered()

    def _read_cursor(self) -> Position:
        assert self._cursor_fd is not None
        content = os.pread(self._cursor_fd, _CURSOR.size, 0)
        if len(content) == _CURSOR.size:
            number, offset, check = _CURSOR.unpack(content)
            if zlib.crc32(content[:-4]) == check:
                return number, offset
        return 0, 0

    def _move_aside(self, path: Path) -> None:
        aside = self.folder / "aside"
        aside.mkdir(mode=0o700, exist_ok=True)
        path.rename(aside / path.name)
        for old in sorted(aside.glob(f"*{_SUFFIX}"))[:-_KEPT_ASIDE]:
            old.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _count(self, torn: int = 0, corrupt: int = 0, foreign: int = 0) -> None:
        damage = self.damage
        self.damage = Damage(damage.torn + torn, damage.corrupt + corrupt, damage.foreign + foreign)


def _text(error: OSError) -> str:
    return error.strerror or type(error).__name__
