"""The recorder: takes what the ports answered from any thread, and writes it in chunks from a thread of its own.

A pass begins with ``mark``, which says whose answers follow in that thread and at which steady second the pass began:
all of its answers bear that time, so that a replay which runs the pass at that time gets them. An answer equal to the
one before, in the same pass to the same question, is left out. Every ten minutes, and when questions became too many
(processes come and go), all is written once more.

Recording disturbs nothing: a full disk, the limit of the file's size or a disk that does not keep up ends the
recording and nothing else, and is said once. Takes 1 to 2 us per answer where it is asked for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Self

from gpumon import __version__
from gpumon.host.clock import Clock
from gpumon.ingest.request import Signal
from gpumon.record.chunks import LARGE, Bounds, Chunks
from gpumon.record.entries import KIND, Body, Calls, Failed, Key
from gpumon.record.format import Writer
from gpumon.record.mask import Mask

DEFAULT_BOUNDS = Bounds()
Strip = Callable[[Signal, bytes, bool, Callable[[str, str], str] | None], tuple[bytes, int] | None]
"""``strip.stripped`` of the configured tenants: handed in, because the sampler has no use for all that it needs."""
_OVERHEAD = 64  # what an answer takes besides its bytes, about


class _Mark(NamedTuple):
    scope: str
    at_s: float
    begins: bool


class _Tape:
    """What one thread has had answered and nobody has written yet. A deque needs no lock between its two ends."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.items: deque[_Mark | tuple[Key, bytes | Failed, int]] = deque()
        self.last: dict[Key, bytes | Failed | int] = {}
        """Answers of the present pass, as written last; a hash of large ones."""
        self.marked = False
        self.written = _Mark("", 0.0, begins=False)
        """The pass in which writing stands."""


class _Request(NamedTuple):
    signal: Signal
    body: bytes
    is_json: bool
    peer: str
    at_s: float


