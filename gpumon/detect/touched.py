"""Which requests an incident touched: those that ran, while it held, on what it is of.

A request ran on an entity when its binding holds the entity's GPU or process, or a GPU of that process, when its server
and model (of a server known by its metrics page, its model) or its tenant are the entity's, or, for the host, when it
is bound to anything here. What is told of a request comes when it has ended, and an incident is found a while after it
began: so the newest requests are remembered, bounded, and looked through when one opens. A request that is still
running when an incident closes is not among those it touched.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpumon.detect.concerned import Knowing, Ran
from gpumon.detect.detector import Entity
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Holder
from gpumon.model import Binding, RequestRecord

TRACES = 32
"""Most trace ids kept of one incident."""
REMEMBERED = 4096
"""Requests, at 0.3 kB each."""

Key = tuple[str, str]
"""What a request ran on: a scope, and a name in it."""

Holders = Callable[[str], Iterable[Holder]]
"""``Scene.holders``."""

_JUST_BEFORE = 64
_PID = re.compile(r"pid ([0-9]{1,10})\b")


class _Request(NamedTuple):
    """What matters of a request; its token times are not kept alive."""

    end_s: float
    trace_id: bytes
    span_id: bytes
    server: str
    model: str
    tenant: str
    binding: Binding

    def keys(self) -> Iterator[Key]:
        """Everything it ran on."""
        for uuid in self.binding.gpus:
            yield "gpu", uuid
        yield "server", self.server
        yield "server", f"{self.server}/{self.model}"
        if self.model:
            yield "model", self.model
        if self.tenant:
            yield "tenant", self.tenant
        if self.binding.pid is not None:
            yield "process", str(self.binding.pid)
        if self.binding.how != "none":
            yield "host", ""


def keys_of(entity: Entity, holders: Holders) -> list[Key]:
    """What a request of the entity runs on; any of them. Of a process also the GPUs that it holds."""
    keys = [("gpu", entity.uuid)] if entity.uuid else []
    if entity.scope == "process":
        pid = _PID.search(entity.name)
        if pid is not None:
            keys.append(("process", pid[1]))
            keys += [("gpu", held.uuid) for held in holders(pid[1])]
    elif entity.scope == "host":
        keys.append(("host", ""))
    elif entity.scope == "tenant":
        keys.append(("tenant", entity.name))
    elif entity.scope == "server":
        # A request does not tell which of a model's endpoints it came to, and one that gpumon passed on not which
        # kind of server: where a page names the server, the model is enough.
        name, at, _ = entity.name.partition(" at ")
        keys.append(("server", name))
        model = name.partition("/")[2]
        if at and model:
            keys.append(("model", model))
    return keys


class Touched:
    """Not thread-safe. Once per step ``add``, then ``opened`` and ``went_on`` with the incidents that are open."""

    def __init__(self) -> None:
        self._recent: deque[_Request] = deque(maxlen=REMEMBERED)
        self._new: list[_Request] = []

    def add(self, requests: Sequence[RequestRecord], to_steady: Callable[[int], float]) -> None:
        """Requests that became known since the last step."""
        self._new = [
            _Request(
                to_steady(record.end_ns),
                record.trace_id,
                record.span_id,
                record.server,
                record.model,
                record.tenant,
                record.binding,
            )
            for record in requests
        ]
        self._recent.extend(self._new)

    def opened(self, incidents: Iterable[Incident], holders: Holders, knowing: Knowing) -> None:
        """Note for incidents that are new what ran since they began. holders: GPUs that a process holds now."""
        _note(incidents, self._recent, holders, knowing)

    def went_on(self, incidents: Iterable[Incident], holders: Holders, knowing: Knowing) -> None:
        """Note for incidents that were open before what is new."""
        _note(incidents, self._new, holders, knowing)


def _note(incidents: Iterable[Incident], requests: Iterable[_Request], holders: Holders, knowing: Knowing) -> None:
    wanted = [(incident, keys_of(incident.entity, holders)) for incident in incidents]
    if not wanted:
        return
    every = list(requests)
    by_key: dict[Key, list[int]] = {}
    for position, request in enumerate(every):
        for key in request.keys():  # noqa: SIM118 - no dict
            by_key.setdefault(key, []).append(position)
    for incident, keys in wanted:
        positions = sorted({position for key in keys for position in by_key.get(key, ())})
        ran = [every[position] for position in positions]
        touched = [request for request in ran if request.end_s >= incident.since_s]
        incident.requests += len(touched)
        if touched:
            incident.concerned = knowing.touched(incident.concerned, map(_ran, touched))
        elif ran:  # those that it touches have not ended: whose they are, is known of those just before
            incident.concerned = knowing.served(incident.concerned, map(_ran, ran[-_JUST_BEFORE:]))
        _keep_traces(incident, touched)


def _ran(request: _Request) -> Ran:
    return Ran(request.server, request.model, request.tenant, request.binding.gpus)


def _keep_traces(incident: Incident, touched: Iterable[_Request]) -> None:
    known = dict(zip(incident.traces, incident.spans, strict=True))
    for request in touched:
        if len(known) == TRACES:
            break
        if len(request.trace_id) == 16 and any(request.trace_id):
            known.setdefault(request.trace_id.hex(), request.span_id.hex())
    incident.traces, incident.spans = tuple(known), tuple(known.values())
