"""One segment file of the spool: a magic line, then records of header and data.

Header, 21 bytes, little-endian: length of the data (u32), CRC-32 of what follows (u32), signal (u8), items (u32),
steady seconds of arrival (f64).
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MAGIC = b"gpumon spool 1\n\x00"
MAX_RECORD_BYTES = 256 << 20
"""No request is that large: a greater length is a damaged one."""

_HEADER = struct.Struct("<IIBId")
HEADER_BYTES = _HEADER.size
_CHECKED = struct.Struct("<BId")  # the part of the header that the CRC covers
_SIGNALS = ("traces", "metrics", "logs")


class Corrupt(Exception):  # noqa: N818 - a state of the file, caught by the spool alone
    """From here on the file says nothing."""


class Record(NamedTuple):
    """A record as read."""

    signal: str
    data: bytes
    items: int
    at_s: float


def pack(signal: str, data: bytes, items: int, at_s: float) -> bytes:
    """The header of a record."""
    checked = _CHECKED.pack(_SIGNALS.index(signal), items, at_s)
    return struct.pack("<II", len(data), zlib.crc32(data, zlib.crc32(checked))) + checked


@dataclass(slots=True, eq=False)
class Segment:
    """A file, how far it was read, and what is left in it."""

    number: int
    path: Path
    size: int
    """Bytes up to the end of the last whole record."""
    offset: int = len(MAGIC)
    """Where the next record to hand over begins."""
    committed: int = len(MAGIC)
    left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SIGNALS, 0))
    """Items not handed over, by signal; always all three, so that any thread may add them up."""
    damaged: bool = False
    torn: int = 0
    """1 when the file ends in the middle of a record."""
    recovered: bool = False
    """From a former life, maybe of another boot: its steady times mean nothing, and all of it came long ago."""
    _fd: int | None = None
    _next: Record | None = None

    def peek(self) -> Record:
        """The next record; there is one.

        Raises:
            Corrupt: what is there is no record.
            OSError: the file cannot be read.
        """
        if self._next is None:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            record = _read(self._fd, self.offset)
            self._next = record._replace(at_s=0.0) if self.recovered else record
        return self._next

    def advance(self, record: Record) -> None:
        """Go on to the one after it."""
        self.offset += HEADER_BYTES + len(record.data)
        self.left[record.signal] -= record.items
        self._next = None

    def skip_to(self, offset: int) -> None:
        """Everything before ``offset`` was delivered. Ignored unless a record begins or ends there."""
        left = self.left.copy()
        position = self.offset
        with self.path.open("rb", buffering=0) as file:
            while position < min(offset, self.size):
                header = _header(os.pread(file.fileno(), HEADER_BYTES, position))
                left[header.signal] -= header.items
                position += HEADER_BYTES + header.length
        if position == offset:
            self.offset = self.committed = offset
            self.left = left

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._next = None


class _Header(NamedTuple):
    length: int
    check: int
    signal: str
    items: int
    at_s: float


def scan(number: int, path: Path) -> Segment | None:
    """What a file holds, by its headers; None when it is no segment.

    A record that the file ends in the middle of is torn and ignored. Contents are checked when they are read.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        start = os.pread(fd, len(MAGIC), 0)
        if not MAGIC.startswith(start):
            return None
        segment = Segment(number, path, size=len(MAGIC), recovered=True)
        if start != MAGIC:  # killed before the first record
            segment.torn = 1
            return segment
        end = os.fstat(fd).st_size
        while segment.size < end:
            raw = os.pread(fd, HEADER_BYTES, segment.size)
            if len(raw) < HEADER_BYTES:
                segment.torn = 1
                break
            try:
                header = _header(raw)
            except Corrupt:
                segment.damaged = True
                break
            if segment.size + HEADER_BYTES + header.length > end:
                segment.torn = 1
                break
            segment.size += HEADER_BYTES + header.length
            segment.left[header.signal] += header.items
        return segment


def _header(raw: bytes) -> _Header:
    if len(raw) != HEADER_BYTES:
        raise Corrupt
    length, check, signal, items, at_s = _HEADER.unpack(raw)
    if length > MAX_RECORD_BYTES or signal >= len(_SIGNALS):
        raise Corrupt
    return _Header(length, check, _SIGNALS[signal], items, at_s)


def _read(fd: int, offset: int) -> Record:
    raw = os.pread(fd, HEADER_BYTES, offset)
    header = _header(raw)
    data = os.pread(fd, header.length, offset + HEADER_BYTES)
    if len(data) != header.length or zlib.crc32(data, zlib.crc32(raw[8:])) != header.check:
        raise Corrupt
    return Record(header.signal, data, header.items, header.at_s)
