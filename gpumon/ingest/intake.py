"""Takes export requests from both servers, decodes them off the event loop, and says what became of each.

Requests that arrive close together are decoded together, since one numpy pass over many costs little more than over
one. A single worker thread does the work in turns of bounded size, so that answers, scrapes and the sampler get their
share of the interpreter. Decoding and the sink are handed in.

Bounded in bytes, requests and time: what cannot be answered while its sender still listens is refused at once and
counted. A request is acknowledged after the sink has taken it, never before. The other way round is possible: a
request that was refused for taking too long may have been taken after all; its sender repeats it, and duplicates are
found by span id.

All methods but ``samples`` belong to the event loop's thread; the sink is called in the worker's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpumon import catalogue
from gpumon.host.clock import Clock
from gpumon.ingest.inflate import InflateError, TooLargeError, inflate
from gpumon.ingest.limits import Limits
from gpumon.ingest.records import Decoded, DecodeError
from gpumon.ingest.request import Ack, Outcome, Request, Signal, Transport
from gpumon.ingest.tally import Tally
from gpumon.model import Sample

log = logging.getLogger(__name__)

_REQUEST_WEIGHT = 2048
"""What a request costs besides its bytes, in bytes of work."""
_PACE_DECAY = 0.8
_LONGEST_RETRY_S = 4  # an exporter that is told more than it has left of its 10 s drops the batch at once
_TAKEN = frozenset({Outcome.OK, Outcome.PARTIAL})
_OVERLOADED = "gpumon is overloaded; the request was not taken"
_STOPPING = "gpumon is stopping; the request was not taken"
_STUCK = "gpumon did not get to the request in time"


class Decoders(NamedTuple):
    """How bodies become records. Each raises DecodeError (the first returns it) and nothing else."""

    traces: Callable[[Sequence[bytes]], Sequence[Decoded | DecodeError]]
    """Protobuf bodies, one result for each."""
    traces_json: Callable[[bytes], Decoded]
    logs: Callable[[bytes, bool], Decoded]
    """Body, and whether it is JSON."""
    metrics: Callable[[bytes, bool], int]
    """The number of data points: metrics are passed on, not read."""


class SinkFullError(Exception):
    """The sink can take no more now; the sender is told to come again."""


class Sink(Protocol):
    """Where decoded requests go. Called in the worker thread, one request at a time."""

    def __call__(
        self, signal: Signal, decoded: Decoded, raw_body: bytes, is_json: bool, peer: str, at_s: float, /
    ) -> None:
        """``raw_body`` is decompressed; for metrics ``decoded`` is empty. ``at_s``: when the request had arrived.

        Having returned, it has taken the request for good. Raises SinkFullError if it could not.
        """
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request on its way. ``ack`` and ``items`` are the worker's to write until the event loop is told."""

    request: Request
    at_s: float
    answer: asyncio.Future[Ack]
    ack: Ack | None = None
    items: int = 0
    """Spans, log records or data points taken."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    truncated: Mapping[str, int] = field(default_factory=dict)


class Intake:
    """See the module."""

    def __init__(
        self,
        decoders: Decoders,
        sink: Sink,
        clock: Clock,
        limits: Limits,
        stored: Callable[[], bool] | None = None,
    ) -> None:
        """stored: waits, in the worker's thread, until all that the sink took would outlive gpumon; False: it does not
        yet, and the senders are told to come again. Asked once for all requests of a turn, before they are answered.
        """
        self._decoders = decoders
        self._sink = sink
        self._stored = stored
        self._clock = clock
        self._limits = limits
        self._queue: dict[_Waiting, None] = {}  # in order of arrival
        self._group: list[_Waiting] = []  # the worker's at the moment
        self._held_bytes = 0
        self._open = 0
        self._arrivals = 0
        self._arrived = asyncio.Event()
        self._turn_since: float | None = None
        self._pace = _Pace()
        self._stopping = False
        self._driver: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpumon-intake")
        self._tally = Tally()
        self._failures: set[tuple[Signal, str]] = set()

    def start(self) -> None:
        """Begin to work, on the running event loop."""
        self._driver = asyncio.create_task(self._drive(), name="gpumon-intake")

    async def stop(self, drain_s: float) -> None:
        """Take nothing more, answer what is here within ``drain_s``, turn away the rest."""
        self._stopping = True
        left = [*self._group, *self._queue]
        if left:
            await asyncio.wait({waiting.answer for waiting in left}, timeout=drain_s)
        for waiting in left:
            _answer(waiting, Ack(Outcome.UNAVAILABLE, message=_STOPPING, retry_after_s=1))
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait({self._driver})
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def submit(self, request: Request) -> Ack:
        """Decode the request and hand it to the sink; returns when that is done, or when it will not be."""
        self._tally.received(request.transport, len(request.body))
        ack, waiting = self._refusal(request), None
        if ack is None:
            waiting = self._admit(request)
            try:
                async with asyncio.timeout(self._limits.answer_within_s):
                    ack = await waiting.answer
            except TimeoutError:
                ack = Ack(Outcome.OVERLOAD, message=_STUCK, retry_after_s=self._retry_after_s())
            finally:
                self._queue.pop(waiting, None)
                self._open -= 1
                self._held_bytes -= len(request.body)
        self._tally.answered(request.transport, request.signal, ack.outcome)
        if waiting is not None and ack.outcome in _TAKEN:
            self._tally.took(request.transport, request.signal, waiting.items, waiting.rejected, waiting.truncated)
        return ack

    def hold(self, size: int) -> bool:
        """Take room for ``size`` bytes of a request that is being read, until ``release``; False if there is none."""
        if self._held_bytes + size > self._limits.queue_bytes:
            return False
        self._held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give back what ``hold`` has granted."""
        self._held_bytes -= size

    def busy(self) -> Ack | None:
        """What to tell a sender whose request is not worth reading now; None when it is."""
        if self._stopping or self._driver is None:
            return Ack(Outcome.UNAVAILABLE, message=_STOPPING, retry_after_s=1)
        limits = self._limits
        expected_s = self._pace.seconds(self._held_bytes, self._open)
        turn_s = 0.0 if self._turn_since is None else asyncio.get_running_loop().time() - self._turn_since
        if self._open and max(expected_s, turn_s) > 0.8 * limits.answer_within_s:
            return self.overload()
        return self.overload() if self._open >= limits.queue_requests else None

    def overload(self) -> Ack:
        """The answer to a request for which there is no room."""
        return Ack(Outcome.OVERLOAD, message=_OVERLOADED, retry_after_s=self._retry_after_s())

    def refused(self, transport: Transport, signal: Signal, outcome: Outcome) -> None:
        """Count a request that a server has answered by itself."""
        self._tally.answered(transport, signal, outcome)

    def samples(self) -> Iterator[Sample]:
        """Counters and the queue. From any thread."""
        yield from self._tally.samples()
        yield Sample(catalogue.OTLP_WAITING, (), float(self._open))
        yield Sample(catalogue.OTLP_WAITING_BYTES, (), float(self._held_bytes))

    # --- on the event loop ----------------------------------------------------------------------------------------

    def _refusal(self, request: Request) -> Ack | None:
        size = len(request.body)
        if size > self._limits.body_bytes:
            return Ack(Outcome.TOO_LARGE, message=f"larger than {self._limits.body_bytes} bytes")
        busy = self.busy()
        if busy is None and self._held_bytes + size > self._limits.queue_bytes:
            return self.overload()
        return busy

    def _admit(self, request: Request) -> _Waiting:
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(request, self._clock.now_s(), answer)
        self._queue[waiting] = None
        self._held_bytes += len(request.body)
        self._open += 1
        self._arrivals += 1
        self._arrived.set()
        return waiting

    def _retry_after_s(self) -> int:
        return min(_LONGEST_RETRY_S, max(1, math.ceil(self._pace.seconds(self._held_bytes, self._open))))

    async def _drive(self) -> None:
        while True:
            self._arrived.clear()
            if not self._queue:
                await self._arrived.wait()
            await self._gather()
            group = self._next_group()
            if group:
                await self._turn(group)

    async def _gather(self) -> None:
        """Wait until there is a turn's worth of work, or nobody else comes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.gather_s
        while self._queued_bytes() < self._limits.gather_bytes and loop.time() < deadline:
            seen = self._arrivals
            await asyncio.sleep(self._limits.quiet_s)
            if self._arrivals == seen:
                return

    def _queued_bytes(self) -> int:
        return sum(len(waiting.request.body) for waiting in self._queue)

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        for waiting in self._queue:
            group.append(waiting)
            size += len(waiting.request.body)
            if size >= self._limits.gather_bytes:
                break
        for waiting in group:
            del self._queue[waiting]
        return group

    async def _turn(self, group: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        started = self._turn_since = loop.time()
        self._group = group
        size = sum(len(waiting.request.body) for waiting in group)
        work = loop.run_in_executor(self._worker, self._work, loop, group)
        await asyncio.wait({work})
        self._turn_since = None
        self._group = []
        self._pace.learn(size, len(group), loop.time() - started)
        error = work.exception()
        if error is None:
            return
        _tell(group)
        left = [waiting for waiting in group if waiting.ack is None and not waiting.answer.done()]
        if len(group) > 1:  # only the one that does it shall suffer
            for waiting in left:
                await self._turn([waiting])
            return
        self._log_failure(group[0].request.signal, error)
        for waiting in left:
            _answer(waiting, Ack(Outcome.FAILED, message="gpumon failed on this request; its log says more"))

    def _log_failure(self, signal: Signal, error: BaseException) -> None:
        """Once for each kind. Without the error's text, which may quote what was sent, except for debugging."""
        kind = type(error).__name__
        if (signal, kind) not in self._failures:
            self._failures.add((signal, kind))
            log.error("otlp=failed signal=%s error=%s detail='further ones like it are only counted'", signal, kind)
        log.debug("otlp=failed signal=%s", signal, exc_info=error)

    # --- in the worker thread ---------------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting]) -> None:
        ready: list[tuple[_Waiting, bytes]] = []
        size = 0
        for waiting in group:
            if waiting.answer.done():  # its sender has gone, or was turned away
                continue
            body = self._plain_body(waiting)
            if body is None:
                loop.call_soon_threadsafe(_tell, [waiting])
                continue
            ready.append((waiting, body))
            size += len(body)
            if size >= self._limits.gather_bytes:
                self._take(loop, ready)
                ready, size = [], 0
        if ready:
            self._take(loop, ready)

    def _plain_body(self, waiting: _Waiting) -> bytes | None:
        body = waiting.request.body
        if not waiting.request.gzipped:
            return body
        try:
            return inflate(body, self._limits.body_bytes)
        except InflateError as error:
            waiting.ack = Ack(Outcome.BAD, message=str(error))
        except TooLargeError as error:
            waiting.ack = Ack(Outcome.TOO_LARGE, message=str(error))
        return None

    def _take(self, loop: asyncio.AbstractEventLoop, ready: list[tuple[_Waiting, bytes]]) -> None:
        try:
            self._decode_all(ready)
        finally:  # whoever is to be told that it was taken
            self._await_stored([waiting for waiting, _ in ready])
        loop.call_soon_threadsafe(_tell, [waiting for waiting, _ in ready])

    def _decode_all(self, ready: list[tuple[_Waiting, bytes]]) -> None:
        gathered = [pair for pair in ready if pair[0].request.signal is Signal.TRACES and not pair[0].request.is_json]
        if gathered:
            results = self._decoders.traces([body for _, body in gathered])
            for (waiting, body), result in zip(gathered, results, strict=True):
                self._hand_over(waiting, body, result)
        for waiting, body in ready:
            if waiting.ack is None:
                self._hand_over(waiting, body, self._decode(waiting, body))

    def _await_stored(self, handed_over: list[_Waiting]) -> None:
        taken = [waiting for waiting in handed_over if waiting.ack is not None and waiting.ack.outcome in _TAKEN]
        if taken and self._stored is not None and not self._stored():
            for waiting in taken:
                waiting.ack = Ack(Outcome.OVERLOAD, message=_OVERLOADED, retry_after_s=1)

    def _decode(self, waiting: _Waiting, body: bytes) -> Decoded | DecodeError:
        signal, is_json = waiting.request.signal, waiting.request.is_json
        try:
            if signal is Signal.TRACES:
                return self._decoders.traces_json(body)
            if signal is Signal.LOGS:
                return self._decoders.logs(body, is_json)
            waiting.items = self._decoders.metrics(body, is_json)
            return Decoded()
        except DecodeError as error:
            return error

    def _hand_over(self, waiting: _Waiting, body: bytes, decoded: Decoded | DecodeError) -> None:
        if isinstance(decoded, DecodeError):
            waiting.ack = Ack(Outcome.BAD, message=str(decoded))
            return
        request = waiting.request
        if waiting.answer.done():
            return
        try:
            self._sink(request.signal, decoded, body, request.is_json, request.peer, waiting.at_s)
        except SinkFullError:
            waiting.ack = Ack(Outcome.OVERLOAD, message=_OVERLOADED, retry_after_s=1)
            return
        if request.signal is Signal.TRACES:
            waiting.items = len(decoded.spans) + sum(len(steps.span_ids) for steps in decoded.steps)
        elif request.signal is Signal.LOGS:
            waiting.items = len(decoded.logs) + decoded.ignored
        waiting.rejected, waiting.truncated = decoded.rejected, decoded.truncated
        rejected = decoded.rejected_count
        outcome = Outcome.PARTIAL if rejected or decoded.message else Outcome.OK
        waiting.ack = Ack(outcome, rejected, decoded.message)


class _Pace:
    """How long work takes, learnt from the last few turns."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._weight = 1.0

    def learn(self, size: int, requests: int, spent_s: float) -> None:
        self._spent_s = _PACE_DECAY * self._spent_s + spent_s
        self._weight = _PACE_DECAY * self._weight + size + requests * _REQUEST_WEIGHT

    def seconds(self, size: int, requests: int) -> float:
        return self._spent_s / self._weight * (size + requests * _REQUEST_WEIGHT)


def _tell(told: list[_Waiting]) -> None:
    for waiting in told:
        if waiting.ack is not None:
            _answer(waiting, waiting.ack)


def _answer(waiting: _Waiting, ack: Ack) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(ack)
