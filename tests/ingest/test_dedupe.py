"""Spans seen before are known; the oldest are forgotten."""

from __future__ import annotations

from gpumon.ingest.dedupe import Seen


def test_a_span_is_new_once_for_each_resource() -> None:
    seen = Seen()
    assert seen.add(1, b"t" * 16, b"s" * 8)
    assert not seen.add(1, b"t" * 16, b"s" * 8)
    assert seen.add(2, b"t" * 16, b"s" * 8)
    assert seen.knows(2, b"t" * 16, b"s" * 8)
    assert not seen.knows(3, b"t" * 16, b"s" * 8)


def test_the_oldest_are_forgotten() -> None:
    seen = Seen(size=3)
    for i in range(5):
        assert seen.add(0, b"t", bytes([i]))
    assert len(seen) == 3
    assert [seen.knows(0, b"t", bytes([i])) for i in range(5)] == [False, False, True, True, True]
