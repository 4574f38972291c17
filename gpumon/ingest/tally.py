"""What the receivers count, as metrics. Written by the event loop's thread, read from any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumon import catalogue
from gpumon.ingest.request import Outcome, Signal, Transport
from gpumon.model import Sample

REASONS = 32
"""Most distinct reasons told apart; more are summed as ``other``."""


class Tally:
    """Counters of requests, bytes, and what was in them."""

    def __init__(self) -> None:
        self._requests = {(t, s, o): 0 for t in Transport for s in Signal for o in Outcome}
        self._items = {(t, s): 0 for t in Transport for s in Signal}
        self._bytes = dict.fromkeys(Transport, 0)
        self._rejected: dict[str, int] = {}
        self._truncated = dict.fromkeys(catalogue.SPANS_TRUNCATED.values, 0)

    def received(self, transport: Transport, size: int) -> None:
        """A body of ``size`` bytes has been read."""
        self._bytes[transport] += size

    def answered(self, transport: Transport, signal: Signal, outcome: Outcome) -> None:
        """A request got this answer."""
        self._requests[transport, signal, outcome] += 1

    def took(
        self,
        transport: Transport,
        signal: Signal,
        items: int,
        rejected: Mapping[str, int],
        truncated: Mapping[str, int],
    ) -> None:
        """The content of a request that was taken: spans, log records or data points; what was left out, by reason."""
        self._items[transport, signal] += items
        _add(self._rejected, rejected)
        _add(self._truncated, truncated)

    def samples(self) -> Iterator[Sample]:
        for (transport, signal, outcome), count in self._requests.items():
            yield Sample(catalogue.OTLP_REQUESTS, (transport, signal, outcome), float(count))
        for (transport, signal), count in self._items.items():
            yield Sample(catalogue.OTLP_ITEMS, (transport, signal), float(count))
        for transport, size in self._bytes.items():
            yield Sample(catalogue.OTLP_RECEIVED_BYTES, (transport,), float(size))
        for reason, count in self._rejected.copy().items():
            yield Sample(catalogue.SPANS_REJECTED, (reason,), float(count))
        for kind, count in self._truncated.copy().items():
            yield Sample(catalogue.SPANS_TRUNCATED, (kind,), float(count))


def _add(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        known = reason if reason in totals or len(totals) < REASONS else "other"
        totals[known] = totals.get(known, 0) + count
