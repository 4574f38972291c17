"""Incidents in brief: those of the period, the gravest first, and which tell of a cause."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpumon.catalogue import CAUSES, INCIDENT_KINDS
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain.causes import LOAD, UNEXPLAINED
from gpumon.explain.diagnosis.incidents import KINDS, concerns, incidents, more_like, of_others, telling
from gpumon.explain.group import Group
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
    assert told.title == "GPU too hot"
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


QWEN = Group("gpumon", "qwen", ("GPU-6", "GPU-7"), "", "")
PIDS = {"11": {"GPU-6"}, "12": {"GPU-0"}}


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        (Entity("gpu", "gpu 6", "6", "GPU-6"), True),
        (Entity("gpu", "gpu 0", "0", "GPU-0"), False),
        (Entity("collective", "tp1 0x00070001 rank 2", "6", "GPU-6"), True),
        (Entity("collective", "tp1 0x00010001 rank 2", "0", "GPU-0"), False),
        (Entity("collective", "tp1 0x00010001 rank 2"), True),
        (Entity("process", "pid 11 VLLM::Worker_TP"), True),
        (Entity("process", "pid 12 VLLM::Worker_TP"), False),
        (Entity("process", "pid 13 not known to hold a GPU"), True),
        (Entity("server", "vllm/qwen at 127.0.0.1:8000"), True),
        (Entity("server", "vllm/llama at 127.0.0.1:8001"), False),
        (Entity("server", "vllm"), True),
        (Entity("host", "host"), True),
        (Entity("tenant", "acme"), True),
        (Entity("process", ""), True),
    ],
)
def test_an_incident_concerns_an_engine_unless_it_is_known_to_be_elsewhere(entity: Entity, expected: bool) -> None:
    assert concerns(incident("a", entity=entity), QWEN, PIDS) is expected


def test_of_an_engine_whose_place_is_not_known_any_gpu_may_be() -> None:
    gpu = incident("a", entity=Entity("gpu", "gpu 0", "0", "GPU-0"))
    assert concerns(gpu, QWEN._replace(gpus=()), {})
    assert concerns(gpu, QWEN._replace(gpus=("MIG-1",)), {})
    by_pid = QWEN._replace(gpus=(), pid="11")
    assert concerns(incident("a", entity=Entity("process", "pid 11 x")), by_pid, {})
    assert not concerns(incident("a", entity=Entity("process", "pid 12 x")), by_pid, {})


def test_what_is_like_the_first_is_said_by_its_name_or_kind() -> None:
    gpus = [incident(f"{i}", entity=Entity("gpu", f"gpu {i}", f"{i}", f"GPU-{i}")) for i in range(3)]
    host = incident("h", entity=Entity("host", "host"))
    assert more_like(gpus[:1]) == more_like([gpus[0], gpus[0]]) == ""
    assert more_like(gpus[:2]) == ", and likewise on gpu 1"
    assert more_like(gpus) == ", and likewise on 2 more GPUs"
    assert more_like([*gpus[:2], host]) == ", and likewise on 2 more parts of the node"


def test_incidents_of_other_engines_alone_are_known() -> None:
    mine = [Group("vllm", "a", ("GPU-0", "GPU-1"), "", "")]
    others = [Group("vllm", "b", ("GPU-1", "GPU-2"), "", ""), Group("vllm", "", (), "7", "")]
    entities = {
        "my gpu": Entity("gpu", "gpu 0", "0", "GPU-0"),
        "shared gpu": Entity("gpu", "gpu 1", "1", "GPU-1"),
        "other gpu": Entity("gpu", "gpu 2", "2", "GPU-2"),
        "nobody's gpu": Entity("gpu", "gpu 3", "3", "GPU-3"),
        "my server": Entity("server", "vllm/a at 127.0.0.1:8000"),
        "other server": Entity("server", "sglang/b at 127.0.0.1:8000"),
        "my process": Entity("process", "pid 1 VLLM::Worker"),
        "other process": Entity("process", "pid 2 VLLM::Worker x"),
        "unknown process": Entity("process", "pid 3 x"),
        "nameless process": Entity("process", "pid"),
        "host": Entity("host", "host"),
    }
    found = [incident(name, entity=entity) for name, entity in entities.items()]
    held = {"1": {"GPU-0"}, "2": {"GPU-2"}}
    assert of_others(found, mine, others, held) == {"other gpu", "other server", "other process"}
    assert of_others(found, [*mine, *others], [], held) == frozenset()
