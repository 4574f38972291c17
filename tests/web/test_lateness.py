"""Seconds lost by cause in the last minute, from counters that nobody else keeps a past of."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.model import Sample
from gpumon.store import Store
from gpumon.web.lateness import LOOKS, Lateness


def look(lateness: Lateness, at_s: float, **lost_s: float) -> None:
    store = Store()
    samples = [
        Sample(catalogue.SLOW_TOKEN_SECONDS, ("vllm", "m", phase, cause), seconds / 2)
        for phase in catalogue.PHASES
        for cause, seconds in ({"unexplained": 0.0} | lost_s).items()
    ]
    store.put("explain", at_s, samples, 1.0)
    lateness.take(store.view(at_s))


def test_of_one_look_nothing_is_known() -> None:
    lateness = Lateness()
    assert lateness.of("vllm", "m") is None
    look(lateness, 0.0, pcie=1.0)
    assert lateness.of("vllm", "m") is None


def test_growth_is_told_per_second_the_largest_first_both_phases_together() -> None:
    lateness = Lateness()
    look(lateness, 0.0, pcie=1.0, nvlink=0.0, queueing=4.0)
    look(lateness, 10.0, pcie=2.0, nvlink=5.0, queueing=4.0)
    assert list((lateness.of("vllm", "m") or {}).items()) == [("nvlink", 0.5), ("pcie", 0.1)]
    assert lateness.of("vllm", "other") is None


def test_a_minute_is_looked_back() -> None:
    lateness = Lateness()
    for number in range(100):
        look(lateness, 5.0 * number, pcie=100.0 if number >= 90 else 0.0)
    assert (lateness.of("vllm", "m") or {})["pcie"] == pytest.approx(100.0 / (5.0 * (LOOKS - 1)))
    look(lateness, 500.0 + 5.0 * LOOKS, pcie=100.0)
    for number in range(LOOKS):
        look(lateness, 600.0 + 5.0 * number, pcie=100.0)
    assert lateness.of("vllm", "m") == {}
