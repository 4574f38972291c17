"""The shared-memory ring between the sampler process and the main process.

One slot per GPU, each a ring of rows of fixed columns. One thread writes a slot, one reads it, neither waits for
the other: a row carries its number before and after its values, so a row that is overwritten while it is read is
seen and left out (a sequence lock per row). A value that was not read is NaN here and nowhere else.

Layout, little endian, 8-byte words: magic, slots, depth, columns, heartbeat in ns of CLOCK_MONOTONIC, 3 spare;
then per slot the number of rows written; then the rows: number, ns of CLOCK_MONOTONIC, columns as doubles, number.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from typing import NamedTuple, Protocol

MAGIC = 0x676D_7269_6E67_0001  # "gmring", layout 1
_HEADER_WORDS = 8
_HEARTBEAT_WORD = 4
_NAN = math.nan


class Row(NamedTuple):
    """One fast sample of one GPU."""

    at_ns: int
    """CLOCK_MONOTONIC, taken when the values had been read."""
    values: tuple[float, ...]
    """In column order; NaN where there was no reading."""


class RowSink(Protocol):
    """Where a worker writes its rows."""

    slots: int

    def write(self, slot: int, at_ns: int, values: list[float | None]) -> None: ...

    def beat(self, at_ns: int) -> None: ...


class RowSource(Protocol):
    """Where the main process reads them."""

    def read(self, slot: int) -> tuple[list[Row], int]: ...


class RingError(Exception):
    """The shared memory is not a ring of this layout."""


class Ring:
    """A ring over shared memory. ``create`` in the main process, ``attach`` in the sampler."""

    def __init__(self, fd: int, memory: mmap.mmap, slots: int, depth: int, columns: int) -> None:
        self.fd = fd
        self.slots = slots
        self.depth = depth
        self.columns = columns
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._row = struct.Struct(f"<QQ{columns}dQ")
        self._written = [0] * slots
        self._read = [0] * slots
        self._rows_at = (_HEADER_WORDS + slots) * 8

    @classmethod
    def create(cls, slots: int, depth: int, columns: int) -> Ring:
        """A new ring on an anonymous memory file; ``fd`` is to be passed to the sampler. Raises OSError."""
        size = (_HEADER_WORDS + slots) * 8 + slots * depth * (columns + 3) * 8
        fd = os.memfd_create("gpumon-ring", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
        except OSError:  # a limit on files (RLIMIT_FSIZE) or memory
            os.close(fd)
            raise
        struct.pack_into("<4Q", memory, 0, MAGIC, slots, depth, columns)
        return cls(fd, memory, slots, depth, columns)

    @classmethod
    def attach(cls, fd: int) -> Ring:
        """The ring behind an inherited descriptor. Raises RingError."""
        size = os.fstat(fd).st_size
        if size < _HEADER_WORDS * 8:
            raise RingError("too short for a header")
        memory = mmap.mmap(fd, size)
        magic, slots, depth, columns = struct.unpack_from("<4Q", memory, 0)
        expected = (_HEADER_WORDS + slots) * 8 + slots * depth * (columns + 3) * 8
        if magic != MAGIC or size != expected or 0 in (slots, depth, columns):
            memory.close()
            raise RingError("not a ring of this layout")
        return cls(fd, memory, slots, depth, columns)

    def close(self) -> None:
        """Unmap and close. The other process keeps its own mapping."""
        self._words.release()
        self._memory.close()
        os.close(self.fd)

    def write(self, slot: int, at_ns: int, values: list[float | None]) -> None:
        """Append a row to a slot; the oldest row is overwritten."""
        number = self._written[slot] + 1
        offset = self._rows_at + (slot * self.depth + (number - 1) % self.depth) * self._row.size
        numbers = [_NAN if value is None else value for value in values]
        self._row.pack_into(self._memory, offset, number, at_ns, *numbers, number)
        self._written[slot] = number
        self._words[_HEADER_WORDS + slot] = number

    def read(self, slot: int) -> tuple[list[Row], int]:
        """Rows of a slot since the last read, oldest first, and how many were lost to overwriting.

        At most ``depth - 1`` rows: the place of the oldest may be under way to its next row.
        """
        count_at = _HEADER_WORDS + slot
        newest = self._words[count_at]
        last = self._read[slot]
        read: list[tuple[int, Row]] = []
        unpack = self._row.unpack_from
        for number in range(max(last + 1, newest - self.depth + 2), newest + 1):
            offset = self._rows_at + (slot * self.depth + (number - 1) % self.depth) * self._row.size
            before, at_ns, *values, after = unpack(self._memory, offset)
            if before == after == number:
                read.append((number, Row(at_ns, tuple(values))))
        # Meanwhile the writer went on. What it may have begun to overwrite is not believed whatever its numbers say:
        # stores and loads may pass each other on some processors.
        first_safe = self._words[count_at] - self.depth + 2
        rows = [row for number, row in read if number >= first_safe]
        self._read[slot] = newest
        return rows, newest - last - len(rows)

    def beat(self, at_ns: int) -> None:
        """The sampler's supervisor says that it lives."""
        self._words[_HEARTBEAT_WORD] = at_ns

    @property
    def heartbeat_ns(self) -> int:
        """When the supervisor last lived, CLOCK_MONOTONIC; 0 before the first beat."""
        return self._words[_HEARTBEAT_WORD]
