"""Sums by cell of a ring, against those over all of its cells."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumon.detect.time_cells import TimeCells
from gpumon.explain.ring_sums import place

WIDTH_S, SIZE = 0.5, 8


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(-1e3, 1e3)), min_size=1, max_size=12), min_size=1, max_size=6
    )
)
def test_sums_are_those_over_all_cells(batches: list[list[tuple[float, float]]]) -> None:
    ring, whole = TimeCells(WIDTH_S, SIZE), TimeCells(WIDTH_S, SIZE)
    sums, expected, counts, expected_counts = (np.zeros(SIZE) for _ in range(4))
    ring.arrays += [sums, counts]
    whole.arrays += [expected, expected_counts]
    for batch in batches:
        made_s, weights = np.array(batch).T
        placed = place(ring, made_s, WIDTH_S, SIZE)
        sums[placed.cells] += placed.sums(weights)
        counts[placed.cells] += placed.sums(None)
        cells, kept = whole.place(made_s)
        expected += np.bincount(cells[kept], weights[kept], SIZE)
        expected_counts += np.bincount(cells[kept], minlength=SIZE)
        assert ring.newest == whole.newest
        np.testing.assert_allclose(sums, expected, atol=1e-9)
        np.testing.assert_array_equal(counts, expected_counts)
        np.testing.assert_array_equal(placed.only(weights), weights[kept])


def test_what_is_all_too_old_has_no_cells() -> None:
    ring = TimeCells(WIDTH_S, SIZE)
    ring.advance(100)
    placed = place(ring, np.array([0.0, 1.0]), WIDTH_S, SIZE)
    assert placed.sums(None).sum() == 0
    assert len(placed.only(np.array([1.0, 2.0]))) == 0
