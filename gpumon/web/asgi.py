"""The HTTP server's first look at a request: scrapes and health are answered here, the rest goes to FastAPI.

``/metrics`` serves ready bytes; when they are not ready it renders in a worker thread, so that the event loop never
waits. ``/-/healthy`` looks at nothing but this loop. FastAPI is imported when the first request for it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from gpumon.export.scrape import Response, ScrapeCache

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class Admin(Protocol):
    """What an operator may ask for. Each returns what to tell them, or raises RefusedError."""

    def reload(self) -> str: ...

    def release_nvml(self) -> str: ...

    def acquire_nvml(self) -> str: ...


class RefusedError(Exception):
    """The request was understood and cannot be done; the text says why."""


class Dispatcher:
    """The ASGI application."""

    def __init__(
        self,
        pages: Mapping[str, ScrapeCache],
        now_s: Callable[[], float],
        waiting_for: Callable[[], list[str]],
        admin: Admin | None,
        make_api: Callable[[], Asgi] | None,
    ) -> None:
        """``pages``: by value of ``names``, "" for gpumon's own. ``admin``: None when it is switched off."""
        self._pages = pages
        self._now_s = now_s
        self._waiting_for = waiting_for
        self._admin = admin
        self._make_api = make_api
        self._api: Asgi | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path == "/metrics":
            await self._metrics(scope, method, send)
        elif path.startswith("/-/"):
            await self._control(path, method, send)
        elif self._make_api is None:
            await _answer(send, 404, "not found\n")
        else:
            await (self._api or await self._made(self._make_api))(scope, receive, send)

    async def _made(self, make_api: Callable[[], Asgi]) -> Asgi:
        """The one application, whoever asks first: a browser asks for several things at once."""
        async with self._making:
            if self._api is None:
                self._api = await asyncio.to_thread(make_api)
            return self._api

    async def _metrics(self, scope: Scope, method: str, send: Send) -> None:
        if method not in ("GET", "HEAD"):
            await _answer(send, 405, "GET or HEAD\n", allow="GET, HEAD")
            return
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=16)
        except ValueError:
            await _answer(send, 400, "more than 16 parameters\n")
            return
        names = query.get("names", [""])[-1]
        cache = self._pages.get(names)
        if cache is None:
            known = ", ".join(name for name in self._pages if name)
            await _answer(send, 400, f"unknown names; one of: {known}, or none\n")
            return
        accept = _header(scope, b"accept")
        encoding = _header(scope, b"accept-encoding")
        now_s = self._now_s()
        response = cache.ready(accept, encoding, now_s)
        if response is None:
            response = await asyncio.to_thread(cache.scrape, accept, encoding, now_s)
        await _send(send, response, with_body=method == "GET")

    async def _control(self, path: str, method: str, send: Send) -> None:
        if path in ("/-/healthy", "/-/ready"):
            if method not in ("GET", "HEAD"):
                await _answer(send, 405, "GET or HEAD\n", allow="GET, HEAD")
                return
            waiting = self._waiting_for() if path == "/-/ready" else []
            if waiting:
                await _answer(send, 503, f"waiting for the first pass of: {', '.join(waiting)}\n")
            else:
                await _answer(send, 200, "ok\n")
            return
        actions = {
            "/-/reload": lambda admin: admin.reload,
            "/-/release-nvml": lambda admin: admin.release_nvml,
            "/-/acquire-nvml": lambda admin: admin.acquire_nvml,
        }
        choose = actions.get(path)
        if choose is None:
            await _answer(send, 404, "not found\n")
        elif self._admin is None:
            await _answer(send, 403, "switched off; http.admin switches it on\n")
        elif method not in ("POST", "PUT"):
            await _answer(send, 405, "POST or PUT\n", allow="POST, PUT")
        else:
            try:
                text = await asyncio.to_thread(choose(self._admin))
            except RefusedError as error:
                await _answer(send, 409, f"{error}\n")
            else:
                await _answer(send, 200, f"{text}\n")


def _header(scope: Scope, name: bytes) -> str | None:
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values) if values else None


async def _answer(send: Send, status: int, text: str, *, allow: str | None = None) -> None:
    body = text.encode()
    headers = [_TEXT, (b"content-length", str(len(body)).encode())]
    if allow is not None:
        headers.append((b"allow", allow.encode()))
    await _send(send, Response(status, headers, body), with_body=True)


async def _send(send: Send, response: Response, *, with_body: bool) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body if with_body else b""})
