"""Step spans gathered into columns: one group per (resource, scope, name, trace, parent), in order of arrival."""

from __future__ import annotations

from itertools import chain

import numpy as np

from gpumon.ingest.records import Resource, Scope, StepColumns

_WIDTH = 5
"""Values of a step: span id, start, end, number, tokens."""
_Key = tuple[bytes, bytes, str]
"""Trace, parent and name."""
_Rows = list[bytes | int]
"""The values of a group's steps, one step after the other: groups are often of one step."""


class _Place:
    """Groups of one resource and scope."""

    __slots__ = ("counted", "groups", "resource", "scope", "unnumbered")

    def __init__(self, resource: Resource, scope: Scope) -> None:
        self.resource = resource
        self.scope = scope
        self.groups: dict[_Key, _Rows] = {}
        self.unnumbered: set[_Key] = set()
        """Groups with a step that has not told its number."""
        self.counted: set[_Key] = set()
        """Groups with a step of another number of tokens than one."""


class Steps:
    """Collects the step spans of one request."""

    def __init__(self) -> None:
        self.size = 0
        self._places: dict[tuple[int, Scope], _Place] = {}
        self._place: _Place | None = None
        """Of the last step added: steps come one scope after the other."""

    def add(
        self,
        resource: Resource,
        scope: Scope,
        name: str,
        ids: tuple[bytes, bytes, bytes],
        times: tuple[int, int],
        index: int | None,
        count: int | None,
    ) -> None:
        """Add a span with its ``ids`` (trace, span, parent), start and end; None: it did not tell."""
        place = self._place
        if place is None or resource is not place.resource or scope is not place.scope:
            place = self._place = self._place_of(resource, scope)
        trace_id, span_id, parent_id = ids
        key = (trace_id, parent_id, name)
        self.size += 1
        if index is None:
            place.unnumbered.add(key)
            index = 0
        if count is None:
            count = 1
        elif count != 1:
            place.counted.add(key)
        rows = place.groups.get(key)
        if rows is None:
            place.groups[key] = [span_id, *times, index, count]
        else:
            rows += (span_id, *times, index, count)

    def columns(self) -> list[StepColumns]:
        """One entry per group. The arrays are slices of one per column."""
        if not self.size:
            return []
        values = list(chain.from_iterable(rows for place in self._places.values() for rows in place.groups.values()))
        span_ids = values[::_WIDTH]
        starts, ends, indices = (np.array(values[column::_WIDTH], np.int64) for column in (1, 2, 3))
        counts = np.array(values[4::_WIDTH], np.int32)
        columns = []
        first = 0
        for place in self._places.values():
            for key, rows in place.groups.items():
                trace_id, parent_id, name = key
                last = first + len(rows) // _WIDTH
                columns.append(
                    StepColumns(
                        place.resource,
                        place.scope,
                        name,
                        trace_id,
                        parent_id,
                        tuple(span_ids[first:last]),  # type: ignore[arg-type]  # this column is of bytes
                        starts[first:last],
                        ends[first:last],
                        None if key in place.unnumbered else indices[first:last],
                        counts[first:last] if key in place.counted else None,
                    )
                )
                first = last
        return columns

    def _place_of(self, resource: Resource, scope: Scope) -> _Place:
        place = self._places.get((id(resource), scope))
        if place is None:
            place = self._places[id(resource), scope] = _Place(resource, scope)
        place.scope = scope
        return place
