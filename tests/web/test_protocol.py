"""The protocol's own answer to a method that HTTP does not know, on a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest
import uvicorn

from gpumon.web.asgi import Receive, Scope, Send
from gpumon.web.protocol import Protocol


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def answered(*parts: bytes) -> bytes:
    """All that comes to this, each part written by itself."""

    async def play() -> bytes:
        config = uvicorn.Config(_app, http=Protocol, lifespan="off", log_config=None, access_log=False)
        config.load()
        state = uvicorn.Server(config).server_state
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(
            lambda: Protocol(config=config, server_state=state, app_state={}, _loop=loop), "127.0.0.1", 0
        )
        async with listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            try:
                return await asyncio.wait_for(reader.read(), 10)
            finally:
                writer.close()

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/v1/node", "GET"),
        ("/", "GET"),
        ("/metrics?names=dcgm", "GET, HEAD"),
        ("/-/ready", "GET, HEAD"),
        ("/-/reload", "POST, PUT"),
    ],
)
@pytest.mark.parametrize("method", ["FOO", "get", "GETX", "X-1!"])
def test_a_method_that_nobody_knows_is_not_allowed(method: str, path: str, allow: str) -> None:
    head, _, body = answered(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 405 Method Not Allowed"
    assert f"allow: {allow}" in lines
    assert f"content-length: {len(body)}" in lines
    if allow == "GET":
        assert "content-type: application/problem+json" in lines
        assert json.loads(body)["status"] == 405


def test_so_it_is_on_a_connection_that_was_used_before() -> None:
    said = answered(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert said.count(b"HTTP/1.1 200 ") + said.count(b"HTTP/1.1 405 ") >= 1
    assert b"HTTP/1.1 400 " not in said


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01" + bytes(100),
        b"nonsense\r\n\r\n",
        b"FOO elsewhere\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_bad_request(noise: bytes) -> None:
    assert answered(noise).startswith(b"HTTP/1.1 400 ")
