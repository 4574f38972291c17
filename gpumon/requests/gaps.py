"""From token times to gaps: the inter-token latencies and step times of many requests as columns, in one pass.

Definitions. A *step* is one entry of a request's ``token_ns``. Its time is the gap to the step before; the first step
has none, for what comes before it is not decoding. *Inter-token latency* exists only where the number of tokens of
each step is known: a step of k tokens is k observations of a k-th of its time, so that their number is that of the
tokens and their sum is the time that passed. How the time was spread inside the step is not known, and is not made
up: the undivided time is in the steps. Steps that made no token belong to the time of the next one that did. (vLLM
counts such a step once, undivided; SGLang divides as here; inference-perf counts one whole gap and k-1 zeros.)

The context of a token is the prompt plus the tokens made before its step; it is unknown where nobody counted the
prompt. Where the first step kept is not that of the first token, those missing are taken to be lost at the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpumon.model import RequestRecord
from gpumon.requests.buckets import CONTEXT_UNKNOWN

TOKENS_MAX = 1 << 31
"""No request has as many tokens."""
CHUNK = 65_536
"""Most steps of one pass: what bounds its memory, about 100 bytes a step."""


class Segment(NamedTuple):
    """Successive steps of one request; its first one only begins a gap."""

    owner: int
    """Position of the request among those that are worked on together."""
    token_ns: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    """Tokens per step, all positive; None: one each."""
    context: int
    """Prompt and tokens made before the first step; CONTEXT_UNKNOWN where not known."""


class Gaps(NamedTuple):
    """Gaps of several segments as columns."""

    owners: NDArray[np.intp]
    ends_ns: NDArray[np.int64]
    """When the gap's tokens were made, on the server's clock."""
    gaps_ns: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    """Tokens made at its end; None: one each."""
    contexts: NDArray[np.int64]
    """CONTEXT_UNKNOWN, or tokens."""

    def only(self, chosen: NDArray[np.bool_]) -> Gaps:
        """Some of them."""
        return Gaps(
            self.owners[chosen],
            self.ends_ns[chosen],
            self.gaps_ns[chosen],
            None if self.counts is None else self.counts[chosen],
            self.contexts[chosen],
        )


def possible(tokens: int | None) -> TypeGuard[int]:
    """Whether a number of tokens is told and can be true."""
    return tokens is not None and 0 <= tokens < TOKENS_MAX


def tokens_made(record: RequestRecord) -> int | None:
    """Tokens of the completion: as told, else by its token times; None where the sizes of its steps are not known."""
    if record.completion_tokens is not None:
        return record.completion_tokens
    if record.token_ns is None:
        return None
    if not record.per_token:
        return None
    counts = _counts(record)
    return len(record.token_ns) if counts is None else int(counts.sum())


def inter_token_segment(owner: int, record: RequestRecord) -> Segment | None:
    """The request's steps as tokens; None where their sizes are not known, or fewer than two made tokens."""
    times = record.token_ns
    if times is None or len(times) < 2:
        return None
    if not record.per_token:
        return None
    counts = _counts(record)
    context = CONTEXT_UNKNOWN
    if possible(record.prompt_tokens):
        kept = len(times) if counts is None else int(counts.sum())
        lost = max(0, record.completion_tokens - kept) if possible(record.completion_tokens) else 0
        from_first = record.first_token_ns is not None and record.first_token_ns == times[0]
        context = record.prompt_tokens + (0 if from_first else lost)
    if counts is None:
        return Segment(owner, times, None, context)
    if counts.min() <= 0:
        made = counts > 0
        times, counts = times[made], counts[made]
        if len(times) < 2:
            return None
    return Segment(owner, times, counts, context)


def step_segment(owner: int, record: RequestRecord) -> Segment | None:
    """The request's steps, whatever they made; None where there are fewer than two."""
    times = record.token_ns
    return None if times is None or len(times) < 2 else Segment(owner, times, None, CONTEXT_UNKNOWN)


def in_passes(segments: Iterable[Segment], chunk: int = CHUNK) -> Iterator[list[Segment]]:
    """The segments in lists of at most ``chunk`` gaps, long ones cut."""
    chosen: list[Segment] = []
    steps = 0
    for whole in segments:
        for segment in _cut(whole, chunk):
            length = len(segment.token_ns) - 1
            if steps + length > chunk and chosen:
                yield chosen
                chosen, steps = [], 0
            chosen.append(segment)
            steps += length
    if chosen:
        yield chosen


def gaps_of(segments: list[Segment]) -> Gaps:
    """All gaps of the segments, in order. Negative ones are there too: who counts decides what can be true."""
    lengths = np.array([len(segment.token_ns) - 1 for segment in segments])
    stops = np.cumsum(lengths)
    total = int(stops[-1])
    ends, gaps = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    sized = any(segment.counts is not None for segment in segments)
    counts = np.ones(total, dtype=np.int64) if sized else None
    # Tokens made before each gap's own, the segment's context apart.
    before = np.arange(total) if counts is None else np.empty(total, dtype=np.int64)
    contexts = np.array([segment.context for segment in segments], dtype=np.int64)
    known = contexts != CONTEXT_UNKNOWN
    first = 0
    for (_, times, sizes, _), stop in zip(segments, stops.tolist(), strict=True):
        ends[first:stop] = times[1:]
        np.subtract(times[1:], times[:-1], out=gaps[first:stop])
        if counts is not None:
            if sizes is not None:
                counts[first:stop] = sizes[1:]
                np.cumsum(sizes[:-1], out=before[first:stop])
            else:
                before[first:stop] = np.arange(1, stop - first + 1)
        first = stop
    if counts is None:
        contexts += 1 - (stops - lengths)
    context = np.repeat(contexts, lengths) + before
    if not known.all():
        context[np.repeat(~known, lengths)] = CONTEXT_UNKNOWN
    return Gaps(
        owners=np.repeat(np.array([segment.owner for segment in segments], dtype=np.intp), lengths),
        ends_ns=ends,
        gaps_ns=gaps,
        counts=counts,
        contexts=context,
    )


def _counts(record: RequestRecord) -> NDArray[np.int64] | None:
    counts, times = record.token_counts, record.token_ns
    if counts is None or times is None or len(counts) != len(times):
        return None
    return counts.astype(np.int64)


def _cut(segment: Segment, chunk: int) -> Iterator[Segment]:
    if len(segment.token_ns) - 1 <= chunk:
        yield segment
        return
    context = segment.context
    for first in range(0, len(segment.token_ns) - 1, chunk):
        part = slice(first, first + chunk + 1)  # the last step of a part is the first of the next
        counts = None if segment.counts is None else segment.counts[part]
        yield Segment(segment.owner, segment.token_ns[part], counts, context)
        if context != CONTEXT_UNKNOWN:
            context += chunk if segment.counts is None else int(segment.counts[first : first + chunk].sum())
