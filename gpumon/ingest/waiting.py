"""The table of traces that are not finished: what is added, what belongs to a request, what goes when room is short.

Copies of spans are refused; copies of steps are kept and found on completion. Requests that are finished are
remembered, so that copies of their spans and children that come too late are recognised: by the trace where it was one
request's own, else by the ids of all its spans.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.ingest.adapters.seen import Adapter, LinkSeen, RequestSeen, StepSeen
from gpumon.ingest.complete import Child, Steps
from gpumon.ingest.dedupe import Seen
from gpumon.ingest.records import Resource, SpanRecord, StepColumns
from gpumon.ingest.servers import Servers
from gpumon.ingest.traces import Family, Node, NodeKey, StepGroup, Trace


@dataclass(frozen=True, slots=True)
class AssemblyLimits:
    """Times in seconds, the rest in pieces."""

    grace_s: float = 2.0
    """From the arrival of a request's span to its record."""
    ttl_s: float = 300.0
    """How long anything waits without news of its trace."""
    late_s: float = 600.0
    """A span that ended longer ago is no news and would spoil what is true now."""
    future_s: float = 60.0
    """A span that ends further ahead of our clock cannot be true."""
    traces: int = 16_384
    spans: int = 131_072
    """Spans waiting that are no steps."""
    steps: int = 1_048_576
    spans_per_trace: int = 4_096
    steps_per_trace: int = 262_144
    servers: int = 1_024
    """Distinct resources whose concurrency is followed."""


class Taken(NamedTuple):
    """A request and all that belongs to it, out of the table."""

    node: Node
    peer: str
    children: list[Child]
    steps: list[Steps]


