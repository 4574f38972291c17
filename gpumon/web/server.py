"""Serves the ASGI application on a socket until a signal ends it: uvicorn on uvloop, cut to what gpumon needs.

SIGTERM and SIGINT end it in order, a second one at once; SIGHUP calls for a reload. Imported when everything else has
been started: it is a tenth of a second that the sampler process needs anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import uvicorn
import uvloop

from gpumon.web.asgi import Asgi
from gpumon.web.protocol import Protocol

GRACE_S = 1
"""For answers under way at the end: a page takes milliseconds."""


Beside = Callable[[], AbstractAsyncContextManager[None]]


def serve(
    asgi: Asgi,
    listener: socket.socket,
    asked_to_end: Callable[[], bool],
    reload: Callable[[], None],
    beside: Beside,
    tls: ssl.SSLContext | None,
    ending: Callable[[], None],
) -> None:
    """Until SIGTERM or SIGINT, or not at all if ``asked_to_end`` before this took over the signals.

    ``reload`` is called in a worker thread; ``beside`` is entered on the event loop for as long as this serves.
    ``tls``: None for plain HTTP. ``ending`` is called on the event loop when it is to end, for answers that go on until
    they are told.
    """
    # It tells of its own life what gpumon tells, and a line for every request that is not HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(_Server(_config(asgi, tls), ending), listener, asked_to_end, reload, beside))


def _config(asgi: Asgi, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        asgi,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # the peer is whoever is connected, not whom they name
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=75,
        limit_concurrency=512,
    )
    config.load()
    config.ssl = tls
    return config


async def _serve(
    server: _Server,
    listener: socket.socket,
    asked_to_end: Callable[[], bool],
    reload: Callable[[], None],
    beside: Beside,
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            os._exit(1)  # asked twice: now
        server.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, reload))
    if asked_to_end():
        server.end()
    async with beside():
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process by the signal and not by its own exit status,
    and without the ten wake-ups a second in which it would look whether to end.
    """

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending
        self._ended = asyncio.Event()

    def end(self) -> None:
        """From the event loop."""
        self.should_exit = True
        self._ended.set()
        self._ending()

    async def main_loop(self) -> None:
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
