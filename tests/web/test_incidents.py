"""/api/v1/incidents: what it says, filters, and questions that cannot be answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpumon.detect.concerned import Concerned, Rank, Served
from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.detect.incident import Incident
from gpumon.model import Unit
from gpumon.web.api import make_api
from gpumon.web.incidents import Knows, Telling, incident_routes
from tests.detect.findings import OFFSET_S, SERVER, Book, finding, to_unix
from tests.web.asking import Reply, ask


class Api:
    """The application over a ledger."""

    def __init__(self) -> None:
        self.book = Book()
        telling = Telling(self.book.ledger.incidents, lambda: self.book.stage.at_s, to_unix)
        self.app = make_api(incident_routes(telling))

    def get(self, query: str = "") -> Reply:
        return ask(self.app, "/api/v1/incidents", query)

    def kinds(self, query: str = "") -> list[str]:
        reply = self.get(query)
        assert reply.status == 200, reply.body
        return [incident["kind"] for incident in reply.json]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def busy(api: Api) -> Api:
    """Three incidents: thermal closed, queue open, power open and critical, in this order of opening."""
    api.book.step(finding())
    api.book.step(finding(over=True), finding("queue_buildup", SERVER, Severity.INFO))
    power = finding("power_throttle", Entity("gpu", "gpu 4", "4", "GPU-0004"), Severity.CRITICAL)
    api.book.step(finding("queue_buildup", SERVER, Severity.INFO), power)
    return api


def test_nothing_found_is_an_empty_list(api: Api) -> None:
    assert (api.get().status, api.get().json) == (200, [])


def test_an_incident_is_told_in_full_with_unix_times(api: Api) -> None:
    api.book.step(finding(since_s=999.5))
    api.book.step(finding(since_s=999.5))
    api.book.step()
    (told,) = api.get().json
    assert told == {
        "id": "20270115T081641Z-thermal_throttle-gpu-3",
        "kind": "thermal_throttle",
        "title": "GPU too hot",
        "severity": "warning",
        "state": "open",
        "entity": {"scope": "gpu", "name": "gpu 3", "gpu": "3", "uuid": "GPU-0003"},
        "gpus": ["3"],
        "process": None,
        "rank": None,
        "servers": [],
        "tenants": [],
        "late_seconds": None,
        "cost_seconds": None,
        "summary": "SM clock 1410 → 1005 MHz",
        "action": "Cool it.",
        "since": OFFSET_S + 999.5,
        "opened": OFFSET_S + 1001.0,
        "last_seen": OFFSET_S + 1002.0,
        "closed": None,
        "duration_seconds": 3.5,
        "recovery_seconds": None,
        "evidence": [{"name": "sm_clock", "observed": 1.005e9, "unit": "hertz", "baseline": 1.41e9}],
        "requests": 0,
        "causes": {},
        "traces": [],
        "detailed_traces": [],
        "recording": None,
        "recording_shared_with": [],
        "restored": False,
    }


def test_its_causes_are_told_with_the_seconds_lost_the_largest_first(api: Api) -> None:
    api.book.step(finding())
    api.book.step(finding())
    (incident,) = api.book.ledger.recent(0.0)
    incident.causes = (("thermal_throttle", 12.3456789), ("batch_growth", 0.5))
    (told,) = api.get().json
    assert list(told["causes"].items()) == [("thermal_throttle", 12.345679), ("batch_growth", 0.5)]


def test_a_closed_one_says_when_and_how_long_it_took(api: Api) -> None:
    api.book.step(finding(since_s=999.5))
    api.book.step(finding(since_s=999.5))
    api.book.step(seconds=100.0)
    (told,) = api.get().json
    assert told["state"] == "closed"
    assert told["closed"] == OFFSET_S + 1102.0
    assert (told["duration_seconds"], told["recovery_seconds"]) == (2.5, 1.0)


def test_what_is_not_of_one_gpu_has_none(busy: Api) -> None:
    (told,) = busy.get("kind=queue_buildup").json
    assert told["entity"] == {"scope": "server", "name": "vllm/llama-70b", "gpu": None, "uuid": None}


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("", ["power_throttle", "queue_buildup", "thermal_throttle"]),
        ("state=all", ["power_throttle", "queue_buildup", "thermal_throttle"]),
        ("state=open", ["power_throttle", "queue_buildup"]),
        ("state=closed", ["thermal_throttle"]),
        ("kind=thermal_throttle", ["thermal_throttle"]),
        ("kind=xid", []),
        ("severity=critical", ["power_throttle"]),
        ("uuid=GPU-0003", ["thermal_throttle"]),
        ("uuid=GPU-nowhere", []),
        ("limit=1", ["power_throttle"]),
        ("limit=500&state=open&severity=info", ["queue_buildup"]),
    ],
)
def test_filters_choose_and_the_newest_comes_first(busy: Api, query: str, kinds: list[str]) -> None:
    assert busy.kinds(query) == kinds


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=opened", "'open', 'closed' or 'all'"),
        ("severity=fatal", "'info', 'warning' or 'critical'"),
        ("kind=thermal", "no kind of incident; they are page_fault_burst"),
        ("limit=0", "greater than or equal to 1"),
        ("limit=501", "less than or equal to 500"),
        ("limit=many", "valid integer"),
        ("uuid=" + "x" * 97, "at most 96 characters"),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_was_expected(busy: Api, query: str, said: str) -> None:
    reply = busy.get(query)
    assert reply.status == 422
    assert said in reply.json["detail"]


def test_a_hundred_are_told_where_nobody_says_how_many(api: Api) -> None:
    api.book.step(*(finding(entity=Entity("process", f"pid {number}")) for number in range(150)))
    assert len(api.kinds()) == 100
    assert len(api.kinds("limit=500")) == 150


def test_one_incident_is_found_by_its_id(busy: Api) -> None:
    for told in busy.get().json:
        assert ask(busy.app, f"/api/v1/incidents/{told['id']}").json == told


@pytest.mark.parametrize("id_", ["nothing", "..", "%00", "グ", "x" * 120])
def test_an_unknown_id_is_not_found_and_says_what_is_known(busy: Api, id_: str) -> None:
    reply = ask(busy.app, f"/api/v1/incidents/{id_}")
    assert reply.status == 404
    assert "512" in reply.json["detail"]


def test_an_id_too_long_is_refused(busy: Api) -> None:
    assert ask(busy.app, f"/api/v1/incidents/{'x' * 121}").status == 422


def test_hostile_text_is_json(api: Api) -> None:
    named = replace(
        finding(entity=Entity("process", 'pid 1 "<script>\x00\x1b')),
        summary="\u2028",
        evidence=(Evidence("f", 1e308, Unit.NONE),),
    )
    api.book.step(named)
    (told,) = api.get().json
    assert told["entity"]["name"] == 'pid 1 "<script>\x00\x1b'
    assert told["evidence"][0]["observed"] == 1e308


def test_traces_and_recording_are_told(api: Api) -> None:
    api.book.step(finding())
    incident = replace(api.book.only, traces=("a" * 32,), spans=("",), requests=3, recording="x.gpumon", restored=True)
    (told,) = said(incident)
    assert (told["traces"], told["requests"], told["recording"], told["restored"]) == (["a" * 32], 3, "x.gpumon", True)
    assert told["detailed_traces"] == []


def said(*incidents: Incident, knows: Knows | None = None) -> list[dict[str, Any]]:
    app = make_api(incident_routes(Telling(lambda: incidents, lambda: 1010.0, to_unix, knows)))
    found: list[dict[str, Any]] = ask(app, "/api/v1/incidents").json
    one = ask(app, f"/api/v1/incidents/{incidents[0].id}").json
    assert one == found[0]
    return found


def test_traces_that_explain_knows_are_told_apart(api: Api) -> None:
    api.book.step(finding())
    traces, spans = tuple(letter * 32 for letter in "abc"), ("1" * 16, "", "3" * 16)
    incident = replace(api.book.only, traces=traces, spans=spans)
    (told,) = said(incident, knows=lambda trace_id, span_id: (trace_id[0], span_id[:1]) in {("a", "1"), ("b", "")})
    assert told["detailed_traces"] == ["a" * 32, "b" * 32]


def test_a_recording_of_several_incidents_names_the_others(api: Api) -> None:
    api.book.step(finding())
    one = replace(api.book.only, recording="x.flight")
    other, third = replace(one, id="other"), replace(one, id="third", recording="")
    told = said(one, other, third, replace(third, id="fourth"))
    assert [each["recording_shared_with"] for each in told] == [["other"], [one.id], [], []]


def test_what_an_incident_concerns_and_what_it_cost_is_told(api: Api) -> None:
    api.book.step(finding())
    incident = replace(
        api.book.only,
        concerned=Concerned(
            gpus=("3",),
            pid="41222",
            process="VLLM::Worker_TP",
            rank=Rank("tp0 0x1", 3),
            servers=(Served("vllm", "llama-70b", 5, ("0", "1", "2", "3")),),
            tenants=(("acme", 3), ("zoo", 2)),
        ),
        causes=(("thermal_throttle", 4.0), ("prefill_interference", 1.5)),
        late_by_tenant=(("zoo", 5.5),),
        explained=5,
    )
    (told,) = said(incident)
    assert told["gpus"] == ["3"]
    assert told["process"] == {"pid": "41222", "name": "VLLM::Worker_TP"}
    assert told["rank"] == {"communicator": "tp0 0x1", "rank": 3}
    gpus = ["0", "1", "2", "3"]
    assert told["servers"] == [{"server": "vllm", "model": "llama-70b", "gpus": gpus, "requests": 5}]
    assert told["tenants"] == [
        {"tenant": "zoo", "requests": 2, "late_seconds": 5.5},
        {"tenant": "acme", "requests": 3, "late_seconds": 0.0},
    ]
    assert (told["late_seconds"], told["cost_seconds"]) == (5.5, 4.0)


def test_what_cost_is_not_known_yet_or_of_no_cause_is_null(api: Api) -> None:
    api.book.step(finding())
    thermal = replace(api.book.only, concerned=Concerned(tenants=(("acme", 1),)))
    shift = replace(thermal, id="shift", kind="latency_shift", explained=1, causes=(("queueing", 2.0),))
    queue = replace(shift, id="queue", kind="queue_buildup")
    calm = replace(thermal, id="calm", explained=1)
    told = said(thermal, shift, queue, calm)
    assert [each["late_seconds"] for each in told] == [None, 2.0, 2.0, 0.0]
    assert [each["cost_seconds"] for each in told] == [None, None, 2.0, 0.0]
    assert [each["tenants"][0]["late_seconds"] for each in told] == [None, 0.0, 0.0, 0.0]


def test_gpus_of_a_server_are_those_of_its_requests(api: Api) -> None:
    api.book.step(finding("queue_buildup", SERVER, Severity.INFO))
    served = (Served("vllm", "a", 2, ("2", "10")), Served("gpumon", "a", 1, ("1", "2")))
    (told,) = said(replace(api.book.only, concerned=Concerned(servers=served)))
    assert told["gpus"] == ["1", "2", "10"]


def test_the_api_describes_them(api: Api) -> None:
    paths = ask(api.app, "/openapi.json").json["paths"]
    assert {"/api/v1/incidents", "/api/v1/incidents/{incident_id}"} == set(paths)
    assert b"/api/v1/incidents" in ask(api.app, "/docs").body
