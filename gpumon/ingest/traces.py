"""What waits for the rest of its request: spans and steps by trace, in bounded memory.

Steps are kept as five 64-bit numbers (40 bytes) each, whatever form they came in: a server that sends a span per step
and rank keeps hundreds of thousands of them open. Copies are found when the request is completed, not before.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpumon.ingest.adapters.seen import Adapter, LinkSeen, MarksSeen, PhaseSeen, RankSeen, RequestSeen, StepSeen
from gpumon.ingest.concurrency import Concurrency
from gpumon.ingest.records import Resource, StepColumns

SPAN_ID, START, END, INDEX, COUNT = range(5)
"""Columns of a group's rows."""
WIDTH = 5
_FEW = 16
"""Below this, plain integers are faster than numpy."""

NodeKey = tuple[int, bytes]
"""(resource key, span id)"""
_MAX_DEPTH = 32
"""Most spans between a step and its request."""


class StepGroup:
    """Steps below one parent: of one rank."""

    __slots__ = ("adapter", "counted", "resource", "rows")

    def __init__(self, adapter: Adapter, resource: Resource) -> None:
        self.adapter = adapter
        self.resource = resource
        self.rows = array("q")
        self.counted = False
        """Whether the sender told the tokens of any step."""

    def __len__(self) -> int:
        return len(self.rows) // WIDTH

    def add_step(self, span_id: bytes, step: StepSeen) -> None:
        self.rows.extend(
            (int.from_bytes(span_id, "big", signed=True), step.start_ns, step.end_ns, step.number, step.tokens)
        )
        self.counted |= step.tokens != 1

    def add_columns(self, steps: StepColumns) -> None:
        number = len(steps.span_ids)
        self.counted |= steps.counts is not None
        if number < _FEW:
            starts, ends = steps.start_ns.tolist(), steps.end_ns.tolist()
            index = steps.index.tolist() if steps.index is not None else [-1] * number
            counts = steps.counts.tolist() if steps.counts is not None else [1] * number
            extend, from_bytes = self.rows.extend, int.from_bytes
            for i, span_id in enumerate(steps.span_ids):
                extend((from_bytes(span_id, "big", signed=True), starts[i], ends[i], index[i], counts[i]))
            return
        rows = np.empty((number, WIDTH), np.int64)
        rows[:, SPAN_ID] = np.frombuffer(b"".join(steps.span_ids), ">i8")
        rows[:, START] = steps.start_ns
        rows[:, END] = steps.end_ns
        rows[:, INDEX] = -1 if steps.index is None else steps.index
        rows[:, COUNT] = 1 if steps.counts is None else steps.counts
        self.rows.frombytes(rows.tobytes())

    def table(self) -> NDArray[np.int64]:
        """Rows, by span id, each span once: independent of the order and number of arrivals."""
        rows = np.array(self.rows, np.int64).reshape(-1, WIDTH)
        order = np.lexsort((rows[:, END], rows[:, SPAN_ID]))
        rows = rows[order]
        keep = np.ones(len(rows), bool)
        keep[1:] = rows[1:, SPAN_ID] != rows[:-1, SPAN_ID]
        return rows[keep]


class Node:
    """A span that is no step, as its adapter saw it."""

    __slots__ = ("adapter", "parent_id", "resource", "seen")

    def __init__(
        self,
        adapter: Adapter,
        resource: Resource,
        parent_id: bytes | None,
        seen: RequestSeen | PhaseSeen | RankSeen | MarksSeen | LinkSeen,
    ) -> None:
        self.adapter = adapter
        self.resource = resource
        self.parent_id = parent_id
        self.seen = seen


@dataclass(slots=True, eq=False)
class Trace:
    """All that came of one trace id and is not part of a finished request."""

    first_s: float
    last_s: float
    peer: str
    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    groups: dict[tuple[int, bytes | None], StepGroup] = field(default_factory=dict)
    requests_seen: int = 0
    """Finished request spans that came, whether or not their records are made."""
    open_on: Concurrency | None = None
    """Where this trace counts as an open request, since no request span of it has come."""
    open_since_ns: int = 0

    @property
    def steps(self) -> int:
        return sum(map(len, self.groups.values()))

    def note_open(self, concurrency: Concurrency, start_ns: int) -> None:
        """A child was seen: its request runs since then at the latest."""
        if self.requests_seen or start_ns <= 0:
            return
        if self.open_on is not None:
            if start_ns >= self.open_since_ns:
                return
            self.no_longer_open()
        if concurrency.begin(start_ns):
            self.open_on, self.open_since_ns = concurrency, start_ns

    def no_longer_open(self) -> None:
        """A request span came, or nobody expects one any more."""
        if self.open_on is not None:
            self.open_on.forget(self.open_since_ns)
            self.open_on = None


class Family:
    """Who belongs to whom in one trace, by walking up the parents; each span is walked once.

    A parent is looked for in its own resource first (span ids of two processes may collide), then in any other.
    """

    def __init__(self, trace: Trace) -> None:
        self._nodes = trace.nodes
        self._by_id: dict[bytes, list[NodeKey]] | None = None
        self._found: dict[NodeKey, tuple[NodeKey | None, RankSeen | None]] = {}

    def of(self, resource: Resource, span_id: bytes | None) -> tuple[NodeKey | None, RankSeen | None]:
        """Request span and rank at or above a span; None where the chain is broken."""
        if span_id is None:
            return None, None
        path: list[NodeKey] = []
        key: NodeKey | None = self._key(resource, span_id)
        request: NodeKey | None = None
        ranks: list[RankSeen | None] = []
        rank: RankSeen | None = None
        while key is not None and len(path) < _MAX_DEPTH:
            known = self._found.get(key)
            if known is not None:
                request, rank = known
                break
            path.append(key)
            node = self._nodes[key]
            if isinstance(node.seen, RequestSeen):
                ranks.append(None)
                request = key
                break
            ranks.append(node.seen if isinstance(node.seen, RankSeen) else None)
            key = self._key(node.resource, node.parent_id) if node.parent_id is not None else None
        for key, own in zip(reversed(path), reversed(ranks), strict=True):
            rank = own or (None if key == request else rank)
            self._found[key] = (request, rank)
        return (request, rank) if path or key is not None else (None, None)

    def _key(self, resource: Resource, span_id: bytes) -> NodeKey | None:
        key = (resource.key, span_id)
        if key in self._nodes:
            return key
        if self._by_id is None:
            self._by_id = {}
            for other in self._nodes:
                self._by_id.setdefault(other[1], []).append(other)
        others = self._by_id.get(span_id, ())
        return others[0] if len(others) == 1 else None
