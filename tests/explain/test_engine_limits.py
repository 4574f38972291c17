"""Explanation within its limits: more than there is room for, witnesses that fail, clocks that differ, and nonsense."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain import engine, held, recent
from gpumon.explain.signs import Sign
from gpumon.model import Binding, GpuUuid
from tests.explain.traffic import GPU, HOT, HOT_TIME, Held, Saying, Slower, World, hot_world, quick, traffic

NS = 1_000_000_000


# --- room -------------------------------------------------------------------------------------------------------------


def test_requests_beyond_the_room_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAITING_MAX", 1000)
    world = World()
    world.step([quick(number, 1001.0) for number in range(1500)])
    assert world.outcomes() == {"dropped": 500}
    for _ in range(10):
        world.step()
    assert sum(world.outcomes().values()) == 1500
    assert world.outcomes()["dropped"] == 500
    assert len(world.all) == 1000


def test_token_times_that_wait_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAITING_TOKENS", 1000)
    world = World()
    records = traffic(1000.0, 10.0, tokens=100)
    world.run(records, 30)
    told = world.outcomes()
    assert sum(told.values()) == len(records)
    assert 0 < told["dropped"] < len(records) - 10, "there is room again when some have been explained"


@pytest.mark.parametrize("tokens", [1, 250, 10**9])
def test_more_than_is_explained_at_once_is_explained_all_the_same(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    whole = hot_world()
    monkeypatch.setattr(engine, "PASS", tokens)
    parts = hot_world()
    parts.check_conserved()
    assert [each.record.trace_id for each in parts.all] == [each.record.trace_id for each in whole.all]
    excess_s = [sum([each.excess_s for each in world.all]) for world in (parts, whole)]
    assert excess_s[0] == pytest.approx(excess_s[1], rel=0.05)


def test_details_are_of_the_newest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "SLOW_MAX", 10)
    monkeypatch.setattr(recent, "ON_TIME_MAX", 10)
    monkeypatch.setattr(held, "BYTES", 0)
    world = hot_world()
    slow = [each for each in world.all if each.excess_s > 0]
    on_time = [each for each in world.all if not each.excess_s]
    assert [each.record.request_id for each in world.explanation.newest()] == [
        each.record.request_id for each in reversed(slow[-10:])
    ]
    known = [bool(world.explanation.find(each.record.trace_id.hex())) for each in on_time]
    assert known == [False] * (len(on_time) - 10) + [True] * 10


def test_the_slowest_are_known_when_newer_ones_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "SLOW_MAX", 10)
    monkeypatch.setattr(recent, "ON_TIME_MAX", 10)
    world = hot_world()
    slow = sorted(
        (-np.diff(each.token_s).max(), number)
        for number, each in enumerate(world.all)
        if each.excess_s > 0 and each.token_s is not None
    )
    for each in (world.all[number] for _, number in slow[:10]):
        (found,) = world.explanation.find(each.record.trace_id.hex())
        assert found.excess_s == each.excess_s
        assert found.token_s == pytest.approx(each.token_s, abs=6e-7)
        assert world.explanation.of_span(each.record.trace_id, each.record.span_id) is not None


def tokens_kept(world: World) -> int:
    every = [each for one in world.all for each in world.explanation.find(one.record.trace_id.hex())]
    return sum(len(each.token_s) for each in {id(each): each for each in every}.values() if each.token_s is not None)


def test_token_times_in_memory_are_bounded_and_the_newest_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "SLOW_TOKENS", 2000)
    monkeypatch.setattr(recent, "ON_TIME_TOKENS", 3000)
    monkeypatch.setattr(held, "BYTES", 0)
    world = hot_world()
    assert 4000 < tokens_kept(world) <= 5000
    newest = world.explanation.newest()
    assert len(newest) >= 5
    assert newest[0].token_s is not None
    (last,) = world.explanation.find(world.all[-1].record.trace_id.hex())
    assert last.excess_s == 0
    assert last.token_s is not None


def test_a_request_of_more_tokens_than_there_is_room_for_takes_no_other_ones_details(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "SLOW_TOKENS", 1000)
    monkeypatch.setattr(recent, "ON_TIME_TOKENS", 1000)
    monkeypatch.setattr(held, "BYTES", 0)
    world = World(Saying())
    long = traffic(1030.0, 0.25, tokens=2000, slower=[Slower(1040.0, 1041.0, 5.0)], seed=2)
    world.run([*traffic(1000.0, 90.0), *long], 105)
    assert world.explanation.find(long[0].trace_id.hex())
    assert tokens_kept(world) <= 2000
    known = [each for each in world.all[-30:] if world.explanation.find(each.record.trace_id.hex())]
    assert len(known) == 30


def told_again(numbers: Iterable[int]) -> World:
    """The hot minute, in which these requests are all the same one, by their ids."""
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    for number in numbers:
        records[number].trace_id, records[number].span_id = b"\7" * 16, b"\7" * 8
    world = World(Saying(HOT))
    world.run(records, 75)
    return world


def test_a_request_that_is_told_again_and_again_takes_room_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "SLOW_TOKENS", 2000)
    world = told_again(range(180, 200))
    assert len(world.explanation.find((b"\7" * 16).hex())) == 1
    assert sum(each.token_s is not None for each in world.explanation.newest()) == 19


def test_a_request_that_was_on_time_when_told_first_and_slow_when_told_again_is_known_once() -> None:
    world = told_again([140, 170])
    (found,) = world.explanation.find((b"\7" * 16).hex())
    assert found.decode.cause == "thermal_throttle"


def test_requests_that_were_on_time_keep_their_token_times_as_slow_ones_do() -> None:
    world = hot_world()
    for each in world.all:
        (kept,) = world.explanation.find(each.record.trace_id.hex())
        assert kept.token_s is not None
        assert len(kept.token_s) == 101
        assert kept.start_s < kept.token_s[0] <= kept.token_s[-1] == pytest.approx(kept.end_s)
    assert any(not each.excess_s for each in world.all)


# --- what cannot be ---------------------------------------------------------------------------------------------------


class Broken:
    """A witness that fails after its first sign."""

    causes: ClassVar[tuple[str, ...]] = ("pcie", "nvlink")

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterable[Sign]:
        yield Sign("pcie", GPU, scene.at_s - 1.0, scene.at_s, 0.9)
        raise ValueError("a bug")


def test_a_witness_that_fails_loses_its_own_signs_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        world = hot_world(Broken(), Saying(HOT))
    assert world.seconds()["thermal_throttle"] > 10
    failures = {s.labels[0]: s.value for s in world.samples if s.metric is catalogue.DETECTOR_FAILURES}
    assert failures == {"explain_pcie": 75.0}
    assert len([record for record in caplog.records if "state=bug" in record.message]) == 1


def test_a_witness_that_says_nonsense_harms_nobody() -> None:
    nan = float("nan")
    nonsense = [
        Held("bad_luck", 1000.0, 2000.0),
        Held("pcie", 1000.0, 2000.0, nan, nan),
        Held("nvlink", 1000.0, 2000.0, 1e300, -1e300),
        Held("unexplained", 1000.0, 2000.0, 0.1, 0.1),
    ]
    world = hot_world(Saying(*nonsense), Saying(HOT))
    world.check_conserved()
    assert world.seconds()["thermal_throttle"] > 10
    assert all(np.isfinite(s.value) for s in world.samples if isinstance(s.value, float))


def test_a_clock_ahead_of_ours_is_taken_for_ours() -> None:
    ahead = traffic(1000.0, 60.0, slower=HOT_TIME)
    for record in ahead:
        record.start_ns += 3600 * NS
        record.end_ns += 3600 * NS
        record.first_token_ns = (record.first_token_ns or 0) + 3600 * NS
        assert record.token_ns is not None
        record.token_ns = record.token_ns + 3600 * NS
    world = World(Saying(HOT))
    for second in range(75):
        at_ns = (4600 + second) * NS
        world.step([record for record in ahead if at_ns < record.end_ns <= at_ns + NS])
    world.check_conserved()
    assert all(each.end_s <= world.stage.at_s for each in world.all)
    assert sum(world.outcomes().values()) == 240
    assert world.seconds()["thermal_throttle"] > 10


def test_a_clock_that_is_hours_behind_cannot_be_explained_and_is_counted() -> None:
    world = World()
    world.run(traffic(1000.0, 10.0), 25)
    before = world.outcomes()
    world.step([quick(1, world.stage.at_s - 3600.0)])
    for _ in range(10):
        world.step()
    assert world.outcomes() == before | {"untimed": 1.0}


def test_a_clock_behind_ours_right_after_the_machine_began_harms_nothing() -> None:
    # By its own clock, all that this server did was before the machine was there.
    world, behind_s = World(Saying(HOT._replace(start_s=0.0, end_s=60.0))), 120.0
    world.stage.at_s = 20.0
    here, there = traffic(20.0, 30.0), traffic(20.0 - behind_s, 30.0, gpus=["GPU-0001"], slower=[BEHIND], seed=2)
    for second in range(45):
        at_ns = (20 + second) * NS
        ended = [each for each in here if at_ns < each.end_ns <= at_ns + NS]
        late_ns = at_ns - round(behind_s) * NS
        world.step([*ended, *(each for each in there if late_ns < each.end_ns <= late_ns + NS)])
    world.check_conserved()
    assert sum(world.outcomes().values()) == 240


BEHIND = Slower(-90.0, -85.0, 2.0)
LARGEST = 2**63 - 1
FIVE = 1015 * NS + np.arange(5, dtype=np.int64)


@pytest.mark.parametrize(
    "told",
    [
        {"start_ns": 0, "end_ns": 0},
        {"start_ns": 0, "end_ns": LARGEST},
        {"start_ns": LARGEST, "end_ns": 0},
        {"start_ns": LARGEST - NS, "end_ns": LARGEST},
        {"first_token_ns": LARGEST},
        {"first_token_ns": 0},
        {"time_to_first_token_s": -5.0, "first_token_ns": None},
        {"time_to_first_token_s": 1e300, "first_token_ns": None},
        {"queue_s": 1e300},
        {"queue_s": -1e300, "prefill_s": 1e300},
        {"prompt_tokens": 2**53, "cached_tokens": -(2**53)},
        {"prompt_tokens": -(2**53)},
        {"completion_tokens": 2**53},
        {"completion_tokens": -1},
        {"completion_tokens": 0},
        {"concurrency": 2**53},
        {"token_ns": np.zeros(0, dtype=np.int64)},
        {"token_ns": np.array([5], dtype=np.int64)},
        {"token_ns": np.array([0, LARGEST], dtype=np.int64), "per_token": True},
        {"token_ns": np.array([LARGEST, 0], dtype=np.int64), "per_token": True},
        {"token_ns": np.zeros(50, dtype=np.int64), "per_token": True},
        {"token_ns": FIVE, "token_counts": np.full(5, 2**31 - 1, dtype=np.int32), "per_token": True},
        {"token_ns": FIVE, "token_counts": np.full(5, -7, dtype=np.int32), "per_token": True},
        {"token_ns": FIVE, "token_counts": np.full(3, 1, dtype=np.int32), "per_token": True},
        {"model": "", "server": ""},
        {"trace_id": b"", "span_id": b""},
        {"trace_id": b"\xff" * 64, "span_id": b"\xff" * 64},
        {"binding": Binding("resource", pid=2**62, gpus=(GpuUuid(GPU[1]),))},
    ],
)
def test_a_request_that_cannot_be_harms_no_other(told: dict[str, Any]) -> None:
    # It is told of so early that something may be learned from it within the test.
    world, normal, odd = World(Saying()), traffic(1000.0, 40.0), quick(7, 1015.0)
    for name, value in told.items():
        setattr(odd, name, value)
    for second in range(53):
        at_ns = (1000 + second) * NS
        ended = [record for record in normal if at_ns < record.end_ns <= at_ns + NS]
        world.step([odd, *ended] if second == 15 else ended)
    world.check_conserved()
    others = [each for each in world.all if each.record.trace_id != odd.trace_id]
    assert len(others) == len(normal)
    assert sum(world.outcomes().values()) == len(normal) + 1
    late = others[100:]
    assert all(each.decode.expected_s == pytest.approx(2.0, rel=0.2) for each in late)
    assert sum(each.excess_s for each in late) < 0.2
    assert all(np.isfinite(sample.value) for sample in world.samples if isinstance(sample.value, float))
    # Nobody loses more than it took.
    assert sum(world.seconds("first_token").values()) + sum(world.seconds().values()) < 3600.0


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_a_request_of_absurd_size_hides_no_slowness_of_the_others(field: str) -> None:
    # A counter that wrapped around, or a lie.
    world = World(Saying(HOT))
    odd = traffic(1038.0, 0.25, tokens=600, seed=5)[0]
    setattr(odd, field, 2**53)
    world.run([*traffic(1000.0, 60.0, slower=HOT_TIME), odd], 75)
    assert world.seconds()["thermal_throttle"] > 10


@pytest.mark.parametrize("days", [-1.0, 1.0])
def test_token_times_by_another_clock_hide_no_fault_of_the_others(days: float) -> None:
    world = World(Saying(HOT))
    odd = traffic(1010.0, 1.0, tokens=30, seed=5)
    for record in odd:
        assert record.token_ns is not None
        record.token_ns = record.token_ns + round(days * 86400 * NS)
    world.run([*traffic(1000.0, 60.0, slower=HOT_TIME), *odd], 75)
    world.check_conserved()
    assert world.seconds()["thermal_throttle"] > 10
    lifts = [share.lift for each in world.all for share in each.decode.shares if share.cause == "thermal_throttle"]
    assert any(lift is not None and lift > 2 for lift in lifts)


def test_a_request_that_ran_nowhere_known_is_explained_by_its_server_only() -> None:
    held = [HOT, HOT._replace(key=("host", "")), HOT._replace(cause="graph_fallback", key=("server", "m"))]
    world = World(Saying(*held))
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME, gpus=[]), 75)
    world.check_conserved()
    assert world.seconds()["graph_fallback"] > 10
    assert "thermal_throttle" not in world.seconds()


def test_what_is_true_of_the_host_is_true_of_what_runs_on_it() -> None:
    world = World(Saying(HOT._replace(key=("host", ""), cause="memory_pressure")))
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME), 75)
    assert world.seconds()["memory_pressure"] > 10
