"""Asks an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI


class Reply(NamedTuple):
    """What it answered."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda text: 1 / 0)  # NaN and Infinity are no JSON


def ask(app: FastAPI, path: str, query: str = "") -> Reply:
    """GET."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    asyncio.run(app(scope, receive, send))
    return Reply(sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]))