class Recorder:
    """One process's part of one file: ``create`` in the first process, ``join`` in others; ``start``; ``close``."""

    def __init__(
        self,
        writer: Writer,
        stream: int,
        clock: Clock,
        on_stop: Callable[[str], None],
        mask: Mask | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        strip: Strip | None = None,
    ) -> None:
        """Use ``create`` or ``join``. strip: of OTLP requests; without it none is recorded."""
        self.stopped = ""
        """Why nothing is recorded any more; empty while it is."""
        self.dropped: dict[str, int] = {}
        """OTLP requests that were not recorded, by reason: ``unreadable``, ``too_large``, ``behind``."""
        self._writer = writer
        self._clock = clock
        self._on_stop = on_stop
        self._mask = mask
        self._strip = strip
        self._chunks = Chunks(writer, stream, int.from_bytes(os.urandom(4), "big"), mask, bounds)
        self._bounds = bounds
        self._local = threading.local()
        self._lock = threading.Lock()  # over the list of tapes, and over stopping
        self._tapes: list[_Tape] = []
        self._last: dict[str, dict[Key, bytes | Failed | int]] = {}
        self._pending = 0  # about: threads count without a lock
        self._request_lock = threading.Lock()
        """Over the two that follow and ``dropped``, held for a moment: the intake adds, the writer takes."""
        self._requests: deque[_Request] = deque()
        self._request_bytes = 0
        self._take_calls: Callable[[], list[Calls]] | None = None
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        clock: Clock,
        on_stop: Callable[[str], None],
        about: Mapping[str, object],
        *,
        mask: Mask | None = None,
        limit_bytes: int | None = None,
        overwrite: bool = False,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> Self:
        """Make the file.

        on_stop: is told once, in any thread, why recording ended by itself. about: JSON values for the file's header;
        ``node_names`` (list) and ``server_urls`` (list) are masked as such, other texts by what they hold. The
        attributes that name a tenant are taken from ``config`` in it, where the replay finds them too.
        Raises OSError; ValueError for a header that is too large.
        """
        now_s = clock.now_s()
        header = {key: value if mask is None else mask.about(value, key) for key, value in about.items()}
        header |= {
            "kind": KIND,
            "gpumon": __version__,
            "started_s": now_s,
            "offset_s": clock.to_unix(now_s) - now_s,
            "masked": mask is not None,
        }
        writer = Writer.create(path, header, overwrite=overwrite, limit_bytes=limit_bytes)
        from gpumon.record.kept_texts import TENANTS
        from gpumon.record.strip import stripped  # see Strip

        tenants = _tenants(about)
        strip = partial(stripped, tenants=TENANTS if tenants is None else tenants)
        return cls(writer, 0, clock, on_stop, mask, bounds, strip)

    @classmethod
    def join(
        cls,
        path: str | os.PathLike[str],
        stream: int,
        clock: Clock,
        on_stop: Callable[[str], None],
        *,
        mask: Mask | None = None,
        limit_bytes: int | None = None,
    ) -> Self:
        """Append to the file of another process. mask: with that one's key. Raises OSError, FormatError."""
        return cls(Writer.open_append(path, limit_bytes=limit_bytes), stream, clock, on_stop, mask)

    # --- from any thread --------------------------------------------------------------------------------------------

    def mark(self, name: str, at_s: float) -> None:
        """A pass begins in this thread: a source's, a GPU worker's (``gpu_pass``). It ends with the next."""
        if not self.stopped:
            tape = self._tape()
            tape.last = self._last.setdefault(name, {})
            tape.marked = True
            tape.items.append(_Mark(name, at_s, begins=True))
            self._count(_OVERHEAD)

    def keep(self, key: Key, answer: bytes | Failed, began_ns: int) -> None:
        """An answer that holds until there is another. began_ns: CLOCK_MONOTONIC when it was asked for."""
        if self.stopped:
            return
        tape = self._tape()
        known: bytes | Failed | int = answer
        if isinstance(answer, bytes) and len(answer) > LARGE:
            known = hash(answer)
        if tape.last.get(key) != known:
            tape.last[key] = known
            self._put(tape, key, answer, began_ns)

    def add(self, key: Key, answer: bytes | Failed, began_ns: int) -> None:
        """An answer that is given once."""
        if not self.stopped:
            self._put(self._tape(), key, answer, began_ns)

    def request(self, signal: Signal, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        """An OTLP request that was taken; ``body`` is decompressed. at_s: when it had arrived."""
        if self.stopped:
            return
        with self._request_lock:
            waiting = self._request_bytes + len(body)
            has_room = waiting <= self._bounds.pending_bytes
            if has_room:
                self._request_bytes = waiting
                self._requests.append(_Request(signal, body, is_json, peer, at_s))
        if not has_room:
            self._drop("behind")
        elif waiting > self._bounds.flush_bytes:
            self._wake.set()

    def count_calls(self, take: Callable[[], list[Calls]]) -> None:
        """``take``: what calls took since it was last asked; asked at every writing."""
        self._take_calls = take

    def _tape(self) -> _Tape:
        try:
            tape: _Tape = self._local.tape
        except AttributeError:
            tape = self._local.tape = _Tape()
            tape.last = self._last.setdefault("", {})
            with self._lock:
                self._tapes.append(tape)
        return tape

    def _put(self, tape: _Tape, key: Key, answer: bytes | Failed, began_ns: int) -> None:
        if not tape.marked:  # in no pass
            tape.items.append(_Mark("", self._clock.now_s(), begins=False))
        tape.items.append((key, answer, (time.monotonic_ns() - began_ns) // 1000))
        self._count(_OVERHEAD if isinstance(answer, Failed) else len(answer) + _OVERHEAD)

    def _count(self, size: int) -> None:
        self._pending += size
        if self._pending > self._bounds.flush_bytes:
            self._wake.set()
            if self._pending > self._bounds.pending_bytes:
                self._stop("the disk does not keep up")

    # --- writing ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write every ``flush_s``, or when there is much, until ``close``."""
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left and let go of the file. Again: nothing."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        with self._writing:
            self._writer.close()
            self.stopped = self.stopped or "closed"

    def flush(self) -> None:
        """Write what there is."""
        with self._writing:
            if self.stopped:
                return
            self._pending = 0
            try:
                self._write_all()
            except OSError as err:
                self._stop(err.strerror or str(err))

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._bounds.flush_s)
            self._wake.clear()
            self.flush()

    def _write_all(self) -> None:
        now_s = self._clock.now_s()
        chunks = self._chunks
        if chunks.begin(now_s, self._clock.to_unix(now_s) - now_s):
            for name in list(self._last):
                self._last[name] = {}
        with self._lock:
            tapes = self._tapes = [tape for tape in self._tapes if tape.items or tape.thread.is_alive()]
        for tape in tapes:
            self._write_tape(tape)
        while (request := self._next_request()) is not None:
            body = self._body(request)
            if body is not None:
                chunks.body(body)
        chunks.finish(self._take_calls() if self._take_calls is not None else ())

    def _write_tape(self, tape: _Tape) -> None:
        chunks, items = self._chunks, tape.items
        begun = False
        while True:
            try:
                item = items.popleft()
            except IndexError:  # all is written, or another thread ended the recording and cleared it
                return
            if isinstance(item, _Mark):
                tape.written, begun = item, True
                chunks.block(item.scope, item.at_s, begins=item.begins)
                continue
            if not begun:  # the pass goes on since the last writing
                begun = True
                chunks.block(tape.written.scope, tape.written.at_s, begins=False)
            chunks.answer(*item)

    def _next_request(self) -> _Request | None:
        with self._request_lock:
            if not self._requests:
                return None
            request = self._requests.popleft()
            self._request_bytes -= len(request.body)
        return request

    def _body(self, request: _Request) -> Body | None:
        signal, body, is_json, peer, at_s = request
        replace = self._mask.attribute if self._mask is not None else None
        found = self._strip(signal, body, is_json, replace) if self._strip is not None else None
        if found is None:
            self._drop("unreadable")
            return None
        left, points = found
        if len(left) > self._bounds.body_bytes:
            self._drop("too_large")
            return None
        return Body(at_s, str(signal), is_json, peer, points, left)

    def _drop(self, why: str) -> None:
        with self._request_lock:
            self.dropped[why] = self.dropped.get(why, 0) + 1

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.stopped:
                return
            self.stopped = why
            for tape in self._tapes:
                tape.items.clear()
                tape.last = {}
        self._last = {}
        with self._request_lock:
            self._requests.clear()
            self._request_bytes = 0
        self._on_stop(why)


def _tenants(about: Mapping[str, object]) -> tuple[str, ...] | None:
    """``requests.tenant_attributes`` of the configuration in a header; None where it is not in it."""
    found: object = about.get("config")
    for name in ("requests", "tenant_attributes"):
        found = found.get(name) if isinstance(found, dict) else None
    return tuple(map(str, found)) if isinstance(found, list | tuple) else None
