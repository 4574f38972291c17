"""The sampler on a stepped clock, over a simulated node: what it says is what the sampler process would say."""

from __future__ import annotations

import math

import pytest

from gpumon import catalogue
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.host.nvml import Code, Device, NvmlError
from gpumon.model import Distribution, GpuUuid, Kind, Reason
from gpumon.node import Node
from gpumon.sampler.handover import SLOTS, Plan
from gpumon.sampler.hearing import Hearing
from gpumon.sampler.stepped import DirectRows, SteppedSampler
from gpumon.sim.files import SimFiles
from gpumon.sim.nvml import SimNvml
from gpumon.sim.world import World
from gpumon.store import Store
from tests.sim.nodes import GPUS, STARTED_S, node

PLAN = Plan(slow_s=1.0, inventory_s=5.0, lost_retry_s=1.0)
TTL_S = 3.0


class Ears(Node):
    """The node's own listener, which remembers what it heard."""

    def __init__(self, store: Store, health: Health, clock: ManualClock) -> None:
        super().__init__(store, health, clock)
        self.states: list[tuple[float, str, Reason]] = []
        self.xids_heard: list[tuple[GpuUuid | None, int, float]] = []
        self.lost_rows = 0

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        self.states.append((round(at_s - STARTED_S, 3), state, reason))
        super().nvml_state(state, at_s, reason, detail)

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None:
        self.xids_heard.append((uuid, xid, at_s - STARTED_S))
        super().xid(uuid, xid, at_s)

    def dropped_messages(self, count: int) -> None:
        self.lost_rows += count


class CountedNvml(SimNvml):
    """Counts how often it is opened and closed, and the event sets that are open."""

    opens = closes = 0
    broken: NvmlError | None = None
    """What looking a GPU up fails with."""

    def open(self) -> None:
        self.opens += 1
        super().open()

    def close(self) -> None:
        self.closes += 1
        super().close()

    def device_by_uuid(self, uuid: str) -> Device:
        if self.broken is not None:
            raise self.broken
        return super().device_by_uuid(uuid)


class Bench:
    """One sampler on one node; ``advance`` ticks, looks and publishes as ``SteppedNode`` does."""

    def __init__(self, *faults: str, plan: Plan = PLAN, world: World | None = None) -> None:
        self.world = world if world is not None else node(*faults)
        self.clock = ManualClock(STARTED_S)
        self.store = Store()
        self.health = Health(self.clock.to_unix)
        self.ears = Ears(self.store, self.health, self.clock)
        self.hearing = Hearing(self.ears, self.clock, None)
        self.hearing.begin(plan)
        self.nvml = CountedNvml(self.world, self.clock, sleep=self.clock.step)
        files = SimFiles(self.world, self.clock)
        self.sampler = SteppedSampler(self.nvml, files, plan, self.hearing, self.clock)
        self._tick = 0
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}

    def advance(self, story_s: float) -> None:
        """To a whole second of the story."""
        while self._tick < round(story_s * 10):
            self._tick += 1
            at_s = STARTED_S + self._tick / 10
            self.clock.move_to(at_s)
            self.sampler.tick(at_s)
            if self._tick % 10 == 0:
                self.sampler.look(at_s)
                self.hearing.drain(self.sampler.rows, at_s, TTL_S)
                self.store.put("sampler", at_s, list(self.hearing.samples()), TTL_S)
                self._check()

    def by_gpu(self, name: str) -> dict[str, float]:
        """Values of a family by GPU, now."""
        return {
            sample.labels[0]: sample.value
            for sample in self.store.view(self.clock.now_s())
            if sample.metric.name == f"gpumon_{name}" and not isinstance(sample.value, Distribution)
        }

    def _check(self) -> None:
        """Every value is one, and no total falls."""
        for metric, labels, value in self.store.view(self.clock.now_s()):
            total = float(sum(value.counts)) if isinstance(value, Distribution) else value
            assert math.isfinite(total), (metric.name, labels)
            if metric.kind is not Kind.GAUGE:
                assert total >= self._highest.get((metric.name, labels), 0.0), (metric.name, labels)
                self._highest[metric.name, labels] = total


def test_every_gpu_has_a_row_at_every_tick_and_its_slower_passes() -> None:
    bench = Bench()
    bench.advance(4)
    assert bench.by_gpu("gpu_samples_total") == {str(gpu): 40.0 for gpu in range(GPUS)}
    assert set(bench.by_gpu("gpu_temperature_celsius")) == {str(gpu) for gpu in range(GPUS)}
    assert bench.by_gpu("gpu_present") == {str(gpu): 1.0 for gpu in range(GPUS)}
    assert bench.by_gpu("gpus")["present"] == GPUS
    assert bench.ears.holders()
    assert [state for _, state, _ in bench.ears.states] == ["running"]


