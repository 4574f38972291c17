"""Incidents as lines on standard output."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpumon.detect.detector import Entity, Evidence
from gpumon.detect.incident import Incident
from gpumon.findings_text import as_json, as_text
from gpumon.model import Unit
from tests.detect.findings import to_unix
from tests.detect.test_incident_spans import CLOSED


def told(incident: Incident) -> dict[str, Any]:
    line = as_json(incident, to_unix)
    assert "\n" not in line
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def test_a_line_of_json_tells_all_of_it_in_unix_time() -> None:
    assert told(CLOSED) == {
        "id": "20270115T081641Z-thermal_throttle-gpu-3",
        "kind": "thermal_throttle",
        "severity": "warning",
        "scope": "gpu",
        "entity": "gpu 3",
        "gpu": "3",
        "uuid": "GPU-0003",
        "since": 1_800_000_998.5,
        "opened": 1_800_001_001.0,
        "last_seen": 1_800_001_010.0,
        "closed": 1_800_001_020.0,
        "summary": "SM clock 1410 → 1005 MHz at 90 °C",
        "evidence": [
            {"name": "sm_clock", "observed": 1.005e9, "baseline": 1.41e9, "unit": "hertz"},
            {"name": "throttled", "observed": 0.4, "baseline": None, "unit": ""},
        ],
        "requests": 40,
        "traces": ["0" * 31 + "1", "0" * 31 + "2"],
    }


def test_what_there_is_not_is_null_and_not_empty_text() -> None:
    host = replace(CLOSED, entity=Entity("host", "host"), closed_s=None, evidence=(), traces=(), spans=())
    found = told(host)
    assert (found["gpu"], found["uuid"], found["closed"]) == (None, None, None)
    assert (found["evidence"], found["traces"]) == ([], [])


def test_the_same_incident_is_the_same_bytes() -> None:
    again = replace(CLOSED, evidence=tuple(Evidence(*each) for each in CLOSED.evidence))
    assert as_json(again, to_unix) == as_json(CLOSED, to_unix)
    assert as_text(again, to_unix, 900.0) == as_text(CLOSED, to_unix, 900.0)


def test_times_are_told_to_the_millisecond() -> None:
    assert told(replace(CLOSED, since_s=998.123456))["since"] == 1_800_000_998.123


def test_a_person_reads_when_what_of_whom_and_with_which_figures() -> None:
    assert as_text(CLOSED, to_unix, 901.0).splitlines() == [
        "   100.0 s  08:16:41  warning   thermal_throttle      gpu 3  (11.5 s)",
        "                       SM clock 1410 → 1005 MHz at 90 °C",
    ]


def test_what_is_open_is_said_to_be() -> None:
    assert as_text(replace(CLOSED, closed_s=None), to_unix, 901.0).splitlines()[0].endswith("gpu 3  (open)")


@pytest.mark.parametrize("unit", list(Unit))
def test_every_unit_has_its_name(unit: Unit) -> None:
    (row,) = told(replace(CLOSED, evidence=(Evidence("x", 1.0, unit),)))["evidence"]
    assert row["unit"] == unit.value
