"""Latencies of the last minutes by server and model, as the detectors share them: bins of five seconds of token time.

A request is told of when it has ended, so a bin goes on filling for as long as requests last. How late tokens come is
learned per model: ``lag_s(signal, 0.8)`` is how old a token is when four of five like it have come. A bin is called
complete when it is that old; a younger one holds the tokens of the requests that ended first. Observations are
``requests.gaps``' and counted in ``requests.logbuckets``: quantiles are at most 2.2 % off.

Bounded: 16 (server, model) pairs, of which one without requests for five minutes makes room for another; five minutes
of bins; ten minutes by length of context; 16 tenants of a pair told apart. A pair takes 0.35 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CONTEXT_BUCKETS
from gpumon.detect.time_cells import TimeCells
from gpumon.model import GpuUuid, RequestRecord
from gpumon.requests.buckets import CONTEXT_UNKNOWN, context_buckets
from gpumon.requests.gaps import Gaps, gaps_of, in_passes, inter_token_segment, possible
from gpumon.requests.logbuckets import SIZE, log_buckets
from gpumon.requests.tenants import BoundedLabels, clean
from gpumon.requests.windows import Signal

BIN_S: Final = 5.0
BINS: Final = 60
CONTEXT_SLOT_S: Final = 120.0
CONTEXT_SLOTS: Final = 5
PAIRS: Final = 16
TENANTS: Final = 16
GPUS: Final = 16
RESPONSE: Final = len(Signal)
"""Besides the signals, in ``ModelLatencies.contexts``: the time of a whole request, by its prompt."""
IDLE_S: Final = 300.0
CAP_S: Final = 3600.0
"""Longest duration that is believed."""

_CONTEXTS = len(CONTEXT_BUCKETS)
_LAG_LEAST_S = 0.25
_LAG_PER_DOUBLING = 4
_LAGS = 14 * _LAG_PER_DOUBLING  # up to 68 minutes
_LAG_HALF_LIFE_S = 120.0
_MOMENT_MAX = 1 << 62


class TenantRates(NamedTuple):
    """Of the tenants of one pair: arrays of shape (bins, tenants)."""

    names: tuple[str, ...]
    tokens: NDArray[np.float64]
    """Tokens made after the first of each request."""
    decode_s: NDArray[np.float64]
    """Seconds that these took, summed over requests."""
    first_s: NDArray[np.float64]
    """Sum of times to first token."""
    firsts: NDArray[np.float64]
    """Requests in it."""


class ModelLatencies:
    """Of one server and model. Bins have numbers: bin n is [5 n, 5 n + 5) steady seconds."""

    def __init__(self, server: str, model: str) -> None:
        self.server = server
        self.model = model
        self.seen_s = 0.0
        """When a request last came."""
        self.version = 0
        """Grows whenever something was added."""
        self.late = 0
        """Observations older than the oldest bin, which are left out."""
        self._bins = TimeCells(BIN_S, BINS)
        self._counts = np.zeros((BINS, len(Signal), SIZE), dtype=np.uint32)
        self._totals = np.zeros((BINS, len(Signal)), dtype=np.int64)
        self._tenants = np.zeros((BINS, TENANTS + 1, 4))
        self._bins.arrays += [self._counts, self._totals, self._tenants]
        self._slots = TimeCells(CONTEXT_SLOT_S, CONTEXT_SLOTS)
        self._contexts = np.zeros((CONTEXT_SLOTS, RESPONSE + 1, _CONTEXTS, SIZE), dtype=np.uint32)
        self._slots.arrays.append(self._contexts)
        self._lags = np.zeros((len(Signal), _LAGS))
        self._lagged_s = 0.0
        self._tenant_names = BoundedLabels(TENANTS, IDLE_S)
        self._gpus: dict[GpuUuid, float] = {}

    @property
    def name(self) -> str:
        """As incidents name it: ``vllm/llama-70b``."""
        return f"{self.server}/{self.model}"

    @property
    def newest(self) -> int:
        """Number of the newest bin with anything in it; -1 for none."""
        return self._bins.newest

    def gpus(self) -> tuple[GpuUuid, ...]:
        """GPUs that its requests of the last ten minutes ran on, as far as they are bound."""
        return tuple(self._gpus)

    @property
    def oldest(self) -> int:
        """Number of the oldest bin that is kept."""
        return max(0, self.newest - BINS + 1)

    def totals(self, signal: Signal, first: int) -> list[int]:
        """Observations of bins ``first`` (one that is kept) to the newest."""
        cells = np.arange(first, self.newest + 1) % BINS
        found: list[int] = self._totals[cells, signal].tolist()
        return found

    def counts(self, signal: Signal, first: int, last: int) -> NDArray[np.int64]:
        """Log-bucket counts of bins ``first`` to ``last``, both included, added up."""
        cells = np.arange(max(first, self.oldest), min(last, self.newest) + 1) % BINS
        found: NDArray[np.int64] = self._counts[cells, signal].sum(axis=0, dtype=np.int64)
        return found

    def lag_s(self, signal: Signal, share: float) -> float:
        """Seconds after which this share of tokens (or first tokens) has come, learned over minutes; 0 at first."""
        sums = np.cumsum(self._lags[signal])
        if sums[-1] <= 0:
            return 0.0
        position = int(np.searchsorted(sums, share * sums[-1]))
        return float(_LAG_LEAST_S * 2 ** (min(position, _LAGS - 1) / _LAG_PER_DOUBLING))

    def contexts(self, measure: int, at_s: float) -> NDArray[np.int64]:
        """Log-bucket counts of the last ten minutes by bucket of context: shape (CONTEXT_BUCKETS, SIZE).

        measure: a Signal, or RESPONSE. at_s: now; what is older is forgotten, though no request came since.
        """
        self._slots.advance(int(at_s // CONTEXT_SLOT_S))
        found: NDArray[np.int64] = self._contexts[:, measure].sum(axis=0, dtype=np.int64)
        return found

    def tenants(self, first: int, last: int) -> TenantRates:
        """Of bins ``first`` to ``last``, which must all be among the newest 60. Tenants beyond 16 are left out."""
        cells = [number % BINS for number in range(first, last + 1)]
        named = self._tenant_names.named()
        part = self._tenants[cells][:, [slot for _, slot in named]]
        return TenantRates(tuple(name for name, _ in named), *(part[:, :, k] for k in range(4)))

    def add(self, records: Sequence[RequestRecord], at_s: float) -> None:
        """Requests that became known now."""
        self.seen_s = at_s
        self.version += 1
        starts_s = np.array([_began_s(record, at_s) for record in records])
        tenants = np.array([self._tenant(record.tenant, at_s) for record in records], dtype=np.intp)
        for record in records:
            self._note_gpus(record, at_s)
        self._fade(at_s)
        self._add_firsts(records, starts_s, tenants, at_s)
        self._add_responses(records, at_s)
        segments = (segment for i, r in enumerate(records) if (segment := inter_token_segment(i, r)) is not None)
        begun_ns = np.array([_moment(record.start_ns) for record in records], dtype=np.int64)
        for part in in_passes(segments):
            gaps = gaps_of(part)
            good = (gaps.gaps_ns >= 0) & (gaps.gaps_ns <= int(CAP_S * 1e9)) & (begun_ns[gaps.owners] > 0)
            gaps = gaps if good.all() else gaps.only(good)
            if len(gaps.ends_ns):
                made_s = starts_s[gaps.owners] + (gaps.ends_ns - begun_ns[gaps.owners]) * 1e-9
                self._add_gaps(gaps, np.clip(made_s, 0.0, at_s), tenants, at_s)

    def _add_firsts(
        self, records: Sequence[RequestRecord], starts_s: NDArray[np.float64], tenants: NDArray[np.intp], at_s: float
    ) -> None:
        told = [(i, r.time_to_first_token_s) for i, r in enumerate(records) if r.time_to_first_token_s is not None]
        told = [(i, value) for i, value in told if 0 <= value <= CAP_S]
        if not told:
            return
        owners = np.array([i for i, _ in told], dtype=np.intp)
        seconds = np.array([value for _, value in told])
        made_s = np.clip(starts_s[owners] + seconds, 0.0, at_s)
        prompts = [p if possible(p := records[i].prompt_tokens) else CONTEXT_UNKNOWN for i, _ in told]
        self._count(Signal.FIRST_TOKEN, made_s, log_buckets(seconds), None, np.array(prompts, dtype=np.int64), at_s)
        cells, current = self._bins.place(made_s)
        where = (cells[current], tenants[owners[current]])
        np.add.at(self._tenants[:, :, 2], where, seconds[current])
        np.add.at(self._tenants[:, :, 3], where, 1.0)

    def _add_responses(self, records: Sequence[RequestRecord], at_s: float) -> None:
        told = [
            ((record.end_ns - record.start_ns) / 1e9, record.prompt_tokens)
            for record in records
            if record.outcome == "ok" and _moment(record.start_ns) and possible(record.prompt_tokens)
        ]
        told = [(seconds, prompt) for seconds, prompt in told if 0 <= seconds <= CAP_S]
        if told:
            logs = log_buckets(np.array([seconds for seconds, _ in told]))
            prompts = np.array([prompt for _, prompt in told], dtype=np.int64)
            ones = np.ones(len(told), dtype=np.int64)
            self._count_contexts(RESPONSE, np.full(len(told), at_s), logs, ones, prompts)

    def _add_gaps(self, gaps: Gaps, made_s: NDArray[np.float64], tenants: NDArray[np.intp], at_s: float) -> None:
        seconds = gaps.gaps_ns / (1e9 if gaps.counts is None else gaps.counts * 1e9)
        self._count(Signal.INTER_TOKEN, made_s, log_buckets(seconds), gaps.counts, gaps.contexts, at_s)
        cells, current = self._bins.place(made_s)
        of = tenants[gaps.owners]
        flat = cells * (TENANTS + 1) + of
        tokens = np.ones(len(flat)) if gaps.counts is None else gaps.counts.astype(np.float64)
        size = BINS * (TENANTS + 1)
        for column, weights in ((0, tokens), (1, gaps.gaps_ns * 1e-9)):
            sums = np.bincount(flat, np.where(current, weights, 0.0), size)
            self._tenants[:, :, column] += sums.reshape(BINS, TENANTS + 1)

    def _count(
        self,
        signal: Signal,
        made_s: NDArray[np.float64],
        logs: NDArray[np.intp],
        weights: NDArray[np.int64] | None,
        contexts: NDArray[np.int64],
        at_s: float,
    ) -> None:
        ones = np.ones(len(logs), dtype=np.int64) if weights is None else weights
        lags = np.log2(np.maximum(at_s - made_s, _LAG_LEAST_S) / _LAG_LEAST_S) * _LAG_PER_DOUBLING
        self._lags[signal] += np.bincount(np.minimum(np.ceil(lags).astype(np.intp), _LAGS - 1), ones, _LAGS)
        cells, current = self._bins.place(made_s)
        self.late += int(ones[~current].sum())
        np.add.at(self._totals[:, signal], cells[current], ones[current])
        flat = (cells[current] * len(Signal) + signal) * SIZE + logs[current]
        np.add.at(self._counts.reshape(-1), flat, ones[current].astype(np.uint32))
        self._count_contexts(signal, made_s, logs, ones, contexts)

    def _count_contexts(
        self,
        measure: int,
        at_s: NDArray[np.float64],
        logs: NDArray[np.intp],
        weights: NDArray[np.int64],
        contexts: NDArray[np.int64],
    ) -> None:
        slots, recent = self._slots.place(at_s)
        known = recent & (contexts >= 0)
        flat = ((slots[known] * (RESPONSE + 1) + measure) * _CONTEXTS + context_buckets(contexts[known])) * SIZE
        np.add.at(self._contexts.reshape(-1), flat + logs[known], weights[known].astype(np.uint32))

    def _tenant(self, tenant: str, at_s: float) -> int:
        """Its column; the last one is of those who are not told apart."""
        name = clean(tenant) if tenant else None
        place = self._tenant_names.find(name, at_s) if name is not None else None
        if place is None:
            return TENANTS
        if place.reused:
            self._tenants[:, place.slot] = 0.0
        return place.slot

    def _note_gpus(self, record: RequestRecord, at_s: float) -> None:
        for uuid in record.binding.gpus:
            if uuid in self._gpus or len(self._gpus) < GPUS:
                self._gpus[uuid] = at_s

    def _fade(self, at_s: float) -> None:
        self._lags *= 0.5 ** (max(0.0, at_s - self._lagged_s) / _LAG_HALF_LIFE_S)
        self._lagged_s = at_s
        oldest_s = at_s - CONTEXT_SLOT_S * CONTEXT_SLOTS
        self._gpus = {uuid: seen_s for uuid, seen_s in self._gpus.items() if seen_s >= oldest_s}


class RecentLatencies:
    """All pairs. ``feed`` once per step, by whoever makes the scenes; detectors read. Not thread-safe."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], ModelLatencies] = {}
        self.left_out = 0
        """Requests of pairs beyond the 16."""
        self._late_before = 0
        """Of pairs that made room."""

    def feed(self, records: Iterable[RequestRecord], at_s: float) -> None:
        """Requests that became known since the last step. at_s: steady seconds now, never less than before."""
        by_pair: dict[tuple[str, str], list[RequestRecord]] = {}
        for record in records:
            by_pair.setdefault((record.server, record.model), []).append(record)
        for pair, of in by_pair.items():
            model = self._models.get(pair) or self._make(pair, at_s)
            if model is None:
                self.left_out += len(of)
            else:
                model.add(of, at_s)

    @property
    def late(self) -> int:
        """Observations that came too late, of all pairs there ever were. Never less than before."""
        return self._late_before + sum(model.late for model in self._models.values())

    def models(self) -> list[ModelLatencies]:
        """Every pair, in the order in which they were first seen."""
        return list(self._models.values())

    def _make(self, pair: tuple[str, str], at_s: float) -> ModelLatencies | None:
        if len(self._models) >= PAIRS:
            oldest = min(self._models, key=lambda key: self._models[key].seen_s)
            if at_s - self._models[oldest].seen_s < IDLE_S:
                return None
            self._late_before += self._models.pop(oldest).late
        made = self._models[pair] = ModelLatencies(*pair)
        return made


def _moment(unix_ns: int) -> int:
    """A time that differences of fit 64 bits; 0 for any other."""
    return unix_ns if 0 < unix_ns < _MOMENT_MAX else 0


def _began_s(record: RequestRecord, at_s: float) -> float:
    """When it began, steady seconds. A clock ahead of ours would put its tokens into the future: it has ended now."""
    lasted_s = (_moment(record.end_ns) - _moment(record.start_ns)) / 1e9
    return min(record.arrived_s, at_s - min(max(lasted_s, 0.0), CAP_S))
