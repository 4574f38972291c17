"""A client of a llama.cpp behind ``gpumon proxy``: it asks, times every chunk of the answers, and tells nobody.

Requests have a ``traceparent`` of the client's own, by which gpumon's word on each is found. A request starts when it
is sent, on a connection that is there; a token's time is when its chunk has arrived. One reading of CLOCK_REALTIME, and
steady seconds since.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from itertools import count
from typing import Any, NamedTuple, Self

from tests.live.maps import runqueue_wait_s, thread_wait_s
from tests.live.server import MODEL, LlamaServer
from tests.proxy.process import ProxyProcess

PROMPTS = (
    "Write a long story about a lighthouse keeper and the sea.",
    "Explain how a bicycle stays upright while it is ridden.",
    "Describe a market in a small town, early in the morning.",
)
TOKENS = 40
TIMEOUT_S = 60.0


class Answer(NamedTuple):
    """One request, as the client saw it."""

    trace_id: str
    start_ns: int
    """Unix time."""
    token_ns: tuple[int, ...]
    """Of each token, since the start."""
    prompt_tokens: int
    completion_tokens: int
    server_waited_s: float
    """For a CPU meanwhile, all threads of the server together, as the kernel counts it."""
    way_waited_s: float
    """The same of the proxy's threads and of the client's own: by so much times of the two may be apart."""

    @property
    def end_ns(self) -> int:
        """Unix time of the last token."""
        return self.start_ns + self.token_ns[-1]

    @property
    def waits_s(self) -> tuple[float, ...]:
        """What its reader waited for each token, the first one's included."""
        return tuple(
            (after - before) / 1e9 for before, after in zip((0, *self.token_ns[:-1]), self.token_ns, strict=True)
        )

    @property
    def duration_s(self) -> float:
        return self.token_ns[-1] / 1e9

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether any of it was between these, unix time."""
        return self.start_ns < end_ns and start_ns < self.end_ns


class Client:
    """One user, who asks again as soon as an answer is complete. Begins and ends with ``with``."""

    def __init__(self, server: LlamaServer, proxy: ProxyProcess) -> None:
        self._server = server
        self._proxy = proxy
        self._numbers = count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="client", daemon=True)
        self.answers: list[Answer] = []
        """In the order in which they ended."""
        self.error: BaseException | None = None
        """Why it stopped asking, where it was not asked to."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S + 5.0)
        assert not self._thread.is_alive(), "the client did not end"

    def _go_on(self) -> None:
        try:
            while not self._stop.is_set():
                self.answers.append(ask(self._server, self._proxy, next(self._numbers)))
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error


def chat(number: int) -> dict[str, Any]:
    """The body of a request for a streamed answer of ``TOKENS`` tokens, always the same for the same number."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def ask(server: LlamaServer, proxy: ProxyProcess, number: int) -> Answer:
    """One answer. Raises OSError, HTTPException."""
    trace_id = os.urandom(16).hex()
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{os.urandom(8).hex()}-01"}
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)
    server_s, way_s = runqueue_wait_s(server.pid), _way_waited_s(proxy)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start_ns, begun_ns = time.time_ns(), time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(number)), headers)
        reply = connection.getresponse()
        assert reply.status == 200, (reply.status, reply.read())
        token_ns: list[int] = []
        usage: dict[str, int] = {}
        for line in reply:
            arrived_ns = time.monotonic_ns()
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                token_ns.append(arrived_ns - begun_ns)
            usage = chunk.get("usage") or usage
    finally:
        connection.close()
    assert token_ns, f"an answer without tokens: {usage}"
    return Answer(
        trace_id=trace_id,
        start_ns=start_ns,
        token_ns=tuple(token_ns),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        server_waited_s=runqueue_wait_s(server.pid) - server_s,
        way_waited_s=_way_waited_s(proxy) - way_s,
    )


def _way_waited_s(proxy: ProxyProcess) -> float:
    return runqueue_wait_s(proxy.process.pid) + thread_wait_s(os.getpid(), threading.get_native_id())
