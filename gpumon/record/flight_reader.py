"""Reads flight recordings (``flight_file``), whole ones and interrupted ones, without trusting what is in them."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpumon.record.flight_file import KIND, Stream, split_fast, split_table
from gpumon.record.format import Chunk, FormatError, Reader
from gpumon.record.packing import Block, PackError, unpack

_MAX_TABLE_BYTES = 64 << 20
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Struct = TypeVar("_Struct")


class FlightError(Exception):
    """The file is no recording that can be used. One line for a person, which names the file."""


class EvidenceRecord(msgspec.Struct, frozen=True):
    """``detect.detector.Evidence``, as recorded."""

    name: str
    observed: _Finite
    unit: str
    baseline: _Finite | None = None


class IncidentRecord(msgspec.Struct, frozen=True):
    """``detect.incident.Incident``, as recorded. Times are steady seconds."""

    id: str
    kind: str
    scope: str
    entity: str
    gpu: str
    uuid: str
    severity: str
    since_s: _Finite
    opened_s: _Finite
    seen_s: _Finite
    closed_s: _Finite | None
    summary: str
    evidence: list[EvidenceRecord]
    action: str
    traces: list[str]
    requests: int


class _Header(msgspec.Struct):
    kind: str
    gpumon: str = ""
    started_s: _Finite = 0.0
    unix_offset_s: _Finite = 0.0
    columns: list[str] = []


class _End(msgspec.Struct):
    reason: str
    ended_s: _Finite
    left_out: int = 0


_Family = tuple[str, str, str, list[str], list[list[str]]]
"""Name, kind, unit, names of the labels, labels of each series."""


@dataclass(frozen=True, slots=True)
class Series:
    """All readings of one series, oldest first; none is NaN."""

    name: str
    kind: str
    """gauge or counter."""
    unit: str
    labels: tuple[tuple[str, str], ...]
    """Names and values, in the order of the catalogue."""
    times: NDArray[np.float64]
    """Steady seconds."""
    values: NDArray[np.float64]


@dataclass(slots=True)
class Flight:
    """One recording."""

    path: Path
    version: str
    """Of the gpumon that wrote it."""
    unix_offset_s: float
    started_s: float
    columns: list[str]
    """Names of the fast columns."""
    incidents: list[IncidentRecord] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    fast: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """By UUID: rows of steady seconds and the fast columns; NaN: no reading."""
    end: str = ""
    """complete, stopped (gpumon ended first); empty where the recording was interrupted, or still runs."""
    ended_s: float | None = None
    """When it ended; where that is not told, the newest reading."""
    left_out: int = 0
    """Pieces that did not fit into the file."""
    truncated: str = ""
    """Why the end of the file could not be read; empty where it could."""


def read_incidents(path: Path) -> list[IncidentRecord]:
    """The incidents alone. Raises FlightError and OSError."""
    found: list[IncidentRecord] = []
    for chunk in _opened(path)[0].chunks():
        if chunk.stream == Stream.INCIDENTS:
            found = _decoded(path, chunk.payload, list[IncidentRecord])
    return found


def read_flight(path: Path) -> Flight:
    """Everything. Raises FlightError and OSError."""
    reader, header = _opened(path)
    flight = Flight(path, header.gpumon, header.unix_offset_s, header.started_s, header.columns)
    tables: dict[int, list[_Family]] = {}
    blocks: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
    fast: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for chunk in reader.chunks():
        try:
            _take(chunk, flight, tables, blocks, fast)
        except ValueError as error:  # PackError among them
            raise FlightError(f"{path}: damaged: {error}") from error
    flight.truncated = reader.truncated
    flight.series = _series(path, tables, blocks)
    flight.fast = {uuid: np.concatenate(parts) for uuid, parts in sorted(fast.items())}
    if flight.ended_s is None:
        flight.ended_s = max((float(rows[-1, 0]) for parts in blocks.values() for rows in parts), default=None)
    return flight


def _opened(path: Path) -> tuple[Reader, _Header]:
    try:
        reader = Reader(path)
    except FormatError as error:
        raise FlightError(str(error)) from error
    try:
        header = msgspec.convert(reader.header, _Header)
    except msgspec.ValidationError as error:
        raise FlightError(f"{path}: not a flight recording: {error}") from error
    if header.kind != KIND:
        raise FlightError(f"{path}: not a flight recording: a file of the kind {header.kind[:40]!r}")
    return reader, header


def _take(
    chunk: Chunk,
    flight: Flight,
    tables: dict[int, list[_Family]],
    blocks: dict[int, list[NDArray[np.float64]]],
    fast: dict[str, list[NDArray[np.float64]]],
) -> None:
    """Sort one chunk in. Streams of later versions are left out. Raises ValueError."""
    if chunk.stream == Stream.INCIDENTS:
        flight.incidents = _decoded(flight.path, chunk.payload, list[IncidentRecord])
    elif chunk.stream == Stream.TABLE:
        number, packed = split_table(chunk.payload)
        if number in tables:
            raise PackError(f"table {number} is there twice")
        tables[number] = _table(packed)
    elif chunk.stream == Stream.PAST:
        for block in unpack(chunk.payload):
            if block.table not in tables:
                raise PackError(f"readings of table {block.table}, which is not there")
            _check(block, sum(len(family[4]) for family in tables[block.table]))
            if len(block.rows):
                blocks[block.table].append(block.rows)
    elif chunk.stream == Stream.FAST:
        uuid, packed = split_fast(chunk.payload)
        for block in unpack(packed):
            _check(block, len(flight.columns))
            fast[uuid].append(block.rows)
    elif chunk.stream == Stream.END:
        end = _decoded(flight.path, chunk.payload, _End)
        flight.end, flight.ended_s, flight.left_out = end.reason, end.ended_s, end.left_out


def _check(block: Block, columns: int) -> None:
    if block.rows.shape[1] != 1 + columns:
        raise PackError(f"a block of {block.rows.shape[1] - 1} columns, of which its table knows {columns}")


def _table(packed: bytes) -> list[_Family]:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, _MAX_TABLE_BYTES)
    except zlib.error as error:
        raise PackError(f"a table is not compressed as it should be: {error}") from error
    try:
        families = msgspec.json.decode(data, type=list[_Family])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackError(f"a table is not what it should be: {error}") from error
    if any(len(labels) != len(names) for _, _, _, names, found in families for labels in found):
        raise PackError("a table with a series of the wrong number of labels")
    return families


def _series(path: Path, tables: dict[int, list[_Family]], blocks: dict[int, list[NDArray[np.float64]]]) -> list[Series]:
    """The columns of all blocks, put together by series, in order of name and labels."""
    pieces: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    kinds: dict[str, tuple[str, str]] = {}
    for number, parts in blocks.items():
        columns = np.ascontiguousarray(np.concatenate(parts).T)
        times, column = columns[0], 1
        if np.isnan(times).any():
            raise FlightError(f"{path}: damaged: readings without a time")
        for name, kind, unit, label_names, found in tables[number]:
            kinds[name] = (kind, unit)
            for label_values in found:
                key = (name, tuple(zip(label_names, label_values, strict=True)))
                known = ~np.isnan(columns[column])
                pieces.setdefault(key, []).append((times[known], columns[column][known]))
                column += 1
    series: list[Series] = []
    for (name, labels), found_pieces in sorted(pieces.items()):
        times = np.concatenate([piece[0] for piece in found_pieces])
        values = np.concatenate([piece[1] for piece in found_pieces])
        order = np.argsort(times, kind="stable")
        series.append(Series(name, *kinds[name], labels, times[order], values[order]))
    return series


def _decoded(path: Path, payload: bytes, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FlightError(f"{path}: damaged: {error}") from error
