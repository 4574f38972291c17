"""``gpumon.record.past``."""

from __future__ import annotations

import random

import pytest

from gpumon import catalogue
from gpumon.model import Distribution, Sample
from gpumon.record.past import Past
from gpumon.store import Store
from tests.record.flights import GPU, SM, Readings, key, readings

CLOCK = key(catalogue.GPU_CLOCK, *SM)
ENERGY = key(catalogue.GPU_ENERGY, *GPU)


class Stand:
    """A store, and what is kept of it."""

    def __init__(self, memory_bytes: int = 8 << 20, before_s: float = 1800.0, pack_s: float = 10.0) -> None:
        self.store = Store()
        self.past = Past(memory_bytes=memory_bytes, before_s=before_s, pack_s=pack_s)
        self.at_s = 0.0

    def tick(self, *samples: Sample, owner: str = "gpu") -> None:
        """One second, in which the owner says this."""
        self.at_s += 1.0
        if samples:
            self.store.put(owner, self.at_s, samples, 3.0)
        self.past.add(self.store.view(self.at_s))

    def readings(self) -> Readings:
        self.past.seal()
        return readings(self.past.chunks())


@pytest.fixture
def stand() -> Stand:
    return Stand()


def clock(hertz: float) -> Sample:
    return Sample(catalogue.GPU_CLOCK, SM, hertz)


def energy(joules: float) -> Sample:
    return Sample(catalogue.GPU_ENERGY, GPU, joules)


def process(pid: int, threads: float = 1.0) -> Sample:
    return Sample(catalogue.PROCESS_THREADS, (str(pid), "python3", "prod", "vllm-0", "vllm"), threads)


def test_every_reading_is_there_with_its_time(stand: Stand) -> None:
    for second in range(35):
        stand.tick(clock(1980e6 - second), energy(1e13 + second))
    found = stand.readings()
    assert found == {
        CLOCK: [(1.0 + second, 1980e6 - second) for second in range(35)],
        ENERGY: [(1.0 + second, 1e13 + second) for second in range(35)],
    }
    assert len(stand.past.chunks()) == 4


def test_an_owner_that_says_nothing_new_adds_nothing(stand: Stand) -> None:
    for second in range(20):
        if second % 5 == 0:
            stand.store.put("slow", stand.at_s + 1, [process(41)], 15.0)
        stand.tick(clock(1.0))
    found = stand.readings()
    assert [at_s for at_s, _ in found[key(catalogue.PROCESS_THREADS, *process(41).labels)]] == [1.0, 6.0, 11.0, 16.0]
    assert len(found[CLOCK]) == 20


def test_what_has_no_reading_has_none_here(stand: Stand) -> None:
    for second in range(6):
        stand.tick(energy(1.0), *([clock(2.0)] if second in (0, 1, 4) else []))
    found = stand.readings()
    assert [at_s for at_s, _ in found[CLOCK]] == [1.0, 2.0, 5.0]
    assert len(found[ENERGY]) == 6


def test_an_owner_whose_word_expired_is_silent(stand: Stand) -> None:
    stand.tick(clock(1.0))
    for _ in range(10):
        stand.tick()
    stand.tick(clock(2.0))
    assert stand.readings()[CLOCK] == [(1.0, 1.0), (12.0, 2.0)]


def test_what_an_owner_said_last_is_kept_when_it_ends(stand: Stand) -> None:
    stand.tick(process(41), owner="processes")
    stand.store.drop("processes")
    stand.tick(clock(1.0))
    assert stand.readings().keys() == {CLOCK, key(catalogue.PROCESS_THREADS, *process(41).labels)}


def test_incidents_are_kept_and_what_hardly_changes_is_not(stand: Stand) -> None:
    stand.tick(
        Sample(catalogue.GPU_CLOCK_MAX, SM, 1980e6),
        Sample(catalogue.SOURCE_UP, ("gpu_fast",), 1.0),
        Sample(catalogue.GPU_INFO, (*GPU, *[""] * 11), 1.0),
        Sample(catalogue.GPU_POWER_SAMPLES, GPU, Distribution((0,) * (len(catalogue.POWER_BOUNDS) + 1), 0.0)),
        Sample(catalogue.INCIDENT_ACTIVE, ("xid", *GPU), 1.0),
    )
    assert stand.readings().keys() == {key(catalogue.INCIDENT_ACTIVE, "xid", *GPU)}


