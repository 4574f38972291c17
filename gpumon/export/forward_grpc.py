"""OTLP/gRPC out: unary calls with bytes in and bytes out, so that nothing is parsed that need not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError as ProtobufError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from gpumon.export.forward_send import MAX_ANSWER_BYTES, USER_AGENT, Answer, Endpoint, Outcome, Tls, accepted
from gpumon.ingest.request import Signal

_METHODS = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_RETRYABLE = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_CONNECTION_LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_Call = Callable[..., bytes]


class GrpcSender:
    """Not for two threads at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        parts = urlsplit(endpoint.url)
        secure = parts.scheme == "https"
        self._target = parts.netloc if parts.port else f"{parts.netloc}:{443 if secure else 4317}"
        self._tls = endpoint.tls if secure else None
        self._timeout_s = endpoint.timeout_s
        self._metadata = tuple((name.lower(), value) for name, value in endpoint.headers.items())
        self._compression = grpc.Compression.Gzip if endpoint.gzip else grpc.Compression.NoCompression
        self._channel: grpc.Channel | None = None
        self._calls: dict[Signal, _Call] = {}

    def send(self, signal: Signal, body: bytes) -> Outcome:
        """One try."""
        try:
            call = self._call(signal)
            answer = call(body, timeout=self._timeout_s, metadata=self._metadata, compression=self._compression)
        except grpc.RpcError as error:
            code = error.code()
            if code in _CONNECTION_LOST:
                # A new channel tries at once, where a known one waits by a clock of its own, or for a peer long gone.
                self.close()
            asked_s = _retry_info_s(error)
            if code in _RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and asked_s is not None):
                return Outcome(Answer.RETRY, code.name, retry_after_s=asked_s)
            return Outcome(Answer.REFUSED, code.name)
        except (OSError, ValueError) as error:  # certificates that cannot be read, metadata that is none
            self.close()
            return Outcome(Answer.RETRY, type(error).__name__)
        return accepted(answer)

    def close(self) -> None:
        """Close the channel; another try opens one."""
        self._calls.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _call(self, signal: Signal) -> _Call:
        if self._channel is None:
            self._channel = self._open()
        call = self._calls.get(signal)
        if call is None:
            call = self._calls[signal] = self._channel.unary_unary(_METHODS[signal])
        return call

    def _open(self) -> grpc.Channel:
        options = (
            ("grpc.primary_user_agent", USER_AGENT),
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
            # Or a new channel would share the old one's connection, with its waiting time.
            ("grpc.use_local_subchannel_pool", 1),
        )
        if self._tls is None:
            return grpc.insecure_channel(self._target, options)
        return grpc.secure_channel(self._target, _credentials(self._tls), options)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    ca, key, certificate = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.certificate))
    return grpc.ssl_channel_credentials(ca, key, certificate)


def _retry_info_s(error: grpc.RpcError) -> float | None:
    """Seconds of the RetryInfo in the error's details; None without one."""
    metadata = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ())
    for content in (value for name, value in metadata if name == "grpc-status-details-bin"):
        try:
            for detail in Status.FromString(content).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
        except ProtobufError:
            return None
    return None
