"""What a recording is made of: questions, answers, passes and OTLP bodies, and how they are packed into chunks.

A chunk's payload is ``HEAD`` (its times and the clock's offset) and then one msgpack array, ``Batch``. Questions are
spelled out once per writer and epoch and are numbers after that. Answers of the host's ports are packed one by one, so
that the recorder can compare them as bytes and a replay unpacks only what it comes to.

Text is kept as UTF-8 with ``surrogatepass``: names of files may be any bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpumon.host.nvml import (
    Bar1,
    Driver,
    Event,
    GpmReading,
    Memory,
    ProcessUtilization,
    RunningProcess,
    Utilization,
    UtilizationSample,
)

KIND: Final = "recording"
"""``kind`` in the header of such a file."""
HEAD: Final = struct.Struct("<dddd")
"""Steady seconds of the first and the last thing in the chunk and of its writing; unix time less steady time then."""

# Passes that no source or GPU worker begins. Names of sources stand for themselves.
NVML_OPEN: Final = "nvml.open"
"""NVML is opened (or cannot be), its GPUs are counted and asked for their uuids."""
NVML_CLOSE: Final = "nvml.close"
XID_EVENTS: Final = "xid_events"
"""An event set is made and devices are registered with it, or a wait ended with an event or an error."""


def gpu_pass(uuid: str) -> str:
    """Name of the passes of one GPU's worker in the sampler."""
    return f"gpu/{uuid}"


# Kinds of questions. The numbers are in files: never change one.
READ, LIST, LINK, NODES, KERNEL_LINES, KERNEL_LOG, GET = 1, 2, 3, 4, 5, 6, 7
OPEN, CLOSE, DRIVER, COUNT, DEVICE, DEVICE_BY_UUID, MIG_DEVICE = 20, 21, 22, 23, 24, 25, 26
NUMBER, NUMBERS, TEXT, BUS_ID, UTILIZATION, MEMORY, BAR1, TEMPERATURE, MARGIN = 30, 31, 32, 33, 34, 35, 36, 37, 38
NEW_FIELDS, FIELDS, GPM_SUPPORTED, NEW_GPM, GPM = 40, 41, 42, 43, 44
SAMPLES, PROCESSES, PROCESS_UTILIZATION = 50, 51, 52
NEW_EVENTS, REGISTER, WAIT = 60, 61, 62

STREAMS: Final = frozenset({KERNEL_LINES, WAIT})
"""Answers of which each is given once. Of all others the newest holds until there is another."""

Key: TypeAlias = tuple[int, str, str]
"""A question: its kind, whom it is about (path, url, pid, device) and what (call, fields, metrics), or empty."""


class Failed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An answer that is an error: a ``Reason`` or an NVML return code, and its text or function."""

    code: str | int
    text: str


class Splice(NamedTuple):
    """Content that shares its beginning and its end with the one before."""

    begin: int
    end: int
    """Bytes kept of the beginning and of the end."""
    middle: bytes


class Fields(NamedTuple):
    """One reading of a field batch."""

    values: tuple[int | float | None, ...]
    codes: tuple[int, ...]


class Rows(NamedTuple):
    """Rows of a ring that are newer than ``since_us``."""

    since_us: int
    rows: list[UtilizationSample]


class ProcessRows(NamedTuple):
    """The same of the processes' ring."""

    since_us: int
    rows: list[ProcessUtilization]


class Line(NamedTuple):
    """``kmsg.KernelLine``."""

    at_s: float
    text: str


