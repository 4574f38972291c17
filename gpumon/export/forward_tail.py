"""Which traces are forwarded: all, a ratio of them, or only the slow ones.

A ratio is decided by a hash of the trace id alone, so every node decides alike; it is not the rule of OpenTelemetry's
head sampler, because on top of that one it would thin out nothing. For the slow ones, everything of a trace is held
until a request of it is known and judged: slow, and all of the trace goes, then and later; not slow, and it is
dropped. A trace of which no request was known in time, or for which there was no room to wait, goes if what is there
already spans more than the threshold of duration, and is dropped as undecided otherwise.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpumon.export.forward_cut import TracePart
from gpumon.export.forward_edit import Keep
from gpumon.export.forward_queue import Taken
from gpumon.model import RequestRecord

NS = 1e9


def keep_ratio(ratio: float) -> Keep:
    """A ``Keep`` that wants this share of all traces, 0 to 1, always the same ones."""
    bound = round(ratio * 2**64)

    def keep(trace_id: bytes) -> bool:
        return int.from_bytes(hashlib.blake2b(trace_id, digest_size=8).digest(), "big") < bound

    return keep


@dataclass(frozen=True, slots=True)
class SlowRule:
    """What makes a request slow: any of these passed. None: not looked at."""

    time_to_first_token_s: float | None = None
    inter_token_s: float | None = None
    """Longest gap between two tokens; where a step made several, its gap divided by their number."""
    duration_s: float | None = None

    def is_slow(self, record: RequestRecord) -> bool:
        """Whether the request passed a threshold by what is known of it."""
        first, gap, duration = self.time_to_first_token_s, self.inter_token_s, self.duration_s
        told = record.time_to_first_token_s
        return (
            (first is not None and told is not None and told > first)
            or (duration is not None and self.spans_too_much(record.start_ns, record.end_ns))
            or (gap is not None and _longest_gap_s(record) > gap)
        )

    def spans_too_much(self, start_ns: int, end_ns: int) -> bool:
        """Whether the time between is longer than the threshold of duration."""
        return self.duration_s is not None and start_ns > 0 and (end_ns - start_ns) / NS > self.duration_s


def _longest_gap_s(record: RequestRecord) -> float:
    times, counts = record.token_ns, record.token_counts
    if times is None or len(times) < 2:
        return 0.0
    gaps = np.diff(times) / NS
    if counts is not None and len(counts) == len(times):
        gaps = gaps / np.maximum(counts[1:], 1)
    return float(gaps.max())


@dataclass(slots=True)
class Held:
    """What waits of one trace."""

    since_s: float
    """When the first of it came, steady seconds."""
    bodies: list[bytes] = field(default_factory=list)
    tickets: list[int] = field(default_factory=list)
    """Of the requests it came in."""
    items: int = 0
    size: int = 0
    start_ns: int = 0
    end_ns: int = 0

    def add(self, part: TracePart, ticket: int) -> None:
        """More of it."""
        data = part.data
        self.bodies.append(data)
        self.tickets.append(ticket)
        self.items += part.items
        self.size += len(data) + 200  # what Python needs for a held body, roughly
        if part.start_ns and (not self.start_ns or part.start_ns < self.start_ns):
            self.start_ns = part.start_ns
        self.end_ns = max(self.end_ns, part.end_ns)


@dataclass(slots=True)
class Decision:
    """A trace that need not wait any longer."""

    held: Held
    keep: bool
    in_time: bool
    """False where it was decided without knowing a request of it."""


class Tickets:
    """Which requests on disk have undecided traces: only what is before all of those is done with."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, tuple[Taken, int]] = OrderedDict()
        self._last = 0

    def issue(self, taken: Taken, traces: int) -> int:
        """A ticket for requests that were cut up into so many traces."""
        self._last += 1
        self._open[self._last] = (taken, traces)
        return self._last

    def settle(self, ticket: int) -> None:
        """One of those is decided."""
        taken, traces = self._open[ticket]
        self._open[ticket] = (taken, traces - 1)

    def done(self) -> list[Taken]:
        """The ones at the front for which nothing waits any more, once each."""
        finished: list[Taken] = []
        while self._open:
            taken, traces = next(iter(self._open.values()))
            if traces > 0:
                break
            finished.append(taken)
            self._open.popitem(last=False)
        return finished


class SlowTail:
    """Traces that wait to be judged. Not for two threads at once, except ``judge``."""

    def __init__(self, rule: SlowRule, *, hold_s: float, max_bytes: int, max_verdicts: int = 65_536) -> None:
        """hold_s: longest wait of a trace; max_bytes: of all that wait together; max_verdicts: traces remembered."""
        self._rule = rule
        self._hold_s = hold_s
        self._max_bytes = max_bytes
        self._max_verdicts = max_verdicts
        self._held: OrderedDict[bytes, Held] = OrderedDict()
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._judged: deque[tuple[bytes, bool]] = deque()
        self._due: dict[bytes, None] = {}  # held, and judged already
        self.size = 0
        """Bytes that wait."""
        self.items = 0

    def judge(self, record: RequestRecord) -> None:
        """A request is known. Any thread."""
        if len(self._judged) < self._max_verdicts:
            self._judged.append((record.trace_id, self._rule.is_slow(record)))

    def add(self, trace_id: bytes, part: TracePart, at_s: float, ticket: int) -> None:
        """Something of a trace came."""
        held = self._held.get(trace_id)
        if held is None:
            held = self._held[trace_id] = Held(at_s)
        before = held.size
        held.add(part, ticket)
        if trace_id in self._verdicts:
            self._due[trace_id] = None
        self.size += held.size - before
        self.items += part.items

    def decided(self, now_s: float) -> Iterator[Decision]:
        """The traces that wait no longer, each once."""
        while self._judged:
            trace_id, slow = self._judged.popleft()
            # One slow request keeps the trace, whatever the others of it were.
            self._verdicts[trace_id] = slow or self._verdicts.get(trace_id, False)
            self._verdicts.move_to_end(trace_id)
            if trace_id in self._held:
                self._due[trace_id] = None
        due, self._due = self._due, {}
        for trace_id in due:
            yield Decision(self._pop(trace_id), self._verdicts[trace_id], in_time=True)
        while len(self._verdicts) > self._max_verdicts:
            self._verdicts.popitem(last=False)
        while self._held:
            trace_id, held = next(iter(self._held.items()))
            if self.size <= self._max_bytes and now_s - held.since_s < self._hold_s:
                break
            keep = self._rule.spans_too_much(held.start_ns, held.end_ns)
            if keep:
                self._verdicts[trace_id] = True
            yield Decision(self._pop(trace_id), keep, in_time=False)

    def next_due_s(self) -> float | None:
        """When the oldest trace has waited long enough."""
        held = next(iter(self._held.values()), None)
        return None if held is None else held.since_s + self._hold_s

    def _pop(self, trace_id: bytes) -> Held:
        held = self._held.pop(trace_id)
        self.size -= held.size
        self.items -= held.items
        return held
