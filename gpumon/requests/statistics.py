"""Requests and tokens as histograms, counters and windows of the last hour, from assembled requests.

Every number is the record's own: what is None there is in no family, so the histograms of one server may count
different numbers of requests. Definitions are in the help texts (gpumon.catalogue) and in ``gaps``.

Records wait until there are enough for one pass of numpy over all of them, or somebody asks. Memory: the waiting
records (at most 1,024, or 16,384 tokens and one record more), 7.4 MB of window rows, and 0.2 MB per (server, model).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.model import Item, Reason, Rejection, RequestRecord, Sample
from gpumon.requests.gaps import possible, tokens_made
from gpumon.requests.latencies import Finished, Latencies
from gpumon.requests.running import Running
from gpumon.requests.series import Series, Tenants
from gpumon.requests.windows import Ladder, Row, Signal, merged, quantiles_of

CAP_S: Final = 3600.0
OPEN_BELIEVED_S: Final = 30.0
"""How long a number of open requests counts as true."""
_WAITING_RECORDS = 1024
_WAITING_TOKENS = 16_384
_REJECTIONS = 10_000  # most of one field told at a time


class Cell(NamedTuple):
    """Latency of one minute, series and bucket: a cell of a heatmap. Quantiles are at most 2.2 % off."""

    signal: Signal
    server: str
    model: str
    bucket: str
    """Value of the label concurrency or context; "" for all buckets together."""
    start_s: float
    """Steady seconds; the minute is [start_s, start_s + 60)."""
    observations: int
    p50_s: float
    p95_s: float
    p99_s: float


class RequestStatistics:
    """Counts requests. Every method may be called from any thread; one lock, held for a pass at most.

    Steady times that are handed in never go back.
    """

    name = "requests"
    """As a source of the runner."""

    def __init__(
        self,
        *,
        max_models: int = 8,
        max_tenants: int = 0,
        idle_s: float = 3600.0,
        cap_s: float = CAP_S,
        window_rows: int = 5000,
        to_unix: Callable[[float], float] = lambda at_s: at_s,
    ) -> None:
        """max_models: (server, model) pairs told apart, at most 32; the rest counts as model ``other``. A pair makes
        up to 970 series. max_tenants: tenants told apart, at most 256; 0: none are counted. idle_s: how long a pair
        or tenant keeps its place unused when another wants it. cap_s: longest duration believed. window_rows: of
        1,444 bytes. to_unix: from steady to unix time, for exemplars.
        """
        self._lock = threading.Lock()
        self._series = Series(min(max_models, 32), idle_s)
        self._tenants = Tenants(min(max_tenants, 256), idle_s)
        self._to_unix = to_unix
        self._latencies = Latencies(self._series.slots, cap_s=cap_s, window_rows=window_rows)
        self._tokens = [Counter[str]() for _ in range(self._series.slots)]
        self._outcomes = [Counter[str]() for _ in range(self._series.slots)]
        self._open: dict[int, tuple[int, float]] = {}
        """Open requests and when that was told, by slot."""
        self._waiting: list[Finished] = []
        self._waiting_tokens = 0
        self._rejected: Counter[str] = Counter()
        self._unbound: Counter[str] = Counter()

    def add(self, record: RequestRecord, at_s: float) -> None:
        """Count a request that ended; ``at_s``: steady seconds now."""
        with self._lock:
            slot = self._slot(record.server, record.model, at_s)
            outcome = record.outcome if record.outcome in catalogue.REQUEST_OUTCOMES else "error"
            self._outcomes[slot][outcome] += 1
            self._count_tokens(record, slot, at_s)
            if record.binding.how == "none":
                reason = record.binding.unbound
                self._unbound[reason if reason in catalogue.REQUESTS_UNBOUND.values else "no_identity"] += 1
            self._waiting.append(Finished(record, slot, at_s))
            self._waiting_tokens += 0 if record.token_ns is None else len(record.token_ns)
            if self._waiting_tokens >= _WAITING_TOKENS or len(self._waiting) >= _WAITING_RECORDS:
                self._flush()

    def set_open(self, open_requests: Mapping[tuple[str, str], int], at_s: float) -> None:
        """Requests known to be open now by (server, model), for the gauge; true for 30 s.

        A pair that was named before and is not now has none open; one that was never named has no gauge.
        """
        with self._lock:
            sums = Counter(dict.fromkeys(self._open, 0))
            for (server, model), count in open_requests.items():
                slot = self._slot(server, model, at_s)
                sums[slot] = sums.get(slot, 0) + max(0, count)
            self._open = {slot: (count, at_s) for slot, count in sums.items()}

    def observe_running(self, server: str, model: str, open_requests: int, at_s: float) -> None:
        """Requests open on a server, seen by one who sees every one of them while it runs.

        Decides the concurrency of tokens made in the 5 s after it, instead of that at their request's arrival.
        """
        with self._lock:
            slot = self._slot(server, model, at_s)
            self._latencies.running.setdefault(slot, Running()).observe(open_requests, at_s)

    def read(self, at_s: float) -> Iterator[Item]:
        """As a source: all samples, and what was rejected since the last call."""
        yield from self.samples(at_s)
        with self._lock:
            rejected = self._rejected + self._latencies.rejected
            self._rejected.clear()
            self._latencies.rejected.clear()
        for field, count in rejected.items():
            yield from repeat(Rejection(field, Reason.OUT_OF_RANGE), min(count, _REJECTIONS))

    def samples(self, at_s: float) -> list[Sample]:
        """All families of every (server, model) known, at 0 where nothing happened yet."""
        with self._lock:
            self._flush()
            found: list[Sample] = []
            for names, slot in self._series.named():
                found += self._latencies.samples(slot, names, self._to_unix)
                for metric, counts in ((catalogue.TOKENS, self._tokens), (catalogue.REQUESTS, self._outcomes)):
                    found += [Sample(metric, (*names, value), float(counts[slot][value])) for value in metric.values]
                count, told_s = self._open.get(slot, (0, float("-inf")))
                if at_s - told_s <= OPEN_BELIEVED_S:
                    found.append(Sample(catalogue.REQUESTS_OPEN, names, float(count)))
            found += self._tenants.samples()
            folded = {**self._series.folded, "tenant": self._tenants.folded}
            found += [Sample(catalogue.LABELS_FOLDED, (label,), float(count)) for label, count in folded.items()]
            found += [
                Sample(catalogue.REQUESTS_UNBOUND, (reason,), float(self._unbound[reason]))
                for reason in catalogue.REQUESTS_UNBOUND.values
            ]
            windows = self._latencies.windows
            found.append(Sample(catalogue.WINDOW_DROPPED, ("late",), float(windows.late)))
            found.append(Sample(catalogue.WINDOW_DROPPED, ("evicted",), float(windows.evicted)))
            return found

    def cells(self, since_s: float, at_s: float, by: Ladder | None) -> list[Cell]:
        """Cells of the last hour whose minute ends after ``since_s``, by bucket of a ladder or, by None, of them all.

        Ordered by signal, series, bucket, time.
        """
        names, rows = self._rows(since_s, at_s, by if by is not None else Ladder.CONCURRENCY)
        if by is None:
            rows = merged(rows)  # every observation has a concurrency
        return [
            Cell(
                row.signal,
                *names[row.slot],
                "" if by is None else by.labels[row.position],
                row.start_s,
                int(row.counts.sum()),
                *values,
            )
            for row, values in zip(rows, quantiles_of(rows).tolist(), strict=True)
        ]

    def rows(self, since_s: float, at_s: float, by: Ladder) -> list[tuple[tuple[str, str], Row]]:
        """The same as log-bucket counts, which merge by addition, each with its (server, model)."""
        names, rows = self._rows(since_s, at_s, by)
        return [(names[row.slot], row) for row in rows]

    def _rows(self, since_s: float, at_s: float, by: Ladder) -> tuple[dict[int, tuple[str, str]], list[Row]]:
        with self._lock:
            self._flush()
            names = {slot: pair for pair, slot in self._series.named()}
            return names, self._latencies.windows.rows(by, since_s, at_s)

    def _slot(self, server: str, model: str, at_s: float) -> int:
        place = self._series.find(server, model, at_s)
        if place.reused:
            self._flush()
            self._latencies.clear(place.slot)
            self._tokens[place.slot].clear()
            self._outcomes[place.slot].clear()
            self._open.pop(place.slot, None)
        return place.slot

    def _count_tokens(self, record: RequestRecord, slot: int, at_s: float) -> None:
        told = {"prompt": record.prompt_tokens, "completion": tokens_made(record), "cached": record.cached_tokens}
        good: dict[str, int] = {}
        for kind, count in told.items():
            if count is None:
                continue
            if possible(count):
                good[kind] = count
                self._tokens[slot][kind] += count
            else:
                self._rejected[f"{kind}_tokens"] += 1
        self._tenants.count(record.tenant, good, at_s)

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_tokens = self._waiting, [], 0
        self._latencies.count(waiting)
