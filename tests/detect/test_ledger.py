"""Incidents from findings: opening, staying open, closing, merging, counting, bounds, and over restarts."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.detect.detector import Entity, Evidence, Finding, Severity, server_entity
from gpumon.detect.incident import Incident
from gpumon.detect.ledger import CLOSED_MAX, OPEN_MAX
from gpumon.model import Binding, GpuUuid, RequestRecord, Unit
from tests.detect.findings import GPU3, POWER, QUEUE, SERVER, THERMAL, Book, Shelf, finding, to_unix
from tests.detect.scenes import BEGIN_S
from tests.requests.records import request


def gpu(number: int) -> Entity:
    return Entity("gpu", f"gpu {number}", str(number), f"GPU-{number:04d}")


# --- opening, staying open, closing -----------------------------------------------------------------------------------


def test_a_finding_opens_an_incident_with_all_that_is_known() -> None:
    book = Book()
    book.step(finding(since_s=998.0))
    incident = book.only
    assert incident.id == "20270115T081641Z-thermal_throttle-gpu-3"
    assert (incident.kind, incident.entity, incident.severity) == ("thermal_throttle", GPU3, Severity.WARNING)
    assert (incident.since_s, incident.opened_s, incident.seen_s, incident.closed_s) == (998.0, 1001.0, 1001.0, None)
    assert incident.summary == "SM clock 1410 → 1005 MHz"
    assert incident.evidence == (Evidence("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9),)
    assert incident.action == "Cool it."
    assert incident.is_open
    assert incident.recovery_s is None
    assert incident.duration_s(1005.0) == 7.0
    assert book.ear.heard == [("opened", incident.id, 1001.0)]


def test_it_keeps_the_figures_of_the_heaviest_finding_and_of_equal_ones_the_newest() -> None:
    book = Book()
    book.step(finding(summary="begins", weight=1.0))
    book.step(finding(summary="peak", clock=0.8e9, weight=3.0))
    book.step(finding(summary="peak still", clock=0.81e9, weight=3.0))
    book.step(finding(summary="calm", clock=1.3e9, weight=0.5))
    book.step(seconds=20.0)
    assert not book.only.is_open
    assert (book.only.summary, book.only.evidence[0].observed) == ("peak still", 0.81e9)


def test_over_has_the_final_say_however_heavy_the_figures_before() -> None:
    book = Book()
    book.step(finding(summary="peak", weight=3.0))
    book.step(finding(summary="in all", weight=0.1, over=True))
    assert book.only.summary == "in all"


WORKER = Entity("process", "pid 42 VLLM::Worker_TP", "3", "GPU-0003")


def test_a_process_whose_gpu_is_unknown_for_a_moment_has_one_incident_whose_row_follows() -> None:
    book = Book()
    unknown = WORKER._replace(gpu="", uuid="")
    book.step(finding(entity=unknown))
    assert book.active()["thermal_throttle", "", ""] == 1
    book.step(finding(entity=WORKER))
    book.step(finding(entity=unknown))
    assert book.only.entity == WORKER
    assert book.active()["thermal_throttle", "", ""] == 0
    assert book.active()["thermal_throttle", "3", "GPU-0003"] == 1


def test_findings_of_a_process_with_and_without_its_gpu_in_one_step_are_one() -> None:
    book = Book()
    book.step(finding(entity=WORKER), finding(entity=WORKER._replace(gpu="", uuid="")))
    assert book.only.entity == WORKER


def test_a_gpu_that_another_one_replaced_is_another_incident() -> None:
    book = Book()
    book.step(finding(), finding(entity=GPU3._replace(uuid="GPU-0009")))
    assert len(book.incidents) == 2


def test_a_process_found_again_after_a_restart_keeps_the_gpu_that_was_known() -> None:
    shelf = Shelf()
    before = Book(state=shelf)
    before.step(finding(entity=WORKER))
    after = Book(state=shelf)
    after.step(finding(entity=WORKER._replace(gpu="", uuid="")))
    assert after.only.restored
    assert after.only.entity == WORKER


def test_it_keeps_the_newest_figures_the_worst_severity_and_the_earliest_beginning() -> None:
    book = Book()
    book.step(finding(since_s=999.0))
    book.step(finding(severity=Severity.CRITICAL, since_s=998.0, summary="worse", clock=0.8e9))
    book.step(finding(since_s=1000.0, summary="better", clock=1.2e9))
    incident = book.only
    assert incident.severity is Severity.CRITICAL
    assert incident.since_s == 998.0
    assert (incident.summary, incident.evidence[0].observed) == ("better", 1.2e9)
    assert book.ear.count("opened") == 1


def test_it_closes_when_it_was_not_found_for_its_hold_and_lasted_until_it_was_last_found() -> None:
    book = Book()
    book.step(finding(since_s=999.0))  # at 1001
    book.step(finding(since_s=999.0))
    for _ in range(9):
        book.step()
    assert book.only.is_open
    book.step()
    incident = book.only
    assert (incident.seen_s, incident.closed_s) == (1002.0, 1012.0)
    assert incident.duration_s(2000.0) == 3.0
    assert incident.recovery_s == 1.0
    assert book.ear.heard[1:] == [("closed", incident.id, 1012.0)]


def test_what_flickers_within_its_hold_is_one_incident() -> None:
    book = Book()
    for _ in range(5):
        book.step(finding())
        book.step(seconds=9.0)
    assert book.only.is_open
    assert book.counted() == {("thermal_throttle", "warning"): 1}


def test_steps_further_apart_than_the_hold_close_nothing_that_is_found_again() -> None:
    book = Book()
    for _ in range(3):
        book.step(finding(), seconds=60.0)
    assert book.only.is_open


def test_after_its_hold_it_is_another_incident() -> None:
    book = Book()
    book.step(finding())
    book.step(seconds=10.0)
    book.step(finding())
    assert [incident.is_open for incident in book.incidents] == [True, False]
    assert len({incident.id for incident in book.incidents}) == 2


def test_over_closes_at_once_with_the_final_figures() -> None:
    book = Book()
    book.step(finding(summary="still on"))
    book.step(finding(summary="3.2 s in all", clock=1.3e9, over=True))
    incident = book.only
    assert (incident.closed_s, incident.seen_s) == (1002.0, 1002.0)
    assert (incident.summary, incident.evidence[0].observed) == ("3.2 s in all", 1.3e9)
    assert book.ear.count("closed") == 1


def test_what_is_over_and_begins_anew_within_its_hold_is_the_same_incident() -> None:
    book = Book()
    book.step(finding(since_s=1000.5))
    book.step(finding(over=True, since_s=1000.5))
    book.step(finding(since_s=1002.5))
    incident = book.only
    assert incident.is_open
    assert incident.since_s == 1000.5
    assert book.counted() == {("thermal_throttle", "warning"): 1}
    book.step(finding(over=True, since_s=1002.5))
    assert not book.only.is_open
    assert [what for what, _, _ in book.ear.heard] == ["opened", "closed", "closed"]


def test_what_is_over_and_begins_anew_later_is_another_incident() -> None:
    book = Book()
    book.step(finding())
    book.step(finding(over=True))
    book.step(finding(since_s=1012.0), seconds=10.0)
    assert len(book.incidents) == 2
    assert book.counted() == {("thermal_throttle", "warning"): 2}


def test_one_that_came_and_went_between_two_steps_is_an_incident() -> None:
    book = Book()
    book.step(finding(since_s=1000.2, over=True))
    assert book.only.closed_s == 1001.0
    assert [what for what, _, _ in book.ear.heard] == ["opened", "closed"]
    assert book.counted() == {("thermal_throttle", "warning"): 1}


def test_the_end_of_one_that_has_closed_already_brings_its_figures_and_no_other_incident() -> None:
    book = Book()
    book.step(finding(since_s=1000.5))
    book.step(seconds=20.0)
    assert not book.only.is_open
    book.step(finding(since_s=1000.5, summary="in all", over=True))
    assert (book.only.summary, book.only.seen_s) == ("in all", 1001.0)
    assert book.ear.count("closed") == 1
    assert book.counted() == {("thermal_throttle", "warning"): 1}


# --- merging ----------------------------------------------------------------------------------------------------------


def test_two_findings_of_one_kind_and_entity_in_a_step_are_one() -> None:
    book = Book()
    older = Finding(
        "thermal_throttle",
        GPU3,
        Severity.CRITICAL,
        999.0,
        "the worse one",
        (Evidence("sm_clock", 1.0, Unit.HERTZ), Evidence("temperature", 91.0, Unit.CELSIUS)),
    )
    book.step(older, finding(since_s=1000.0, clock=2.0, summary="the milder one", over=True))
    incident = book.only
    assert incident.is_open, "one says that it holds"
    assert (incident.severity, incident.since_s, incident.summary) == (Severity.CRITICAL, 999.0, "the worse one")
    assert [(each.name, each.observed) for each in incident.evidence] == [("sm_clock", 2.0), ("temperature", 91.0)]


def test_other_kinds_and_other_entities_are_other_incidents() -> None:
    book = Book()
    book.step(finding(), finding("power_throttle"), finding(entity=gpu(4)), finding("queue_buildup", SERVER))
    assert len(book.incidents) == 4
    assert len({incident.id for incident in book.incidents}) == 4


def test_findings_of_kinds_that_are_not_looked_for_are_left_out() -> None:
    book = Book([THERMAL])
    book.step(finding("power_throttle"), finding())
    assert book.only.kind == "thermal_throttle"
    assert {labels[0] for labels in (*book.active(), *book.values("gpumon_incidents_total"))} == {"thermal_throttle"}


# --- samples ----------------------------------------------------------------------------------------------------------


def test_every_kind_is_there_at_zero_before_its_first_incident() -> None:
    book = Book()
    assert book.active() == {(kind.name, "", ""): 0.0 for kind in (THERMAL, POWER, QUEUE)}
    assert book.values("gpumon_incidents_total") == {
        ("thermal_throttle", "warning"): 0.0,
        ("thermal_throttle", "critical"): 0.0,
        ("power_throttle", "warning"): 0.0,
        ("queue_buildup", "info"): 0.0,
    }
    assert book.values("gpumon_detection_dropped_total") == {("incidents",): 0.0}


def test_the_row_of_a_gpu_stays_at_zero_after_its_incident() -> None:
    book = Book()
    book.step(finding())
    assert book.active()["thermal_throttle", "3", "GPU-0003"] == 1.0
    assert book.active()["thermal_throttle", "", ""] == 0.0
    book.step(finding(over=True))
    assert book.active()["thermal_throttle", "3", "GPU-0003"] == 0.0


def test_open_incidents_that_are_not_of_one_gpu_add_up_in_the_row_of_their_kind() -> None:
    book = Book()
    book.step(finding("queue_buildup", SERVER), finding("queue_buildup", Entity("server", "sglang/qwen")))
    assert book.active()["queue_buildup", "", ""] == 2.0


def test_rows_of_gpus_that_come_and_go_stay_within_the_budget() -> None:
    book = Book()
    budget = catalogue.INCIDENT_ACTIVE.budget
    for number in range(budget + 50):
        book.step(finding(entity=gpu(number), over=True))
    book.step(finding(entity=gpu(0)))
    active = book.active()
    assert len(active) == budget
    assert active["thermal_throttle", "0", "GPU-0000"] == 1.0
    assert active["queue_buildup", "", ""] == 0.0


def test_growing_worse_is_counted_under_the_higher_severity_too_and_only_once() -> None:
    book = Book()
    book.step(finding())
    book.step(finding(severity=Severity.CRITICAL))
    book.step(finding())
    book.step(finding(severity=Severity.CRITICAL))
    assert book.counted() == {("thermal_throttle", "warning"): 1, ("thermal_throttle", "critical"): 1}


def test_counters_never_fall() -> None:
    book = Book()
    before = book.values("gpumon_incidents_total")
    for severity in (Severity.INFO, Severity.CRITICAL, Severity.WARNING, Severity.INFO):
        book.step(finding(severity=severity))
        now = book.values("gpumon_incidents_total")
        assert all(now[labels] >= count for labels, count in before.items())
        before = now


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_incidents_beyond_the_bound_are_left_out_and_counted_once_each() -> None:
    book = Book()
    findings = [finding(entity=gpu(number)) for number in range(OPEN_MAX + 7)]
    for _ in range(5):
        book.step(*findings)
    assert len(book.incidents) == OPEN_MAX
    assert book.values("gpumon_detection_dropped_total") == {("incidents",): 7.0}
    assert sum(book.counted().values()) == OPEN_MAX
    book.step(*(each for each in findings[1:]), finding(entity=gpu(0), over=True))
    book.step(*findings[1:])
    assert sum(incident.is_open for incident in book.incidents) == OPEN_MAX, "there was room again"


def test_the_oldest_closed_incidents_leave() -> None:
    book = Book()
    for number in range(CLOSED_MAX + 20):
        book.step(finding(entity=gpu(number), over=True))
    kept = book.incidents
    assert len(kept) == CLOSED_MAX
    assert kept[0].entity == gpu(CLOSED_MAX + 19)
    assert kept[-1].entity == gpu(20)
    assert all(newer.opened_s >= older.opened_s for newer, older in pairwise(kept))


def test_one_that_has_left_is_not_remembered_any_more() -> None:
    book = Book()
    book.step(finding(entity=gpu(0), over=True))
    for number in range(1, CLOSED_MAX + 1):
        book.step(finding(entity=gpu(number), over=True))
    assert gpu(0) not in {incident.entity for incident in book.incidents}
    book.step(finding(entity=gpu(0), over=True))
    assert book.incidents[0].entity == gpu(0)


def test_what_readers_get_are_copies() -> None:
    book = Book()
    book.step(finding())
    book.only.summary = "changed"
    assert book.only.summary == "SM clock 1410 → 1005 MHz"


# --- ids --------------------------------------------------------------------------------------------------------------


def test_entities_that_read_alike_get_ids_that_differ() -> None:
    book = Book()
    names = ["a b", "a/b", "a\nb"]
    book.step(*(finding(entity=Entity("process", name)) for name in names))
    stem = "20270115T081641Z-thermal_throttle-a-b"
    assert {incident.id for incident in book.incidents} == {stem, f"{stem}-2", f"{stem}-3"}


# --- touched requests -------------------------------------------------------------------------------------------------

BOUND = Binding("resource", pid=42, gpus=(GpuUuid("GPU-0003"), GpuUuid("GPU-0004")))


def ended(at_s: float, trace: int = 1, **told: Any) -> RequestRecord:
    """A request that ended at a steady second, by the clock of ``Stage``."""
    fields: dict[str, Any] = {
        "start_ns": round((at_s - 0.5) * 1e9),
        "end_ns": round(at_s * 1e9),
        "binding": BOUND,
        **told,
    }
    return request(trace=trace, span_id=trace.to_bytes(8, "big"), **fields)


@pytest.mark.parametrize(
    ("entity", "touched"),
    [
        (GPU3, 1),
        (Entity("gpu", "gpu 5", "5", "GPU-0005"), 0),
        (Entity("server", "vllm/m"), 1),
        (server_entity(("vllm", "", "")), 1),
        (server_entity(("vllm", "m", "10.0.0.7:8000")), 1),
        (server_entity(("vllm", "other", "10.0.0.7:8000")), 0),
        (server_entity(("sglang", "m", "10.0.0.7:8000")), 1),  # a page; requests may be told by another server
        (Entity("server", "sglang/m"), 0),
        (Entity("server", "vllm/other"), 0),
        (Entity("process", "pid 42 VLLM::Worker_TP"), 1),
        (Entity("process", "pid 4 VLLM::Worker_TP"), 0),
        (Entity("process", "python"), 0),
        (Entity("tenant", "acme"), 1),
        (Entity("tenant", "m"), 0),
        (Entity("host", "host"), 1),
        (Entity("collective", "vllm/m"), 0),
    ],
)
def test_a_request_is_touched_by_what_it_ran_on(entity: Entity, touched: int) -> None:
    book = Book()
    book.step(finding(entity=entity))
    book.step(finding(entity=entity), requests=[ended(1001.5, tenant="acme")])
    assert book.only.requests == touched
    assert book.only.traces == ("0" * 31 + "1",) * touched
    assert book.only.spans == ("0" * 15 + "1",) * touched


def test_requests_not_bound_to_anything_are_touched_by_their_server_alone() -> None:
    book = Book()
    host = finding(entity=Entity("host", "host"))
    server = finding(entity=Entity("server", "vllm/m"))
    book.step(host, server)
    book.step(host, server, requests=[ended(1001.5, binding=Binding())])
    assert {incident.entity.scope: incident.requests for incident in book.incidents} == {"host": 0, "server": 1}


def test_requests_that_ended_before_it_was_found_and_after_it_began_are_touched() -> None:
    book = Book()
    book.step(requests=[ended(1000.2, 1), ended(1000.8, 2)])
    book.step(requests=[ended(1001.5, 3)])
    book.step(finding(since_s=1000.5), requests=[ended(1002.5, 4)])
    book.step(requests=[ended(1003.5, 5)])
    assert book.only.requests == 4
    assert [int(trace, 16) for trace in book.only.traces] == [2, 3, 4, 5]


def test_whose_requests_ran_on_it_is_known_of_those_just_before_until_one_has_ended() -> None:
    book = Book()
    book.step(requests=[ended(1000.2, 1, tenant="acme"), ended(1000.3, 2, tenant="acme")])
    book.step(finding(since_s=1001.5))
    (before,) = book.only.concerned.servers
    assert before.requests == book.only.requests == 0
    assert book.only.concerned.gpus == ("3",)
    book.step(finding(), requests=[ended(1002.5, 3, tenant="zoo")])
    (served,) = book.only.concerned.servers
    assert (served.server, served.model, served.requests) == (before.server, before.model, 1)
    assert book.only.concerned.tenants == (("zoo", 1),)


def test_requests_of_the_step_in_which_it_closes_are_touched_and_later_ones_are_not() -> None:
    book = Book()
    book.step(finding())
    book.step(finding(over=True), requests=[ended(1001.5, 1)])
    book.step(requests=[ended(1002.5, 2)])
    assert book.only.requests == 1


def test_the_first_traces_are_kept_and_all_requests_are_counted() -> None:
    book = Book()
    book.step(finding())
    for second in range(3):
        book.step(finding(), requests=[ended(book.stage.at_s, 1 + second * 20 + n) for n in range(20)])
    assert book.only.requests == 60
    assert [int(trace, 16) for trace in book.only.traces] == list(range(1, 33))


def test_several_requests_of_a_trace_are_one_trace_and_one_without_a_trace_is_none() -> None:
    book = Book()
    book.step(finding())
    book.step(finding(), requests=[ended(1001.5, 7), ended(1001.6, 7), ended(1001.7, 0)])
    assert book.only.requests == 3
    assert len(book.only.traces) == 1


def test_a_request_on_two_gpus_of_one_incident_counts_once() -> None:
    book = Book()
    process = Entity("process", "pid 42 vllm", "3", "GPU-0003")
    book.step(finding(entity=process))
    book.step(finding(entity=process), requests=[ended(1001.5)])
    assert book.only.requests == 1


def test_a_process_is_touched_by_requests_on_any_gpu_that_it_holds() -> None:
    book = Book()
    process = Entity("process", "pid 7 VLLM::Worker_TP")
    for index in (4, 5):
        labels = (str(index), f"GPU-{index:04d}", "7", "VLLM::Worker_TP", "", "", "")
        book.stage.put({(catalogue.PROCESS_GPU_MEMORY, labels): 1e9})
    book.step(finding(entity=process))
    book.step(finding(entity=process), requests=[ended(1001.5)])
    assert book.only.requests == 1


# --- log --------------------------------------------------------------------------------------------------------------


def test_opening_and_closing_are_a_line_each_and_staying_open_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    book = Book()
    for _ in range(5):
        book.step(finding(since_s=1000.5))
    book.step(finding(since_s=1000.5, over=True))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "incident=opened id=20270115T081641Z-thermal_throttle-gpu-3 kind=thermal_throttle severity=warning "
            "entity='gpu 3' summary='SM clock 1410 → 1005 MHz' action='Cool it.'",
        ),
        (
            "INFO",
            "incident=closed id=20270115T081641Z-thermal_throttle-gpu-3 kind=thermal_throttle severity=warning "
            "entity='gpu 3' duration_s=5.5 recovery_s=5.0 requests=0 summary='SM clock 1410 → 1005 MHz'",
        ),
    ]


@pytest.mark.parametrize(
    ("severity", "level"), [(Severity.INFO, "INFO"), (Severity.WARNING, "WARNING"), (Severity.CRITICAL, "WARNING")]
)
def test_the_level_of_the_line_is_by_severity(severity: Severity, level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Book().step(finding(severity=severity))
    assert [record.levelname for record in caplog.records] == [level]


def test_growing_worse_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    book.step(finding())
    caplog.clear()
    book.step(finding(severity=Severity.CRITICAL))
    book.step(finding(severity=Severity.CRITICAL))
    assert [record.getMessage() for record in caplog.records] == [f"incident=worse id={book.only.id} severity=critical"]


# --- over restarts ----------------------------------------------------------------------------------------------------


def restarted(shelf: Shelf, down_s: float) -> Book:
    """Another life, so long after steady 1000."""
    book = Book(state=shelf)
    book.stage.at_s = BEGIN_S + down_s
    return book


def test_an_incident_found_again_after_a_restart_is_the_same_and_not_counted_again() -> None:
    shelf = Shelf()
    first = Book(state=shelf)
    first.step(finding(since_s=998.0))
    first.step(finding(severity=Severity.CRITICAL, since_s=998.0))
    first.ledger.close(1003.0)
    second = restarted(shelf, 60.0)
    second.step()
    assert second.incidents == []
    assert second.active()["thermal_throttle", "", ""] == 0.0
    second.step(finding(since_s=1061.0))
    again = second.only
    assert again.restored
    assert again.id == first.only.id
    assert again.severity is Severity.CRITICAL, "the worst so far"
    assert [again.since_s, again.opened_s] == pytest.approx([998.0, 1001.0])
    assert (
        second.counted()
        == first.counted()
        == {
            ("thermal_throttle", "warning"): 1,
            ("thermal_throttle", "critical"): 1,
        }
    )
    assert second.ear.heard == [("opened", again.id, 1062.0)]


def test_growing_worse_after_a_restart_is_counted() -> None:
    shelf = Shelf()
    Book(state=shelf).step(finding())
    second = restarted(shelf, 10.0)
    second.step(finding(severity=Severity.CRITICAL))
    assert second.counted() == {("thermal_throttle", "warning"): 1, ("thermal_throttle", "critical"): 1}


@pytest.mark.parametrize(("down_s", "same"), [(299.0, True), (302.0, False), (-200.0, True), (-400.0, False)])
def test_an_incident_found_again_too_late_is_another_one(down_s: float, same: bool) -> None:
    shelf = Shelf()
    first = Book(state=shelf)
    first.step(finding())
    second = restarted(shelf, down_s)
    second.step(finding(since_s=-5000.0))
    assert (second.only.id == first.only.id) == second.only.restored == same
    assert second.counted() == {("thermal_throttle", "warning"): 1 if same else 2}


def test_what_is_not_found_again_yet_outlives_a_second_restart() -> None:
    shelf = Shelf()
    first = Book(state=shelf)
    first.step(finding())
    restarted(shelf, 60.0).step()
    third = restarted(shelf, 120.0)
    third.step(finding())
    assert third.only.id == first.only.id


def test_closed_incidents_are_counted_after_a_restart_and_not_remembered() -> None:
    shelf = Shelf()
    first = Book(state=shelf)
    first.step(finding())
    first.step(finding(over=True))
    second = restarted(shelf, 5.0)
    second.step(finding())
    assert not second.only.restored
    assert second.counted() == {("thermal_throttle", "warning"): 2}


def test_state_is_kept_at_changes_and_once_a_minute_while_something_is_open() -> None:
    shelf = Shelf()
    book = Book(state=shelf)
    book.step()
    assert shelf.kept == 1, "whether it can be kept is known from the beginning"
    for _ in range(100):
        book.step()
    assert shelf.kept == 1
    book.step(finding())
    assert shelf.kept == 2
    for _ in range(59):
        book.step(finding())
    assert shelf.kept == 2
    book.step(finding())
    assert shelf.kept == 3
    assert shelf.memory.open[0].seen_unix_s == to_unix(book.stage.at_s)
    book.step(finding(severity=Severity.CRITICAL))
    assert shelf.kept == 4
    book.step(finding(over=True))
    assert (shelf.kept, shelf.memory.open) == (5, [])


def test_a_ledger_that_never_stepped_forgets_nothing_at_its_end() -> None:
    shelf = Shelf()
    Book(state=shelf).step(finding())
    restarted(shelf, 10.0).ledger.close(1010.0)
    assert shelf.memory.counts == {"thermal_throttle": {"warning": 1}}


def test_kinds_that_are_off_now_keep_their_counts() -> None:
    shelf = Shelf()
    Book(state=shelf).step(finding(), finding("queue_buildup", SERVER, Severity.INFO))
    second = Book([THERMAL], state=shelf)
    second.step()
    assert second.counted() == {("thermal_throttle", "warning"): 1, ("queue_buildup", "info"): 1}
    assert shelf.memory.counts == {"thermal_throttle": {"warning": 1}, "queue_buildup": {"info": 1}}


# --- properties -------------------------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 4.0, 11.0, 60.0]),
        st.lists(
            st.builds(
                finding,
                st.sampled_from(["thermal_throttle", "queue_buildup"]),
                st.sampled_from([GPU3, SERVER]),
                st.sampled_from(Severity),
                since_s=st.sampled_from([0.0, 1000.0]),
                over=st.booleans(),
            ),
            max_size=4,
        ),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_whatever_is_found_the_books_balance(steps: list[tuple[float, list[Finding]]]) -> None:
    book = Book()
    for seconds, findings in steps:
        book.step(*findings, seconds=seconds)
        incidents = book.incidents
        open_ = [incident for incident in incidents if incident.is_open]
        assert len({(incident.kind, incident.entity) for incident in open_}) == len(open_)
        assert sum(book.active().values()) == len(open_)
        assert len({incident.id for incident in incidents}) == len(incidents)
        assert sum(book.counted().values()) >= len(incidents)
        for incident in incidents:
            assert incident.since_s <= incident.opened_s <= incident.seen_s <= book.stage.at_s
            assert incident.duration_s(book.stage.at_s) >= 0
    assert book.ear.count("opened") == len(book.incidents)
    assert book.ear.count("closed") >= sum(not incident.is_open for incident in book.incidents)


@settings(max_examples=30, deadline=None)
@given(_STEPS)
def test_the_same_findings_make_the_same_incidents(steps: list[tuple[float, list[Finding]]]) -> None:
    def told() -> list[tuple[object, ...]]:
        book = Book()
        for seconds, findings in steps:
            book.step(*findings, seconds=seconds)
        return [plain(incident) for incident in book.incidents]

    assert told() == told()


def plain(incident: Incident) -> tuple[object, ...]:
    return tuple(getattr(incident, name) for name in Incident.__slots__)
