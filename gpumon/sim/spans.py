"""What the simulated servers export: OTLP trace requests in gpumon's own contract (docs/TOKENS.md).

One span per request with its phases, parameters and the compact form of its token times, an evaluation's score as an
event on it, and one span per rank of each collective. A server's resource names its engine process and its container,
as an SDK with the usual detectors does, so that the receiver finds the GPUs by itself. What only the simulation knows
(``truth``) is never told. Ids come from the seed, the request's number and the moment at which the story began: a run
that begins at the same moment, as all of ``gpumon simulate`` do, sends the same, and each demo its own, so that a link
into one of them leads nowhere in the next.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from gpumon.sim.state import CollectiveStep, FinishedRequest
from gpumon.sim.world import Task, World
from gpumon.tokens import PHASES, SCOPE, SPAN_NAME, TOKEN_TIMES

BATCH = 64
"""Requests, or collectives, of one body."""
EVALUATION = "relevance"
"""Name of the score."""

_EVENT = "gen_ai.evaluation.result"
_COLLECTIVE_SCOPE = "nccl"
_TOLD, _EACH_S = 24, 3.0  # consecutive collectives, of which a straggler is told by, and the time between two runs
_REQUEST_IDS, _COLLECTIVE_IDS = 1, 2
_VARINTS = np.array([1 << 7 * size for size in range(1, 9)], np.uint64)
"""The first number that needs more than 1, 2, … 8 bytes."""


class SpanMaker:
    """Takes what has ended out of a world. One per world: what is taken is gone."""

    def __init__(
        self,
        world: World,
        to_unix: Callable[[float], float],
        on_request: Callable[[bytes, FinishedRequest], None] | None = None,
    ) -> None:
        """to_unix: unix time of a steady second. on_request: is told of each request and its trace id: for benchmarks,
        which compare what was found with the truth."""
        self._world = world
        self._to_unix = to_unix
        self._run = (world.seed, round(to_unix(world.started_at_s) * 1e3))
        """What ids of this run begin with: two starts are not in the same millisecond."""
        self._on_request = on_request
        self._tasks: tuple[Task, ...] = ()
        self._engines = [_resource(world, index, None) for index in range(len(world.servers))]
        """Resources of the servers' engines, as they were last seen alive."""
        self._ranks = [[engine] * len(world.servers[index].gpus) for index, engine in enumerate(self._engines)]
        """The same of the workers, by rank."""
        self._operations = [
            [_operation(world, index, rank) for rank in range(len(server.gpus))]
            for index, server in enumerate(world.servers)
        ]
        self._told = [0] * len(world.servers)
        """Collectives told of the run under way, by server."""
        self._run_s = [-math.inf] * len(world.servers)
        """When it began."""

    def bodies(self, until_s: float) -> list[bytes]:
        """Bodies of all that ended since the last call and up to a steady second, in the order of time.

        A body holds up to ``BATCH`` requests or collectives. Of a server's collectives a run of 24 is told every three
        seconds: all of them would be most of what a node exports.
        """
        requests = sorted(self._world.take_requests(until_s), key=attrgetter("end_s", "server", "number"))
        taken = sorted(self._world.take_collectives(until_s), key=attrgetter("end_s", "server", "sequence"))
        steps = [step for step in taken if self._is_told(step)]
        return [
            *(self._requests(requests[at : at + BATCH]) for at in range(0, len(requests), BATCH)),
            *(self._collectives(steps[at : at + BATCH]) for at in range(0, len(steps), BATCH)),
        ]

    def _is_told(self, step: CollectiveStep) -> bool:
        server = step.server
        if self._told[server] >= _TOLD and step.end_s - self._run_s[server] >= _EACH_S:
            self._told[server] = 0
        if self._told[server] >= _TOLD:
            return False
        if not self._told[server]:
            self._run_s[server] = step.end_s
        self._told[server] += 1
        return True

    def _requests(self, requests: Sequence[FinishedRequest]) -> bytes:
        body = ExportTraceServiceRequest()
        scopes: dict[int, tuple[Resource, ScopeSpans]] = {}
        for request, times in zip(requests, _token_arrays(requests), strict=True):
            self._see(request.end_s)
            resource = self._engines[request.server]
            known = scopes.get(request.server)
            if known is None or known[0] is not resource:
                scope = body.resource_spans.add(resource=resource).scope_spans.add()
                scope.scope.name = SCOPE
                known = scopes[request.server] = (resource, scope)
            self._fill(known[1].spans.add(), request, times)
        return body.SerializeToString()

    def _see(self, at_s: float) -> None:
        """Learn which processes serve at a moment; a server that is gone keeps those it had."""
        # What ended before the story began is told by those who are there at its begin.
        tasks = self._world.tasks(max(at_s, self._world.started_at_s))
        if tasks is self._tasks:
            return
        self._tasks = tasks
        by_pid = {task.pid: task for task in tasks}
        for index, server in enumerate(self._world.servers):
            workers = {task.gpu: task for task in tasks if task.server == server.name and task.gpu is not None}
            if not set(server.gpus) <= workers.keys():
                continue
            engine = by_pid.get(workers[server.gpus[0]].parent)
            resource = _resource(self._world, index, engine)
            if resource != self._engines[index]:
                self._engines[index] = resource
                self._ranks[index] = [_resource(self._world, index, workers[gpu]) for gpu in server.gpus]

    def _fill(self, span: Span, request: FinishedRequest, times: bytes) -> None:
        ids = _ids(*self._run, _REQUEST_IDS, request.server, request.number)
        name = ids[:8].hex()
        start_ns = round(self._to_unix(request.start_s) * 1e9)
        span.trace_id, span.span_id = ids[:16], ids[16:24]
        if self._on_request is not None:
            self._on_request(ids[:16], request)
        span.name = SPAN_NAME
        span.kind = Span.SPAN_KIND_SERVER
        span.start_time_unix_nano = start_ns
        span.end_time_unix_nano = start_ns + round((request.end_s - request.start_s) * 1e9)
        told = [
            _text("gen_ai.request.model", self._world.servers[request.server].model),
            _text("gen_ai.request.id", name),
            _text("inference_id", name),
            _text("prompt_hash", request.prompt_group),
            _int("gen_ai.usage.input_tokens", request.prompt_tokens),
            _int("gen_ai.usage.output_tokens", len(request.token_s)),
            _int("gen_ai.usage.cache_read.input_tokens", request.cached_tokens),
            _float(PHASES["queue"], request.queue_s),
            *(_float(f"gen_ai.request.{parameter}", value) for parameter, value in request.parameters),
        ]
        if request.tenant:
            told.append(_text("tenant.id", request.tenant))
        if request.outcome == "error":
            told.append(_text("error.type", "InternalServerError"))
            span.status.code = Status.STATUS_CODE_ERROR
        else:
            reason = AnyValue(string_value="abort" if request.outcome == "aborted" else "stop")
            values = AnyValue(array_value=ArrayValue(values=(reason,)))
            told.append(KeyValue(key="gen_ai.response.finish_reasons", value=values))
        if request.token_s:
            told.append(_float(PHASES["prefill"], request.prefill_s))
            told.append(_float(PHASES["decode"], request.token_s[-1] - request.token_s[0]))
        attributes = span.attributes
        attributes.extend(told)
        if request.token_s:
            # Filled in place: a message that is put into another is copied.
            array = attributes.add(key=TOKEN_TIMES)
            array.value.array_value.ParseFromString(times)
        if request.score is not None:
            score = (
                _text("gen_ai.evaluation.name", EVALUATION),
                _float("gen_ai.evaluation.score.value", request.score),
            )
            span.events.add(name=_EVENT, time_unix_nano=span.end_time_unix_nano, attributes=score)

    def _collectives(self, steps: Sequence[CollectiveStep]) -> bytes:
        body = ExportTraceServiceRequest()
        scopes: dict[tuple[int, int], tuple[Resource, ScopeSpans]] = {}
        for step in steps:
            self._see(step.end_s)
            end_ns = round(self._to_unix(step.end_s) * 1e9)
            told = (_int("nccl.sequence", step.sequence), _int("nccl.size_bytes", step.size_bytes))
            for rank, start_s in enumerate(step.start_s):
                resource = self._ranks[step.server][rank]
                known = scopes.get((step.server, rank))
                if known is None or known[0] is not resource:
                    scope = body.resource_spans.add(resource=resource).scope_spans.add()
                    scope.scope.name = _COLLECTIVE_SCOPE
                    known = scopes[step.server, rank] = (resource, scope)
                ids = _ids(*self._run, _COLLECTIVE_IDS, step.server, step.sequence, rank)
                span = known[1].spans.add()
                span.MergeFrom(self._operations[step.server][rank])
                span.trace_id, span.span_id = ids[:16], ids[16:24]
                span.start_time_unix_nano = end_ns - round((step.end_s - start_s) * 1e9)
                span.end_time_unix_nano = end_ns
                span.attributes.extend(told)
        return body.SerializeToString()


