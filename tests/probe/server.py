"""A server of OpenAI's interface on a real socket, whose every delay is known: what a probe is measured by.

It counts words as tokens, and answers as it is told: by default a prompt takes ``prefill_s`` of its length, and each
further token ``gap_s``. It keeps when it wrote each token, so that what a probe measured can be compared with what was.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

Sender = Callable[[bytes], Awaitable[None]]
Other = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)


@dataclass
class Request:
    """What came, and when tokens went."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    came_ns: int
    """Its last byte."""
    token_ns: list[int] = field(default_factory=list)
    """When each token was written."""

    @property
    def words(self) -> int:
        return len(self.prompt.split())

    @property
    def prompt(self) -> str:
        text = self.body["prompt"] if "prompt" in self.body else self.body["messages"][0]["content"]
        assert isinstance(text, str)
        return text


class Server:
    """Serves from ``with`` on, in a thread of its own. Change its fields between runs."""

    def __init__(self) -> None:
        self.prefill_s: Callable[[int], float] = lambda words: 0.0
        self.gap_s: Callable[[int], float] = lambda words: 0.0
        self.context = 1 << 30
        self.tokens_per_word = 1.0
        self.counts = True
        """Whether it tells usage."""
        self.per_event = 1
        """Tokens of an event."""
        self.models = ["small"]
        self.other: Other | None = None
        """Instead of an answer."""
        self.requests: list[Request] = []
        """Of completions, in the order they came."""
        self.open = self.open_most = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def timed(self) -> list[Request]:
        """Requests of the ladder: without the short ones before it."""
        return [request for request in self.requests if request.body["max_tokens"] > 1]

    def gone(self) -> None:
        """No new connection is taken."""
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.close)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = head[0].split()
            if method == "GET":
                said = {"data": [{"id": name} for name in self.models]}
                writer.write(answer(200, json.dumps(said).encode()))
            else:
                request = Request(path, headers, json.loads(body), time.perf_counter_ns())
                self.requests.append(request)
                self.open += 1
                self.open_most = max(self.open, self.open_most)
                try:
                    await (self.other or self._answer)(request, writer)
                finally:
                    self.open -= 1
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        prompt = round(request.words * self.tokens_per_word)
        if prompt + request.body["max_tokens"] > self.context:
            said = {"error": {"message": f"This model's maximum context length is {self.context} tokens.", "code": 400}}
            writer.write(answer(400, json.dumps(said).encode()))
            return
        writer.write(STREAM)
        chat = request.path.endswith("/chat/completions")
        if chat:
            writer.write(event({"choices": [{"delta": {"role": "assistant", "content": None}}]}))
        await pause(self.prefill_s(request.words))
        made = request.body["max_tokens"]
        for number in range(0, made, self.per_event):
            if number:
                await pause(self.gap_s(request.words))
            token = {"delta": {"content": "word"}} if chat else {"text": "word"}
            writer.write(event({"id": "x", "choices": [token | {"finish_reason": None}]}))
            request.token_ns.append(time.perf_counter_ns())
            await writer.drain()
        end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        writer.write(event({"choices": [end | {"finish_reason": "length"}]}))
        if self.counts:
            usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
            writer.write(event({"choices": [], "usage": usage}))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def pause(seconds: float) -> None:
    """A real one: it is what is measured."""
    if seconds > 0:
        await asyncio.sleep(seconds)


def event(said: object) -> bytes:
    """As a chunk."""
    return chunk(b"data: " + json.dumps(said).encode() + b"\n\n")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(status: int, body: bytes, *headers: bytes) -> bytes:
    """One that is whole."""
    lines = [b"HTTP/1.1 %d Whatever" % status, b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *headers, b"Connection: close", b"", body])