def test_one_gpu_can_be_ticked_alone() -> None:
    bench = Bench()
    bench.sampler.open_now(STARTED_S)
    uuids = [worker.uuid for worker in bench.sampler.workers()]
    for tick in range(1, 6):
        bench.clock.move_to(STARTED_S + tick / 10)
        bench.sampler.tick(bench.clock.now_s(), uuids[2])
    bench.hearing.drain(bench.sampler.rows, bench.clock.now_s(), TTL_S)
    assert bench.by_gpu("gpu_samples_total") == {"2": 5.0}


def test_a_driver_that_goes_takes_everything_back_and_counters_go_on_when_it_returns() -> None:
    bench = Bench("kind: driver_restart, at_s: 6.5, for_s: 5")
    bench.advance(6)
    before = bench.by_gpu("gpu_energy_joules_total")
    assert len(before) == GPUS
    bench.advance(8)
    assert bench.by_gpu("gpu_energy_joules_total") == {}
    assert bench.by_gpu("gpu_utilization_ratio") == {}
    assert bench.by_gpu("gpu_present") == {str(gpu): 0.0 for gpu in range(GPUS)}
    assert bench.ears.holders() == []
    bench.advance(20)
    after = bench.by_gpu("gpu_energy_joules_total")
    assert all(after[gpu] > before[gpu] for gpu in before)
    assert bench.by_gpu("gpu_present") == {str(gpu): 1.0 for gpu in range(GPUS)}
    states = [state for _, state, _ in bench.ears.states]
    assert (states[0], states[-1]) == ("running", "running")
    assert set(states[1:-1]) == {"unavailable"}
    assert bench.nvml.closes == 1


def test_nvml_is_opened_again_with_a_growing_pause() -> None:
    bench = Bench("kind: driver_restart, at_s: 0, for_s: 100", plan=Plan(retry_min_s=1.0, retry_max_s=8.0))
    bench.advance(40)
    tries = [at_s for at_s, state, _ in bench.ears.states if state == "unavailable"]
    assert tries == pytest.approx([0.1, 1.1, 3.1, 7.1, 15.1, 23.1, 31.1, 39.1])
    assert bench.nvml.opens == len(tries)


def test_a_long_good_generation_forgives_earlier_failures() -> None:
    plan = Plan(retry_min_s=1.0, retry_max_s=8.0)
    faults = ("kind: driver_restart, at_s: 0, for_s: 10", "kind: driver_restart, at_s: 40, for_s: 2")
    bench = Bench(*faults, plan=plan)
    bench.advance(60)
    states = bench.ears.states
    assert [at_s for at_s, state, _ in states if state == "running"] == pytest.approx([15.1, 43.0])


def test_the_pause_is_passed_over_by_who_knows_when_nvml_was_opened() -> None:
    bench = Bench("kind: driver_restart, at_s: 0, for_s: 4", plan=Plan(retry_min_s=60.0))
    bench.advance(5)
    assert bench.hearing.state == "unavailable"
    bench.sampler.open_now(bench.clock.now_s())
    assert bench.hearing.state == "running"


def test_what_is_opened_while_it_is_open_begins_anew_and_counters_go_on() -> None:
    """A replay of a sampler that was killed and replaced."""
    bench = Bench()
    bench.advance(3)
    before = bench.by_gpu("gpu_busy_seconds_total")
    bench.sampler.open_now(bench.clock.now_s())
    assert (bench.nvml.opens, bench.nvml.closes) == (2, 1)
    bench.advance(6)
    after = bench.by_gpu("gpu_busy_seconds_total")
    assert set(after) == set(before)
    assert all(after[gpu] >= before[gpu] for gpu in before)
    assert bench.by_gpu("gpu_samples_total") == {str(gpu): 60.0 for gpu in range(GPUS)}


def test_what_is_closed_is_closed_and_says_why_if_that_is_known() -> None:
    bench = Bench("kind: driver_restart, at_s: 3.35, for_s: 9")
    bench.advance(3.5)  # the workers know, and nobody has looked yet
    assert bench.hearing.state == "running"
    bench.sampler.close_now(bench.clock.now_s())
    assert bench.hearing.state == "unavailable"
    bench.sampler.close_now(bench.clock.now_s())
    assert bench.nvml.closes == 1
    whole = Bench()
    whole.advance(2)
    whole.sampler.close_now(whole.clock.now_s())
    assert whole.sampler.workers() == []
    assert whole.hearing.state == "running"  # it was wanted


