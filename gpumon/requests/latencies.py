"""The latency histograms and windows of all series, filled by passes over many finished requests at once.

A duration that is not finite, negative or over the cap is left out and counted by field; the rest of its record
counts. Series are slots. Not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.model import Metric, RequestRecord, Sample
from gpumon.requests.buckets import CONTEXT_UNKNOWN, concurrency_buckets, context_buckets
from gpumon.requests.gaps import Gaps, Segment, gaps_of, in_passes, inter_token_segment, possible, step_segment
from gpumon.requests.histograms import Histograms, Observations
from gpumon.requests.logbuckets import log_buckets
from gpumon.requests.running import Running
from gpumon.requests.windows import Ladder, Signal, Windows

_MOMENT_MAX = 1 << 62
_OPEN_MAX = 1 << 31
_CONCURRENCIES = len(catalogue.CONCURRENCY_BUCKETS)
_CONTEXTS = len(catalogue.CONTEXT_BUCKETS)
_PHASES: dict[str, Metric] = {
    "queue_s": catalogue.REQUEST_QUEUE,
    "prefill_s": catalogue.REQUEST_PREFILL,
    "decode_s": catalogue.REQUEST_DECODE,
    "kv_sync_s": catalogue.KV_SYNC,
}


class Finished(NamedTuple):
    """A request to be counted."""

    record: RequestRecord
    slot: int
    at_s: float
    """Steady seconds when it came."""


class _Owners(NamedTuple):
    """The requests of one pass, as columns."""

    slots: NDArray[np.intp]
    concurrency: NDArray[np.int64]
    at_s: NDArray[np.float64]
    start_ns: NDArray[np.int64]
    started_s: NDArray[np.float64]
    traces: list[tuple[str, float]]


class Latencies:
    """All that is counted of durations, of ``slots`` series."""

    def __init__(self, slots: int, *, cap_s: float, window_rows: int) -> None:
        # glibc maps every block of 128 KiB anew, and its page faults cost more than counting does, until it has seen a
        # larger one freed (mallopt(3), M_MMAP_THRESHOLD: it adapts).
        np.empty(2 << 20, dtype=np.uint8)
        self._cap_s = cap_s
        self.windows = Windows(slots, window_rows)
        self.running: dict[int, Running] = {}
        """By slot, where somebody watches."""
        self.rejected: Counter[str] = Counter()
        """Durations left out, by field; of token times, requests with any."""
        self._duration = Histograms(catalogue.REQUEST_DURATION, slots)
        self._first = Histograms(catalogue.REQUEST_FIRST_TOKEN, slots)
        self._first_by_concurrency = Histograms(catalogue.REQUEST_FIRST_TOKEN_BY_CONCURRENCY, slots * _CONCURRENCIES)
        self._first_by_context = Histograms(catalogue.REQUEST_FIRST_TOKEN_BY_CONTEXT, slots * _CONTEXTS)
        self._phases = {attribute: Histograms(metric, slots) for attribute, metric in _PHASES.items()}
        self._token = Histograms(catalogue.INTER_TOKEN, slots)
        self._token_by_concurrency = Histograms(catalogue.INTER_TOKEN_BY_CONCURRENCY, slots * _CONCURRENCIES)
        self._token_by_context = Histograms(catalogue.INTER_TOKEN_BY_CONTEXT, slots * _CONTEXTS)
        self._step = Histograms(catalogue.DECODE_STEP, slots)
        self._all = (
            *(self._duration, self._first, self._first_by_concurrency, self._first_by_context),
            *(*self._phases.values(), self._token, self._token_by_concurrency, self._token_by_context, self._step),
        )

    def count(self, finished: Sequence[Finished]) -> None:
        """Count requests, in the order in which they came."""
        if not finished:
            return
        owners = _columns(finished, self._cap_s)
        self._count_durations(finished, owners)
        self._count_first_tokens(finished, owners)
        for attribute, histograms in self._phases.items():
            chosen, values = _told(finished, attribute)
            chosen, observed = self._believed(attribute, chosen, values, histograms)
            histograms.insert(owners.slots[chosen], observed)
        self._count_gaps(finished, owners)

    def clear(self, slot: int) -> None:
        """Forget a series."""
        for histograms in self._all:
            cells = len(histograms.metric.values) or 1
            histograms.clear(slot * cells, (slot + 1) * cells)
        self.windows.clear(slot)
        self.running.pop(slot, None)

    def samples(self, slot: int, names: tuple[str, str], to_unix: Callable[[float], float]) -> Iterator[Sample]:
        """Every histogram of a series, those at 0 too."""
        for histograms in self._all:
            values = histograms.metric.values
            for position, value in enumerate(values):
                distribution = histograms.distribution(slot * len(values) + position, to_unix)
                yield Sample(histograms.metric, (*names, value), distribution)
            if not values:
                yield Sample(histograms.metric, names, histograms.distribution(slot, to_unix))

    def _believed(
        self, field: str, chosen: NDArray[np.intp], seconds: NDArray[np.float64], histograms: Histograms
    ) -> tuple[NDArray[np.intp], Observations]:
        """Those whose durations can be true, and these."""
        good = (seconds >= 0) & (seconds <= self._cap_s)  # NaN is neither
        if not good.all():
            self.rejected[field.removesuffix("_s")] += int((~good).sum())
            chosen, seconds = chosen[good], seconds[good]
        nanoseconds = np.rint(seconds * 1e9).astype(np.int64)
        return chosen, Observations(seconds, nanoseconds, histograms.classic.of(seconds, log_buckets(seconds)))

    def _count_durations(self, finished: Sequence[Finished], owners: _Owners) -> None:
        records = [record for record, _, _ in finished]
        chosen = np.array(
            [
                i
                for i, r in enumerate(records)
                if r.outcome != "incomplete" and _moment(r.start_ns) and _moment(r.end_ns)
            ],
            dtype=np.intp,
        )
        seconds = np.array([(records[i].end_ns - records[i].start_ns) / 1e9 for i in chosen.tolist()])
        chosen, observed = self._believed("duration", chosen, seconds, self._duration)
        self._duration.note(self._duration.insert(owners.slots[chosen], observed), chosen, owners.traces)

    def _count_first_tokens(self, finished: Sequence[Finished], owners: _Owners) -> None:
        chosen, seconds = _told(finished, "time_to_first_token_s")
        chosen, observed = self._believed("time_to_first_token", chosen, seconds, self._first)
        slots = owners.slots[chosen]
        concurrency = concurrency_buckets(owners.concurrency[chosen])
        added = self._first_by_concurrency.insert(slots * _CONCURRENCIES + concurrency, observed)
        self._first.merge(added)
        self._first.note(added, chosen, owners.traces)
        made_s = np.minimum(owners.started_s[chosen] + observed.seconds, owners.at_s[chosen])
        places = self.windows.places(slots, made_s, log_buckets(observed.seconds), None)
        self.windows.insert(Signal.FIRST_TOKEN, Ladder.CONCURRENCY, concurrency, places)
        prompts = np.array(
            [p if possible(p := finished[i].record.prompt_tokens) else CONTEXT_UNKNOWN for i in chosen.tolist()],
            dtype=np.int64,
        )
        known = prompts >= 0
        contexts = context_buckets(prompts[known])
        self._first_by_context.insert(slots[known] * _CONTEXTS + contexts, observed.only(known))
        self.windows.insert(Signal.FIRST_TOKEN, Ladder.CONTEXT, contexts, places.only(known))

    def _count_gaps(self, finished: Sequence[Finished], owners: _Owners) -> None:
        single: list[Segment] = []  # one token a step: the inter-token latencies are the step times
        sized: list[Segment] = []
        steps: list[Segment] = []
        for i, (record, _, _) in enumerate(finished):
            segment = inter_token_segment(i, record)
            if segment is not None and segment.counts is None:
                single.append(segment)
                continue
            if segment is not None:
                sized.append(segment)
            segment = step_segment(i, record)
            if segment is not None:
                steps.append(segment)
        for part in in_passes(single):
            self._count_tokens(self._possible("token_times", gaps_of(part)), owners, are_steps=True)
        for part in in_passes(sized):
            self._count_tokens(self._possible("token_times", gaps_of(part)), owners, are_steps=False)
        for part in in_passes(steps):
            gaps = self._possible("step_times", gaps_of(part))
            self._step.insert(owners.slots[gaps.owners], self._observed(gaps)[0])

    def _count_tokens(self, gaps: Gaps, owners: _Owners, *, are_steps: bool) -> None:
        observed, logs = self._observed(gaps)
        slots = owners.slots[gaps.owners]
        made_s = owners.started_s[gaps.owners] + (gaps.ends_ns - owners.start_ns[gaps.owners]) * 1e-9
        np.minimum(made_s, owners.at_s[gaps.owners], out=made_s)
        concurrency = self._concurrency(owners, slots, gaps.owners, made_s)
        added = self._token_by_concurrency.insert(slots * _CONCURRENCIES + concurrency, observed)
        self._token.merge(added)
        self._token.note(added, gaps.owners, owners.traces)
        if are_steps:
            self._step.merge(added)
        places = self.windows.places(slots, made_s, logs, gaps.counts)
        self.windows.insert(Signal.INTER_TOKEN, Ladder.CONCURRENCY, concurrency, places)
        known = gaps.contexts >= 0
        if not known.all():
            gaps, observed, places, slots = gaps.only(known), observed.only(known), places.only(known), slots[known]
        contexts = context_buckets(gaps.contexts)
        self._token_by_context.insert(slots * _CONTEXTS + contexts, observed)
        self.windows.insert(Signal.INTER_TOKEN, Ladder.CONTEXT, contexts, places)

    def _possible(self, field: str, gaps: Gaps) -> Gaps:
        good = (gaps.gaps_ns >= 0) & (gaps.gaps_ns <= int(self._cap_s * 1e9))
        if good.all():
            return gaps
        self.rejected[field] += len(np.unique(gaps.owners[~good]))
        return gaps.only(good)

    def _observed(self, gaps: Gaps) -> tuple[Observations, NDArray[np.intp]]:
        # Divided once, by an exact number: 500,000 ns must be the very float that the bound 0.0005 is.
        seconds = gaps.gaps_ns / (1e9 if gaps.counts is None else gaps.counts * 1e9)
        logs = log_buckets(seconds)
        return Observations(seconds, gaps.gaps_ns, self._token.classic.of(seconds, logs), gaps.counts), logs

    def _concurrency(
        self, owners: _Owners, slots: NDArray[np.intp], of: NDArray[np.intp], made_s: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        if not self.running.keys() & set(owners.slots.tolist()):
            return concurrency_buckets(owners.concurrency)[of]
        counts = owners.concurrency[of]
        for slot, running in self.running.items():
            mine = slots == slot
            counts[mine] = running.at(made_s[mine], counts[mine])
        return concurrency_buckets(counts)


def _columns(finished: Sequence[Finished], cap_s: float) -> _Owners:
    at_s = np.array([at_s for _, _, at_s in finished])
    start_ns = np.array([_moment(record.start_ns) for record, _, _ in finished], dtype=np.int64)
    end_ns = np.array([_moment(record.end_ns) for record, _, _ in finished], dtype=np.int64)
    lasted_s = np.clip((end_ns - start_ns) / 1e9, 0.0, cap_s)
    # A clock ahead of ours would put tokens into the future: a request ended, at the latest, when it came.
    started_s = np.minimum(np.array([record.arrived_s for record, _, _ in finished]), at_s - lasted_s)
    return _Owners(
        slots=np.array([slot for _, slot, _ in finished], dtype=np.intp),
        concurrency=np.array([min(record.concurrency, _OPEN_MAX) for record, _, _ in finished], dtype=np.int64),
        at_s=at_s,
        start_ns=start_ns,
        started_s=started_s,
        traces=[(record.trace_id.hex() if any(record.trace_id) else "", at_s) for record, _, at_s in finished],
    )


def _told(finished: Sequence[Finished], attribute: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    values = [getattr(record, attribute) for record, _, _ in finished]
    chosen = [i for i, value in enumerate(values) if value is not None]
    return np.array(chosen, dtype=np.intp), np.array([values[i] for i in chosen], dtype=np.float64)


def _moment(unix_ns: int) -> int:
    """A time that differences of fit 64 bits; 0 for any other."""
    return unix_ns if 0 < unix_ns < _MOMENT_MAX else 0
