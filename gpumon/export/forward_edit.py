"""Edits OTLP export requests in passing: adds attributes to spans, leaves spans out, counts, splits.

Reads only what it must: a schema in which everything but the ids, times and attributes of spans is unknown to upb,
which keeps unknown fields as they came and writes them back. So a request costs a few nanoseconds per token event,
whatever the events hold. The order of fields on the wire may change, their meaning does not. A request in which
nothing is to be changed is handed on as it is, byte for byte.

Protobuf only; JSON is converted before (``forward_json``). Spans without valid ids are left out, as the receiver
already told their sender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from gpumon.ingest.records import STEP_SPAN_NAMES

AttributeValue = str | int | float | tuple[str, ...]
Attribute = tuple[str, AttributeValue]
Annotate = Callable[[bytes, bytes, int, int], Sequence[Attribute]]
"""What to add to the span of (trace id, span id, start, end): times in unix nanoseconds; empty for nothing."""
Keep = Callable[[bytes], bool]
"""Whether to forward a trace, by its id."""

_Field = descriptor_pb2.FieldDescriptorProto
_STEP_NAMES = frozenset(name.encode() for name in STEP_SPAN_NAMES)
_NO_TRACE = bytes(16)
_NO_SPAN = bytes(8)


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


class EditError(Exception):
    """The request cannot be read."""


@dataclass(slots=True)
class Edited:
    """A request of spans as it is to be forwarded."""

    data: bytes
    spans: int
    """Left in it."""
    invalid: int = 0
    """Left out for their ids."""
    unwanted: int = 0
    """Left out by ``keep``."""


class Part(NamedTuple):
    """A request of its own, cut out of another one."""

    data: bytes
    items: int


@dataclass(slots=True)
class TracePart:
    """All that one request says about one trace."""

    items: int = 0
    start_ns: int = 0
    """Least start and greatest end that are told; 0 where none is."""
    end_ns: int = 0
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The request of its own."""
        return _compose(self.pieces)


class _Piece(NamedTuple):
    resource: bytes
    """The resource's message without what is below it; pieces of one resource share the object."""
    scope: bytes
    item: bytes


def count_items(data: bytes) -> int:
    """Spans, log records or metrics in a request of any signal.

    Raises:
        EditError: it cannot be read.
    """
    return sum(
        len(scope.log_records) for resource in _parsed_items(data).resource_logs for scope in resource.scope_logs
    )


def edit(data: bytes, *, annotate: Annotate | None = None, keep: Keep | None = None) -> Edited:
    """Leave out spans of traces not kept and spans without valid ids; add what ``annotate`` returns.

    Spans that only say that a step ran are not asked about. An attribute that a span has already stays as it is.

    Raises:
        EditError: it cannot be read.
    """
    request = _parsed_spans(data)
    edited = Edited(data, 0)
    changed = False
    last, wanted = b"", True
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            spans = scope.spans
            unwanted: list[int] = []
            for position, span in enumerate(spans):
                trace_id, span_id = span.trace_id, span.span_id
                if len(trace_id) != 16 or len(span_id) != 8 or trace_id == _NO_TRACE or span_id == _NO_SPAN:
                    edited.invalid += 1
                    unwanted.append(position)
                    continue
                if keep is not None:
                    if trace_id != last:
                        last, wanted = trace_id, keep(trace_id)
                    if not wanted:
                        edited.unwanted += 1
                        unwanted.append(position)
                        continue
                edited.spans += 1
                if annotate is not None and cast(bytes, span.name) not in _STEP_NAMES:
                    added = annotate(trace_id, span_id, span.start_time_unix_nano, span.end_time_unix_nano)
                    changed |= bool(added) and _add(cast("list[bytes]", span.attributes), added)
            for position in reversed(unwanted):
                del spans[position]
            changed |= bool(unwanted)
    if changed:
        edited.data = request.SerializeToString()
    return edited


