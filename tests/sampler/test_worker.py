"""One GPU's thread, tick by tick, on a scripted NVML."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gpumon.host.nvml import Code, GpmReading, NvmlError, RunningProcess, Utilization
from gpumon.model import GpuUuid
from gpumon.sampler.handover import Plan
from gpumon.sampler.ring import Ring
from gpumon.sampler.wire import Batch, Channel, pair, unpack_batch
from gpumon.sampler.worker import BLANKS_MEAN_LOST, GpuWorker, add_calls, bug_text
from gpumon.sources.gpu_fast import Column
from gpumon.sources.gpu_state import GpuState
from tests.fake_port import FIELDS, GIB, HEALTHY, DictFiles, FakeNvml, device

UUID = "GPU-1"
PLAN = Plan(lost_retry_s=5.0)


class Stand:
    """A worker that is ticked by hand, and everything it says."""

    def __init__(self, nvml: FakeNvml) -> None:
        ours, theirs = pair()
        self.heard, self.channel = Channel(ours), Channel(theirs)
        self.ring = Ring.create(2, 64, len(Column))
        self.dead: list[int] = []
        self.nvml = nvml
        self.worker = GpuWorker(
            nvml=nvml,
            uuid=GpuUuid(UUID),
            index=0,
            slot=1,
            ring=self.ring,
            channel=self.channel,
            files=DictFiles({}),
            plan=PLAN,
            state=GpuState(),
            driver_gone=lambda error: self.dead.append(error.code),
        )

    def tick(self, at_s: float) -> list[tuple[str, tuple[Any, ...]]]:
        self.worker.tick(at_s)
        return self.said()

    def said(self) -> list[tuple[str, tuple[Any, ...]]]:
        messages: list[tuple[str, tuple[Any, ...]]] = []
        while True:
            try:
                message = self.heard.receive(wait=False)
            except BlockingIOError:
                return messages
            assert message is not None
            assert message[1] == 0, "messages were dropped"
            messages.append((message[0], message[2]))

    def close(self) -> None:
        self.heard.close()
        self.channel.close()
        self.ring.close()


def answering() -> FakeNvml:
    more: dict[str, Any] = {
        f"device:{UUID}": lambda: device(),
        "utilization": Utilization(50, 10),
        "temperature": 40,
        "reasons": 0,
        "power_usage": 500_000,
        "gpm.read": lambda _, metrics: GpmReading((10.0,) * len(metrics), (0,) * len(metrics), 0.1),
        **{f"clock_{name}": 1000 for name in ("graphics", "sm", "memory", "video")},
    }
    return FakeNvml(HEALTHY | more, FIELDS)


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand(answering())
    yield made
    made.close()


def batches(messages: list[tuple[str, tuple[Any, ...]]]) -> dict[str, Batch]:
    return {batch.source: batch for kind, body in messages if kind == "batch" for batch in (unpack_batch(body),)}


def kinds(messages: list[tuple[str, tuple[Any, ...]]]) -> list[str]:
    return [kind for kind, _ in messages]


def test_the_first_tick_says_everything_and_later_ones_what_is_due(stand: Stand) -> None:
    first = stand.tick(100.0)
    assert set(batches(first)) == {"gpu_inventory", "gpu_slow", "mig", "gpu_processes"}
    assert batches(first)["gpu_slow"].owner == f"gpu_slow/01/{UUID}"
    assert {"identity", "processes"} <= set(kinds(first))
    assert stand.tick(100.1) == []
    assert set(batches(stand.tick(101.0))) == set()  # no MIG is nothing new every second
    assert set(batches(stand.tick(105.1))) == {"mig", "gpu_slow", "gpu_processes"}
    assert set(batches(stand.tick(160.0))) == {"mig", "gpu_slow", "gpu_processes", "gpu_inventory"}
    rows, lost = stand.ring.read(1)
    assert (len(rows), lost) == (5, 0)
    assert {row.values[Column.UTILIZATION] for row in rows} == {0.5}
    assert stand.ring.read(0) == ([], 0)


def test_every_pass_is_made_again_when_asked_for_and_keeps_its_cadence_from_then_on(stand: Stand) -> None:
    said = set(batches(stand.tick(100.0)))
    stand.worker.read_all_again()
    assert set(batches(stand.tick(100.1))) == said
    assert stand.tick(100.2) == []
    assert set(batches(stand.tick(105.2))) == {"mig", "gpu_slow", "gpu_processes"}


def test_a_slow_pass_is_not_made_up_for(stand: Stand) -> None:
    stand.tick(0.0)
    stand.tick(1000.0)
    assert batches(stand.tick(1000.1)) == {}


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.GPU_NOT_FOUND])
def test_a_lost_gpu_is_told_once_and_looked_for_ever_more_rarely(stand: Stand, code: Code) -> None:
    stand.tick(0.0)
    stand.nvml.errors["utilization"] = code
    assert kinds(stand.tick(0.1)) == ["gpu_lost"]
    assert not stand.nvml.readers  # its GPM buffers were given back
    stand.nvml.errors[f"device:{UUID}"] = code
    asked = []
    for tick in range(1, 4000):
        stand.nvml.log.clear()
        assert stand.tick(0.1 + tick / 10) == []
        if stand.nvml.log:
            asked.append(tick / 10)
            assert stand.nvml.log == [f"device:{UUID}"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert asked[0] == 5.0
    assert pauses[:4] == [10.0, 20.0, 40.0, 60.0]
    assert set(pauses[4:]) == {60.0}
    stand.nvml.errors.clear()
    back = stand.tick(1000.0)
    assert kinds(back)[0] == "gpu_back"
    assert set(batches(back)) >= {"gpu_slow", "gpu_inventory"}
    assert not stand.worker.lost


def test_a_gpu_that_is_found_and_lost_in_turns_is_looked_for_ever_more_rarely(stand: Stand) -> None:
    stand.nvml.errors["utilization"] = Code.GPU_IS_LOST
    lost = 0
    for tick in range(3000):
        lost += kinds(stand.tick(tick / 10)).count("gpu_lost")
    assert 4 <= lost <= 10


@pytest.mark.parametrize("code", [Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH])
def test_a_driver_that_is_gone_is_told_to_the_supervisor(stand: Stand, code: Code) -> None:
    stand.tick(0.0)
    stand.nvml.errors["temperature"] = code
    assert stand.tick(0.1) == []
    assert stand.dead == [code]


def test_a_driver_that_is_gone_when_the_gpu_is_looked_for_is_told_too(stand: Stand) -> None:
    stand.nvml.errors[f"device:{UUID}"] = Code.DRIVER_NOT_LOADED
    assert stand.tick(0.0) == []
    assert stand.dead == [Code.DRIVER_NOT_LOADED]


def test_no_answer_at_all_is_a_lost_gpu_after_a_while_and_no_rows(stand: Stand) -> None:
    stand.tick(0.0)
    stand.ring.read(1)
    stand.nvml.errors |= dict.fromkeys([*stand.nvml.answers, "fields.read", "field_values"], Code.UNKNOWN)
    del stand.nvml.errors[f"device:{UUID}"]
    said = [kind for tick in range(1, BLANKS_MEAN_LOST + 1) for kind in kinds(stand.tick(tick / 100))]
    assert said.count("gpu_lost") == 1
    assert stand.ring.read(1) == ([], 0)


def test_one_call_answering_is_enough_to_stay(stand: Stand) -> None:
    stand.tick(0.0)
    stand.nvml.errors |= dict.fromkeys([*stand.nvml.answers, "fields.read"], Code.UNKNOWN)
    del stand.nvml.errors["temperature"]
    for tick in range(1, 4 * BLANKS_MEAN_LOST):
        assert "gpu_lost" not in kinds(stand.tick(tick / 100))


def test_without_the_drivers_ring_busy_time_is_summed_from_the_rows(stand: Stand) -> None:
    stand.nvml.errors["utilization_samples"] = Code.NOT_SUPPORTED
    for tick in range(101):
        said = stand.tick(tick / 10)
        if found := batches(said).get("gpu_slow"):
            newest = {sample.metric.name: sample.value for sample in found.samples}
    assert newest["gpumon_gpu_busy_seconds_total"] == pytest.approx(5.0, abs=0.11)
    before = stand.worker.state.busy_s
    stand.tick(500.0)  # after a gap nobody knows what happened in it
    assert stand.worker.state.busy_s == before


def test_ten_thousand_ticks_with_ever_new_processes_grow_nothing(stand: Stand) -> None:
    pids = itertools.count(1000)
    stand.nvml.answers["processes:compute"] = lambda: [RunningProcess(next(pids), GIB, None, None) for _ in range(20)]

    def sizes() -> dict[str, int]:
        found: dict[str, int] = {}
        queue: list[tuple[str, object]] = [("worker", stand.worker)]
        seen: set[int] = set()
        while queue:
            path, item = queue.pop()
            if id(item) in seen or isinstance(item, (str, bytes, int, float, FakeNvml, Ring, Channel)):
                continue
            seen.add(id(item))
            if isinstance(item, (list, set, dict, tuple, frozenset)):
                found[path] = len(item)
                children = item.values() if isinstance(item, dict) else item
                queue += [(f"{path}[]", child) for child in children]
                continue
            names = [
                *getattr(item, "__dict__", {}),
                *(n for c in type(item).__mro__ for n in getattr(c, "__slots__", ())),
            ]
            queue += [(f"{path}.{name}", getattr(item, name)) for name in names if hasattr(item, name)]
        return found

    for tick in range(700):
        stand.tick(tick / 10)
    before = sizes()
    for tick in range(700, 12_000):
        stand.tick(tick / 10)
        stand.nvml.log.clear()
    after = sizes()
    assert before.keys() == after.keys()
    assert {path: (before[path], size) for path, size in after.items() if size > before[path] + 2} == {}


def test_a_call_that_hangs_is_seen_from_outside(stand: Stand) -> None:
    assert stand.worker.hangs_in(100.0, 5.0) is None
    stand.tick(0.0)
    assert stand.worker.hangs_in(1e9, 5.0) is None
    at = stand.worker.device
    assert at is not None
    at.calls.name, at.calls.started_ns = "nvmlDeviceGetName", 10 * 10**9
    assert stand.worker.hangs_in(14.0, 5.0) is None
    assert stand.worker.hangs_in(15.1, 5.0) == "nvmlDeviceGetName"


def test_a_hang_while_the_gpu_is_looked_for_is_seen_too(stand: Stand) -> None:
    seen: list[str | None] = []

    def look() -> object:
        seen.append(stand.worker.hangs_in(1e12, 5.0))
        raise NvmlError(Code.GPU_IS_LOST, "nvmlDeviceGetHandleByUUID")

    stand.nvml.answers[f"device:{UUID}"] = look
    stand.tick(0.0)
    assert seen == ["nvmlDeviceGetHandleByUUID"]
    assert stand.worker.hangs_in(1e12, 5.0) is None


def test_a_bug_is_told_and_the_thread_goes_on(stand: Stand) -> None:
    answers = iter([ZeroDivisionError("by the test"), ZeroDivisionError("by the test")])

    def name() -> str:
        error = next(answers, None)
        if error is not None:
            raise error
        stand.worker.stop()
        return "NVIDIA H200"

    stand.nvml.answers["name"] = name
    fast = Plan(fast_s=0.001, slow_s=0.001, inventory_s=0.001, mig_s=0.001)
    stand.worker.plan = fast
    stand.worker.run()
    said = stand.said()
    bugs = [body for kind, body in said if kind == "bug"]
    assert [(source, owner, what) for source, owner, what, _ in bugs] == [
        ("gpu_inventory", f"gpu_inventory/01/{UUID}", "gpu 0")
    ] * 2
    assert "ZeroDivisionError: by the test" in bugs[0][3]
    assert "identity" in kinds(said)
    assert not stand.nvml.readers  # given back at the end


def test_a_main_process_that_is_gone_ends_the_thread_in_order(stand: Stand) -> None:
    stand.heard.close()
    stand.worker.run()
    assert not stand.nvml.readers


def test_durations_of_calls_outlive_the_device(stand: Stand) -> None:
    stand.tick(0.0)
    assert stand.worker.device is not None
    stand.worker.device.calls.durations["nvmlX"] = [1, 2, 3]
    stand.nvml.errors["utilization"] = Code.GPU_IS_LOST
    stand.tick(0.1)
    stand.nvml.errors.clear()
    stand.tick(10.0)
    assert stand.worker.device is not None
    stand.worker.device.calls.durations["nvmlX"] = [1, 0, 1]
    totals: dict[str, list[int]] = {"nvmlX": [0, 0, 1]}
    stand.worker.add_calls(totals)
    assert totals["nvmlX"] == [2, 2, 5]


def test_durations_are_added_by_name() -> None:
    totals = {"a": [1, 1]}
    add_calls(totals, {"a": [1, 2], "b": [3, 4]})
    assert totals == {"a": [2, 3], "b": [3, 4]}


def test_a_long_traceback_keeps_its_end() -> None:
    text = bug_text(ValueError("x" * 10_000))
    assert len(text) == 4000
    assert text.endswith("x\n")
