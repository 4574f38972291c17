"""Spans of one trace request to records, but for token events: ids, times, attributes, limits, what was left out.

Both protobuf decoders read spans through this; the JSON decoder shares all of it that is not about messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from gpumon.ingest.arrays import ArrayGather
from gpumon.ingest.attributes import (
    ArrayReader,
    count_of,
    cut,
    index_of,
    read_attributes,
    read_scalar,
    shortened,
)
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import TOKEN_COUNT, Decoded, EventRecord, Resource, Scope, SpanRecord, Value
from gpumon.ingest.steps import Steps

T = TypeVar("T")

MAX_NS = 2**63 - 1
"""Times beyond the year 2262 are mistakes; they would not fit a signed column."""
STEP_INDEX = frozenset({"decode_ct", "gen_ai.token.index"})
ERROR = 2
"""Status code of a failed span."""

_NO_TRACE = bytes(16)
_NO_SPAN = bytes(8)
_WRONG_SIGNAL = "if these are no spans, send them to the path of their signal (/v1/logs, /v1/metrics)"
_EXPLANATIONS = {
    "bad_id": "trace ids must be 16 bytes and span ids 8 bytes, not all zero",
    "bad_time": "times must be unix nanoseconds before the year 2262",
    "too_many_spans": "send fewer spans per request",
    "too_many_scopes": "send fewer resources and scopes per request",
}


class Resources:
    """One object per distinct content, for the requests of one batch."""

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, Resource] = {}
        self._by_content: dict[Hashable, Resource] = {}

    def read(self, message: resource_pb2.Resource, limits: DecodeLimits, ints: ArrayReader) -> Resource:
        raw = message.SerializeToString()
        found = self._by_bytes.get(raw)
        if found is None:
            attributes = read_attributes(message.attributes, limits, limits.max_attributes, {}, ints)
            found = self._by_bytes[raw] = self.of(attributes)
        return found

    def of(self, attributes: dict[str, Value]) -> Resource:
        content = frozenset((key, _hashable(value)) for key, value in attributes.items())
        found = self._by_content.get(content)
        if found is None:
            found = self._by_content[content] = Resource(attributes, hash(content))
        return found


class SpanReader:
    """Reads the spans of one request body into ``decoded``; ``finish`` completes it."""

    def __init__(
        self, limits: DecodeLimits, resources: Resources, ints: ArrayReader, arrays: ArrayGather | None = None
    ) -> None:
        """ints: reads int arrays; arrays: those of spans, instead."""
        self.decoded = Decoded()
        self._limits = limits
        self.resources = resources
        self._ints = ints
        self._arrays = arrays
        self._steps = Steps()
        self._scopes_left = limits.max_scopes
        self._spans_left = limits.max_spans + limits.max_steps
        self.saw_all = True
        """Whether every span of the request was looked at."""

    def resource(self, message: resource_pb2.Resource) -> Resource:
        return self.resources.read(message, self._limits, self._ints)

    def scope(self, message: InstrumentationScope) -> Scope:
        limit, cuts = self._limits.max_name, self.decoded.truncated
        return Scope(shortened(message.name, limit, cuts), shortened(message.version, limit, cuts))

    def some_resources(self, messages: Sequence[T]) -> Sequence[T]:
        """Those resources that are to be read; counts the others."""
        return self._first(messages, self._limits.max_scopes, "too_many_scopes")

    def some_scopes(self, messages: Sequence[T]) -> Sequence[T]:
        """Those scopes of a resource that are to be read; counts the others."""
        some = self._first(messages, self._scopes_left, "too_many_scopes")
        self._scopes_left -= len(some)
        return some

    def some_spans(self, messages: Sequence[T]) -> Sequence[T]:
        """Those spans of a scope that are to be read; counts the others."""
        some = self._first(messages, self._spans_left, "too_many_spans")
        self._spans_left -= len(some)
        return some

    def reject(self, reason: str) -> None:
        cut(self.decoded.rejected, reason)

    def ids_are_valid(self, trace_id: bytes, span_id: bytes, parent_id: bytes) -> bool:
        """Whether the span can be kept; counts it if not."""
        if (
            len(trace_id) == 16
            and len(span_id) == 8
            and len(parent_id) in (0, 8)
            and trace_id != _NO_TRACE
            and span_id != _NO_SPAN
        ):
            return True
        self.reject("bad_id")
        return False

    def times_are_valid(self, start_ns: int, end_ns: int) -> bool:
        """Whether the span can be kept; counts it if not."""
        if start_ns <= MAX_NS and end_ns <= MAX_NS:
            return True
        self.reject("bad_time")
        return False

    def has_room(self) -> bool:
        """Whether another span record may be made; counts the span as lost if not."""
        if len(self.decoded.spans) < self._limits.max_spans:
            return True
        self.reject("too_many_spans")
        return False

    def add_step(
        self,
        resource: Resource,
        scope: Scope,
        name: str,
        ids: tuple[bytes, bytes, bytes],
        times: tuple[int, int],
        index: int | None,
        count: int | None,
    ) -> None:
        """A step span whose ``ids`` (trace, span, parent) and times are valid."""
        if self._steps.size < self._limits.max_steps:
            self._steps.add(resource, scope, name, ids, times, index, count)
        else:
            self.reject("too_many_spans")

    def read_step(self, resource: Resource, scope: Scope, name: str, span: trace_pb2.Span) -> bool:
        """Keep or reject a span that has the name of a step; False if it is none (``is_step_of``)."""
        parent_id = span.parent_span_id
        if not is_step_of(parent_id, span.status.code):
            return False
        ids = span.trace_id, span.span_id, parent_id
        times = span.start_time_unix_nano, span.end_time_unix_nano
        if not self.ids_are_valid(*ids) or not self.times_are_valid(*times):
            return True
        index = count = None
        for pair in span.attributes[: self._limits.max_attributes]:
            key = pair.key
            if key in STEP_INDEX:
                value = pair.value
                index = value.int_value or index_of(read_scalar(value))  # only an int has an int_value but 0
            elif key == TOKEN_COUNT:
                count = count_of(read_scalar(pair.value))
        self.add_step(resource, scope, name, ids, times, index, count)
        return True

    def read_span(self, resource: Resource, scope: Scope, name: str, span: trace_pb2.Span) -> SpanRecord | None:
        """Record of a span, without its events; None where it is left out. It is already part of ``decoded``."""
        trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_span_id
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        if (
            not self.ids_are_valid(trace_id, span_id, parent_id)
            or not self.times_are_valid(start_ns, end_ns)
            or not self.has_room()
        ):
            return None
        limits, cuts = self._limits, self.decoded.truncated
        attributes = span.attributes
        record = SpanRecord(
            resource,
            scope,
            trace_id,
            span_id,
            parent_of(parent_id),
            name if len(name) <= limits.max_name else shortened(name, limits.max_name, cuts),
            known(span.kind, 5),
            start_ns,
            end_ns,
            known(span.status.code, 2),
            self._read_attributes(attributes) if attributes else {},
            dropped_events=span.dropped_events_count,
            links=self._read_links(span),
        )
        self.decoded.spans.append(record)
        return record

    def read_event(self, event: trace_pb2.Span.Event) -> EventRecord:
        """Record of an event that is no token event."""
        limits, cuts = self._limits, self.decoded.truncated
        return EventRecord(
            shortened(event.name, limits.max_name, cuts),
            possible_ns(event.time_unix_nano),
            read_attributes(event.attributes, limits, limits.max_event_attributes, cuts, self._ints),
        )

    def finish(self) -> Decoded:
        """All that was read, with its steps and the message for the sender."""
        decoded = self.decoded
        decoded.steps = self._steps.columns()
        if decoded.rejected:
            said = [
                f"{number} {'scopes' if why == 'too_many_scopes' else 'spans'} rejected: {_EXPLANATIONS[why]}"
                for why, number in decoded.rejected.items()
            ]
            if "bad_id" in decoded.rejected and not decoded.spans and not decoded.steps:
                said.append(_WRONG_SIGNAL)
            decoded.message = "; ".join([*said, decoded.message] if decoded.message else said)
        return decoded

    def _first(self, messages: Sequence[T], most: int, reason: str) -> Sequence[T]:
        if len(messages) <= most:
            return messages
        self.saw_all = False
        cut(self.decoded.rejected, reason, len(messages) - most)
        return messages[:most]

    def _read_attributes(self, pairs: Sequence[KeyValue]) -> dict[str, Value]:
        limits, cuts, arrays = self._limits, self.decoded.truncated, self._arrays
        if arrays is None:
            return read_attributes(pairs, limits, limits.max_attributes, cuts, self._ints)
        before = cuts.copy()
        found = read_attributes(pairs, limits, limits.max_attributes, cuts, arrays)
        if arrays.has_new:
            own = {what: number - before.get(what, 0) for what, number in cuts.items() if number != before.get(what)}
            arrays.owned_by(partial(self._read_again, pairs, found, own))
        return found

    def _read_again(self, pairs: Sequence[KeyValue], found: dict[str, Value], cut_before: Mapping[str, int]) -> None:
        """Attributes once more, each array by itself. cut_before: what was cut the first time."""
        limits, cuts = self._limits, self.decoded.truncated
        for what, number in cut_before.items():
            cuts[what] -= number
            if not cuts[what]:
                del cuts[what]
        found.clear()
        found.update(read_attributes(pairs, limits, limits.max_attributes, cuts, self._ints))

    def _read_links(self, span: trace_pb2.Span) -> tuple[tuple[bytes, bytes], ...]:
        links = span.links
        if not links:
            return ()
        most = self._limits.max_links
        if len(links) > most:
            cut(self.decoded.truncated, "links", len(links) - most)
        return tuple(pair for link in links[:most] if is_link(pair := (link.trace_id, link.span_id)))


def is_step_of(parent_id: bytes, status: int) -> bool:
    """Whether a span that has the name of a step may be kept as one: below a parent, and not failed."""
    return parent_id not in (b"", _NO_SPAN) and status != ERROR


def is_link(pair: tuple[bytes, bytes]) -> bool:
    trace_id, span_id = pair
    return len(trace_id) == 16 and len(span_id) == 8 and trace_id != _NO_TRACE and span_id != _NO_SPAN


def parent_of(parent_id: bytes) -> bytes | None:
    return None if parent_id in (b"", _NO_SPAN) else parent_id


def known(code: int, highest: int) -> int:
    """An enum's number, 0 where it is from a future version."""
    return code if 0 <= code <= highest else 0


def possible_ns(at_ns: int) -> int:
    """An event's time, 0 (none) where it cannot be."""
    return at_ns if at_ns <= MAX_NS else 0


def _hashable(value: Value) -> bytes | str:
    """The value as text, which tells 1 from 1.0 and true, and in which NaN equals NaN."""
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)
