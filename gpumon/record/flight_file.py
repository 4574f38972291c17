"""What a flight recording is, in the file of ``record.format``: incidents, tables of series, and their readings.

Header: ``kind`` (flight), ``gpumon`` (version), ``started_s`` and ``unix_offset_s`` (add it to the steady seconds of
everything in the file: unix time), ``columns`` (names of the fast columns). Streams:

- INCIDENTS: JSON, all incidents of the recording as they stood; the newest one counts.
- TABLE: number (u32, little endian), then what ``past.pack_table`` makes; before the first chunk that speaks of it.
- PAST: what ``packing.pack`` made once a second, by these tables.
- FAST: length of a UUID (u8), the UUID, then what ``packing.pack`` made of the fast rows of that GPU, as table 0.
- END: JSON; a recording without it was interrupted.

Whatever is cut off at the end leaves the rest readable: incidents come first, then the past, oldest first.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Protocol

from gpumon import __version__
from gpumon.detect.incident import Incident
from gpumon.record.fast_past import DIGITS, FastRows
from gpumon.record.packing import Block, pack
from gpumon.record.past import Chunk, Table
from gpumon.sources.gpu_fast import Column

KIND = "flight"
MOST_INCIDENTS = 64
"""Of one recording: what opens beyond that while it runs is one disturbance of the whole node."""
RESERVE_BYTES = 256 << 10
"""Room kept for the last word on the incidents: up to 64, each with up to a hundred traces."""
_END_BYTES = 512
"""Room kept for the end itself."""
_TABLE_NUMBER = struct.Struct("<I")


class Stream(IntEnum):
    """Streams of the container."""

    INCIDENTS = 1
    TABLE = 2
    PAST = 3
    FAST = 4
    END = 5


class Appender(Protocol):
    """``record.format.Writer``, or what stands for it. Its methods raise OSError."""

    def write(self, stream: int, payload: bytes) -> int: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


def header(started_s: float, to_unix: Callable[[float], float]) -> dict[str, object]:
    """Header of a recording that begins now."""
    return {
        "kind": KIND,
        "gpumon": __version__,
        "started_s": started_s,
        "unix_offset_s": to_unix(started_s) - started_s,
        "columns": [column.name.lower() for column in Column],
    }


class FlightFile:
    """Writes one recording, of at most ``most_bytes``: what does not fit is left out. Methods raise OSError."""

    def __init__(self, out: Appender, most_bytes: int) -> None:
        self._out = out
        self._most_bytes = most_bytes
        self._tables: set[int] = set()
        self.left_out = 0
        """Chunks that did not fit."""

    def incidents(self, incidents: Iterable[Incident], *, is_last: bool = False) -> None:
        """The incidents as they are now, in place of what was said of them before.

        is_last: there is room reserved for the last time.
        """
        found = [_incident(incident) for incident in incidents]
        payload = json.dumps(found, allow_nan=False).encode()
        size = len(zlib.compress(payload, 1))  # the file's own level makes it no larger
        room = self._most_bytes - _END_BYTES if is_last else self._most_bytes - RESERVE_BYTES
        if self._fits(size, room):
            self._out.write(Stream.INCIDENTS, payload)
        else:
            self.left_out += 1

    def begin(self, chunks: Sequence[Chunk], fast: Sequence[FastRows], most_bytes: int) -> None:
        """What was before: all fast rows, and of the chunks the newest that fit into ``most_bytes`` with them."""
        packed = [_pack_fast(gpu) for gpu in fast]
        room = most_bytes - self._out.size() - sum(map(len, packed))
        first, seen = len(chunks), set(self._tables)
        while first:
            chunk = chunks[first - 1]
            new = {table.number: table for table in chunk.tables if table.number not in seen}
            room -= len(chunk.payload) + sum(len(table.payload) for table in new.values())
            if room < 0:
                break
            seen.update(new)
            first -= 1
        self.left_out += first
        for chunk in chunks[first:]:
            self._write_chunk(chunk)
        for payload in packed:
            self._append(Stream.FAST, payload)

    def go_on(self, chunks: Iterable[Chunk], fast: Iterable[FastRows]) -> None:
        """What followed."""
        for chunk in chunks:
            self._write_chunk(chunk)
        for gpu in fast:
            self._append(Stream.FAST, _pack_fast(gpu))

    def end(self, reason: str, ended_s: float) -> None:
        """The last word. ``reason``: complete, or stopped where gpumon ended first."""
        end = {"reason": reason, "ended_s": ended_s, "left_out": self.left_out}
        if self._out.size() + _END_BYTES <= self._most_bytes:
            self._out.write(Stream.END, json.dumps(end, allow_nan=False).encode())
        self._out.close()

    def reopen(self, out: Appender) -> None:
        """Go on with the file after its end, which ``end`` then says anew. out: the same file."""
        self._out = out

    def close(self) -> None:
        """Let go of the file as it is."""
        self._out.close()

    def _write_chunk(self, chunk: Chunk) -> None:
        new = [table for table in chunk.tables if table.number not in self._tables]
        size = len(chunk.payload) + sum(len(table.payload) for table in new)
        if not self._has_room(size):
            self.left_out += 1
            return
        for table in new:
            self._write_table(table)
        self._out.write(Stream.PAST, chunk.payload)

    def _write_table(self, table: Table) -> None:
        if table.number not in self._tables:
            self._tables.add(table.number)
            self._out.write(Stream.TABLE, _TABLE_NUMBER.pack(table.number) + table.payload)

    def _append(self, stream: Stream, payload: bytes) -> None:
        if self._has_room(len(payload)):
            self._out.write(stream, payload)
        else:
            self.left_out += 1

    def _has_room(self, size: int) -> bool:
        return self._fits(size, self._most_bytes - RESERVE_BYTES)

    def _fits(self, size: int, most_bytes: int) -> bool:
        # What is compressed already grows by less than this when it is compressed again.
        return self._out.size() + size + (size >> 10) + 1024 <= most_bytes


def split_table(payload: bytes) -> tuple[int, bytes]:
    """Number and table of a TABLE chunk. Raises ValueError."""
    if len(payload) < _TABLE_NUMBER.size:
        raise ValueError("a table without a number")
    (number,) = _TABLE_NUMBER.unpack_from(payload)
    return number, payload[_TABLE_NUMBER.size :]


def split_fast(payload: bytes) -> tuple[str, bytes]:
    """UUID and packed rows of a FAST chunk. Raises ValueError."""
    if not payload or len(payload) < 1 + payload[0]:
        raise ValueError("fast rows without a GPU")
    end = 1 + payload[0]
    return payload[1:end].decode("utf-8", "replace"), payload[end:]


def _pack_fast(gpu: FastRows) -> bytes:
    uuid = str(gpu.uuid).encode()[:255]
    return bytes([len(uuid)]) + uuid + pack([Block(0, gpu.rows)], [DIGITS])


def _incident(incident: Incident) -> dict[str, object]:
    """As ``flight_reader.IncidentRecord`` reads it. Times are steady seconds."""
    return {
        "id": incident.id,
        "kind": incident.kind,
        "scope": incident.entity.scope,
        "entity": incident.entity.name,
        "gpu": incident.entity.gpu,
        "uuid": incident.entity.uuid,
        "severity": incident.severity.value,
        "since_s": incident.since_s,
        "opened_s": incident.opened_s,
        "seen_s": incident.seen_s,
        "closed_s": incident.closed_s,
        "summary": incident.summary,
        "evidence": [
            {"name": item.name, "observed": item.observed, "unit": item.unit.value, "baseline": item.baseline}
            for item in incident.evidence
        ],
        "action": incident.action,
        "traces": list(incident.traces),
        "requests": incident.requests,
    }