# Type of a packed answer by kind of question. Files and pages are bytes, or what changed of them.
_TYPES: Final[Mapping[int, object]] = {
    READ: bytes | Splice,
    LIST: bytes,  # names, each ended by a NUL
    LINK: bytes,
    NODES: list[int | None],
    KERNEL_LINES: list[Line],
    KERNEL_LOG: int,  # overruns so far
    GET: bytes | Splice,
    OPEN: None,
    CLOSE: None,
    DRIVER: Driver,
    COUNT: int,
    DEVICE: None,
    DEVICE_BY_UUID: int,  # index
    MIG_DEVICE: tuple[int | None, int | None],  # GPU instance, compute instance
    NUMBER: int,
    NUMBERS: tuple[int, ...],
    TEXT: bytes,
    BUS_ID: bytes,
    UTILIZATION: Utilization,
    MEMORY: Memory,
    BAR1: Bar1,
    TEMPERATURE: int,
    MARGIN: int,
    NEW_FIELDS: None,
    FIELDS: Fields,
    GPM_SUPPORTED: bool,
    NEW_GPM: None,
    GPM: GpmReading | None,
    SAMPLES: Rows,
    PROCESSES: list[RunningProcess],
    PROCESS_UTILIZATION: ProcessRows,
    NEW_EVENTS: None,
    REGISTER: bool,
    WAIT: Event,
}


def _reader(kind: object) -> Callable[[bytes], object]:
    return msgspec.msgpack.Decoder(kind).decode


READERS: Final[Mapping[int, Callable[[bytes], object]]] = {kind: _reader(shape) for kind, shape in _TYPES.items()}
"""Unpack an answer. Raise msgspec.DecodeError."""
read_failed: Final[Callable[[bytes], Failed]] = msgspec.msgpack.Decoder(Failed).decode
pack: Final[Callable[[object], bytes]] = msgspec.msgpack.encode


class Question(msgspec.Struct, array_like=True, gc=False):
    """A question that comes up for the first time; its number is the next."""

    scope: str
    """Name of the pass it is asked in."""
    kind: int
    subject: bytes
    detail: bytes


Answer: TypeAlias = tuple[int, int, bool, msgspec.Raw]
"""Number of the question, how long it took in us, whether it failed, and the answer packed (``Failed`` if it did)."""


class Block(msgspec.Struct, array_like=True, gc=False):
    """Answers of one pass, or a part of them."""

    at_s: float
    """When the pass began, steady seconds."""
    scope: str
    begins: bool
    """Whether this is the pass's first block, and a pass at all."""
    answers: list[Answer]


class Body(msgspec.Struct, array_like=True, gc=False):
    """An OTLP request that was taken, without texts of prompts and completions."""

    at_s: float
    signal: str
    is_json: bool
    peer: str
    points: int
    """Of metrics: how many data points they had. Their body is not kept."""
    body: bytes


class Calls(msgspec.Struct, array_like=True, gc=False):
    """What the NVML calls took since the batch before: ``host.nvml.CallTimes`` as differences."""

    device: str
    """Empty for calls that belong to no device."""
    function: str
    row: list[int]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """One chunk."""

    writer: int
    """Tells apart who appends to the same stream: a sampler process and the one that replaces it."""
    fresh: bool
    """Whether an epoch begins: numbers start again at 0, and every answer will be written again."""
    questions: list[Question]
    blocks: list[Block]
    bodies: list[Body]
    calls: list[Calls]


read_batch: Final[Callable[[bytes | memoryview], Batch]] = msgspec.msgpack.Decoder(Batch).decode


def to_bytes(text: str) -> bytes:
    """Any text as bytes; ``to_text`` is the inverse."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Raises UnicodeDecodeError for what ``to_bytes`` never makes."""
    return data.decode("utf-8", "surrogatepass")


def splice(before: bytes, now: bytes) -> Splice | None:
    """What changed between two contents; None where that is not much shorter than the whole."""
    most = min(len(before), len(now))
    begin = _common(most, lambda n: before[:n] == now[:n])
    left = most - begin
    end = _common(left, lambda n: before[len(before) - n :] == now[len(now) - n :])
    if begin + end < len(now) // 2:
        return None
    return Splice(begin, end, now[begin : len(now) - end])


def spliced(before: bytes, change: Splice) -> bytes:
    """The inverse. Raises ValueError where the change does not belong to what was before."""
    begin, end, middle = change
    if begin < 0 or end < 0 or begin + end > len(before):
        raise ValueError("a change that does not fit the content before")
    return b"".join((before[:begin], middle, before[len(before) - end :]))


def _common(most: int, same: Callable[[int], bool]) -> int:
    """Largest n up to ``most`` for which ``same(n)``, which holds for all n below as well."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if same(middle):
            low = middle
        else:
            high = middle - 1
    return low
