"""``gpumon.record.fast_past``, and how the sampler's rows come there."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gpumon.host.clock import ManualClock
from gpumon.model import GpuProcess, GpuUuid, Reason, Sample
from gpumon.record import fast_past
from gpumon.record.fast_past import DIGITS, FastPast
from gpumon.record.packing import Block, pack, unpack
from gpumon.sampler.handover import Plan
from gpumon.sampler.hearing import Hearing
from gpumon.sampler.ring import Ring
from gpumon.sampler.wire import Batch
from gpumon.sources.gpu_fast import Column
from tests.record.flights import row

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def times(past: FastPast, uuid: GpuUuid = A) -> list[float]:
    return [float(at_s) for gpu in past.after({}) if gpu.uuid == uuid for at_s in gpu.rows[:, 0]]


def value(past: FastPast, column: Column) -> float:
    """Of the newest row of A."""
    return float(past.after({})[0].rows[-1, 1 + column])


def test_rows_come_back_in_order_with_their_times() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    past.add(A, [row(1.0, SM_ACTIVE=0.25), row(1.1, SM_ACTIVE=0.5)])
    past.add(A, [row(1.2, SM_ACTIVE=0.75)])
    (gpu,) = past.after({})
    assert gpu.rows.shape == (3, 1 + len(Column))
    assert gpu.rows[:, 0].tolist() == [1.0, 1.1, 1.2]
    assert gpu.rows[:, 1 + Column.SM_ACTIVE].tolist() == [0.25, 0.5, 0.75]


def test_the_oldest_rows_are_overwritten() -> None:
    past = FastPast(seconds=0.5, fast_s=0.1)
    for number in range(13):
        past.add(A, [row(float(number))])
    assert times(past) == [8.0, 9.0, 10.0, 11.0, 12.0]
    past.add(A, [row(float(number)) for number in range(13, 33)])
    assert times(past) == [28.0, 29.0, 30.0, 31.0, 32.0]


def test_counters_and_masks_are_exact_and_gauges_have_seven_digits() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    past.add(A, [row(1.0, PCIE_TX=1e15 + 1, ENERGY=1e9 + 0.001, REASONS=float(2**40 + 1), POWER_INSTANT=512.3456)])
    assert value(past, Column.PCIE_TX) == 1e15 + 1
    assert value(past, Column.ENERGY) == 1e9 + 0.001
    assert value(past, Column.REASONS) == 2**40 + 1
    assert math.isclose(value(past, Column.POWER_INSTANT), 512.3456, rel_tol=1e-7)


def test_no_reading_stays_no_reading_and_what_cannot_be_kept_becomes_one() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    past.add(A, [row(1.0, CLOCK_SM=1e300)])
    assert math.isnan(value(past, Column.CLOCK_SM))
    assert math.isnan(value(past, Column.ENERGY))


def test_rows_that_are_not_newer_are_left_out() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    past.add(A, [row(2.0), row(3.0)])
    past.add(A, [row(3.0), row(0.5)])
    past.add(A, [])
    assert times(past) == [2.0, 3.0]


def test_only_rows_after_the_time_of_their_gpu() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    for uuid in (A, B):
        past.add(uuid, [row(1.0), row(2.0)])
    found = {gpu.uuid: gpu.rows[:, 0].tolist() for gpu in past.after({A: 1.0, B: 2.0})}
    assert found == {A: [2.0]}


def test_memory_is_fixed_and_stated() -> None:
    past = FastPast(seconds=120.0, fast_s=0.1)
    assert past.size_bytes == 0
    past.add(A, [row(1.0)])
    assert past.size_bytes == past.ring_bytes == 1200 * (8 + 15 * 8 + 27 * 4)
    for number in range(3000):
        past.add(A, [row(2.0 + number)])
    assert past.size_bytes == past.ring_bytes


def test_of_too_many_gpus_the_one_silent_longest_is_forgotten() -> None:
    past = FastPast(seconds=0.2, fast_s=0.1)
    for number in range(fast_past.MOST_GPUS):
        past.add(GpuUuid(f"GPU-{number:03d}"), [row(100.0 - number)])
    past.add(A, [row(200.0)])
    kept = {gpu.uuid for gpu in past.after({})}
    assert len(kept) == fast_past.MOST_GPUS
    assert GpuUuid(f"GPU-{fast_past.MOST_GPUS - 1:03d}") not in kept
    assert A in kept


def test_packing_keeps_the_digits_of_every_column() -> None:
    assert len(DIGITS) == len(Column)
    given = row(1.0, SM_ACTIVE=0.12345, CLOCK_SM=1980e6, POWER_AVERAGE=512.345, THROTTLED_HW_THERMAL=1.234567)
    past = FastPast(seconds=1.0, fast_s=0.1)
    past.add(A, [given])
    (block,) = unpack(pack([Block(0, past.after({})[0].rows)], [DIGITS]))
    np.testing.assert_array_equal(block.rows[0, 1:], np.array(given.values))


class Deaf:
    """A listener who does not listen."""

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        list(samples)

    def drop(self, owner: str) -> None: ...

    def passed(self, batch: Batch) -> None: ...

    def gpu_identity(self, uuid: GpuUuid, gpu: str, pci_bus_id: str) -> None: ...

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None: ...

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None: ...

    def dropped_messages(self, count: int) -> None: ...

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None: ...


def test_the_sampler_link_hands_over_every_row_it_drains() -> None:
    past = FastPast(seconds=1.0, fast_s=0.1)
    hearing = Hearing(Deaf(), ManualClock(), None, past.add)
    ring = Ring.create(2, 16, len(Column))
    try:
        hearing.begin(Plan())
        hearing.hear("gpus", 0, ([(0, A, 0), (1, B, 1)],))
        hearing.hear("state", 0, ("running", "unavailable", "", ""))
        for number in range(3):
            ring.write(0, 1_000_000_000 + number * 100_000_000, [0.5] * len(Column))
        hearing.drain(ring, 1.0, 3.0)
        hearing.drain(ring, 2.0, 3.0)
        assert times(past) == [1.0, 1.1, 1.2]
        assert times(past, B) == []
    finally:
        ring.close()
