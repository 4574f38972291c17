"""What a downstream may answer, and how long to wait before trying again.

Retryable are exactly what the OTLP specification lists: HTTP 429, 502, 503, 504; gRPC CANCELLED, DEADLINE_EXCEEDED,
ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS, and RESOURCE_EXHAUSTED with a RetryInfo; and every failure to get an
answer at all. Everything else is final. Texts of answers are not kept: they may quote what was sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from gpumon import __version__
from gpumon.ingest.request import Signal, Transport

USER_AGENT = f"gpumon/{__version__}"
MAX_ANSWER_BYTES = 4 << 20
"""OTLP's limit for an answer."""
LONGEST_RETRY_AFTER_S = 300.0
"""A downstream that asks for more is asked again after this time."""


class Answer(StrEnum):
    """What came of a try."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a try, and the details."""

    answer: Answer
    detail: str = ""
    """Status or error, for the log."""
    rejected: int = 0
    """Of what was accepted, the items that the downstream did not take (partial success)."""
    retry_after_s: float | None = None
    """What the downstream asked for."""


class Sender(Protocol):
    """Sends one export request; gives up after its deadline; raises nothing."""

    def send(self, signal: Signal, body: bytes) -> Outcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for an https endpoint; None: the system's authorities, no certificate of our own."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send."""

    url: str
    """http(s)://host:port, for HTTP with a path before /v1/traces if there is one."""
    protocol: Transport = Transport.GRPC
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; may hold credentials, so never logged."""
    tls: Tls = Tls()
    timeout_s: float = 10.0
    gzip: bool = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the endpoint must be http://host:port or https://host:port")
        if self.protocol is Transport.GRPC and parts.path not in ("", "/"):
            raise ValueError("a gRPC endpoint has no path")


def make_sender(endpoint: Endpoint, now_s: Callable[[], float], unix_s: Callable[[], float]) -> Sender:
    """The sender for an endpoint; imports gRPC only for that. now_s: steady, for deadlines; unix_s: for dates."""
    if endpoint.protocol is Transport.GRPC:
        from gpumon.export.forward_grpc import GrpcSender

        return GrpcSender(endpoint)
    from gpumon.export.forward_http import HttpSender

    return HttpSender(endpoint, now_s, unix_s)


def accepted(body: bytes) -> Outcome:
    """An Export…ServiceResponse, of any signal: they are alike on the wire. One that cannot be read means nothing."""
    try:
        rejected = ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
    except ProtobufError:
        rejected = 0
    return Outcome(Answer.ACCEPTED, rejected=max(0, rejected))


@dataclass(slots=True)
class Backoff:
    """Time between tries: doubles from ``first_s`` to ``most_s``, each shortened by up to ``jitter`` of itself."""

    first_s: float = 1.0
    most_s: float = 30.0
    jitter: float = 0.3
    random: Callable[[], float] = random.random
    """From 0 to 1; handed in by tests."""
    _tries: int = 0

    def next_s(self, asked_s: float | None) -> float:
        """How long to wait now; at least what the downstream asked for, within reason."""
        wait_s = min(self.most_s, self.first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        wait_s *= 1.0 - self.jitter * self.random()
        return max(wait_s, min(asked_s or 0.0, LONGEST_RETRY_AFTER_S))

    def reset(self) -> None:
        """The downstream answered."""
        self._tries = 0
