"""Step spans gathered into columns: one group per (resource, scope, name, trace, parent), in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

import numpy as np

from gpumon.ingest.records import Resource, Scope, StepColumns


class _Group:
    __slots__ = ("counted", "counts", "ends", "indexed", "indices", "key", "span_ids", "starts")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.span_ids: list[bytes] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.indices: list[int] = []
        self.counts: list[int] = []
        self.indexed = True
        """Whether every step has told its number."""
        self.counted = False
        """Whether any step has another number of tokens than one."""


_Key = tuple[Resource, Scope, str, bytes, bytes]
_Below = dict[tuple[bytes, bytes, str], _Group]
"""Groups by trace, parent and name."""


class Steps:
    """Collects the step spans of one request."""

    def __init__(self) -> None:
        self.size = 0
        self._groups: dict[tuple[int, Scope], _Below] = {}
        self._resource: Resource | None = None
        self._scope: Scope | None = None
        self._below: _Below = {}
        """Of the resource and scope of the last step added: steps come one scope after the other."""

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
        trace_id, span_id, parent_id = ids
        if resource is not self._resource or scope is not self._scope:
            self._resource, self._scope = resource, scope
            self._below = self._groups.setdefault((id(resource), scope), {})
        group = self._below.get((trace_id, parent_id, name))
        if group is None:
            group = self._below[trace_id, parent_id, name] = _Group((resource, scope, name, trace_id, parent_id))
        self.size += 1
        group.span_ids.append(span_id)
        group.starts.append(times[0])
        group.ends.append(times[1])
        if index is None:
            group.indexed = False
            index = 0
        group.indices.append(index)
        if count is None:
            count = 1
        elif count != 1:
            group.counted = True
        group.counts.append(count)

    def columns(self) -> list[StepColumns]:
        """One entry per group. The arrays are slices of one per column: groups are often of one span."""
        groups = [group for below in self._groups.values() for group in below.values()]
        starts, ends, indices = (self._joined(groups, name) for name in ("starts", "ends", "indices"))
        counts = np.fromiter(chain.from_iterable(group.counts for group in groups), np.int32, self.size)
        return [
            StepColumns(
                *group.key,
                tuple(group.span_ids),
                starts[first:last],
                ends[first:last],
                indices[first:last] if group.indexed else None,
                counts[first:last] if group.counted else None,
            )
            for group, first, last in _ranges(groups)
        ]

    def _joined(self, groups: list[_Group], name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.fromiter(chain.from_iterable(map(attrgetter(name), groups)), np.int64, self.size)


def _ranges(groups: list[_Group]) -> Iterator[tuple[_Group, int, int]]:
    first = 0
    for group in groups:
        last = first + len(group.span_ids)
        yield group, first, last
        first = last
