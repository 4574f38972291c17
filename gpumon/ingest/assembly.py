"""Spans in, whole requests out: children before parents, copies, orphans, late ones, in bounded memory.

A request is complete ``grace_s`` after its own span came (servers send parents last, and other processes' spans a
moment later), or after ``ttl_s`` without news, then with outcome ``incomplete``: of such a record start and end only
bound what was seen, and are no duration. Every span left out is counted by reason. Memory at the default limits: 40
bytes per waiting step, about 0.5 kB per other waiting span, 1.5 kB per trace, 0.1 kB per remembered span id: at most
42 + 66 + 25 + 5 MB, of which a node with 64 open requests uses 3; beyond, the trace longest without news goes first,
completed if its request's span has come, else dropped.

``add`` and ``tick`` belong to one thread; ``samples`` and the ``open_…`` methods may be called from another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from gpumon import catalogue
from gpumon.ingest.adapters.choose import SERVERS, Chooser
from gpumon.ingest.adapters.seen import Adapter, Ignored, PhaseSeen, Reading, RequestSeen, StepSeen
from gpumon.ingest.complete import Completion
from gpumon.ingest.dedupe import Seen
from gpumon.ingest.evaluations import EVENT, STATES, Evaluations, evaluation_of
from gpumon.ingest.halves import Halves
from gpumon.ingest.nccl import Collectives, is_collective
from gpumon.ingest.records import Decoded, Resource, SpanRecord, StepColumns
from gpumon.ingest.servers import OpenRequests, Servers
from gpumon.ingest.traces import END, START, Node, NodeKey, Trace
from gpumon.ingest.waiting import AssemblyLimits, Taken, Waiting
from gpumon.model import Binding, RequestRecord, Sample

Bind = Callable[[Resource, str], Binding]
"""Where a resource's requests run, given the address its spans came from."""


