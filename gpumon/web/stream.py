"""Server-sent events: what is true now, each second, and incidents as they open and close.

One task makes the news for all who listen, in a worker thread, and none while nobody does. Each listener has a bounded
queue: who does not read for QUEUE events is told and hung up on, and so is everybody when gpumon ends. A listener that
does not even take that is cut off after STALL_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

from gpumon.web.answers import problem
from gpumon.web.asgi import Asgi, Receive, Scope, Send

log = logging.getLogger(__name__)

QUEUE: Final = 16
LISTENERS_MAX: Final = 32
EVERY_S: Final = 1.0
KEEP_ALIVE_S: Final = 15.0
STALL_S: Final = 30.0
RETRY_MS: Final = 3000
_COMMENT: Final = b":\n\n"
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events before it passed them on
)

News = Callable[[bool], Sequence[bytes]]
"""Events, made in a worker thread; True: all that somebody who just came must know."""


def event(name: str, data: str) -> bytes:
    """One event. data: a line."""
    return f"event: {name}\ndata: {data}\n\n".encode()


class _Listener:
    """One connection."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self.bye: bytes | None = None
        """What is said before hanging up, once it is to be."""


class Stream:
    """Everything on one event loop, but for ``news``."""

    def __init__(self, news: News, *, every_s: float = EVERY_S, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._news = news
        self._every_s = every_s
        self._keep_alive_s = keep_alive_s
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def listeners(self) -> int:
        """How many there are."""
        return len(self._listeners)

    def end(self) -> None:
        """Say so to everybody, and hang up. On the event loop."""
        self._is_ending = True
        for listener in [*self._listeners]:
            self._dismiss(listener, "ending")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One listener, until it leaves or is dismissed."""
        if self._is_ending or len(self._listeners) >= LISTENERS_MAX:
            why = "gpumon ends" if self._is_ending else f"{LISTENERS_MAX} listen already; /api/v1/gpus can be polled"
            refusal = problem(503, why, headers={"retry-after": "10"})
            await cast(Asgi, refusal)(scope, receive, send)  # Starlette's types are its own
            return
        listener = _Listener()
        self._listeners.add(listener)
        gone = asyncio.ensure_future(_left(receive))
        telling = asyncio.ensure_future(self._tell(listener, send))
        try:
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        except (OSError, TimeoutError):
            pass  # it left, or took nothing for too long
        finally:
            self._listeners.discard(listener)
            for task in (gone, telling):
                task.cancel()
            await asyncio.gather(gone, telling, return_exceptions=True)

    async def _tell(self, listener: _Listener, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})
        first = b"".join(await asyncio.to_thread(self._news, True))
        await _send(send, b"retry: %d\n\n" % RETRY_MS + first)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._make_news())
        while listener.bye is None or not listener.queue.empty():
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    part = await listener.queue.get()
            except TimeoutError:
                part = _COMMENT
            await _send(send, part)
        await _send(send, listener.bye)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _make_news(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._listeners:
                begun_s = loop.time()
                for part in await asyncio.to_thread(self._news, False):
                    for listener in [*self._listeners]:
                        self._offer(listener, part)
                await asyncio.sleep(max(0.0, self._every_s - (loop.time() - begun_s)))
        finally:
            for listener in [*self._listeners]:  # only where making news failed: they come again
                self._dismiss(listener, "failed")

    def _offer(self, listener: _Listener, part: bytes) -> None:
        try:
            listener.queue.put_nowait(part)
        except asyncio.QueueFull:
            log.info("stream=dismissed detail='a listener did not read %d events'", QUEUE)
            self._dismiss(listener, "slow")

    def _dismiss(self, listener: _Listener, reason: str) -> None:
        """What waits for it is dropped: it is old by now."""
        listener.bye = event("bye", f'{{"reason":"{reason}"}}')
        while not listener.queue.empty():
            listener.queue.get_nowait()
        listener.queue.put_nowait(_COMMENT)  # wakes it up
        self._listeners.discard(listener)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, part: bytes) -> None:
    async with asyncio.timeout(STALL_S):
        await send({"type": "http.response.body", "body": part, "more_body": True})
