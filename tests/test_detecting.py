"""Detection in the daemon: what it keeps on disk, what it tells, and that a disk that fails stops none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon import catalogue
from gpumon.catalogue import FLIGHT_OK, INCIDENTS, STATE_OK
from gpumon.config import Config
from gpumon.detect.detectors import DetectConfigError
from gpumon.detecting import Detecting
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.model import Metric, Sample
from gpumon.record.flight_reader import read_flight
from gpumon.runner import Runner
from gpumon.store import Store

GPU = ("3", "GPU-0003")


class Bench:
    """Detection of one life of gpumon, stepped second by second; XIDs happen when the test says so."""

    def __init__(self, folder: Path | None, at_s: float = 1000.0, *, sends: bool = False, **sections: Any) -> None:
        self.clock = ManualClock(at_s, 1_800_000_000.0 + at_s)
        self.store = Store()
        self.health = Health(self.clock.to_unix)
        self.sent: list[ExportTraceServiceRequest] = []
        config = Config.model_validate({"state": {"folder": folder}} | sections)
        self.detecting = Detecting(config, self.clock, self.store, "node-1", self._send if sends else None)
        self._runner = Runner(self.clock, self.store, self.health)
        self._xids = 0.0

    def run(self, seconds: int, *, xids: int = 0) -> None:
        for _ in range(seconds):
            self.clock.step(1.0)
            at_s = self.clock.now_s()
            self.store.put("test", at_s, [Sample(catalogue.GPU_XID_ERRORS, (*GPU, "79"), self._xids)], 10.0)
            for source, every_s, _ in self.detecting.sources():
                self._runner.run_once(source, every_s, at_s, lambda: 0.0)
        if xids:
            self._xids += xids
            self.run(2)

    def value(self, metric: Metric, *labels: str) -> float | None:
        """What is on the page."""
        for sample in self.store.view(self.clock.now_s()).family(metric):
            if sample.labels == labels:
                assert isinstance(sample.value, float)
                return sample.value
        return None

    def told(self) -> list[str]:
        """Ids of the incidents of which spans were sent."""
        return [
            attribute.value.string_value
            for request in self.sent
            for attribute in request.resource_spans[0].scope_spans[0].spans[0].attributes
            if attribute.key == "gpumon.incident.id"
        ]

    def _send(self, body: bytes, at_s: float) -> None:
        assert at_s == self.clock.now_s()
        self.sent.append(ExportTraceServiceRequest.FromString(body))


def names(bench: Bench) -> list[str]:
    return [scheduled.source.name for scheduled in bench.detecting.sources()]


def test_without_a_folder_nothing_is_kept_and_everything_is_found() -> None:
    bench = Bench(None)
    assert names(bench) == ["detect"]
    assert bench.detecting.explanation is not None
    assert bench.detecting.rows == bench.detecting.explanation.correlations.add_rows
    bench.run(3, xids=1)
    assert bench.value(INCIDENTS, "xid", "critical") == 1.0
    assert bench.value(STATE_OK) is None
    bench.detecting.close()


def test_without_the_recorder_the_counters_are_kept_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recorder={"enabled": False})
    assert names(bench) == ["detect", "state"]
    bench.run(3, xids=1)
    bench.detecting.close()
    assert [path.name for path in tmp_path.iterdir()] == ["incidents.json"]


def test_an_incident_is_recorded_and_named_after_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state", recorder={"after_s": 3})
    assert names(bench) == ["detect", "flight", "flight_files", "state"]
    assert bench.detecting.rows is not None
    bench.run(5, xids=1)
    bench.run(10)
    (incident,) = bench.detecting.detection.incidents()
    path = tmp_path / "state" / "flights" / incident.recording
    assert path.name.startswith(incident.id)
    flight = read_flight(path)
    assert [each.id for each in flight.incidents] == [incident.id]
    assert bench.value(FLIGHT_OK) == 1.0
    assert bench.value(catalogue.FLIGHT_RECORDINGS, "written") == 1.0


def test_counters_go_on_in_the_next_life_and_what_is_open_is_the_same_incident(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.run(3, xids=1)
    (before,) = first.detecting.detection.incidents()
    first.detecting.close()
    told = json.loads((tmp_path / "incidents.json").read_text())
    assert told["counts"]["xid"] == {"critical": 1}

    second = Bench(tmp_path, first.clock.now_s() + 20)
    second.run(3)
    assert second.value(INCIDENTS, "xid", "critical") == 1.0
    second.run(1, xids=1)
    (again,) = second.detecting.detection.incidents()
    assert (again.id, again.restored) == (before.id, True)
    assert second.value(INCIDENTS, "xid", "critical") == 1.0
    second.detecting.close()


def test_a_state_file_that_is_not_ours_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "incidents.json").write_text("{")
    bench = Bench(tmp_path)
    bench.run(3, xids=1)
    assert bench.value(INCIDENTS, "xid", "critical") == 1.0
    assert (tmp_path / "incidents.json.corrupt-1").read_text() == "{"
    bench.detecting.close()


def test_a_folder_that_cannot_be_made_stops_nothing_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file" / "state")
    bench.run(3, xids=1)
    assert bench.value(INCIDENTS, "xid", "critical") == 1.0
    assert bench.value(STATE_OK) == 0.0
    assert bench.value(FLIGHT_OK) == 0.0
    assert bench.value(catalogue.FLIGHT_RECORDINGS, "failed") == 1.0
    errors = {
        sample.labels
        for sample in bench.health.samples(bench.clock.now_s())
        if sample.metric is catalogue.SOURCE_ERRORS and sample.value
    }
    assert {("state", "unavailable"), ("flight_files", "unavailable")} <= errors
    bench.detecting.close()


def test_a_folder_that_can_be_made_again_is_used(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    bench = Bench(blocked / "state")
    bench.run(3, xids=1)
    blocked.unlink()
    bench.run(45)
    assert bench.value(STATE_OK) == 1.0
    assert bench.value(FLIGHT_OK) == 1.0
    assert (blocked / "state" / "incidents.json").exists()
    bench.detecting.close()


def test_spans_are_sent_of_what_closes_and_at_the_end_of_what_is_open() -> None:
    bench = Bench(None, sends=True)
    bench.run(3, xids=1)
    assert bench.told() == []
    bench.run(70)
    (over,) = bench.detecting.detection.incidents()
    assert bench.told() == [over.id]
    bench.run(1, xids=1)
    (open_, _) = bench.detecting.detection.incidents()
    bench.detecting.close()
    assert bench.told() == [over.id, open_.id]


def test_a_recording_that_runs_at_the_end_is_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(5, xids=1)
    bench.detecting.close()
    (path,) = (tmp_path / "flights").iterdir()
    assert read_flight(path).truncated == ""


@pytest.mark.parametrize("detect", [{"off": ["nothing"]}, {"thresholds": {"xid": {"nothing": 1}}}])
def test_a_section_that_cannot_be_taken_raises(detect: dict[str, Any]) -> None:
    with pytest.raises(DetectConfigError, match=r"detect\.(off|thresholds)"):
        Bench(None, detect=detect)