class Waiting:
    """Traces by id, the one longest without news first. dropped: counts what is not kept, by reason."""

    def __init__(self, limits: AssemblyLimits, servers: Servers, dropped: Counter[str]) -> None:
        self._limits = limits
        self._servers = servers
        self._dropped = dropped
        self._finished = Seen()
        self._traces: OrderedDict[bytes, Trace] = OrderedDict()
        self.spans = 0
        self.steps = 0

    def __len__(self) -> int:
        return len(self._traces)

    def knows(self, resource: Resource, trace_id: bytes, span_id: bytes) -> bool:
        """Whether a request's span came before."""
        return self._finished.knows(resource.key, trace_id, span_id)

    def add_columns(self, columns: StepColumns, adapter: Adapter, peer: str, at_s: float) -> None:
        """Keep steps."""
        number = len(columns.span_ids)
        group = self._room_for(columns.trace_id, columns.parent_id, columns.resource, adapter, peer, at_s, number)
        if group is not None:
            group.add_columns(columns)
            self._opened(columns.trace_id, adapter, columns.resource, peer, int(columns.start_ns[0]))

    def add_step(self, span: SpanRecord, step: StepSeen, adapter: Adapter, peer: str, at_s: float) -> None:
        """Keep a step that came as a single span."""
        group = self._room_for(span.trace_id, span.parent_id, span.resource, adapter, peer, at_s, 1)
        if group is not None:
            group.add_step(span.span_id, step)
            self._opened(span.trace_id, adapter, span.resource, peer, step.start_ns)

    def add_span(self, span: SpanRecord, node: Node, peer: str, at_s: float) -> None:
        """Keep a span that is neither request nor step."""
        trace = self._trace_of_child(span.trace_id, span.parent_id, peer, at_s)
        if trace is None:
            self._dropped["after_request"] += 1
        elif self._keep(trace, span, node) and not isinstance(node.seen, LinkSeen):
            self._opened(span.trace_id, node.adapter, span.resource, peer, span.start_ns)

    def add_request(self, span: SpanRecord, node: Node, peer: str, at_s: float) -> bool:
        """Keep a finished request span; False for a copy."""
        if not self._finished.add(span.resource.key, span.trace_id, span.span_id):
            self._dropped["duplicate"] += 1
            return False
        trace = self._traces.get(span.trace_id) or self._new_trace(span.trace_id, peer, at_s)
        key = (span.resource.key, span.span_id)
        self.spans += key not in trace.nodes
        trace.nodes[key] = node
        self._news(span.trace_id, trace, at_s)
        trace.peer = peer
        trace.requests_seen += 1
        trace.no_longer_open()
        return True

    def add_unfinished(self, span: SpanRecord, node: Node, peer: str, at_s: float) -> None:
        """Keep a request span without an end, until the finished one comes."""
        self._dropped["unfinished"] += 1
        if self.knows(span.resource, span.trace_id, span.span_id):
            return
        trace = self._traces.get(span.trace_id) or self._new_trace(span.trace_id, peer, at_s)
        key = (span.resource.key, span.span_id)
        self.spans += key not in trace.nodes
        trace.nodes[key] = node
        self._news(span.trace_id, trace, at_s)
        self._opened(span.trace_id, node.adapter, span.resource, peer, span.start_ns)

    def take(self, trace_id: bytes, key: NodeKey) -> Taken | None:
        """A request with its children, and forget them; None if it is not there (any more)."""
        trace = self._traces.get(trace_id)
        node = trace.nodes.get(key) if trace is not None else None
        if trace is None or node is None:
            return None
        if len(trace.nodes) == 1 and not trace.groups:  # most requests: nothing but their own span
            children: list[Child] = []
            steps: list[Steps] = []
            del trace.nodes[key]
            self.spans -= 1
        else:
            spans, pieces = len(trace.nodes), trace.steps
            children, steps = self.family(trace, key, node)
            if node.parent_id is not None:
                for span_id in {key[1], *(child.span_id for child in children), *(one.parent_id for one in steps)}:
                    self._finished.add(0, trace_id, span_id or b"")
            self.spans -= spans - len(trace.nodes)
            self.steps -= pieces - trace.steps
        if not trace.nodes and not trace.groups:
            self._remove(trace_id)
            if node.parent_id is None:
                self._finished.add(0, trace_id, b"")
        return Taken(node, trace.peer, children, steps)

    def take_expired(self, at_s: float) -> tuple[bytes, Trace] | None:
        """A trace without news for too long, out of the table."""
        if not self._traces:
            return None
        trace_id = next(iter(self._traces))
        return self.take_trace(trace_id) if self._traces[trace_id].last_s + self._limits.ttl_s <= at_s else None

    def take_surplus(self) -> tuple[bytes, Trace] | None:
        """The trace longest without news, if there is more than there is room for."""
        limits = self._limits
        if len(self._traces) <= limits.traces and self.spans <= limits.spans and self.steps <= limits.steps:
            return None
        return self.take_trace(next(iter(self._traces)))

    def take_trace(self, trace_id: bytes) -> tuple[bytes, Trace]:
        """A whole trace, out of the table."""
        trace = self._traces[trace_id]
        self._remove(trace_id)
        self.spans -= len(trace.nodes)
        self.steps -= trace.steps
        return trace_id, trace

    def family(self, trace: Trace, key: NodeKey, node: Node) -> tuple[list[Child], list[Steps]]:
        """What belongs to a request of a trace, and forget it and the request."""
        family = Family(trace)
        # In a trace that is this request's own, children whose parent was lost are its children too.
        alone = trace.requests_seen <= 1 and node.parent_id is None
        children: list[Child] = []
        steps: list[Steps] = []
        gone: list[NodeKey] = [key]
        for other_key, other in trace.nodes.items():
            if other_key == key or isinstance(other.seen, RequestSeen):
                continue
            owner, rank = family.of(other.resource, other_key[1])
            if owner == key or (alone and owner is None and other.adapter is node.adapter):
                same = other.resource.key == node.resource.key
                children.append(Child(other_key[1], other.parent_id, other.seen, rank, same))
                gone.append(other_key)
        gone_groups = []
        for group_key, group in trace.groups.items():
            owner, rank = family.of(group.resource, group_key[1])
            if owner == key or (alone and owner is None and group.adapter is node.adapter):
                same = group.resource.key == node.resource.key
                steps.append(Steps(group_key[1], group.table(), group.counted, rank, same))
                gone_groups.append(group_key)
                self._dropped["duplicate"] += len(group) - len(steps[-1].table)
        for gone_key in gone:
            del trace.nodes[gone_key]
        for gone_group in gone_groups:
            del trace.groups[gone_group]
        return children, steps

    def _room_for(
        self,
        trace_id: bytes,
        parent_id: bytes | None,
        resource: Resource,
        adapter: Adapter,
        peer: str,
        at_s: float,
        number: int,
    ) -> StepGroup | None:
        trace = self._trace_of_child(trace_id, parent_id, peer, at_s)
        if trace is None:
            self._dropped["after_request"] += number
            return None
        key = (resource.key, parent_id)
        group = trace.groups.get(key)
        if group is None:
            group = StepGroup(adapter, resource)
        if len(group) + number > self._limits.steps_per_trace or (
            key not in trace.groups and len(trace.groups) >= self._limits.spans_per_trace
        ):
            self._dropped["overflow"] += number
            return None
        trace.groups[key] = group
        self.steps += number
        return group

    def _trace_of_child(self, trace_id: bytes, parent_id: bytes | None, peer: str, at_s: float) -> Trace | None:
        """The trace a child belongs to, new or not; None where its request is finished."""
        trace = self._traces.get(trace_id)
        if trace is None and self._finished.knows(0, trace_id, b""):
            return None
        if (trace is None or trace.requests_seen) and parent_id and self._finished.knows(0, trace_id, parent_id):
            return None
        if trace is None:
            return self._new_trace(trace_id, peer, at_s)
        self._news(trace_id, trace, at_s)
        return trace

    def _new_trace(self, trace_id: bytes, peer: str, at_s: float) -> Trace:
        trace = self._traces[trace_id] = Trace(at_s, at_s, peer)
        return trace

    def _news(self, trace_id: bytes, trace: Trace, at_s: float) -> None:
        if trace.last_s != at_s:
            trace.last_s = at_s
            self._traces.move_to_end(trace_id)

    def _keep(self, trace: Trace, span: SpanRecord, node: Node) -> bool:
        key = (span.resource.key, span.span_id)
        if key in trace.nodes or len(trace.nodes) >= self._limits.spans_per_trace:
            self._dropped["duplicate" if key in trace.nodes else "overflow"] += 1
            return False
        self.spans += 1
        trace.nodes[key] = node
        return True

    def _opened(self, trace_id: bytes, adapter: Adapter, resource: Resource, peer: str, start_ns: int) -> None:
        trace = self._traces[trace_id]
        if not trace.requests_seen and (trace.open_on is None or start_ns < trace.open_since_ns):
            trace.note_open(self._servers.of(adapter.server, resource, peer).concurrency, start_ns)

    def _remove(self, trace_id: bytes) -> None:
        self._traces.pop(trace_id).no_longer_open()
