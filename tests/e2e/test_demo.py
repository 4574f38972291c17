"""`gpumon demo` with a short story, as a user sees it: incidents on the page, in the API, in the log, as a recording on
disk, and as spans at a tracing back end; and what is left of it after a restart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import FAST, Daemon, run_to_end
from tests.e2e.traces.gateway import OTLP
from tests.e2e.traces.recorder import Recorder
from tests.e2e.waiting import eventually
from tests.stories import write_story

pytestmark = pytest.mark.slow
FAULTS = (
    "kind: power_brake, at_s: 7, for_s: 8, gpu: 1, strength: 0.5",
    "kind: xid, at_s: 10, gpu: 0, strength: 13",
)
KINDS = {"hw_slowdown", "xid"}


@pytest.fixture
def downstream() -> Iterator[Recorder]:
    with Recorder("http") as recorder:
        yield recorder


def begin(folder: Path, state: Path, downstream: Recorder) -> Daemon:
    folder.mkdir()
    options = {
        "GPUMON_STATE__FOLDER": str(state),
        "GPUMON_RECORDER__AFTER_S": "2",
        "GPUMON_FORWARD__ENDPOINT": downstream.url,
        "GPUMON_FORWARD__PROTOCOL": "http",
    }
    scenario = write_story(folder, *FAULTS)
    return Daemon(folder, "--scenario", str(scenario), command="demo", options=FAST | OTLP | options)


def incidents(demo: Daemon) -> list[dict[str, Any]]:
    """By the API."""
    reply = demo.ask("/api/v1/incidents")
    assert reply.status == 200
    found = json.loads(reply.body)
    assert isinstance(found, list)
    return found


def totals(demo: Daemon) -> dict[str, float]:
    """gpumon_incidents_total by kind, without zeros."""
    found = demo.page().select("gpumon_incidents_total")
    return {labels["kind"]: value for labels, value in found if value}


def test_incidents_of_a_story_are_everywhere_and_outlive_a_restart(tmp_path: Path, downstream: Recorder) -> None:
    state = tmp_path / "state"
    with begin(tmp_path / "first", state, downstream) as demo:
        assert "demo=true" in demo.log
        active = "gpumon_incident_active"
        demo.await_series(active, kind="hw_slowdown", gpu="1")
        eventually(lambda: demo.page().value(active, kind="hw_slowdown", gpu="1") == 1.0, "it is active on the page")
        eventually(lambda: set(totals(demo)) == KINDS, "all are counted")
        found = {each["kind"]: each for each in incidents(demo)}
        assert set(found) == KINDS
        assert found["xid"]["entity"]["gpu"] == "0"
        assert found["hw_slowdown"]["summary"].startswith("SM clock 1980 → 990 MHz")
        for each in found.values():
            assert f"incident=opened id={each['id']} kind={each['kind']} " in demo.log

        eventually(
            lambda: any(each["kind"] == "hw_slowdown" and each["traces"] for each in incidents(demo)),
            "requests that ran on the slow GPU are known",
        )
        recording = eventually(
            lambda: {each["recording"] for each in incidents(demo)} - {None} or None, "a flight recording is named"
        )
        flights = state / "flights"
        assert recording <= {path.name for path in flights.iterdir()}
        counted = demo.page()
        assert counted.value("gpumon_state_folder_ok") == 1.0
        assert counted.value("gpumon_flight_recorder_ok") == 1.0
        before = totals(demo)
        assert demo.end() == 0
        log = demo.log
    assert log.splitlines()[-1].endswith("gpumon=stopped")
    assert "Traceback" not in log

    _is_told_by_diagnose(flights, found)
    _reached(downstream, found)

    with begin(tmp_path / "second", state, downstream) as again:
        eventually(lambda: totals(again) == before, "counters go on", within_s=5)
        assert again.end() == 0


def _is_told_by_diagnose(flights: Path, found: dict[str, dict[str, Any]]) -> None:
    """`gpumon diagnose` needs no running gpumon."""
    told = run_to_end(["diagnose", "--incident", found["hw_slowdown"]["id"], "--folder", str(flights)])
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("hw_slowdown of gpu 1, warning\nSM clock 1980 → 990 MHz")
    assert found["hw_slowdown"]["id"] in told.stdout
    assert re.search(r"^Signal +before +during +after ", told.stdout, re.MULTILINE)
    assert re.search(r"^gpu_\S+ \{gpu=1, [^}]+\} ", told.stdout, re.MULTILINE)
    latest = run_to_end(["diagnose", "--incident", "latest", "--folder", str(flights), "--json"])
    assert latest.returncode == 0
    assert json.loads(latest.stdout)["id"] in {each["id"] for each in found.values()}


def _reached(downstream: Recorder, found: dict[str, dict[str, Any]]) -> None:
    """Incidents are spans beside the requests' own, and linked to those that they touched."""
    spans = [one.span for one in downstream.seen()]
    requests = {(span.trace_id, span.span_id): span for span in spans if span.name != "gpumon.incident"}
    told = {}
    for span in spans:
        if span.name == "gpumon.incident":
            attributes = {attribute.key: attribute.value for attribute in span.attributes}
            told[attributes["gpumon.incident.kind"].string_value] = span
            assert attributes["gpumon.incident.id"].string_value in {each["id"] for each in found.values()}
    assert set(told) == KINDS
    slow = told["hw_slowdown"]
    assert slow.links
    for link in slow.links:
        request = requests[link.trace_id, link.span_id]
        assert request.end_time_unix_nano >= slow.start_time_unix_nano
