"""A recording as a replay sees it: what was answered as of a moment, and which passes and requests there were.

Answers are as of a time that only moves forward. Asked in the pass that ``passes`` gave last, a question has the
answer that it had in that pass when it was recorded; in another, or one that no pass asked, the newest there is. Of
each question the newest answer is in memory, until nobody asked it for an epoch, and what ``ahead`` reads ahead.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gpumon.ingest.request import Signal
from gpumon.record.ahead import Ahead, Epoch, Part
from gpumon.record.chunks import EPOCH_S
from gpumon.record.entries import (
    KIND,
    NODES,
    READERS,
    STREAMS,
    Block,
    Body,
    Calls,
    Key,
    Splice,
    read_failed,
    spliced,
)
from gpumon.record.format import FormatError, Reader

STREAM_ITEMS = 65_536
"""Most answers of a stream that wait to be asked for; the oldest go."""
MAX_SCOPES = 4096
"""Names of passes: sources, and GPUs over the life of a node."""
MAX_PIDS = 1024
"""Processes whose pages were told that are remembered."""
OFFSET_STEP_S = 1e-3
"""The clock's offset changed where it did by more: two processes never read quite the same."""
NOTHING: Final = object()
"""The answer to what was never asked."""


class Pass(NamedTuple):
    """Something read the host at this moment: a source by its name, a GPU's worker, or NVML's own (``entries``)."""

    at_s: float
    name: str


class Request(NamedTuple):
    """An OTLP request arrived. ``body`` decodes to what the original decoded to, without texts."""

    at_s: float
    signal: Signal
    body: bytes
    is_json: bool
    peer: str
    points: int
    """Of metrics: their number; the body is empty then."""


class _Scope:
    """Newest answers in the passes of one name: of this epoch of their writer, and of the one before."""

    __slots__ = ("epoch", "new", "old")

    def __init__(self) -> None:
        self.new: dict[Key, object] = {}
        self.old: dict[Key, object] = {}
        self.epoch: Epoch | None = None

    def turn(self) -> None:
        self.old, self.new = self.new, {}


