"""Ladders of concurrency and context."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import CONCURRENCY_BUCKETS, CONTEXT_BUCKETS
from gpumon.requests.buckets import concurrency_buckets, context_buckets


def concurrency_label(open_requests: int) -> str:
    for label in CONCURRENCY_BUCKETS[:-1]:
        low, _, high = label.partition("-")
        if open_requests <= int(high or low):
            return label
    return CONCURRENCY_BUCKETS[-1]


def context_label(tokens: int) -> str:
    found = CONTEXT_BUCKETS[0]
    for label in CONTEXT_BUCKETS[1:]:
        if tokens >= int(label.rstrip("k+")) * 1024:
            found = label
    return found


@given(st.lists(st.integers(-(2**31), 2**40)))
def test_concurrency_is_in_the_bucket_whose_label_says_so(counts: list[int]) -> None:
    found = concurrency_buckets(np.array(counts, dtype=np.int64))
    assert [CONCURRENCY_BUCKETS[i] for i in found] == [concurrency_label(count) for count in counts]


@given(st.lists(st.integers(0, 2**33) | st.sampled_from([1023, 1024, 2047, 2048, 131_071, 131_072, 262_143, 262_144])))
def test_context_is_in_the_bucket_whose_label_says_so(tokens: list[int]) -> None:
    found = context_buckets(np.array(tokens, dtype=np.int64))
    assert [CONTEXT_BUCKETS[i] for i in found] == [context_label(count) for count in tokens]
