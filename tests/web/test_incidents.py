"""/api/v1/incidents: what it says, filters, and questions that cannot be answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.model import Unit
from gpumon.web.api import make_api
from gpumon.web.incidents import incident_routes
from tests.detect.findings import OFFSET_S, SERVER, Book, finding, to_unix
from tests.web.asking import Reply, ask


class Api:
    """The application over a ledger."""

    def __init__(self) -> None:
        self.book = Book()
        routes = incident_routes(self.book.ledger.incidents, lambda: self.book.stage.at_s, to_unix)
        self.app = make_api(routes)

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
        "severity": "warning",
        "state": "open",
        "entity": {"scope": "gpu", "name": "gpu 3", "gpu": "3", "uuid": "GPU-0003"},
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
        "recording": None,
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
    app = make_api(incident_routes(lambda: [incident], lambda: 1010.0, to_unix))
    (told,) = ask(app, "/api/v1/incidents").json
    assert (told["traces"], told["requests"], told["recording"], told["restored"]) == (["a" * 32], 3, "x.gpumon", True)


def test_the_api_describes_them(api: Api) -> None:
    paths = ask(api.app, "/openapi.json").json["paths"]
    assert {"/api/v1/incidents", "/api/v1/incidents/{incident_id}"} == set(paths)
    assert b"/api/v1/incidents" in ask(api.app, "/docs").body
