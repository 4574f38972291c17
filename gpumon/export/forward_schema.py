"""Just enough of an export request to edit it in passing: a schema of its own for the official wire format.

Everything but the ids, times and attributes of spans is unknown to upb here, which keeps unknown fields as they came
and writes them back. So a request costs a few nanoseconds per token event, whatever the events hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.ingest.request import Signal

_Field = descriptor_pb2.FieldDescriptorProto
_NO_TRACE = bytes(16)
_NO_SPAN = bytes(8)


class EditError(Exception):
    """The request cannot be read."""


def _schema(package: str, names: tuple[str, str, str], item: Mapping[str, tuple[int, int]] | None) -> type[Message]:
    """Request > resource > scope > item, with the field numbers that all three signals share; None: item as bytes.

    names: the fields that lead from one to the next. item: numbers and types of its fields.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message, inner, name, number in (
        ("Request", "Resource", names[0], 1),
        ("Resource", "Scope", names[1], 2),
        ("Scope", "Item", names[2], 2),
    ):
        entry = file.message_type.add(name=message).field.add(name=name, number=number, label=_Field.LABEL_REPEATED)
        if inner == "Item" and item is None:
            entry.type = _Field.TYPE_BYTES
        else:
            entry.type = _Field.TYPE_MESSAGE
            entry.type_name = f".{package}.{inner}"
    if item is not None:
        fields = file.message_type.add(name="Item").field
        for name, (number, kind) in item.items():
            label = _Field.LABEL_REPEATED if name == "attributes" else _Field.LABEL_OPTIONAL
            fields.add(name=name, number=number, type=cast("_Field.Type.ValueType", kind), label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Request"))


# Casts: the stand-ins have these fields of the official messages, except that attributes and log records are bytes.
_Spans = cast(
    "type[ExportTraceServiceRequest]",
    _schema(
        "gpumon.forward.spans",
        ("resource_spans", "scope_spans", "spans"),
        {
            "trace_id": (1, _Field.TYPE_BYTES),
            "span_id": (2, _Field.TYPE_BYTES),
            "name": (5, _Field.TYPE_BYTES),  # text that is not UTF-8 is for others to judge
            "start_time_unix_nano": (7, _Field.TYPE_FIXED64),
            "end_time_unix_nano": (8, _Field.TYPE_FIXED64),
            "attributes": (9, _Field.TYPE_BYTES),
        },
    ),
)
_Items = cast(
    "type[ExportLogsServiceRequest]",
    _schema("gpumon.forward.items", ("resource_logs", "scope_logs", "log_records"), None),
)


def count_items(signal: Signal, data: bytes) -> int:
    """Spans, log records or metrics in a request. What this can read, the other functions can.

    Raises:
        EditError: it cannot be read.
    """
    if signal is Signal.TRACES:
        return sum(len(scope.spans) for resource in parse_spans(data).resource_spans for scope in resource.scope_spans)
    return sum(len(scope.log_records) for resource in parse_items(data).resource_logs for scope in resource.scope_logs)


def has_valid_ids(span: Span) -> bool:
    """Whether a span is one: 16 and 8 bytes, neither all zero."""
    trace_id, span_id = span.trace_id, span.span_id
    return len(trace_id) == 16 and len(span_id) == 8 and trace_id != _NO_TRACE and span_id != _NO_SPAN


def parse_spans(data: bytes) -> ExportTraceServiceRequest:
    """A request of spans. Of a span only ids, name, times and attributes can be read, the name and each attribute as
    bytes.

    Raises:
        EditError: it cannot be read.
    """
    try:
        return _Spans.FromString(data)
    except ProtobufError as error:
        raise EditError("not a protobuf export request") from error


def parse_items(data: bytes) -> ExportLogsServiceRequest:
    """A request of any signal, as one of log records, each as bytes.

    Raises:
        EditError: it cannot be read.
    """
    try:
        return _Items.FromString(data)
    except ProtobufError as error:
        raise EditError("not a protobuf export request") from error


def varint(value: int) -> bytes:
    """An unsigned number on the wire."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field on the wire."""
    size = len(content)
    return (
        bytes((number << 3 | 2, size)) + content if size < 0x80 else bytes((number << 3 | 2,)) + varint(size) + content
    )
