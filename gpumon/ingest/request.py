"""What passes between the receivers and the intake: a request, and what to tell its sender."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Transport(StrEnum):
    """Label values of ``gpumon_otlp_requests_total``."""

    GRPC = "grpc"
    HTTP = "http"


class Signal(StrEnum):
    """Label values of ``gpumon_otlp_requests_total``."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


class Outcome(StrEnum):
    """How a request ended. Label values of ``gpumon_otlp_requests_total``."""

    OK = "ok"
    PARTIAL = "partial"  # taken, except for what could not be read, or taken with a warning
    BAD = "bad"  # malformed, or not OTLP: the sender must not send it again
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"  # the body did not come in time
    OVERLOAD = "overload"  # not taken, worth sending again
    UNAVAILABLE = "unavailable"  # gpumon is stopping: not taken, worth sending again
    FAILED = "failed"  # gpumon's own fault


class Request(NamedTuple):
    """One export request as it came over the wire."""

    transport: Transport
    signal: Signal
    body: bytes
    is_json: bool = False
    gzipped: bool = False
    """Whether ``body`` is still compressed."""
    peer: str = ""
    """``address:port`` of the sender, ``[address]:port`` for IPv6; empty where there is none."""


class Ack(NamedTuple):
    """What to tell the sender."""

    outcome: Outcome
    rejected: int = 0
    """Spans, log records or data points left out of what was taken."""
    message: str = ""
    """For the sender's developer. Never quotes an attribute's value."""
    retry_after_s: int = 0
    """With OVERLOAD and UNAVAILABLE."""
