"""The dispatcher makes the API when it is first asked for, once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from gpumon.web.asgi import Asgi, Dispatcher, Receive, Scope, Send


def test_many_who_ask_first_at_once_get_the_same_application() -> None:
    made: list[Asgi] = []
    all_asked = threading.Event()
    sent: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def make() -> Asgi:
        all_asked.wait(10)
        made.append(app)
        return app

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def play() -> None:
        dispatcher = Dispatcher({}, lambda: 0.0, list, None, make)
        scope = {"type": "http", "method": "GET", "path": "/api/v1/gpus"}
        asking = [asyncio.ensure_future(dispatcher(scope, receive, send)) for _ in range(5)]
        asyncio.get_running_loop().call_soon(all_asked.set)  # after each of them has begun
        await asyncio.gather(*asking)

    asyncio.run(play())
    assert (len(made), [message["status"] for message in sent]) == (1, [200] * 5)


def test_without_an_api_there_is_nothing_there() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    dispatcher = Dispatcher({}, lambda: 0.0, list, None, None)
    asyncio.run(dispatcher({"type": "http", "method": "GET", "path": "/api/v1/gpus"}, receive, send))
    assert sent[0]["status"] == 404