def by_trace(data: bytes) -> tuple[dict[bytes, TracePart], int]:
    """The request cut up by trace id, and how many spans were left out for their ids.

    Raises:
        EditError: it cannot be read.
    """
    parts: dict[bytes, TracePart] = {}
    invalid = 0
    request = _parsed_spans(data)
    for resource in request.resource_spans:
        scopes = list(resource.scope_spans)
        del resource.scope_spans[:]
        resource_rest = resource.SerializeToString()
        for scope in scopes:
            spans = list(scope.spans)
            del scope.spans[:]
            scope_rest = scope.SerializeToString()
            for span in spans:
                trace_id = span.trace_id
                if len(trace_id) != 16 or len(span.span_id) != 8 or trace_id == _NO_TRACE or span.span_id == _NO_SPAN:
                    invalid += 1
                    continue
                part = parts.get(trace_id)
                if part is None:
                    part = parts[trace_id] = TracePart()
                part.items += 1
                start_ns = span.start_time_unix_nano
                if start_ns and (not part.start_ns or start_ns < part.start_ns):
                    part.start_ns = start_ns
                part.end_ns = max(part.end_ns, span.end_time_unix_nano)
                part.pieces.append(_Piece(resource_rest, scope_rest, span.SerializeToString()))
    return parts, invalid


def split(data: bytes, max_bytes: int, max_items: int) -> list[Part]:
    """The request cut into requests within these bounds; a single item larger than that stays whole.

    Raises:
        EditError: it cannot be read.
    """
    items = count_items(data)
    if len(data) <= max_bytes and items <= max_items:
        return [Part(data, items)]
    parts: list[Part] = []
    pieces: list[_Piece] = []
    size = 0
    for piece in _pieces(data):
        new_scope = not pieces or pieces[-1].scope is not piece.scope
        # 16: two tags and two lengths around the rest of resource and scope; 6: those of the item.
        cost = len(piece.item) + 6 + (len(piece.resource) + len(piece.scope) + 16 if new_scope else 0)
        if pieces and (size + cost > max_bytes or len(pieces) == max_items):
            parts.append(Part(_compose(pieces), len(pieces)))
            pieces, size = [], 0
            cost = len(piece.item) + len(piece.resource) + len(piece.scope) + 22
        pieces.append(piece)
        size += cost
    if pieces:
        parts.append(Part(_compose(pieces), len(pieces)))
    return parts


def _pieces(data: bytes) -> Iterator[_Piece]:
    for resource in _parsed_items(data).resource_logs:
        scopes = list(resource.scope_logs)
        del resource.scope_logs[:]
        resource_rest = resource.SerializeToString()
        for scope in scopes:
            items = cast("list[bytes]", list(scope.log_records))
            del scope.log_records[:]
            scope_rest = scope.SerializeToString()
            for item in items:
                yield _Piece(resource_rest, scope_rest, item)


def _compose(pieces: Iterable[_Piece]) -> bytes:
    """A request of these pieces; neighbours of one scope share it, neighbours of one resource share that."""
    out: list[bytes] = []
    resource: bytes | None = None
    scope: bytes | None = None
    scopes: list[bytes] = []
    items: list[bytes] = []

    def end_scope() -> None:
        if scope is not None:
            scopes.append(_field(2, scope + b"".join(items)))
            items.clear()

    def end_resource() -> None:
        if resource is not None:
            out.append(_field(1, resource + b"".join(scopes)))
            scopes.clear()

    for piece in pieces:
        if piece.scope is not scope or piece.resource is not resource:
            end_scope()
            scope = piece.scope
        if piece.resource is not resource:
            end_resource()
            resource = piece.resource
        items.append(_field(2, piece.item))
    end_scope()
    end_resource()
    return b"".join(out)


def _add(attributes: list[bytes], added: Sequence[Attribute]) -> bool:
    """Append those whose key is not there yet; whether there was one."""
    changed = False
    for key, value in added:
        start = _field(1, key.encode())
        if not any(known.startswith(start) for known in attributes):
            attributes.append(KeyValue(key=key, value=_any_value(value)).SerializeToString())
            changed = True
    return changed


def _any_value(value: AttributeValue) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=text) for text in value]))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field on the wire."""
    head = bytearray((number << 3 | 2,))
    size = len(content)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _parsed_spans(data: bytes) -> ExportTraceServiceRequest:
    try:
        return _Spans.FromString(data)
    except ProtobufError as error:
        raise EditError("not a protobuf export request") from error


def _parsed_items(data: bytes) -> ExportLogsServiceRequest:
    try:
        return _Items.FromString(data)
    except ProtobufError as error:
        raise EditError("not a protobuf export request") from error
