"""Asks a llama.cpp server, times every chunk of its answers, and tells gpumon: a span each, in the compact form.

It stands where gpumon's own token-timing proxy is to stand: llama.cpp sends no traces itself. Times are those of the
client: the span starts when the request is sent, a token's time is when its chunk has arrived. One reading of
CLOCK_REALTIME, and steady seconds since, as docs/TOKENS.md asks for.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from itertools import count
from typing import NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.live.maps import runqueue_wait_s
from tests.live.server import MODEL, LlamaServer

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
    """One user, who asks again as soon as an answer is complete. Begins and ends with ``with``.

    otlp_port: of gpumon's OTLP receiver, over HTTP.
    """

    def __init__(self, server: LlamaServer, otlp_port: int) -> None:
        self._server = server
        # One connection for all, as exporters have.
        self._gpumon = http.client.HTTPConnection("127.0.0.1", otlp_port, timeout=TIMEOUT_S)
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
        self._gpumon.close()

    def _go_on(self) -> None:
        try:
            while not self._stop.is_set():
                answer = ask(self._server, next(self._numbers))
                self._export(answer)
                self.answers.append(answer)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error

    def _export(self, answer: Answer) -> None:
        body = export(answer, self._server.pid)
        self._gpumon.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
        reply = self._gpumon.getresponse()
        said = reply.read()
        assert reply.status == 200, (reply.status, said)


def ask(server: LlamaServer, number: int) -> Answer:
    """One answer of ``TOKENS`` tokens, always the same for the same number. Raises OSError, HTTPException."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    before_s = runqueue_wait_s(server.pid)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start_ns, begun_ns = time.time_ns(), time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
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
        trace_id=os.urandom(16).hex(),
        start_ns=start_ns,
        token_ns=tuple(token_ns),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        server_waited_s=runqueue_wait_s(server.pid) - before_s,
    )


def export(answer: Answer, pid: int) -> bytes:
    """The request span of an answer by the server with this pid, as an OTLP export request."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(
        (
            KeyValue(key="service.name", value=AnyValue(string_value="llama.cpp")),
            KeyValue(key="host.name", value=AnyValue(string_value=socket.gethostname())),
            KeyValue(key="process.pid", value=AnyValue(int_value=pid)),
        )
    )
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = "gpumon.tokens"
    times = ArrayValue(values=[AnyValue(int_value=token_ns) for token_ns in answer.token_ns])
    of_scope.spans.add(
        trace_id=bytes.fromhex(answer.trace_id),
        span_id=bytes.fromhex(answer.trace_id)[:8],
        name="gen_ai.request",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=answer.start_ns,
        end_time_unix_nano=answer.end_ns,
        attributes=(
            KeyValue(key="gen_ai.request.model", value=AnyValue(string_value=MODEL)),
            KeyValue(key="gen_ai.request.max_tokens", value=AnyValue(int_value=TOKENS)),
            KeyValue(key="gen_ai.request.temperature", value=AnyValue(double_value=0.0)),
            KeyValue(key="gen_ai.usage.input_tokens", value=AnyValue(int_value=answer.prompt_tokens)),
            KeyValue(key="gen_ai.usage.output_tokens", value=AnyValue(int_value=answer.completion_tokens)),
            KeyValue(key="gen_ai.token.times_ns", value=AnyValue(array_value=times)),
        ),
    )
    return request.SerializeToString()