def test_chunks_share_the_table_while_the_series_stay(stand: Stand) -> None:
    for second in range(60):
        stand.tick(clock(1.0), energy(float(second)))
    stand.past.seal()
    tables = {table.number for chunk in stand.past.chunks() for table in chunk.tables}
    assert len(stand.past.chunks()) == 6
    assert len(tables) == 1


def test_new_series_cost_a_table_of_their_own_and_then_one_for_all(stand: Stand) -> None:
    for second in range(30):
        stand.tick(clock(1.0), *([energy(1.0)] if second >= 5 else []))
    stand.past.seal()
    chunks = stand.past.chunks()
    assert [len(chunk.tables) for chunk in chunks] == [2, 1, 1]
    assert chunks[1].tables == chunks[2].tables
    found = readings(chunks)
    assert len(found[CLOCK]) == 30
    assert len(found[ENERGY]) == 25


def test_a_slow_owner_keeps_its_table_over_chunks_without_it() -> None:
    stand = Stand(pack_s=2.0)
    for second in range(20):
        if second % 6 == 0:
            stand.store.put("slow", stand.at_s + 1, [process(41)], 60.0)
        stand.tick(clock(1.0))
    tables = {table.number for chunk in stand.past.chunks() for table in chunk.tables}
    assert len(tables) == 2


def test_another_order_of_the_same_samples_changes_nothing(stand: Stand) -> None:
    stand.tick(clock(1.0), energy(2.0))
    stand.tick(energy(3.0), clock(4.0))
    assert stand.readings() == {CLOCK: [(1.0, 1.0), (2.0, 4.0)], ENERGY: [(1.0, 2.0), (2.0, 3.0)]}


def test_chunks_after_a_number_are_those_that_followed(stand: Stand) -> None:
    for _ in range(25):
        stand.tick(clock(1.0))
    first, second = stand.past.chunks()
    assert stand.past.chunks(first.number) == [second]
    stand.past.seal()
    assert [chunk.number for chunk in stand.past.chunks(second.number)] == [second.number + 1]
    stand.past.seal()  # nothing new
    assert len(stand.past.chunks()) == 3
    assert (first.first_s, first.last_s) == (1.0, 11.0)


def test_what_is_too_old_leaves() -> None:
    stand = Stand(before_s=30.0)
    for _ in range(200):
        stand.tick(clock(1.0))
    times = [at_s for at_s, _ in stand.readings()[CLOCK]]
    assert 170.0 - 10.0 <= times[0] <= 170.0
    assert times[-1] == 200.0
    assert times == sorted(times)


def test_memory_is_bounded_whatever_comes_and_goes() -> None:
    memory_bytes = 64 << 10
    stand = Stand(memory_bytes=memory_bytes)
    noise = random.Random(1)
    for second in range(120):
        pids = [41_000 + 3 * second + number for number in range(40)]  # three of forty are new each second
        stand.tick(*(process(pid, noise.random() * 1e12) for pid in pids), owner="processes")
        assert stand.past.size_bytes <= memory_bytes
    found = stand.readings()
    newest = key(catalogue.PROCESS_THREADS, *process(pids[-1]).labels)
    assert found[newest][-1][0] == 120.0
    oldest_s = min(times[0][0] for times in found.values())
    assert 1.0 < oldest_s < 118.0


def test_rows_that_wait_are_packed_early_when_they_are_many() -> None:
    stand = Stand(memory_bytes=256 << 10, pack_s=1000.0)
    for second in range(50):
        stand.tick(*(process(pid, second * 0.1) for pid in range(200)), owner="processes")
    assert len(stand.past.chunks()) > 1
    assert stand.past.size_bytes <= 256 << 10


def test_all_memory_is_given_back_when_everything_has_left() -> None:
    stand = Stand(before_s=10.0)
    for _ in range(40):
        stand.tick(clock(1.0), energy(1.0))
    assert stand.past.size_bytes > 0
    stand.store.drop("gpu")
    for _ in range(40):
        stand.tick()
    assert stand.past.size_bytes == 0
    assert stand.past.chunks() == []
