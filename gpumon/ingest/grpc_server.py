"""OTLP over gRPC: the three Export services, on raw bytes.

gRPC's core does HTTP/2, gzip and the size limit (also of what is decompressed); messages are handed to the intake as
they are. Answers: ``Export…ServiceResponse``, or a status with ``google.rpc.Status`` as its details. Importing this
module loads grpc (about 16 MB), so do it only where the port is wanted.

HTTP/1 sent to this port is closed by gRPC's core, which has no way to tell of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import grpc

from gpumon.ingest.answers import MESSAGE_CHARACTERS, RPC_CODE, response, retry_info, status
from gpumon.ingest.auth import Gate
from gpumon.ingest.intake import Intake
from gpumon.ingest.limits import Limits
from gpumon.ingest.request import Ack, Outcome, Request, Signal, Transport

SERVICES = {
    "opentelemetry.proto.collector.trace.v1.TraceService": Signal.TRACES,
    "opentelemetry.proto.collector.metrics.v1.MetricsService": Signal.METRICS,
    "opentelemetry.proto.collector.logs.v1.LogsService": Signal.LOGS,
}

_STREAMS = 64
"""Most calls at a time on one connection: each may hold a message of the full size."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcReceiver:
    """The gRPC server."""

    def __init__(
        self,
        intake: Intake,
        limits: Limits,
        gate: Gate | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """``gate``: who may send, None: everybody. ``credentials``: TLS, None: plain text."""
        self._intake = intake
        self._gate = gate
        self._credentials = credentials
        self._options = (
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.server_handshake_timeout_ms", round(limits.head_timeout_s * 1000)),
            ("grpc.so_reuseport", 0),  # a second gpumon on the port is an error, not a partner
        )
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Serve on ``host:port`` (port 0: any free one), on the running event loop; the port. Raises OSError."""
        server = grpc.aio.server(options=self._options)
        for service, signal in SERVICES.items():
            method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._export(signal))
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as err:
            raise OSError(f"cannot listen on {address} for OTLP/gRPC: {err}") from err
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, end those still open after ``grace_s``."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _export(self, signal: Signal) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
        async def export(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            if self._gate is not None and not await self._gate.admits(_authorization(context)):
                ack = Ack(Outcome.UNAUTHORIZED, message="missing or wrong credentials")
                self._intake.refused(Transport.GRPC, signal, ack.outcome)
            else:
                ack = await self._intake.submit(Request(Transport.GRPC, signal, body, peer=_peer(context.peer())))
            if ack.outcome not in (Outcome.OK, Outcome.PARTIAL):
                details = [("grpc-status-details-bin", status(ack, as_json=False))]
                if ack.retry_after_s:  # where the official Python exporter looks for it
                    details.append(("google.rpc.retryinfo-bin", retry_info(ack.retry_after_s)))
                await context.abort(_CODES[RPC_CODE[ack.outcome]], ack.message[:MESSAGE_CHARACTERS], tuple(details))
            return response(signal, ack, as_json=False)

        return export


def _authorization(context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes | None:
    values = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    if len(values) != 1:
        return None
    return values[0].encode() if isinstance(values[0], str) else values[0]


def _peer(peer: str) -> str:
    """gRPC's ``ipv4:127.0.0.1:1`` or ``ipv6:%5B::1%5D:1`` as ``address:port``; other kinds have none."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in ("ipv4", "ipv6") else ""