class Recording:
    """One file. Opening reads all of it once; ``passes`` and the replay ports then go through it, once.

    Raises OSError, and FormatError for a file that is no recording or, later, for what no recorder wrote.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        reader = Reader(path)
        self.header = reader.header
        if self.header.get("kind") != KIND:
            raise FormatError(f"{path}: a file of gpumon, but no recording")
        started_s, offset_s = (_number(path, self.header, name) for name in ("started_s", "offset_s"))
        self._ahead = Ahead(reader, str(path))
        self.truncated = reader.truncated
        """Why the end of the file is not used; empty where it is whole."""
        parts = self._ahead.parts
        self.started_s = min((part.first_s for part in parts), default=started_s)
        self.ended_s = max((part.last_s for part in parts), default=started_s)
        self._offsets = _steps(offset_s, parts)
        self._now_s = float("-inf")
        self._scopes: dict[tuple[int, str], _Scope] = {}
        self._scope = self._none = _Scope()
        self._any = _Scope()
        self._any_turned_s = self.started_s
        self._streams: dict[int, deque[object]] = {}
        self._pages: dict[str, tuple[float, deque[object]]] = {}
        self.on_calls: Callable[[list[Calls]], None] | None = None
        """Is given what NVML calls took, as differences, when that is due; ``ReplayNvml`` sets it."""

    def close(self) -> None:
        """Let go of the file."""
        self._ahead.close()

    def offset(self, at_s: float) -> float:
        """Unix time less steady time, as it was at that moment."""
        return self._offsets[max(0, bisect_right(self._offsets, at_s, key=lambda step: step[0]) - 1)][1]

    def passes(self) -> Iterator[Pass | Request]:
        """Everything that happened, in the order of time; of what happened at once, in the order of writing.

        Set the clock of the ports to each one's ``at_s`` before asking them. To be called once, before the ports are.
        """
        self._ahead.wants_events = True
        last_s = float("-inf")
        while (event := self._ahead.next_event()) is not None:
            last_s = max(last_s, event.at_s)  # what came later than it was waited for
            if isinstance(event.what, Body):
                self._scope = self._none
                yield _request(event.what, last_s)
            else:
                self._scope = self._scope_of(event.stream, event.what)
                yield Pass(last_s, event.what)
            self._advance(last_s)  # in case that nobody has asked anything

    # --- asked by the ports -----------------------------------------------------------------------------------------

    def find(self, key: Key, now_s: float) -> object:
        """The answer as of ``now_s``, a ``Failed``, or NOTHING."""
        if now_s > self._now_s:
            self._advance(now_s)
        answer = self._scope.new.get(key, NOTHING)
        if answer is not NOTHING:
            return answer
        for known in (self._scope.old, self._any.new, self._any.old):
            answer = known.get(key, NOTHING)
            if answer is not NOTHING:
                return answer
        return NOTHING

    def take(self, kind: int, now_s: float) -> object:
        """The oldest answer of a stream that was given by ``now_s`` and not taken yet, or NOTHING."""
        if now_s > self._now_s:
            self._advance(now_s)
        waiting = self._streams.get(kind)
        return waiting.popleft() if waiting else NOTHING

    def take_nodes(self, pid: str, now_s: float) -> object:
        """The next answer about a process's pages in its newest pass, or NOTHING."""
        if now_s > self._now_s:
            self._advance(now_s)
        known = self._pages.get(pid)
        return known[1].popleft() if known is not None and known[1] else NOTHING

    # --- going on in time -------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        self._now_s = max(now_s, self._now_s)
        for at_s, what, epoch in self._ahead.due(now_s):
            if isinstance(what, Block):
                self._apply(at_s, what, epoch)
            elif self.on_calls is not None:
                self.on_calls(what)

    def _apply(self, at_s: float, block: Block, epoch: Epoch) -> None:
        scope = self._scope_of(epoch.stream, block.scope)
        if scope.epoch is not epoch:
            scope.epoch = epoch
            scope.turn()
            if at_s >= self._any_turned_s + EPOCH_S:
                self._any_turned_s = at_s
                self._any.turn()
        keys, new, anywhere = epoch.keys, scope.new, self._any.new
        try:
            for number, _, failed, raw in block.answers:
                key = keys[number]
                kind = key[0]
                answer = read_failed(raw) if failed else READERS[kind](raw)
                if kind in STREAMS:
                    self._streams.setdefault(kind, deque(maxlen=STREAM_ITEMS)).append(answer)
                elif kind == NODES:
                    self._put_nodes(key[1], at_s, answer)
                else:
                    if isinstance(answer, Splice):
                        before = new.get(key)
                        answer = spliced(before, answer) if isinstance(before, bytes) else NOTHING
                    new[key] = anywhere[key] = answer
        except (msgspec.DecodeError, LookupError, ValueError) as err:
            raise self._ahead.damaged() from err

    def _scope_of(self, stream: int, name: str) -> _Scope:
        scope = self._scopes.get((stream, name))
        if scope is None:
            if len(self._scopes) >= MAX_SCOPES:
                raise self._ahead.damaged()
            scope = self._scopes[stream, name] = _Scope()
        return scope

    def _put_nodes(self, pid: str, at_s: float, answer: object) -> None:
        known = self._pages.get(pid)
        if known is None or known[0] != at_s:
            self._pages.pop(pid, None)
            known = self._pages[pid] = (at_s, deque(maxlen=STREAM_ITEMS))
            if len(self._pages) > MAX_PIDS:
                del self._pages[next(iter(self._pages))]
        known[1].append(answer)


def _number(path: str | os.PathLike[str], header: dict[str, object], name: str) -> float:
    value = header.get(name)
    if not isinstance(value, int | float) or not abs(value) < 1e12:
        raise FormatError(f"{path}: its header does not say {name}")
    return float(value)


def _steps(offset_s: float, parts: Sequence[Part]) -> list[tuple[float, float]]:
    """The clock's offset from each moment at which it had changed."""
    steps = [(float("-inf"), offset_s)]
    for part in sorted(parts, key=lambda part: part.written_s):
        if abs(part.offset_s - steps[-1][1]) > OFFSET_STEP_S:
            steps.append((part.written_s, part.offset_s))
    return steps


def _request(body: Body, at_s: float) -> Request:
    return Request(at_s, Signal(body.signal), body.body, body.is_json, body.peer, body.points)
