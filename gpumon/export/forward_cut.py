"""Cuts export requests into smaller ones: by trace, or below a size. Each piece keeps its resource and scope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from gpumon.export import forward_schema as wire
from gpumon.export.forward_schema import has_valid_ids, parse_items, parse_spans


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
    """The resource's message without what is below it; pieces of one resource share the object. So do all that are
    empty, which then become one: nothing tells them apart."""
    scope: bytes
    item: bytes


def by_trace(data: bytes) -> tuple[dict[bytes, TracePart], int]:
    """The request cut up by trace id, and how many spans were left out for their ids.

    Raises:
        EditError: it cannot be read.
    """
    parts: dict[bytes, TracePart] = {}
    invalid = 0
    request = parse_spans(data)
    for resource in request.resource_spans:
        scopes = list(resource.scope_spans)
        del resource.scope_spans[:]
        resource_rest = resource.SerializeToString()
        for scope in scopes:
            spans = list(scope.spans)
            del scope.spans[:]
            scope_rest = scope.SerializeToString()
            for span in spans:
                if not has_valid_ids(span):
                    invalid += 1
                    continue
                part = parts.setdefault(span.trace_id, TracePart())
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
    parts: list[Part] = []
    pieces: list[_Piece] = []
    size = 0
    for piece in _pieces(data):
        last = pieces[-1] if pieces else None
        new_scope = last is None or last.scope is not piece.scope or last.resource is not piece.resource
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
    for resource in parse_items(data).resource_logs:
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
            scopes.append(wire.field(2, scope + b"".join(items)))
            items.clear()

    def end_resource() -> None:
        if resource is not None:
            out.append(wire.field(1, resource + b"".join(scopes)))
            scopes.clear()

    for piece in pieces:
        if piece.scope is not scope or piece.resource is not resource:
            end_scope()
            scope = piece.scope
        if piece.resource is not resource:
            end_resource()
            resource = piece.resource
        items.append(wire.field(2, piece.item))
    end_scope()
    end_resource()
    return b"".join(out)
