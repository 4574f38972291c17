"""Sources on their schedules: each alone with its failures."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from gpumon import catalogue
from gpumon.health import Health
from gpumon.host.clock import Clock, ManualClock, SystemClock
from gpumon.model import Item, Miss, Reason, Rejection, Sample, SourceError
from gpumon.runner import Runner, Source
from gpumon.store import Store
from tests.sampler.rig import until

SAMPLE = Sample(catalogue.GPU_PRESENT, ("0", "GPU-1"), 1.0)


class Scripted:
    """A source that does what the test says."""

    def __init__(self, name: str, read: Callable[[float], Iterable[Item]]) -> None:
        self.name = name
        self.passes = 0
        self._read = read

    def read(self, at_s: float) -> Iterable[Item]:
        self.passes += 1
        return self._read(at_s)


class Stand:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = Store()
        self.health = Health(clock.to_unix)
        self.runner = Runner(clock, self.store, self.health)

    def once(self, source: Source, at_s: float = 1000.0) -> None:
        self.runner.run_once(source, 1.0, at_s, lambda: 0.5)

    def stored(self, at_s: float = 1000.0) -> list[str]:
        return list(self.store.view(at_s).batches)

    def value(self, name: str, *labels: str) -> float | None:
        for sample in (*self.health.samples(self.clock.now_s()), *self.store.self_samples(self.clock.now_s())):
            if sample.metric.name == f"gpumon_{name}" and sample.labels == labels:
                assert isinstance(sample.value, (int, float))
                return sample.value
        return None


@pytest.fixture
def stand() -> Stand:
    return Stand(ManualClock(at_s=1000.0))


@pytest.fixture
def live() -> Iterator[Stand]:
    made = Stand(SystemClock())
    yield made
    made.runner.stop()


def fine(_at_s: float) -> Iterable[Item]:
    return [SAMPLE]


def test_a_pass_puts_samples_counts_misses_and_rejections(stand: Stand) -> None:
    items: list[Item] = [
        SAMPLE,
        Miss("x", Reason.TIMEOUT),
        Miss("y", Reason.UNSUPPORTED),
        Rejection("z", Reason.MALFORMED),
    ]
    stand.once(Scripted("host", lambda _: items))
    assert [tuple(batch.samples) for batch in stand.store.view(1000.0).batches.values()] == [(SAMPLE,)]
    assert stand.value("source_up", "host") == 1.0
    assert stand.value("source_duration_seconds", "host") == 0.5
    assert stand.value("source_errors_total", "host", "timeout") == 1
    assert stand.value("samples_rejected_total", "z", "malformed") == 1
    assert stand.stored(1005.0) == ["host"]
    assert stand.stored(1005.1) == []  # three cadences and two seconds


def test_a_source_that_fails_loses_its_series_at_once_and_no_others(stand: Stand) -> None:
    def denied(_at_s: float) -> Iterable[Item]:
        raise SourceError(Reason.DENIED, "no CAP_SYS_PTRACE")

    stand.once(Scripted("host", fine))
    stand.once(Scripted("numa", lambda _: [SAMPLE._replace(labels=("1", "GPU-2"))]))
    stand.once(Scripted("numa", denied))
    assert stand.stored() == ["host"]
    assert stand.value("source_up", "numa") == 0.0
    assert stand.value("source_errors_total", "numa", "denied") == 1


def test_a_failure_in_the_middle_of_a_pass_publishes_no_half_of_it(stand: Stand) -> None:
    def half(_at_s: float) -> Iterator[Item]:
        yield SAMPLE
        raise SourceError(Reason.UNAVAILABLE, "gone")

    stand.once(Scripted("host", half))
    assert stand.stored() == []


def test_a_bug_is_that_sources_own_logged_once_and_counted_always(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(_at_s: float) -> Iterable[Item]:
        raise ZeroDivisionError("by the test")

    stand.once(Scripted("host", fine))
    broken = Scripted("numa", bug)
    for _ in range(3):
        stand.once(broken)
    assert stand.value("source_errors_total", "numa", "bug") == 3
    assert stand.value("source_up", "numa") == 0.0
    assert stand.stored() == ["host"]
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    stand.once(Scripted("numa", lambda _: []))
    stand.once(broken)
    assert sum(record.exc_info is not None for record in caplog.records) == 2  # it had worked in between


def test_a_sample_that_cannot_be_stored_is_a_bug_of_its_source(stand: Stand) -> None:
    labels: object = (None, 7)
    stand.once(Scripted("host", lambda _: [SAMPLE._replace(labels=labels)]))  # type: ignore[arg-type]
    assert stand.value("source_errors_total", "host", "bug") == 1


def test_each_source_keeps_its_own_cadence(live: Stand) -> None:
    quick, slow = Scripted("quick", fine), Scripted("slow", lambda _: [])
    live.runner.add(quick, 0.01)
    live.runner.add(slow, 30.0)
    assert live.runner.names == ["quick", "slow"]
    assert live.health.waiting_for() == ["quick", "slow"]
    live.runner.start()
    until(lambda: quick.passes >= 10)
    assert slow.passes == 1
    assert live.health.waiting_for() == []


def test_a_source_that_hangs_is_told_and_dropped_once_and_the_others_go_on(
    live: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate, inside = threading.Event(), threading.Event()

    def hang(_at_s: float) -> Iterable[Item]:
        inside.set()
        gate.wait(20.0)
        return [SAMPLE]

    stuck, other = Scripted("stuck", hang), Scripted("other", lambda _: [])
    live.store.put("stuck", live.clock.now_s(), [SAMPLE], 60.0)
    live.runner.add(stuck, 0.01, deadline_s=0.05)
    live.runner.add(other, 0.01)
    live.runner.start()
    assert inside.wait(5.0)
    until(lambda: live.health.stuck(live.clock.now_s()))
    for _ in range(3):
        live.runner.watch(live.clock.now_s())
    assert "stuck" not in live.stored(live.clock.now_s())
    assert live.value("source_up", "stuck") == 0.0
    assert live.value("source_errors_total", "stuck", "timeout") == 1
    passes = other.passes
    until(lambda: other.passes > passes + 5)
    assert stuck.passes == 1
    gate.set()
    until(lambda: live.value("source_up", "stuck") == 1.0)
    live.runner.watch(live.clock.now_s())
    until(lambda: "stuck" in live.stored(live.clock.now_s()))
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split("state=")[1].split()[0] for message in messages] == ["failing", "ok"]


def test_stop_leaves_a_hanging_source_behind_and_what_it_says_later_is_not_heard(live: Stand) -> None:
    gate, inside, done = threading.Event(), threading.Event(), threading.Event()

    def hang(_at_s: float) -> Iterator[Item]:
        inside.set()
        gate.wait(20.0)
        yield SAMPLE
        done.set()

    live.runner.add(Scripted("stuck", hang), 0.01)
    live.runner.start()
    assert inside.wait(5.0)
    before_s = live.clock.now_s()
    live.runner.stop(timeout_s=0.1)
    assert live.clock.now_s() - before_s < 2.0
    gate.set()
    assert done.wait(5.0)
    until(lambda: not any(thread.name == "source-stuck" for thread in threading.enumerate()))
    assert live.stored(live.clock.now_s()) == []


def test_what_fails_after_its_runner_was_stopped_is_not_heard_either(stand: Stand) -> None:
    stand.store.put("host", 1000.0, [SAMPLE], 60.0)  # another runner speaks for it by now

    def late(failure: Exception) -> Callable[[float], Iterable[Item]]:
        def read(_at_s: float) -> Iterable[Item]:
            stand.runner.stop()
            stand.health.forget("host")
            raise failure

        return read

    for failure in (SourceError(Reason.UNAVAILABLE, "gone"), ZeroDivisionError("by the test")):
        stand.once(Scripted("host", late(failure)))
        assert stand.stored() == ["host"]
        assert stand.value("source_up", "host") is None


def test_passes_missed_by_a_long_one_are_left_out(live: Stand) -> None:
    gate = threading.Event()
    times: list[float] = []

    def read(at_s: float) -> Iterable[Item]:
        times.append(at_s)
        if len(times) == 2:
            gate.wait(0.5)
        return []

    live.runner.add(Scripted("host", read), 0.05)
    live.runner.start()
    until(lambda: len(times) >= 6)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[2:])]
    assert times[2] - times[1] >= 0.5
    assert min(gaps) > 0.005  # no burst to catch up
