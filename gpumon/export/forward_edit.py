"""Adds attributes to the spans of an export request in passing, and leaves spans out.

The order of fields on the wire may change, their meaning does not. A request in which nothing is to be changed is
handed on as it is, byte for byte. Protobuf only; JSON is converted before (``forward_json``). Spans without valid ids
are left out, as the receiver already told their sender.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from typing import cast

from gpumon.export.forward_schema import field, has_valid_ids, parse_spans, varint
from gpumon.ingest.records import STEP_SPAN_NAMES

AttributeValue = str | int | float | tuple[str, ...]
Attribute = tuple[str, AttributeValue]
Annotate = Callable[[bytes, bytes, int, int], Sequence[Attribute]]
"""What to add to the span of (trace id, span id, start, end): times in unix nanoseconds; empty for nothing."""
Keep = Callable[[bytes], bool]
"""Whether to forward a trace, by its id."""

_STEP_NAMES = frozenset(name.encode() for name in STEP_SPAN_NAMES)


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


def edit(data: bytes, *, annotate: Annotate | None = None, keep: Keep | None = None) -> Edited:
    """Leave out spans of traces not kept and spans without valid ids; add what ``annotate`` returns.

    Spans that only say that a step ran are not asked about. An attribute that a span has already stays as it is.

    Raises:
        EditError: it cannot be read.
    """
    request = parse_spans(data)
    edited = Edited(data, 0)
    changed = False
    last, wanted = b"", True
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            spans = scope.spans
            unwanted: list[int] = []
            for position, span in enumerate(spans):
                if not has_valid_ids(span):
                    edited.invalid += 1
                    unwanted.append(position)
                    continue
                trace_id = span.trace_id
                if keep is not None:
                    if trace_id != last:
                        last, wanted = trace_id, keep(trace_id)
                    if not wanted:
                        edited.unwanted += 1
                        unwanted.append(position)
                        continue
                edited.spans += 1
                if annotate is not None and cast(bytes, span.name) not in _STEP_NAMES:
                    added = annotate(trace_id, span.span_id, span.start_time_unix_nano, span.end_time_unix_nano)
                    changed |= bool(added) and _add(cast("list[bytes]", span.attributes), added)
            for position in reversed(unwanted):
                del spans[position]
            changed |= bool(unwanted)
    if changed:
        edited.data = request.SerializeToString()
    return edited


def _add(attributes: list[bytes], added: Sequence[Attribute]) -> bool:
    """Append those whose key is not there yet; whether there was one."""
    known = list(attributes)
    fresh = []
    for key, value in added:
        start = _key(key)
        if not any(attribute.startswith(start) for attribute in known):
            fresh.append(start + (_number(value) if isinstance(value, int | float) else _words(value)))
    attributes.extend(fresh)
    return bool(fresh)


# A KeyValue on the wire: the key as field 1, an AnyValue as field 2. Written by hand, since building the official
# messages takes ten times as long as all the rest of an edit; tests compare the two.


@lru_cache(256)
def _key(key: str) -> bytes:
    return field(1, key.encode())


def _number(value: int | float) -> bytes:
    if isinstance(value, float):
        return b"\x12\x09\x21" + pack("<d", value)
    return field(2, b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF))


@lru_cache(1024)
def _words(value: str | tuple[str, ...]) -> bytes:
    if isinstance(value, str):
        return field(2, field(1, value.encode()))
    return field(2, field(5, b"".join([field(1, field(1, text.encode())) for text in value])))
