from __future__ import annotations

import gc

import pytest

from gpumon.host.garbage import few_collections


def test_collections_are_seldom_within_and_as_before_after() -> None:
    before = gc.get_threshold()
    frozen = gc.get_freeze_count()
    with few_collections():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_an_error_leaves_nothing_behind() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), few_collections():
        raise KeyError
    assert gc.get_threshold() == before


def test_cycles_are_collected_within() -> None:
    with few_collections():
        for _ in range(300_000):
            cycle: list[object] = []
            cycle.append(cycle)
            del cycle
        assert sum(stats["collected"] for stats in gc.get_stats()) > 100_000
