"""Incidents in brief: those of the period, the gravest first, and which tell of a cause."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpumon.catalogue import CAUSES, INCIDENT_KINDS
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain.causes import LOAD, UNEXPLAINED
from gpumon.explain.diagnosis.incidents import KINDS, incidents, telling
from tests.explain.diagnosis.requests import UNIX_S, inputs

HOT = Incident(
    id="hot",
    kind="thermal_throttle",
    entity=Entity("gpu", "gpu 3", "3", "GPU-3"),
    severity=Severity.WARNING,
    since_s=100.0,
    opened_s=104.0,
    seen_s=200.0,
    summary="SM clock 1410 → 1005 MHz at 90 °C",
    evidence=(),
    action="",
    closed_s=210.0,
)


def incident(identity: str, **fields: Any) -> Incident:
    return dataclasses.replace(HOT, id=identity, **fields)


def test_an_incident_is_told_in_brief() -> None:
    causes = (("thermal_throttle", 9.0), ("queueing", 2.0), ("pcie", 1.0), ("nvlink", 0.5))
    (told,) = incidents(inputs([], incidents=[incident("a", causes=causes)]))
    assert (told.id, told.kind, told.severity, told.entity, told.gpu) == (
        *("a", "thermal_throttle", "warning"),
        *("gpu 3", "GPU-3"),
    )
    assert (told.opened, told.lasted_seconds, told.is_open) == (UNIX_S + 104.0, 100.0, False)
    assert told.causes == ("thermal_throttle", "queueing", "pcie")
    (still,) = incidents(inputs([], incidents=[incident("a", closed_s=None)]))
    assert (still.lasted_seconds, still.is_open) == (500.0, True)


def test_only_those_of_the_period_the_gravest_first_and_then_those_that_cost_most() -> None:
    found = [
        incident("before", seen_s=-5.0, since_s=-50.0),
        incident("after", since_s=700.0, seen_s=800.0),
        incident("info", severity=Severity.INFO),
        incident("cheap", causes=(("pcie", 1.0),)),
        incident("dear", causes=(("pcie", 5.0),)),
        incident("critical", severity=Severity.CRITICAL),
        incident("open", since_s=-50.0, seen_s=-5.0, closed_s=None),
    ]
    told = [each.id for each in incidents(inputs([], incidents=found))]
    assert told == ["critical", "dear", "cheap", "open", "info"]


def test_no_more_than_fifty() -> None:
    assert len(incidents(inputs([], incidents=[incident(f"{i}") for i in range(60)]))) == 50


def test_kinds_that_tell_of_a_cause_exist_and_every_fault_has_one() -> None:
    for cause in CAUSES:
        if cause != UNEXPLAINED and (cause not in LOAD or cause in KINDS):
            assert set(KINDS.get(cause, (cause,))) <= set(INCIDENT_KINDS), cause


def test_the_incident_that_cost_most_by_the_cause_tells_of_it() -> None:
    found = [
        incident("a", causes=(("thermal_throttle", 1.0),)),
        incident("b", causes=(("pcie", 9.0), ("thermal_throttle", 3.0))),
        incident("c", kind="xid", causes=(("thermal_throttle", 99.0),)),
    ]
    assert [each.id for each in telling(found, "thermal_throttle")] == ["b", "a"]
    assert [each.id for each in telling(found, "gpu_error")] == ["c"]
    assert telling(found, "unexplained") == []