def _operation(world: World, server: int, rank: int) -> Span:
    """What all spans of a rank's operations have in common."""
    return Span(
        name="nccl.collective",
        kind=Span.SPAN_KIND_INTERNAL,
        attributes=(
            _text("nccl.collective", "AllReduce"),
            _text("nccl.comm.id", f"0x{world.seed & 0xFFFF:04x}{server:04x}"),
            _text("nccl.comm.name", f"tp{server}"),
            _text("nccl.timing", "kernel_gpu"),
            _int("nccl.rank", rank),
            _int("nccl.n_ranks", len(world.servers[server].gpus)),
        ),
    )


def _token_arrays(requests: Sequence[FinishedRequest]) -> list[bytes]:
    """Of each request, its token times in ns since its start, as the bytes of an OTLP ``ArrayValue``.

    All at once, by numpy: one message object per token would cost more than all the rest. An element is a field 1 of
    its length (0A), which holds a field 3 (18), an int64 as a varint.
    """
    counts = [len(request.token_s) for request in requests]
    if not any(counts):
        return [b""] * len(requests)
    starts = np.repeat([request.start_s for request in requests], counts)
    at_s = np.array([token_s for request in requests for token_s in request.token_s])
    words = np.rint((at_s - starts) * 1e9).clip(0).astype(np.uint64)
    sizes = np.searchsorted(_VARINTS, words, "right") + 1
    most = int(sizes.max())
    places = np.arange(most)
    rows = np.empty((len(words), 3 + most), np.uint8)
    rows[:, 0], rows[:, 1], rows[:, 2] = 0x0A, sizes + 1, 0x18
    rows[:, 3:] = (words[:, None] >> (7 * places).astype(np.uint64)).astype(np.uint8) | 0x80
    rows[np.arange(len(words)), 2 + sizes] &= 0x7F  # the last byte of each
    used = np.ones(rows.shape, bool)
    used[:, 3:] = places < sizes[:, None]
    raw = rows[used].tobytes()
    ends = np.concatenate(([0], np.cumsum(sizes + 3)))[np.cumsum([0, *counts])]
    return [raw[first:last] for first, last in pairwise(ends.tolist())]


def _ids(*numbers: int) -> bytes:
    """24 bytes that differ for different numbers: a trace id and a span id, neither of them zero."""
    return hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=24).digest()


def _resource(world: World, server: int, task: Task | None) -> Resource:
    """Of a server's process; without one, what is known of its pod."""
    spec = world.servers[server]
    pod = world.pods[spec.name]
    told = [
        _text("service.name", spec.name),
        _text("host.name", pod.name),
        _text("container.id", pod.container_id),
    ]
    if task is not None:
        told.append(_int("process.pid", task.pid))
    return Resource(attributes=told)


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _int(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


def _float(key: str, value: float) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(double_value=value))
