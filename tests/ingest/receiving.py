"""Receivers that really listen, on loopback ports the system picks, in a thread of their own; what they took."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import uvloop

from gpumon.host.clock import SystemClock
from gpumon.ingest.auth import gate
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.grpc_server import GrpcReceiver
from gpumon.ingest.http_listener import HttpListener
from gpumon.ingest.http_server import OtlpHttp
from gpumon.ingest.intake import Decoders, Intake, Sink
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.limits import Limits
from gpumon.ingest.records import Decoded
from gpumon.ingest.request import Signal
from gpumon.ingest.signals import count_metrics, decode_logs
from gpumon.ingest.web_config import WebConfig, grpc_credentials, ssl_context
from gpumon.model import Distribution

T = TypeVar("T")
DECODERS = Decoders(decode_traces, decode_traces_json, decode_logs, count_metrics)
PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Taken(NamedTuple):
    """One call of the sink."""

    signal: Signal
    decoded: Decoded
    body: bytes
    is_json: bool
    peer: str


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class Receiving:
    """Both servers over one intake. ``with`` runs them."""

    def __init__(
        self,
        limits: Limits | None = None,
        decoders: Decoders = DECODERS,
        sink: Sink | None = None,
        web: WebConfig | None = None,
        grpc_port: int = 0,
        http_port: int = 0,
    ) -> None:
        self.limits = limits or Limits()
        self.taken: list[Taken] = []
        self.web = web or WebConfig()
        self._decoders = decoders
        self._sink = sink or self._take
        self._ports = (grpc_port, http_port)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), name="receiving")  # as the daemon does
        self._failure: BaseException | None = None
        self.grpc_port = self.http_port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(20)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the receivers' loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def post(
        self,
        path: str,
        body: bytes,
        media: str | None = PROTOBUF,
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            sent = dict(headers or {}) | ({} if media is None else {"Content-Type": media})
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def raw(self, data: bytes = b"") -> socket.socket:
        """A connection to the HTTP port on which ``data`` has been sent."""
        connection = socket.create_connection(("127.0.0.1", self.http_port), timeout=30)
        connection.sendall(data)
        return connection

    def counts(self) -> dict[tuple[str, ...], float]:
        """Every sample that is not 0, by short name and labels."""
        return {
            (sample.metric.stem, *sample.labels): sample.value
            for sample in [*self.intake.samples(), *self.http.samples()]
            if not isinstance(sample.value, Distribution) and sample.value
        }

    def _take(self, signal: Signal, decoded: Decoded, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        assert at_s > 0
        self.taken.append(Taken(signal, decoded, body, is_json, peer))

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        grpc_port, http_port = self._ports
        tls = self.web.tls
        self.intake = Intake(self._decoders, self._sink, SystemClock(), self.limits)
        keeper = gate(self.web)
        self.http = HttpListener(
            OtlpHttp(self.intake, self.limits, keeper), self.limits, None if tls is None else ssl_context(tls)
        )
        self.grpc = GrpcReceiver(self.intake, self.limits, keeper, None if tls is None else grpc_credentials(tls))
        try:
            self.grpc_port = await self.grpc.start(f"127.0.0.1:{grpc_port}")
            listener = socket.create_server(("127.0.0.1", http_port), backlog=2048)
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        self.http_port = listener.getsockname()[1]
        self.intake.start()
        self.http.start(listener)
        self._started.set()
        await self._end.wait()
        await asyncio.gather(self.grpc.stop(0.5), self.http.stop())
        await self.intake.stop(0.5)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes, or resets."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return data
