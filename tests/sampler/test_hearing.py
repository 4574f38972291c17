"""What is made of what the sampler says, without a sampler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from gpumon import catalogue
from gpumon.host.clock import ManualClock
from gpumon.model import Distribution, GpuProcess, GpuUuid, Miss, Reason, Sample
from gpumon.sampler.handover import Handover, Plan
from gpumon.sampler.hearing import Hearing
from gpumon.sampler.ring import Ring
from gpumon.sampler.wire import Batch, pack_batch
from gpumon.sources.gpu_fast import Column

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


class Ears:
    """Remembers."""

    def __init__(self) -> None:
        self.batches: dict[str, list[Sample]] = {}
        self.passes: list[Batch] = []
        self.states: list[tuple[str, Reason, str]] = []
        self.processes: dict[GpuUuid, list[GpuProcess]] = {}
        self.dropped = 0
        self.xids: list[tuple[GpuUuid | None, int, float]] = []

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        self.batches[owner] = list(samples)

    def drop(self, owner: str) -> None:
        self.batches.pop(owner, None)

    def passed(self, batch: Batch) -> None:
        self.passes.append(batch)

    def gpu_identity(self, uuid: GpuUuid, gpu: str, pci_bus_id: str) -> None:
        raise AssertionError

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None:
        self.processes[uuid] = processes

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None:
        self.xids.append((uuid, xid, at_s))

    def dropped_messages(self, count: int) -> None:
        self.dropped += count

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        self.states.append((state, reason, detail))


class Stand:
    def __init__(self) -> None:
        self.ears = Ears()
        self.hearing = Hearing(self.ears, ManualClock(), None)
        self.ring = Ring.create(4, 32, len(Column))
        self.begin()

    def begin(self, plan: Plan | None = None) -> None:
        self.hearing.begin(plan or Plan())

    def hear(self, kind: str, *body: Any) -> None:
        self.hearing.hear(kind, 0, body)

    def run(self, *gpus: tuple[int, str, int]) -> None:
        self.hear("gpus", list(gpus))
        self.hear("state", "running", "unavailable", "", "")

    def batch(self, source: str, uuid: str, *samples: Sample, misses: Iterable[Miss] = ()) -> None:
        owner = f"{source}/00/{uuid}"
        self.hear("batch", *pack_batch(Batch(source, owner, 1.0, 15.0, 0.1, list(samples), list(misses), [])))

    def row(self, slot: int, at_s: float, values: dict[Column, float]) -> None:
        cells: list[float | None] = [None] * len(Column)
        for column, value in values.items():
            cells[column] = value
        self.ring.write(slot, round(at_s * 1e9), cells)

    def drain(self) -> None:
        self.hearing.drain(self.ring, 1.0, 3.0)

    def present(self) -> dict[str, float]:
        return {
            sample.labels[1]: sample.value
            for sample in self.hearing.samples()
            if sample.metric is catalogue.GPU_PRESENT and isinstance(sample.value, float)
        }


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.ring.close()


def utilization(value: float, gpu: str = "0", uuid: str = A) -> Sample:
    return Sample(catalogue.GPU_BAR1, (gpu, uuid, "used"), value)


def test_a_gpu_is_present_while_nvml_runs_and_it_answers(stand: Stand) -> None:
    stand.run((0, A, 0), (1, B, 1))
    assert stand.present() == {A: 1.0, B: 1.0}
    stand.hear("gpu_lost", B, "1", "lost")
    assert stand.present() == {A: 1.0, B: 0.0}
    stand.hear("gpu_back", B, "1")
    assert stand.present() == {A: 1.0, B: 1.0}
    stand.hear("state", "unavailable", "unavailable", "nvmlInit: DRIVER_NOT_LOADED", "load it")
    assert stand.present() == {A: 0.0, B: 0.0}


def test_a_gpu_known_from_before_that_is_not_listed_is_absent(stand: Stand) -> None:
    stand.run((0, A, 0), (1, B, 1))
    stand.hearing.end()
    stand.begin()
    stand.run((0, A, 0))
    assert stand.present() == {A: 1.0, B: 0.0}
    stand.run((0, A, 0), (1, B, -1))  # listed, because it was there once
    assert stand.present() == {A: 1.0, B: 0.0}


def test_a_lost_gpu_takes_its_batches_and_processes_along_and_no_others(stand: Stand) -> None:
    stand.run((0, A, 0), (1, B, 1))
    for uuid in (A, B):
        stand.batch("gpu_inventory", uuid, utilization(1.0, uuid=uuid))
        stand.hear("processes", uuid, [(7, "0", uuid, 1.0, None)])
        stand.row(0 if uuid == A else 1, 1.0, {Column.UTILIZATION: 0.5})
    stand.drain()
    assert len(stand.ears.batches) == 4
    stand.hear("gpu_stuck", A, "0", "nvmlDeviceGetName")
    assert list(stand.ears.batches) == [f"gpu_inventory/00/{B}", f"gpu_fast/01/{B}"]
    assert stand.ears.processes[A] == []
    assert len(stand.ears.processes[B]) == 1


def test_rows_of_an_absent_gpu_count_and_are_not_shown(stand: Stand) -> None:
    stand.run((0, A, 0))
    stand.hear("gpu_stuck", A, "0", "nvmlDeviceGetName")
    stand.row(0, 1.0, {Column.UTILIZATION: 0.5})
    stand.drain()
    assert stand.ears.batches == {}
    stand.hear("gpu_back", A, "0")
    stand.row(0, 1.1, {Column.UTILIZATION: 0.5})
    stand.drain()
    (batch,) = stand.ears.batches.values()
    assert [sample.value for sample in batch if sample.metric is catalogue.GPU_SAMPLES] == [2]


def test_what_a_process_said_is_taken_back_when_it_ends(stand: Stand) -> None:
    stand.run((0, A, 0))
    stand.batch("gpu_slow", A, utilization(1.0))
    stand.hear("processes", A, [(7, "0", A, 1.0, None)])
    stand.hearing.end()
    assert stand.ears.batches == {}
    assert stand.ears.processes[A] == []
    stand.row(0, 1.0, {Column.UTILIZATION: 0.5})
    stand.drain()  # nobody has said whose slot that is
    assert stand.ears.batches == {}


def test_what_a_process_said_is_taken_back_when_it_loses_the_driver_and_rows_still_count(stand: Stand) -> None:
    stand.run((0, A, 0))
    for source in ("gpu_inventory", "inventory"):
        stand.batch(source, A, utilization(1.0))
    stand.hear("processes", A, [(7, "0", A, 1.0, None)])
    stand.row(0, 1.0, {Column.UTILIZATION: 0.5})
    stand.drain()
    stand.row(0, 1.1, {Column.UTILIZATION: 0.5})
    stand.hear("state", "unavailable", "unavailable", "nvmlDeviceGetName: DRIVER_NOT_LOADED", "load it")
    assert stand.ears.batches == {}
    assert stand.ears.processes[A] == []
    stand.drain()
    assert stand.ears.batches == {}
    stand.run((0, A, 0))
    stand.row(0, 9.0, {Column.UTILIZATION: 0.5})
    stand.drain()
    (batch,) = stand.ears.batches.values()
    assert [sample.value for sample in batch if sample.metric is catalogue.GPU_SAMPLES] == [3]


def test_a_pass_without_a_sample_takes_back_the_one_before(stand: Stand) -> None:
    stand.batch("mig", A, utilization(1.0))
    stand.batch("mig", A)
    assert stand.ears.batches == {}
    assert len(stand.ears.passes) == 2


def test_another_number_is_on_the_next_rows_and_totals_stay(stand: Stand) -> None:
    stand.run((0, A, 3))
    stand.row(0, 1.0, {Column.ENERGY: 100.0})
    stand.drain()
    stand.hearing.end()
    stand.begin()
    stand.run((2, A, 1))
    stand.row(2, 2.0, {Column.ENERGY: 20.0})
    stand.drain()
    (batch,) = stand.ears.batches.values()
    energy = [sample for sample in batch if sample.metric is catalogue.GPU_ENERGY]
    assert energy == [Sample(catalogue.GPU_ENERGY, ("1", A), 120.0)]


def test_a_longer_cadence_is_not_taken_for_gaps(stand: Stand) -> None:
    stand.run((0, A, 0))
    stand.row(0, 1.0, {})
    stand.drain()
    stand.hearing.end()
    stand.begin(Plan(fast_s=2.0))
    stand.run((0, A, 0))
    for at_s in (10.0, 12.0):
        stand.row(0, at_s, {Column.SM_ACTIVE: 0.5, Column.GPM_INTERVAL: 2.0})
    stand.drain()
    (batch,) = stand.ears.batches.values()
    assert [s.value for s in batch if s.metric is catalogue.GPU_SM_ACTIVE_SECONDS] == [2.0]


def test_lost_rows_and_messages_are_counted(stand: Stand) -> None:
    stand.run((0, A, 0))
    for number in range(100):
        stand.row(0, number / 10, {})
    stand.drain()
    assert stand.ears.dropped == 100 - 31
    stand.hearing.hear("log", 5, ("text",))
    assert stand.ears.dropped == 100 - 31 + 5


def test_the_driver_calls_of_all_processes_add_up(stand: Stand) -> None:
    for _ in range(2):
        stand.begin()
        row = [1] * (len(catalogue.CALL_BOUNDS) + 1)
        stand.hear("calls", [("nvmlDeviceGetName", [*row, 500_000_000])])
    calls = [sample for sample in stand.hearing.samples() if sample.metric is catalogue.NVML_CALL]
    counts = tuple([2] * (len(catalogue.CALL_BOUNDS) + 1))
    assert calls == [Sample(catalogue.NVML_CALL, ("nvmlDeviceGetName",), Distribution(counts, 1.0))]


def test_a_state_is_logged_when_it_changes_with_what_helps(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        stand.hear("state", "unavailable", "denied", "nvmlInit: NO_PERMISSION", "give access")
    stand.run((0, A, 0))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["nvml=unavailable", "nvml=running"]
    assert "give access" in caplog.text
    assert stand.ears.states[:3] == [("unavailable", Reason.DENIED, "nvmlInit: NO_PERMISSION")] * 3


def test_a_bug_is_logged_once_and_counted_always(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        stand.hear("bug", "gpu_slow", f"gpu_slow/00/{A}", "gpu 0", "Traceback\nKeyError: 'x'\n")
    assert caplog.text.count("KeyError") == 1
    assert [batch.misses for batch in stand.ears.passes] == [[Miss("gpu 0", Reason.BUG, "KeyError: 'x'")]] * 3
    assert {(batch.source, batch.owner) for batch in stand.ears.passes} == {("gpu_slow", f"gpu_slow/00/{A}")}


def test_an_xid_of_no_known_gpu_is_heard_all_the_same(stand: Stand) -> None:
    stand.hear("xid", "", 79, 5.0)
    stand.hear("xid", A, 31, 6.0)
    assert stand.ears.xids == [(None, 79, 5.0), (A, 31, 6.0)]


def test_the_handover_survives_its_argument() -> None:
    plan = Plan(fast_s=0.25, retry_max_s=7.0)
    handover = Handover(5, 6, plan, {"library": "/a b/'c'.so", "procfs": "/proc"})
    assert Handover.from_argument(handover.to_argument()) == handover
