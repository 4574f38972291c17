"""Asks an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from fastapi import FastAPI

from gpumon.web.asgi import Asgi


class Reply(NamedTuple):
    """What it answered."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda text: 1 / 0)  # NaN and Infinity are no JSON


class Answer(NamedTuple):
    """The same, with its headers by their names in lower case."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return Reply(self.status, self.body).json


def ask(app: FastAPI, path: str, query: str = "") -> Reply:
    """GET."""
    return Reply(*ask_asgi(cast(Asgi, app), path, query)[:2])


def ask_asgi(
    app: Asgi, path: str, query: str = "", *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    asyncio.run(cast(Any, app)(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), answered)
