"""Collective operations, one record per rank and operation: from NCCL Inspector's log lines or from spans.

Inspector line (NCCL 2.30, format v4 and v5): JSON with ``header`` (communicator, rank), ``coll_perf`` (name, sequence
number, size, execution time in µs) and, when verbose, start and stop stamps. The line's own time is when it was
dumped, not when the operation ran. Spans: docs/TOKENS.md. Collectives block: the rank that arrives last has the
SHORTEST execution time, the ones that waited the longest. Who the straggler is, detectors decide; here are only
records and per-rank counters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.ingest.adapters.values import MAX_TEXT, count, number, text
from gpumon.ingest.records import SpanRecord, Value
from gpumon.model import Sample

SPAN_NAME = "nccl.collective"
COLLECTIVES = (
    *("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Gather", "Scatter", "AlltoAll"),
    *("Send", "Recv"),
)
"""Known names of operations; label values of ``collective`` besides ``other``."""
MAX_COMMS = 8
MAX_RANKS = 256
MAX_LINE = 65_536
_MAX_EXEC_S = 3600.0
_TIMINGS = frozenset({"kernel_gpu", "kernel_cpu", "collective_cpu"})


class LineError(Exception):
    """A line that is no collective record; the text is one of a few words, a label value."""


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One operation as one rank saw it."""

    comm_id: str
    comm_name: str
    rank: int
    n_ranks: int
    collective: str
    """As NCCL names it; p2p operations are Send and Recv."""
    sequence: int
    """Joins the ranks of one operation, with ``comm_id``."""
    size_bytes: int
    exec_s: float
    start_ns: int = 0
    """Unix time by the rank's host, 0 where not told; never compared between hosts."""
    stop_ns: int = 0
    timing: str = ""
    """kernel_gpu, kernel_cpu, or collective_cpu, which includes the launch; empty where not told."""
    host: str = ""
    pid: int = 0


def parse_line(line: bytes) -> CollectiveRecord:
    """An Inspector line. Raises LineError (``oversize``, ``malformed``, ``out_of_range``)."""
    if len(line) > MAX_LINE:
        raise LineError("oversize")
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError) as err:  # ValueError also covers bytes that are no UTF-8
        raise LineError("malformed") from err
    header, about = _part(whole, "header"), _part(whole, "metadata")
    if isinstance(whole, dict) and "p2p_perf" in whole:
        kind, perf = "p2p", _part(whole, "p2p_perf")
    else:
        kind, perf = "coll", _part(whole, "coll_perf")
    stamps = perf.get("event_trace_ts", whole.get("event_trace_ts"))
    stamps = stamps if isinstance(stamps, dict) else {}
    return _record(
        comm_id=text(header.get("id")),
        comm_name=text(header.get("comm_name")),
        rank=header.get("rank"),
        n_ranks=header.get("n_ranks"),
        collective=text(perf.get(kind)),
        sequence=perf.get(f"{kind}_sn"),
        size_bytes=perf.get(f"{kind}_msg_size_bytes"),
        exec_us=perf.get(f"{kind}_exec_time_us"),
        start_ns=(count(stamps.get(f"{kind}_start_ts")) or 0) * 1000,
        stop_ns=(count(stamps.get(f"{kind}_stop_ts")) or 0) * 1000,
        timing=text(perf.get(f"{kind}_timing_source")),
        host=text(about.get("hostname")),
        pid=about.get("pid"),
    )


def is_collective(span: SpanRecord) -> bool:
    """Whether a span is a collective by gpumon's contract."""
    return span.name == SPAN_NAME


def of_span(span: SpanRecord) -> CollectiveRecord:
    """The record a collective's span says. Raises LineError."""
    attributes = span.attributes
    if not 0 < span.start_ns <= span.end_ns:
        raise LineError("out_of_range")
    return _record(
        comm_id=text(attributes.get("nccl.comm.id")),
        comm_name=text(attributes.get("nccl.comm.name")),
        rank=attributes.get("nccl.rank"),
        n_ranks=attributes.get("nccl.n_ranks"),
        collective=text(attributes.get("nccl.collective")),
        sequence=attributes.get("nccl.sequence"),
        size_bytes=attributes.get("nccl.size_bytes", 0),
        exec_us=(span.end_ns - span.start_ns) / 1e3,
        start_ns=span.start_ns,
        stop_ns=span.end_ns,
        timing=text(attributes.get("nccl.timing")),
        host=text(span.resource.attributes.get("host.name")),
        pid=span.resource.attributes.get("process.pid"),
    )


