"""From token times to gaps: what is an inter-token latency, what only a step, and at which context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import RequestRecord
from gpumon.requests.gaps import CHUNK, Segment, gaps_of, in_passes, inter_token_segment, step_segment, tokens_made
from tests.requests.records import request

Gap = tuple[int, int, int, int]
"""Owner, gap, tokens, context."""


def plain(records: list[RequestRecord]) -> list[Gap]:
    """The definition, token by token."""
    found = []
    for owner, record in enumerate(records):
        if record.token_ns is None or not record.per_token:
            continue
        times = record.token_ns.tolist()
        counts = [1] * len(times) if record.token_counts is None else record.token_counts.tolist()
        made = 0
        if record.first_token_ns != times[0]:
            made = max(0, (record.completion_tokens or 0) - sum(counts))
        before: int | None = None
        for time, count in zip(times, counts, strict=True):
            if count <= 0:
                continue
            context = -1 if record.prompt_tokens is None else record.prompt_tokens + made
            if before is not None:
                found.append((owner, time - before, count, context))
            made += count
            before = time
    return found


def vectorised(records: list[RequestRecord], chunk: int = CHUNK) -> list[Gap]:
    segments = [found for owner, r in enumerate(records) if (found := inter_token_segment(owner, r)) is not None]
    rows: list[Gap] = []
    for part in in_passes(segments, chunk):
        gaps = gaps_of(part)
        counts = np.ones(len(gaps.gaps_ns), dtype=np.int64) if gaps.counts is None else gaps.counts
        columns = (gaps.owners, gaps.gaps_ns, counts, gaps.contexts)
        rows += list(zip(*(column.tolist() for column in columns), strict=True))
    return rows


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    gaps = draw(st.lists(st.integers(0, 10**10), max_size=12))
    told: dict[str, Any] = {"prompt_tokens": draw(st.none() | st.integers(0, 300_000))}
    if draw(st.booleans()):
        told["counts"] = draw(st.lists(st.integers(0, 9), min_size=len(gaps) + 1, max_size=len(gaps) + 1))
    if draw(st.booleans()):
        told["completion_tokens"] = draw(st.integers(0, 400))
    if draw(st.booleans()):
        told["first_token_ns"] = None
    if draw(st.integers(0, 9)) == 0:
        told["per_token"] = False
    return request(gaps, **told)


@given(st.lists(requests(), max_size=8))
def test_gaps_are_what_the_definition_says(records: list[RequestRecord]) -> None:
    assert vectorised(records) == plain(records)


@given(st.lists(requests(), min_size=1, max_size=6), st.integers(1, 7))
def test_cutting_into_passes_changes_nothing(records: list[RequestRecord], chunk: int) -> None:
    assert vectorised(records, chunk) == plain(records)


def test_a_pass_is_of_bounded_length() -> None:
    times = np.arange(300_000, dtype=np.int64)
    parts = list(in_passes([Segment(0, times[:50_000], None, 0), Segment(1, times, None, 0)]))
    assert all(sum(len(s.token_ns) - 1 for s in part) <= CHUNK for part in parts)
    assert sum(len(s.token_ns) - 1 for part in parts for s in part) == 49_999 + 299_999


@pytest.mark.parametrize("gaps", [None, []])
def test_a_request_of_one_token_or_none_has_no_gap(gaps: list[int] | None) -> None:
    assert inter_token_segment(0, request(gaps)) is None
    assert step_segment(0, request(gaps)) is None


def test_steps_of_unknown_size_are_steps_only() -> None:
    record = request([10, 20], per_token=False)
    assert inter_token_segment(0, record) is None
    segment = step_segment(0, record)
    assert segment is not None
    assert gaps_of([segment]).gaps_ns.tolist() == [10, 20]


def test_counts_that_do_not_belong_to_the_times_are_not_used() -> None:
    assert vectorised([request([10, 20], counts=[1, 2])]) == [(0, 10, 1, -1), (0, 20, 1, -1)]


def test_tokens_are_counted_only_where_they_are_known() -> None:
    assert tokens_made(request([1, 1, 1])) == 4
    assert tokens_made(request([1, 1], counts=[1, 3, 2])) == 6
    assert tokens_made(request([1, 1], per_token=False)) is None
    assert tokens_made(request(None)) is None
    assert tokens_made(request([1, 1], completion_tokens=300)) == 300
