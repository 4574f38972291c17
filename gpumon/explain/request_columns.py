"""What explained requests say in numbers of their own, as rows of ``request_rows.row_type``: all but names.

Of many requests at once: a column is written for all of them together, which takes a fraction of a row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX
from gpumon.explain.explained import Explained
from gpumon.explain.request_rows import OUTCOMES, REQUEST_ID
from gpumon.requests.gaps import possible, tokens_made

if TYPE_CHECKING:
    from gpumon.model import RequestRecord

LARGEST: Final = 3e38
_MOST: Final = 2**31 - 1
_OUTCOME_INDEX: Final = {outcome: position for position, outcome in enumerate(OUTCOMES)}
_FLOATS: Final = ("first_token_s", "queue_s", "prefill_s", "decode_s", "tokens_per_s")
_GAPS: Final = ("gap_mean_s", "gap_p95_s", "gap_max_s")
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "concurrency", "outcome")


def figure(value: float | None, *, missing: float = math.nan) -> float:
    """One that a 32-bit float holds."""
    if value is None or not math.isfinite(value):
        return missing
    return float(value) if -LARGEST < value < LARGEST else math.copysign(LARGEST, value)


def first_token_s(record: RequestRecord) -> float | None:
    """Time to first token; None where it is not told."""
    if record.time_to_first_token_s is None and record.first_token_ns is not None:
        return max(0, record.first_token_ns - record.start_ns) / 1e9
    return record.time_to_first_token_s


def rows_of(explained: Sequence[Explained], form: np.dtype[np.void]) -> NDArray[np.void]:
    """Rows of at least one request. form: ``row_type``."""
    rows = np.zeros(len(explained), dtype=form)
    records = [each.record for each in explained]
    rows["trace_id"] = np.frombuffer(b"".join([_bytes(record.trace_id, 16) for record in records]), "V16")
    rows["span_id"] = np.frombuffer(b"".join([_bytes(record.span_id, 8) for record in records]), "V8")
    if any(record.request_id for record in records):
        rows["request_id"] = [record.request_id.encode("utf-8", "replace")[:REQUEST_ID] for record in records]
    rows["start_s"], rows["end_s"] = np.array([(each.start_s, each.end_s) for each in explained], dtype=np.float64).T
    tokens = [tokens_made(record) for record in records]
    for name, column in zip(_FLOATS, _figures(map(_floats, records, tokens)), strict=True):
        rows[name] = column
    for name, column in zip(_GAPS, _figures(_gaps([each.token_s for each in explained]).T), strict=True):
        rows[name] = column
    counts = np.array([*map(_counts, records, tokens)], dtype=np.int64)
    for name, whole in zip(_COUNTS, counts.T, strict=True):
        rows[name] = whole
    accounts = [(each.first_token, each.decode) for each in explained]
    expected = _figures([(first.expected_s, decode.expected_s) for first, decode in accounts])
    excess = _figures([(first.excess_s, decode.excess_s) for first, decode in accounts])
    rows["expected_s"], rows["excess_s"] = expected.T, _at_least_0(excess).T
    places, told = [], []
    for row, both in enumerate(accounts):
        for phase, account in enumerate(both, 2 * row):
            for share in account.shares:
                places.append(phase * len(CAUSES) + INDEX[share.cause])
                told.append((share.seconds,))
    if told:
        sums = np.bincount(places, _at_least_0(_figures(told)[0]), len(rows) * 2 * len(CAUSES))
        rows["cause_s"] = np.minimum(sums.reshape(len(rows), 2, -1), LARGEST)
    if form["signals"].shape[0]:
        rows["signals"] = _signals([each.signals for each in explained], form["signals"].shape[0])
    return rows


def _bytes(told: bytes, size: int) -> bytes:
    return told if len(told) == size else told[:size].ljust(size, b"\0")


def _figures(told: Iterable[Sequence[float | None]]) -> NDArray[np.float64]:
    """Columns, of rows of figures: those that a 32-bit float holds, NaN for what is not known."""
    values = np.array([*told], dtype=np.float64).T
    values[~np.isfinite(values)] = np.nan
    return np.asarray(np.clip(values, -LARGEST, LARGEST))


def _at_least_0(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(values > 0, values, 0.0)


def _floats(record: RequestRecord, tokens: int | None) -> tuple[float | None, ...]:
    first_ns = record.first_token_ns
    first_s, decode_s = first_token_s(record), record.decode_s
    if first_ns is not None and decode_s is None:
        decode_s = max(0, record.end_ns - first_ns) / 1e9
    # Tokens after the first; of requests that do not tell when that was, over all their time.
    seconds = (record.end_ns - (first_ns if first_ns is not None else record.start_ns)) / 1e9
    rate = (tokens - 1) / seconds if possible(tokens) and tokens > 1 and seconds > 0 else None
    return first_s, record.queue_s, record.prefill_s, decode_s, rate


def _counts(record: RequestRecord, tokens: int | None) -> tuple[int, ...]:
    prompt, cached = record.prompt_tokens, record.cached_tokens
    return (
        prompt if possible(prompt) else -1,
        tokens if possible(tokens) else -1,
        cached if possible(cached) else -1,
        min(max(record.concurrency, 0), _MOST),
        _OUTCOME_INDEX.get(record.outcome, len(OUTCOMES) - 1),
    )


def _gaps(steps_s: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64]:
    """Of each request mean, P95 and largest of the times between its steps, (3, n); the P95 of n is the one of rank
    ceil(0.95 n)."""
    found = np.full((3, len(steps_s)), np.nan)
    known = [(row, steps) for row, steps in enumerate(steps_s) if steps is not None and len(steps) > 1]
    if not known:
        return found
    of, counts = [row for row, _ in known], np.array([len(steps) - 1 for _, steps in known])
    ends = np.cumsum(counts + 1) - 1
    every = np.concatenate([steps for _, steps in known])
    is_gap = np.ones(len(every) - 1, dtype=bool)
    is_gap[ends[:-1]] = False
    gaps_s = np.diff(every)[is_gap]
    found[0, of] = (every[ends] - every[ends - counts]) / counts
    # Sorted all at once: those of each request are moved behind those of the one before.
    apart_s = 2.0 * (float(gaps_s.max()) - float(gaps_s.min()))
    moved_s = apart_s * np.arange(len(known))
    gaps_s += np.repeat(moved_s, counts)
    gaps_s.sort()
    firsts = np.cumsum(counts) - counts
    found[1, of] = gaps_s[firsts + np.ceil(0.95 * counts).astype(np.intp) - 1] - moved_s
    found[2, of] = gaps_s[firsts + counts - 1] - moved_s
    return found


def _signals(told: Sequence[NDArray[np.float32]], size: int) -> NDArray[np.float32]:
    """Only finite ones, as many as there are columns."""
    if any(len(each) != size for each in told):
        padded = np.full((len(told), size), np.nan, dtype=np.float32)
        for row, each in zip(padded, told, strict=True):
            row[: len(each)] = each[:size]
    else:
        padded = np.stack(told)
    padded[~np.isfinite(padded)] = np.nan
    return padded