def test_a_library_of_another_version_is_said_and_tried_again() -> None:
    bench = Bench("kind: driver_mismatch, at_s: 3, for_s: 4")
    bench.advance(6)
    assert bench.hearing.state == "unavailable"
    said = [labels for metric, labels, _ in bench.store.view(bench.clock.now_s()) if metric is catalogue.NVML_ERROR]
    assert said == [("LIB_RM_VERSION_MISMATCH",)]
    bench.advance(15)
    assert bench.hearing.state == "running"


def test_a_gpu_that_is_lost_is_absent_and_comes_back_while_the_others_go_on() -> None:
    bench = Bench("kind: gpu_lost, at_s: 4.5, for_s: 6, gpu: 1")
    bench.advance(4)
    before = bench.by_gpu("gpu_energy_joules_total")
    bench.advance(7)
    others = {"0", "2", "3"}
    assert set(bench.by_gpu("gpu_energy_joules_total")) == others
    assert set(bench.by_gpu("gpu_utilization_ratio")) == others
    assert bench.by_gpu("gpu_present") == {"0": 1.0, "1": 0.0, "2": 1.0, "3": 1.0}
    assert bench.by_gpu("gpu_samples_total")["0"] == 70.0
    bench.advance(25)
    after = bench.by_gpu("gpu_energy_joules_total")
    assert set(after) == others | {"1"}
    assert after["1"] >= before["1"]
    assert bench.by_gpu("gpu_present")["1"] == 1.0
    assert bench.nvml.closes == 0
    assert all(state == "running" for _, state, _ in bench.ears.states)


def test_xids_are_heard_once_and_with_their_gpu() -> None:
    bench = Bench("kind: xid, at_s: 2.5, gpu: 1, strength: 13", "kind: xid, at_s: 4.2, gpu: 3, strength: 63")
    bench.advance(10)
    boards = bench.world.boards
    heard = [(uuid, xid, math.ceil(at_s)) for uuid, xid, at_s in bench.ears.xids_heard]
    assert heard == [(boards[1].uuid, 13, 3), (boards[3].uuid, 63, 5)]


def test_xids_are_heard_after_a_driver_restart_too() -> None:
    bench = Bench("kind: driver_restart, at_s: 2, for_s: 2", "kind: xid, at_s: 15, gpu: 0, strength: 13")
    bench.advance(17)
    assert [xid for _, xid, at_s in bench.ears.xids_heard if at_s > 10] == [13]


def test_a_gpu_that_cannot_be_looked_up_is_left_out_of_the_xids_and_lost() -> None:
    bench = Bench()
    bench.nvml.broken = NvmlError(Code.GPU_IS_LOST, "nvmlDeviceGetHandleByUUID")
    bench.advance(2)
    assert bench.by_gpu("gpu_present") == {str(gpu): 0.0 for gpu in range(GPUS)}
    bench.nvml.broken = None
    bench.advance(15)
    assert bench.by_gpu("gpu_present") == {str(gpu): 1.0 for gpu in range(GPUS)}


def test_durations_are_those_of_the_stepped_clock() -> None:
    """A replay's page may not depend on how fast it was made."""
    bench = Bench()
    bench.advance(6)
    durations = {
        sample.labels[0]: sample.value
        for sample in bench.health.samples(bench.clock.now_s())
        if sample.metric is catalogue.SOURCE_DURATION
    }
    assert {"gpu_slow", "gpu_inventory", "gpu_processes", "inventory"} <= set(durations)
    assert set(durations.values()) == {0.0}


def test_the_same_node_says_the_same_again() -> None:
    def told() -> str:
        bench = Bench("kind: gpu_lost, at_s: 2, for_s: 3, gpu: 1", "kind: driver_restart, at_s: 8, for_s: 2")
        bench.advance(15)
        return repr(list(bench.store.view(bench.clock.now_s()))) + repr(bench.ears.states)

    assert told() == told()


def test_rows_that_nobody_drains_are_bounded_and_the_lost_ones_counted() -> None:
    rows = DirectRows(4)
    for at_ns in range(1, 11):
        rows.write(3, at_ns, [float(at_ns), None])
    taken, lost = rows.read(3)
    assert [row.at_ns for row in taken] == [7, 8, 9, 10]
    assert lost == 6
    assert math.isnan(taken[0].values[1])
    assert rows.read(3) == ([], 0)
    assert rows.slots == SLOTS


def test_rows_lost_between_two_drains_are_told() -> None:
    bench = Bench()
    for tick in range(1, 301):
        at_s = STARTED_S + tick / 10
        bench.clock.move_to(at_s)
        bench.sampler.tick(at_s)
    bench.hearing.drain(bench.sampler.rows, bench.clock.now_s(), TTL_S)
    assert bench.ears.lost_rows == GPUS * 150