def _part(whole: object, name: str) -> Mapping[str, Value]:
    part = whole.get(name) if isinstance(whole, dict) else None
    if part is None and name == "metadata":
        return {}
    if not isinstance(part, dict):
        raise LineError("malformed")
    return part


def _record(
    *,
    comm_id: str,
    comm_name: str,
    rank: Value | None,
    n_ranks: Value | None,
    collective: str,
    sequence: Value | None,
    size_bytes: Value | None,
    exec_us: Value | None,
    start_ns: int,
    stop_ns: int,
    timing: str,
    host: str,
    pid: Value | None,
) -> CollectiveRecord:
    whole = [count(value) for value in (rank, n_ranks, sequence, size_bytes)]
    exec_told = number(exec_us)
    if not collective or exec_told is None or any(value is None for value in whole):
        raise LineError("malformed")
    rank_, n_ranks_, sequence_, size_ = (value or 0 for value in whole)
    if not 0 <= exec_told <= _MAX_EXEC_S * 1e6 or rank_ >= n_ranks_ or stop_ns < start_ns:  # also refuses NaN
        raise LineError("out_of_range")
    return CollectiveRecord(
        comm_id=comm_id,
        comm_name=comm_name,
        rank=rank_,
        n_ranks=n_ranks_,
        collective=collective[:MAX_TEXT],
        sequence=sequence_,
        size_bytes=size_,
        exec_s=exec_told / 1e6,
        start_ns=start_ns,
        stop_ns=stop_ns,
        timing=timing if timing in _TIMINGS else "",
        host=host,
        pid=count(pid) or 0,
    )


class Collectives:
    """Counts records by communicator's name, operation and rank, and hands them on.

    Bounded: the first ``MAX_COMMS`` names keep their own, others are ``other``; ranks from ``MAX_RANKS`` on count as
    dropped, as do lines and spans that are no records.
    """

    def __init__(self, sink: Callable[[CollectiveRecord], None] | None = None) -> None:
        self._sink = sink
        self._comms: set[str] = set()
        self._operations: Counter[tuple[str, str, str]] = Counter()
        self._seconds: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str]] = Counter()
        self._dropped: Counter[str] = Counter(dict.fromkeys(catalogue.COLLECTIVE_RECORDS_DROPPED.values, 0))

    def add_line(self, line: bytes) -> None:
        """A line of an Inspector's file."""
        try:
            self.add(parse_line(line))
        except LineError as err:
            self.drop(str(err))

    def add_span(self, span: SpanRecord) -> None:
        """A span that ``is_collective``."""
        try:
            self.add(of_span(span))
        except LineError as err:
            self.drop(str(err))

    def add(self, record: CollectiveRecord) -> None:
        """Count a record and hand it on."""
        if record.rank >= MAX_RANKS:
            self.drop("out_of_range")
            return
        name = record.comm_name or "unnamed"
        if name not in self._comms:
            if len(self._comms) < MAX_COMMS:
                self._comms.add(name)
            else:
                name = "other"
        collective = record.collective if record.collective in COLLECTIVES else "other"
        key = (name, collective, str(record.rank))
        self._operations[key] += 1
        self._bytes[key] += record.size_bytes
        # Fractions of a second add up in whole nanoseconds, so that the order of arrival changes nothing.
        self._seconds[key] += round(record.exec_s * 1e9)
        if self._sink is not None:
            self._sink(record)

    def drop(self, reason: str) -> None:
        """Count something that did not become a record."""
        self._dropped[reason] += 1

    def samples(self) -> Iterator[Sample]:
        """Counters since the start."""
        for key, operations in dict(self._operations).items():
            yield Sample(catalogue.COLLECTIVES, key, float(operations))
            yield Sample(catalogue.COLLECTIVE_SECONDS, key, self._seconds[key] / 1e9)
            yield Sample(catalogue.COLLECTIVE_BYTES, key, float(self._bytes[key]))
        for reason, dropped in dict(self._dropped).items():
            yield Sample(catalogue.COLLECTIVE_RECORDS_DROPPED, (reason,), float(dropped))