class Assembler:
    """Turns what the decoders produce into RequestRecords.

    reading: what adapters need of the configuration (default models, tenant attributes, bounds of latencies).
    bind: tells where a request ran. collectives: takes spans of NCCL operations.
    """

    def __init__(
        self,
        limits: AssemblyLimits | None = None,
        reading: Reading | None = None,
        bind: Bind | None = None,
        collectives: Collectives | None = None,
    ) -> None:
        self._limits = limits or AssemblyLimits()
        self._reading = reading or Reading()
        self._bind = bind
        self._collectives = collectives or Collectives()
        self._collectives_seen = Seen(size=16_384)
        self._chooser = Chooser()
        self._completion = Completion(self._reading.gate)
        self._received: Counter[str] = Counter(dict.fromkeys((*SERVERS, "unknown"), 0))
        self._dropped = self._completion.dropped
        self._dropped.update(dict.fromkeys(catalogue.SPANS_DROPPED.values, 0))
        self._servers = Servers(self._reading, self._limits.servers)
        self._waiting = Waiting(self._limits, self._servers, self._dropped)
        self._due: deque[tuple[float, bytes, NodeKey]] = deque()
        self._ready: list[RequestRecord] = []
        self._unix_epoch_s = 0.0
        """On the steady clock, by what was handed in last."""
        self._halves = Halves(self._limits.ttl_s)
        self.evaluations = Evaluations()

    def add(self, decoded: Decoded, peer: str, at_s: float, to_steady: Callable[[int], float]) -> None:
        """Take in a decoded batch. peer: address it came from. to_steady: unix nanoseconds to steady seconds."""
        self._unix_epoch_s = to_steady(0)
        now_ns = int((at_s - self._unix_epoch_s) * 1e9)
        late_ns = now_ns - int(self._limits.late_s * 1e9)
        future_ns = now_ns + int(self._limits.future_s * 1e9)
        for steps in decoded.steps:
            self._add_steps(steps, peer, at_s, late_ns, future_ns)
        for span in decoded.spans:
            self._add_span(span, peer, at_s, late_ns, future_ns)
        for log in decoded.logs:
            if log.name == EVENT:
                self.evaluations.add(log.attributes, log.trace_id, at_s)
        while (surplus := self._waiting.take_surplus()) is not None:
            self._give_up(*surplus, "overflow", at_s)

    def tick(self, at_s: float) -> list[RequestRecord]:
        """The requests that are complete by now, and those that never will be."""
        due = self._due
        while due and due[0][0] <= at_s:
            _, trace_id, key = due.popleft()
            taken = self._waiting.take(trace_id, key)
            if taken is not None:
                self._finish(taken, at_s)
        while (expired := self._waiting.take_expired(at_s)) is not None:
            self._give_up(*expired, "orphan", at_s)
        records, self._ready = [*self._ready, *self._halves.expire(at_s)], []
        for record in records:
            self.evaluations.attach(record, at_s)
        self.evaluations.expire(at_s)
        return records

    def open_requests(self) -> list[OpenRequests]:
        """Requests known to run now, by server: those whose children came and whose own span did not.

        Servers that send nothing before a request's end show none. A trace in which several requests run counts once.
        """
        return self._servers.open()

    def open_by_model(self) -> dict[tuple[str, str], int]:
        """The same by (server, model); pairs without any are left out."""
        counts: Counter[tuple[str, str]] = Counter()
        for one in self.open_requests():
            counts[one.server, one.model] += one.requests
        return dict(counts)

    def open_by_gpu(self) -> dict[str, int]:
        """The same by UUID of the GPUs that the servers are bound to; a request on eight GPUs counts on each."""
        counts: Counter[str] = Counter()
        if self._bind is not None:
            for one in self.open_requests():
                for gpu in self._bind(one.resource, one.peer).gpus:
                    counts[gpu] += one.requests
        return dict(counts)

    def samples(self) -> Iterator[Sample]:
        """Spans received and dropped, values refused, what waits, clock skew, evaluations."""
        for server, received in dict(self._received).items():
            yield Sample(catalogue.SPANS_RECEIVED, (server,), float(received))
        for reason, dropped in dict(self._dropped).items():
            yield Sample(catalogue.SPANS_DROPPED, (reason,), float(dropped))
        for key, refused in dict(self._reading.gate.refused).items():
            yield Sample(catalogue.SPAN_VALUES_REJECTED, key, float(refused))
        waiting = self._waiting
        for kind, pieces in (("traces", len(waiting)), ("spans", waiting.spans), ("steps", waiting.steps)):
            yield Sample(catalogue.SPANS_WAITING, (kind,), float(pieces))
        for server, skewed in dict(self._completion.skewed).items():
            yield Sample(catalogue.REQUESTS_SKEWED, (server,), float(skewed))
            yield Sample(catalogue.REQUEST_CLOCK_SKEW, (server,), self._completion.skew_s[server])
        for state in STATES:
            yield Sample(catalogue.EVALUATIONS, (state,), float(self.evaluations.counts[state]))

    def _add_steps(self, steps: StepColumns, peer: str, at_s: float, late_ns: int, future_ns: int) -> None:
        number = len(steps.span_ids)
        adapter = self._chooser.of_steps(steps.scope, steps.resource, steps.name)
        if adapter is None:
            self._received["unknown"] += number
            self._dropped[Ignored.UNKNOWN_SCOPE] += number
            return
        self._received[adapter.server] += number
        newest_ns = int(steps.end_ns[-1])
        if newest_ns and not late_ns <= newest_ns <= future_ns:
            self._dropped["late" if newest_ns < late_ns else "future"] += number
        else:
            self._waiting.add_columns(steps, adapter, peer, at_s)

    def _add_span(self, span: SpanRecord, peer: str, at_s: float, late_ns: int, future_ns: int) -> None:
        if is_collective(span):
            if self._collectives_seen.add(span.resource.key, span.trace_id, span.span_id):
                self._collectives.add_span(span)
            return
        adapter = self._chooser.of_span(span)
        if span.end_ns and not late_ns <= span.end_ns <= future_ns:
            self._received[adapter.server] += 1
            self._dropped["late" if span.end_ns < late_ns else "future"] += 1
            return
        judged = self._evaluations_on(span, at_s)
        seen = adapter.read(span, self._reading)
        if isinstance(seen, Ignored):
            self._received["unknown" if seen is Ignored.UNKNOWN_SCOPE else adapter.server] += 1
            self._dropped[seen] += not judged
            return
        self._received[adapter.server] += 1
        if isinstance(seen, RequestSeen):
            self._add_request(span, adapter, seen, peer, at_s)
        elif isinstance(seen, StepSeen):
            self._waiting.add_step(span, seen, adapter, peer, at_s)
        elif span.end_ns == 0:
            self._dropped["unfinished"] += 1
        else:
            self._waiting.add_span(span, Node(adapter, span.resource, span.parent_id, seen), peer, at_s)

    def _add_request(self, span: SpanRecord, adapter: Adapter, seen: RequestSeen, peer: str, at_s: float) -> None:
        record = seen.record
        record.arrived_s = self._arrived_s(record.start_ns, at_s)
        node = Node(adapter, span.resource, span.parent_id, seen)
        if span.end_ns == 0:
            self._waiting.add_unfinished(span, node, peer, at_s)
            return
        if not self._waiting.add_request(span, node, peer, at_s):
            return
        server = self._servers.of(adapter.server, span.resource, peer)
        server.model = record.model or server.model
        if record.outcome != "incomplete":
            server.concurrency.add(record.start_ns, record.end_ns)
        self._due.append((at_s + self._limits.grace_s, span.trace_id, (span.resource.key, span.span_id)))

    def _arrived_s(self, start_ns: int, at_s: float) -> float:
        """When a request began, on our clock; when its span came where that is not told, or later."""
        return min(at_s, start_ns / 1e9 + self._unix_epoch_s) if start_ns > 0 else at_s

    def _evaluations_on(self, span: SpanRecord, at_s: float) -> bool:
        told = [event.attributes for event in span.events if event.name == EVENT]
        if evaluation_of(span.attributes):
            told.append(span.attributes)
        if told and not self._waiting.knows(span.resource, span.trace_id, span.span_id):
            for attributes in told:
                self.evaluations.add(attributes, span.trace_id, at_s)
        return bool(told)

    def _finish(self, taken: Taken, at_s: float) -> None:
        node = taken.node
        seen = node.seen
        assert isinstance(seen, RequestSeen)
        record = seen.record
        self._completion.complete(seen, node.adapter, taken.children, taken.steps)
        server = self._servers.of(node.adapter.server, node.resource, taken.peer)
        record.concurrency = max(1, server.concurrency.at(record.start_ns))
        if self._bind is not None:
            record.binding = self._bind(node.resource, taken.peer)
        if seen.half:
            self._ready += self._halves.add(seen.half, seen.room, record, at_s)
        else:
            self._ready.append(record)

    def _give_up(self, trace_id: bytes, trace: Trace, reason: str, at_s: float) -> None:
        """A trace that is out of the table: records for the requests in it, the rest counted."""
        requests = [(key, node) for key, node in trace.nodes.items() if isinstance(node.seen, RequestSeen)]
        for key, node in requests:
            children, steps = self._waiting.family(trace, key, node)
            self._finish(Taken(node, trace.peer, children, steps), at_s)
        left = len(trace.nodes) + trace.steps
        self._dropped[reason] += left
        if left and not trace.requests_seen and reason == "orphan":
            self._finish_orphans(trace_id, trace, at_s)

    def _finish_orphans(self, trace_id: bytes, trace: Trace, at_s: float) -> None:
        """What a request left behind whose own span never came: a record with outcome ``incomplete``."""
        telling = [node for node in trace.nodes.values() if isinstance(node.seen, PhaseSeen)]
        tables = [table for group in trace.groups.values() if len(table := group.table())]
        ends = [(seen.start_ns, seen.end_ns) for node in telling if isinstance(seen := node.seen, PhaseSeen)]
        ends += [(int(table[:, START].min()), int(table[:, END].max())) for table in tables]
        if not ends:
            return
        first = telling[0] if telling else next(iter(trace.groups.values()))
        start_ns = min(start_ns for start_ns, _ in ends)
        record = RequestRecord(
            trace_id=trace_id,
            request_id="",
            server=first.adapter.server,
            model=self._servers.of(first.adapter.server, first.resource, trace.peer).model,
            arrived_s=self._arrived_s(start_ns, trace.first_s),
            start_ns=start_ns,
            end_ns=max(end_ns for _, end_ns in ends),
            outcome="incomplete",
        )
        node = Node(first.adapter, first.resource, None, RequestSeen(record, one_token_each=False))
        trace.nodes[0, b""] = node
        children, steps = self._waiting.family(trace, (0, b""), node)
        self._finish(Taken(node, trace.peer, children, steps), at_s)
