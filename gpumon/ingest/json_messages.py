"""OTLP/JSON messages as typed structs: only the fields that are read. msgspec skips the rest without building it.

Every field may be absent or null. 64-bit ints may come as numbers or strings, so those fields stay as they came and
``json_values`` makes them numbers. Enums are ints only, as OTLP says.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Integer: TypeAlias = int | float | str | None
Double: TypeAlias = float | str | None


class _Message(msgspec.Struct, rename="camel", gc=False):
    """``gc=False``: what comes out of JSON has no cycles, and the collector need not look at millions of structs."""


class AnyValue(_Message):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Integer = None
    double_value: Double = None
    array_value: ArrayValue | None = None


class ArrayValue(_Message):
    values: list[AnyValue] | None = None


class KeyValue(_Message):
    key: str = ""
    value: AnyValue | None = None


class Resource(_Message):
    attributes: list[KeyValue] | None = None


class Scope(_Message):
    name: str | None = None
    version: str | None = None


class Event(_Message):
    time_unix_nano: Integer = None
    name: str | None = None
    attributes: list[KeyValue] | None = None


class Link(_Message):
    trace_id: str | None = None
    span_id: str | None = None


class Status(_Message):
    code: int | None = None


class Span(_Message):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    kind: int | None = None
    start_time_unix_nano: Integer = None
    end_time_unix_nano: Integer = None
    attributes: list[KeyValue] | None = None
    events: list[Event] | None = None
    dropped_events_count: int | None = None
    links: list[Link] | None = None
    status: Status | None = None


class ScopeSpans(_Message):
    scope: Scope | None = None
    spans: list[Span] | None = None


class ResourceSpans(_Message):
    resource: Resource | None = None
    scope_spans: list[ScopeSpans] | None = None


class LogRecord(_Message):
    time_unix_nano: Integer = None
    observed_time_unix_nano: Integer = None
    attributes: list[KeyValue] | None = None
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str | None = None


class ScopeLogs(_Message):
    scope: Scope | None = None
    log_records: list[LogRecord] | None = None


class ResourceLogs(_Message):
    resource: Resource | None = None
    scope_logs: list[ScopeLogs] | None = None


class Points(_Message):
    data_points: list[msgspec.Raw] | None = None


class Metric(_Message):
    gauge: Points | None = None
    sum: Points | None = None
    histogram: Points | None = None
    exponential_histogram: Points | None = None
    summary: Points | None = None


class ScopeMetrics(_Message):
    metrics: list[Metric] | None = None


class ResourceMetrics(_Message):
    scope_metrics: list[ScopeMetrics] | None = None


class Request(_Message):
    """An export request of any signal: what is there beside the expected field tells a sender's mistake."""

    resource_spans: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    resource_logs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    resource_metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    snake_case: msgspec.Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="resource_spans")
