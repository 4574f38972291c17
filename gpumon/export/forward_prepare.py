"""From what arrived to what is ready to be sent: JSON to protobuf, tail policy, added attributes, batches.

A request waits among what arrived until it has settled. With a slow tail its traces then wait to be decided on, in
memory; on disk it stays until all of them are, so that a kill loses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.export import forward_json
from gpumon.export.forward_cut import by_trace, split
from gpumon.export.forward_edit import Annotate, Keep, edit
from gpumon.export.forward_queue import Backlog, Parcel, Taken
from gpumon.export.forward_schema import EditError, count_items
from gpumon.export.forward_tail import SlowTail, Tickets
from gpumon.ingest.request import Signal

Dropped = Callable[[str, int, str], None]
"""Told of (signal, items, reason)."""

_STEP_BYTES = 4 << 20
"""Worked on at once."""


class Offered(NamedTuple):
    """A request as it came."""

    signal: Signal
    body: bytes
    is_json: bool
    at_s: float
    """Steady seconds of its arrival."""
    own: bool = False
    """Made by gpumon: goes on as it is, without waiting for anything."""

    def items(self) -> int:
        """Spans, log records or metrics in it; 1 for what cannot be read."""
        try:
            if self.is_json:
                return forward_json.count_items(self.signal, self.body)
            return count_items(self.signal, self.body)
        except EditError:
            return 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of everything that waits."""

    max_bytes: int = 64 << 20
    """Memory for all requests that wait or are being sent, without a spool that works."""
    max_requests: int = 100_000
    """Most of them."""
    batch_bytes: int = 2 << 20
    """Of one request sent, before compression; below what receivers take, which for many is 4 MiB."""
    batch_items: int = 8192
    """Spans, log records or metrics in it."""
    settle_s: float = 4.0
    """From arrival to adding attributes: by then samples of the span's end are there, and the request, which is
    complete 2 to 2.5 s after its own span came, is bound. Not waited for without an annotator."""
    give_up_s: float = 86_400.0
    """Longest time of trying to send the same batch."""


class Preparer:
    """Not for two threads at once."""

    def __init__(
        self,
        arrived: Backlog,
        ready: Backlog,
        limits: Limits,
        *,
        annotate: Annotate | None,
        keep: Keep | None,
        tail: SlowTail | None,
        dropped: Dropped,
    ) -> None:
        self._arrived = arrived
        self._ready = ready
        self._limits = limits
        self._annotate = annotate
        self._keep = keep
        self._tail = tail
        self._dropped = dropped
        self._tickets = Tickets()
        self._settle_s = limits.settle_s if annotate is not None else 0.0

    def store(self, requests: Sequence[Offered], now_s: float) -> None:
        """Put them among what arrived, as protobuf; what gpumon made itself is ready."""
        for signal in Signal:
            of_signal = [request for request in requests if request.signal is signal]
            foreign = [request for request in of_signal if not request.own]
            newest_s = max((request.at_s for request in foreign), default=0.0)
            for parcel in self._gathered(signal, self._readable(signal, foreign), newest_s):
                self._arrived.put(parcel, now_s)
            own = [request for request in of_signal if request.own]
            self._pass_on(signal, self._readable(signal, own), now_s)

    def _readable(self, signal: Signal, requests: Iterable[Offered]) -> list[tuple[bytes, int]]:
        readable: list[tuple[bytes, int]] = []
        for request in requests:
            try:
                data = forward_json.to_protobuf(signal, request.body) if request.is_json else request.body
                readable.append((data, count_items(signal, data)))
            except EditError:
                self._dropped(signal, 1, "malformed")
        return readable

    def work(self, now_s: float, *, final: bool) -> float | None:
        """Work on what has settled; ``final``: on everything. Returns the steady time at which there is more to do."""
        until_s = float("inf") if final else now_s - self._settle_s
        while (taken := self._arrived.take(_STEP_BYTES, 1 << 30, until_s=until_s)) is not None:
            self._work_on(taken, now_s)
        due = []
        if self._tail is not None:
            self._forward_decided(self._tail, float("inf") if final else now_s, now_s)
            due.append(self._tail.next_due_s())
        first_s = self._arrived.next_at_s()
        due.append(None if first_s is None else first_s + self._settle_s)
        return min((at_s for at_s in due if at_s is not None), default=None)

    def _work_on(self, taken: Taken, now_s: float) -> None:
        on_disk = taken.position is not None
        if not on_disk:
            self._arrived.commit(taken)  # nothing survives anyway: make room for what comes of it
        signal = taken.parcels[0].signal
        if signal is Signal.TRACES and self._tail is not None:
            self._hold(self._tail, taken, now_s)
            return
        if signal is Signal.TRACES:
            bodies = [self._edited(parcel.data) for parcel in taken.parcels]
        else:
            bodies = [(parcel.data, parcel.items) for parcel in taken.parcels]
        self._pass_on(signal, bodies, now_s)
        if on_disk:
            self._arrived.commit(taken)

    def _edited(self, data: bytes) -> tuple[bytes, int]:
        edited = edit(data, annotate=self._annotate, keep=self._keep)
        self._dropped(Signal.TRACES, edited.invalid, "invalid_id")
        self._dropped(Signal.TRACES, edited.unwanted, "tail_policy")
        return edited.data, edited.spans

    def _hold(self, tail: SlowTail, taken: Taken, now_s: float) -> None:
        found = [by_trace(parcel.data) for parcel in taken.parcels]
        self._dropped(Signal.TRACES, sum(invalid for _, invalid in found), "invalid_id")
        ticket = self._tickets.issue(taken, sum(len(parts) for parts, _ in found))
        for parts, _ in found:
            for trace_id, part in parts.items():
                tail.add(trace_id, part, now_s, ticket)

    def _forward_decided(self, tail: SlowTail, until_s: float, now_s: float) -> None:
        bodies: list[tuple[bytes, int]] = []
        for decision in tail.decided(until_s):
            held = decision.held
            if decision.keep:
                bodies += [self._edited(body) for body in held.bodies]
            else:
                self._dropped(Signal.TRACES, held.items, "tail_policy" if decision.in_time else "undecided")
            for ticket in held.tickets:
                self._tickets.settle(ticket)
        self._pass_on(Signal.TRACES, bodies, now_s)
        for taken in self._tickets.done():
            if taken.position is not None:
                self._arrived.commit(taken)

    def _pass_on(self, signal: Signal, bodies: Iterable[tuple[bytes, int]], now_s: float) -> None:
        limits = self._limits
        parts: list[tuple[bytes, int]] = []
        for data, items in bodies:
            if len(data) > limits.batch_bytes or items > limits.batch_items:
                parts += split(data, limits.batch_bytes, limits.batch_items)
            elif items:
                parts.append((data, items))
        for parcel in self._gathered(signal, parts, now_s):
            self._ready.put(parcel, now_s)

    def _gathered(self, signal: Signal, bodies: Iterable[tuple[bytes, int]], at_s: float) -> list[Parcel]:
        """Small requests joined, which makes a request again, since all they have is one repeated field."""
        parcels: list[Parcel] = []
        group: list[bytes] = []
        size = total = 0
        for data, items in bodies:
            if group and (size + len(data) > self._limits.batch_bytes or total + items > self._limits.batch_items):
                parcels.append(Parcel(signal, b"".join(group), total, at_s))
                group, size, total = [], 0, 0
            group.append(data)
            size += len(data)
            total += items
        if group:
            parcels.append(Parcel(signal, b"".join(group), total, at_s))
        return parcels
