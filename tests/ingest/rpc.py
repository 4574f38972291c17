"""The official classes of google.rpc, which come without types, in one place; and typed calls of the Export methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no stubs for this package

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

Status: Any = status_pb2.Status
RetryInfo: Any = error_details_pb2.RetryInfo


class Call(Protocol):
    """A bound method of a service."""

    def __call__(self, request: Any, **options: Any) -> Any: ...

    def future(self, request: Any, **options: Any) -> Any: ...


def raw(channel: grpc.Channel, method: str = TRACES) -> Call:
    """The method on bytes."""
    call: Any = channel.unary_unary(method)
    return call  # type: ignore[no-any-return]  # a Call


def stub(channel: grpc.Channel, method: str, answer: type[Message]) -> Call:
    """The method on the official classes."""
    read: Callable[[bytes], Message] = answer.FromString
    call: Any = channel.unary_unary(method, lambda request: request.SerializeToString(), read)
    return call  # type: ignore[no-any-return]  # a Call
