"""One step after another: what detectors see, what a failing one costs, and what does not fit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.detect.engine import COLLECTIVES_MAX, REQUESTS_MAX, Detection
from gpumon.detect.incident import Incident
from gpumon.detect.ledger import Ledger
from gpumon.detect.recent import PAIRS
from gpumon.detect.scene import Scene, SceneMaker
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Metric, Sample, apart
from gpumon.runner import Runner
from gpumon.store import Store, View
from tests.detect.findings import GPU3, Ear, Other, Scripted, Shelf, finding, to_unix
from tests.requests.records import request


class Bench:
    """A detection of two detectors over an empty store."""

    def __init__(self) -> None:
        self.first, self.second = Scripted(), Other()
        self.ear = Ear()
        self.shelf = Shelf()
        self.store = Store()
        self.views: list[float] = []
        ledger = Ledger((*Scripted.kinds, *Other.kinds), to_unix, (self.ear,), self.shelf)
        self.detection = Detection((self.first, self.second), ledger, SceneMaker(lambda ns: ns / 1e9), self.view)
        self.at_s = 1000.0

    def view(self, at_s: float) -> View:
        self.views.append(at_s)
        return self.store.view(at_s)

    def step(self) -> dict[tuple[Metric, tuple[str, ...]], float]:
        self.at_s += 1.0
        values: dict[tuple[Metric, tuple[str, ...]], float] = {}
        for sample in self.detection.read(self.at_s):
            assert isinstance(sample, Sample)
            assert isinstance(sample.value, float)
            values[sample.metric, sample.labels] = sample.value
        return values


def collective(sequence: int) -> CollectiveRecord:
    return CollectiveRecord("c", "tp", 0, 8, "AllReduce", sequence, 1024, 0.001)


def test_all_detectors_see_the_same_scene_of_the_moment_handed_in() -> None:
    bench = Bench()
    bench.step()
    assert bench.views == [1001.0]
    assert bench.first.scenes[0] is bench.second.scenes[0]
    assert bench.first.scenes[0].at_s == 1001.0


def test_what_was_offered_is_seen_once_in_order_of_arrival() -> None:
    bench = Bench()
    bench.detection.offer_requests([request(trace=1), request(trace=2)])
    bench.detection.offer_requests([request(trace=3)])
    for sequence in range(3):
        bench.detection.offer_collective(collective(sequence))
    bench.step()
    bench.step()
    seen, after = bench.first.scenes
    assert [record.trace_id[-1] for record in seen.requests] == [1, 2, 3]
    assert [record.sequence for record in seen.collectives] == [0, 1, 2]
    assert (list(after.requests), list(after.collectives)) == ([], [])


def test_what_does_not_fit_is_left_out_and_counted_and_there_is_room_again_after_a_step() -> None:
    bench = Bench()
    records = [request(trace=1)] * (REQUESTS_MAX - 1)
    bench.detection.offer_requests(records)
    bench.detection.offer_requests([request(trace=2)] * 5)
    record = collective(1)
    for _ in range(COLLECTIVES_MAX + 3):
        bench.detection.offer_collective(record)
    values = bench.step()
    scene = bench.first.scenes[0]
    assert (len(scene.requests), len(scene.collectives)) == (REQUESTS_MAX, COLLECTIVES_MAX)
    assert values[catalogue.DETECTION_DROPPED, ("requests",)] == 4.0
    assert values[catalogue.DETECTION_DROPPED, ("collectives",)] == 3.0
    bench.detection.offer_requests([request(trace=3)])
    assert bench.step()[catalogue.DETECTION_DROPPED, ("requests",)] == 4.0
    assert len(bench.first.scenes[1].requests) == 1


def test_what_the_latencies_leave_out_is_counted() -> None:
    bench = Bench()
    bench.detection.offer_requests([request(model=f"m{n}") for n in range(PAIRS + 3)])
    assert bench.step()[catalogue.DETECTION_DROPPED, ("requests_of_models",)] == 3.0
    bench.first.scenes[0].latencies.models()[0].late = 7
    assert bench.step()[catalogue.DETECTION_DROPPED, ("tokens_late",)] == 7.0


def test_every_counter_is_there_before_its_first_event() -> None:
    values = Bench().step()
    for what in catalogue.DETECTION_DROPPED.values:
        assert values[catalogue.DETECTION_DROPPED, (what,)] == 0.0
    assert values[catalogue.DETECTOR_FAILURES, ("thermal_throttle",)] == 0.0
    assert values[catalogue.DETECTOR_FAILURES, ("queue_buildup",)] == 0.0
    assert values[catalogue.INCIDENT_ACTIVE, ("thermal_throttle", "", "")] == 0.0


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), KeyError("x"), RecursionError(), MemoryError()])
def test_a_detector_that_fails_loses_only_its_own_findings(error: Exception) -> None:
    bench = Bench()
    bench.first.script = [finding(), error]
    bench.second.script = [finding("queue_buildup")]
    values = bench.step()
    assert [incident.kind for incident in bench.detection.incidents()] == ["queue_buildup"]
    assert values[catalogue.DETECTOR_FAILURES, ("thermal_throttle",)] == 1.0
    assert values[catalogue.DETECTOR_FAILURES, ("queue_buildup",)] == 0.0
    bench.first.script = [finding()]
    values = bench.step()
    assert values[catalogue.DETECTOR_FAILURES, ("thermal_throttle",)] == 1.0
    assert len(bench.detection.incidents()) == 2


def test_findings_that_cannot_be_are_failures_of_their_detector(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.second.script = [finding("queue_buildup")]
    for wrong in (
        [finding("queue_buildup")],
        [finding(entity=Entity("gpu", None))],  # type: ignore[arg-type]
        [finding(since_s=None)],  # type: ignore[arg-type]
    ):
        bench.first.script = [*wrong]
        bench.step()
    values = bench.step()
    assert values[catalogue.DETECTOR_FAILURES, ("thermal_throttle",)] == 4.0
    assert [incident.kind for incident in bench.detection.incidents()] == ["queue_buildup"]
    assert "kinds that it does not declare: queue_buildup" in caplog.text


def test_the_traceback_of_an_error_is_logged_once_however_often_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for error in (ZeroDivisionError("a"), ZeroDivisionError("a"), KeyError("b"), ZeroDivisionError("a")):
        bench.first.script = [error]
        bench.step()
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in told if record.exc_info] == [ZeroDivisionError, KeyError]
    assert all("detector=thermal_throttle state=bug" in record.getMessage() for record in told)


def test_errors_that_are_all_different_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for number in range(400):
        bench.first.script = [ValueError(f"item {number}")]
        bench.step()
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 256
    assert bench.step()[catalogue.DETECTOR_FAILURES, ("thermal_throttle",)] == 401.0


def test_the_order_in_which_a_detector_tells_changes_nothing() -> None:
    entities = [Entity("process", f"pid {number}") for number in range(9)]

    def ids(order: list[Entity]) -> list[str]:
        bench = Bench()
        bench.first.script = [*(finding(entity=entity) for entity in order), finding("power_throttle")]
        bench.step()
        return [id_ for _, id_, _ in bench.ear.heard]

    assert ids(entities) == ids(entities[::-1])


def test_incidents_can_be_read_while_a_step_is_under_way() -> None:
    bench = Bench()
    bench.first.script = [finding()]
    bench.step()
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Scripted):
        def step(self, scene: Scene) -> list[Finding]:
            inside.set()
            assert go_on.wait(10)
            return []

    ledger = Ledger(Scripted.kinds, to_unix)
    slow = Detection((Slow(),), ledger, SceneMaker(lambda ns: ns / 1e9), bench.view)
    thread = threading.Thread(target=slow.read, args=(1001.0,))
    thread.start()
    assert inside.wait(10)
    assert slow.incidents() == []
    slow.offer_requests([request()])
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()


def test_at_the_end_what_is_open_is_remembered() -> None:
    bench = Bench()
    bench.first.script = [finding()]
    bench.step()
    bench.first.script = [finding(severity=Severity.WARNING)]
    bench.step()
    bench.detection.close(1002.5)
    assert [each.seen_unix_s for each in bench.shelf.memory.open] == [to_unix(1002.0)]
    (incident,) = bench.detection.incidents()
    assert incident.is_open
    assert incident.entity == GPU3


def test_a_runner_publishes_what_it_says() -> None:
    bench = Bench()
    bench.first.script = [finding()]
    clock = ManualClock()
    runner = Runner(clock, bench.store, Health(clock.to_unix))
    runner.run_once(bench.detection, 1.0, 1001.0, lambda: 0.0)
    view = bench.store.view(1001.0)
    assert view.value(catalogue.INCIDENT_ACTIVE, ("thermal_throttle", "3", "GPU-0003")) == 1.0
    assert view.value(catalogue.INCIDENTS, ("thermal_throttle", "warning")) == 1.0


def test_what_comes_after_the_detectors_may_fail_and_detection_goes_on() -> None:
    calls: list[float] = []

    def after(scene: Scene, incidents: Sequence[Incident]) -> list[Sample]:
        calls.append(scene.at_s)
        raise ValueError("a bug")

    store = Store()
    detection = Detection((), Ledger((), lambda at_s: at_s), SceneMaker(lambda ns: ns / 1e9), store.view, after)
    for at_s in (1.0, 2.0):
        samples = {(sample.metric, sample.labels): sample.value for sample in apart(detection.read(at_s))[0]}
    assert calls == [1.0, 2.0]
    assert samples[catalogue.DETECTOR_FAILURES, ("explain",)] == 2.0
    assert detection.failures == 2
