"""What the proxy counts of itself, and its samples. On the event loop alone, but for ``samples`` of whole numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from gpumon import catalogue
from gpumon.model import Distribution, Sample
from gpumon.proxy.inject_rules import Where
from gpumon.proxy.routes import Kind

UPSTREAM_ERRORS: Final = catalogue.PROXY_UPSTREAM_ERRORS.values
OUTCOMES: Final = ("ok", "error", "aborted", "refused")


class Counters:
    """All of them; zero at first."""

    def __init__(self) -> None:
        self.requests = {(kind, outcome): 0 for kind in Kind for outcome in OUTCOMES}
        self.upstream_errors = dict.fromkeys(UPSTREAM_ERRORS, 0)
        self.connections = 0
        self.open_requests = 0
        self.open_streams = 0
        self.chunks = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.malformed_events = 0
        self.unread_bodies = 0
        self.refused_connections = 0
        self._delays = dict.fromkeys(Where, 0)
        self._delay_ns = dict.fromkeys(Where, 0)
        self._added = [0] * (len(catalogue.PROXY_ADDED.bounds) + 1)
        self._added_ns = 0
        self._added_bounds_ns = [round(bound * 1e9) for bound in catalogue.PROXY_ADDED.bounds]

    def added(self, duration_ns: int) -> None:
        """Time from a piece's arrival until it was handed on."""
        self._added[bisect_left(self._added_bounds_ns, duration_ns)] += 1
        self._added_ns += duration_ns

    def injected(self, where: Where, delay_ns: int) -> None:
        """A delay was drawn."""
        self._delays[where] += 1
        self._delay_ns[where] += delay_ns

    @property
    def injected_total(self) -> int:
        """Delays so far."""
        return sum(self._delays.values())

    def samples(self) -> Iterator[Sample]:
        """gpumon_proxy_*, but for what others count."""
        for (kind, outcome), count in self.requests.items():
            yield Sample(catalogue.PROXY_REQUESTS, (kind.value, outcome), float(count))
        for reason, count in self.upstream_errors.items():
            yield Sample(catalogue.PROXY_UPSTREAM_ERRORS, (reason,), float(count))
        yield Sample(catalogue.PROXY_CONNECTIONS, (), float(self.connections))
        yield Sample(catalogue.PROXY_CONNECTIONS_REFUSED, (), float(self.refused_connections))
        yield Sample(catalogue.PROXY_OPEN_REQUESTS, (), float(self.open_requests))
        yield Sample(catalogue.PROXY_OPEN_STREAMS, (), float(self.open_streams))
        yield Sample(catalogue.PROXY_CHUNKS, (), float(self.chunks))
        yield Sample(catalogue.PROXY_BYTES, ("request",), float(self.request_bytes))
        yield Sample(catalogue.PROXY_BYTES, ("response",), float(self.response_bytes))
        yield Sample(catalogue.PROXY_MALFORMED_EVENTS, (), float(self.malformed_events))
        yield Sample(catalogue.PROXY_UNREAD_BODIES, (), float(self.unread_bodies))
        for where in Where:
            yield Sample(catalogue.PROXY_INJECTED_DELAYS, (where.value,), float(self._delays[where]))
            yield Sample(catalogue.PROXY_INJECTED, (where.value,), self._delay_ns[where] / 1e9)
        yield Sample(catalogue.PROXY_ADDED, (), Distribution(tuple(self._added), self._added_ns / 1e9))
