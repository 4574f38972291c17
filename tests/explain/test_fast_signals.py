"""Fast rows as signals in tenths of a second."""

from __future__ import annotations

import math

import numpy as np

from gpumon.explain.fast_signals import GPUS, NAMES, FastSignals
from gpumon.explain.latency_tracks import FAST_CELLS
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column

NAN = math.nan


def row(at_s: float, **columns: float) -> Row:
    values = [NAN] * len(Column)
    for name, value in columns.items():
        values[Column[name]] = value
    return Row(round(at_s * 1e9), tuple(values))


def told(signals: FastSignals, name: str, first: int, last: int, *uuids: str) -> list[float]:
    found: list[float] = signals.series(uuids or ("A",), first, last)[NAMES.index(name)].tolist()
    return found


def test_rows_fill_their_tenths_and_what_was_not_read_is_not_known() -> None:
    signals = FastSignals()
    signals.add("A", [row(10.07, SM_ACTIVE=0.5), row(10.20, SM_ACTIVE=0.75), row(10.42, SM_ACTIVE=0.25)])
    np.testing.assert_array_equal(told(signals, "sm_active", 99, 104), [NAN, 0.5, 0.75, NAN, 0.25, NAN])
    assert np.isnan(told(signals, "power", 99, 104)).all()


def test_several_gpus_are_averaged_as_far_as_they_are_known() -> None:
    signals = FastSignals()
    signals.add("A", [row(10.1, POWER_INSTANT=300.0), row(10.2, POWER_INSTANT=300.0)])
    signals.add("B", [row(10.1, POWER_INSTANT=500.0)])
    np.testing.assert_array_equal(told(signals, "power", 100, 101, "A", "B", "C"), [400.0, 300.0])
    assert np.isnan(told(signals, "power", 100, 101, "C")).all()


def test_throttling_is_any_reason_but_idleness_and_set_clocks() -> None:
    signals = FastSignals()
    signals.add("A", [row(10.1 + i / 10, REASONS=mask) for i, mask in enumerate((0.0, 1.0, 3.0, 4.0, 0x48, NAN))])
    np.testing.assert_array_equal(told(signals, "throttled", 100, 105), [0, 0, 0, 1, 1, NAN])


def test_four_minutes_are_kept_and_older_rows_are_left_out() -> None:
    signals = FastSignals()
    signals.add("A", [row(10.1, SM_ACTIVE=0.5)])
    signals.add("A", [row(10.1 + FAST_CELLS / 10, SM_ACTIVE=0.25), row(10.1, SM_ACTIVE=0.75)])
    assert np.isnan(told(signals, "sm_active", 99, 101)).all()
    assert told(signals, "sm_active", 100 + FAST_CELLS, 100 + FAST_CELLS) == [0.25]
    assert np.isnan(told(signals, "sm_active", -50, 50)).all()


def test_what_single_precision_cannot_hold_is_no_reading() -> None:
    signals = FastSignals()
    signals.add("A", [row(10.1, MEMORY_USED=1e300, REASONS=math.inf, SM_ACTIVE=0.5)])
    found = signals.series(["A"], 100, 100)[:, 0]
    assert np.isfinite(found).sum() == 1


def test_of_too_many_gpus_the_one_silent_for_longest_gives_way() -> None:
    signals = FastSignals()
    for number in range(GPUS + 1):
        signals.add(f"GPU-{number}", [row(20.1 if number == 0 else 10.1, SM_ACTIVE=0.5)])
    signals.add("none", [])
    kept = [number for number in range(GPUS + 1) if not np.isnan(signals.series([f"GPU-{number}"], 100, 200)).all()]
    assert kept == [0, *range(2, GPUS + 1)]
