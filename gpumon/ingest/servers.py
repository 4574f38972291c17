"""The servers that spans came from, one for each distinct resource, and how many requests run on each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.ingest.adapters.request import model_of
from gpumon.ingest.adapters.seen import Reading
from gpumon.ingest.concurrency import Concurrency
from gpumon.ingest.records import Resource


class OpenRequests(NamedTuple):
    """Requests that run now on one server, as far as their children tell."""

    server: str
    model: str
    resource: Resource
    peer: str
    requests: int


@dataclass(slots=True, eq=False)
class Server:
    """One resource that serves."""

    server: str
    resource: Resource
    peer: str
    model: str
    """The one last told."""
    concurrency: Concurrency = field(default_factory=Concurrency)


class Servers:
    """Bounded by ``size``; the one that came first is forgotten first, with its open requests."""

    def __init__(self, reading: Reading, size: int) -> None:
        self._reading = reading
        self._size = size
        self._known: OrderedDict[tuple[str, int], Server] = OrderedDict()

    def of(self, server: str, resource: Resource, peer: str) -> Server:
        """The server of a kind and resource, new or not."""
        key = (server, resource.key)
        known = self._known.get(key)
        if known is None:
            model = model_of(resource.attributes, server, self._reading)
            known = self._known[key] = Server(server, resource, peer, model)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return known

    def open(self) -> list[OpenRequests]:
        """Servers with open requests. May be called from another thread."""
        return [
            OpenRequests(one.server, one.model, one.resource, one.peer, one.concurrency.open)
            for one in list(self._known.values())
            if one.concurrency.open
        ]
