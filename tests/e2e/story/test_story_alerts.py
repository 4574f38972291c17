"""Every fault of the demo's story fires its alert in a real Alertmanager, and only its alert, and it is resolved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gpumon.detect.detector import Severity
from gpumon.detect.xid import XIDS
from gpumon.sim.builtin import find_scenario
from gpumon.sim.scenario import Fault
from tests.e2e.daemon import ROOT
from tests.e2e.story.story import BUDGETS, LATE_S, TARGET, Outcome, Seen

pytestmark = pytest.mark.slow

FIRST_TOKEN = "ServingTimeToFirstTokenBudgetBurn"
INTER_TOKEN = "ServingInterTokenBudgetBurn"
ERRORS = "ServingErrorBudgetBurn"
SLOWER = {"ServingLatencyShift", "ServingQueueBuildup", "ServingKvPressure", FIRST_TOKEN, INTER_TOKEN}
"""Of any server that does less than before under the same load."""


class Row(NamedTuple):
    """What a fault of the story makes one see."""

    fires: frozenset[str]
    """Once each."""
    may: frozenset[str] = frozenset(SLOWER)
    """What is as true: consequences, and the objectives that users feel."""
    is_hidden: bool = False
    """Another fault of the same time says why: nobody is told."""


ROWS = {
    "thermal_throttle": Row(frozenset({"ServingThermalThrottle"})),
    # Comes together with the page faults, which explain it.
    "context_jump": Row(
        frozenset({"ServingLatencyShift"}), frozenset(SLOWER | {"ServingContextCliff"}), is_hidden=True
    ),
    "page_faults": Row(frozenset({"ServingPageFaultBurst", "ServingMemoryPressure"})),
    "numa_remote": Row(frozenset({"ServingNumaRemote"})),
    "queue_surge": Row(frozenset({"ServingQueueBuildup"})),
    "straggler": Row(frozenset({"ServingStraggler"})),
}
"""By kind of fault."""
XID_ALERTS = {Severity.CRITICAL: {"GpuXidCritical"}, Severity.WARNING: {"GpuXidWarning"}, Severity.INFO: set()}
"""What an application does by its own fault is no alert; that requests fail is."""

BY_ITS_OWN_SERIES = {"xid"}
"""Kinds whose alerts read the driver's counters, and so have no label kind: they are asked for by their names."""

FAULTS = find_scenario("demo").faults
RECEIVERS = {"critical": "pager", "warning": "chat", "info": "digest"}


def row_of(fault: Fault) -> Row:
    if fault.kind != "xid":
        return ROWS[fault.kind]
    return Row(frozenset(XID_ALERTS[XIDS[str(round(fault.strength))].severity]), frozenset(SLOWER | {ERRORS}))


def began_in_time(outcome: Outcome, fault: Fault, alert: Seen) -> bool:
    """Whether it can be of the fault. What is told for a moment may be seen a second before it."""
    return fault.at_s - 1 <= alert.began_s <= fault.at_s + fault.for_s + LATE_S + outcome.unsure_s


def is_of(fault: Fault, alert: Seen) -> bool:
    """Whether it is of the fault's GPU, where it is of one."""
    return fault.gpu is None or alert.labels.get("gpu", "") in ("", str(fault.gpu))


def own(outcome: Outcome, fault: Fault) -> Iterator[Seen]:
    """Alerts that the fault must fire."""
    for alert in outcome.alerts:
        if alert.name in row_of(fault).fires and began_in_time(outcome, fault, alert) and is_of(fault, alert):
            yield alert


def test_every_fault_of_the_story_has_a_row() -> None:
    assert {fault.kind for fault in FAULTS} == {*ROWS, "xid"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_a_fault_fires_its_alert(outcome: Outcome, fault: Fault) -> None:
    row = row_of(fault)
    assert {alert.name for alert in own(outcome, fault)} == row.fires
    told = {(notice.labels["alertname"], notice.receiver) for notice in outcome.notices if notice.status == "firing"}
    for alert in own(outcome, fault):
        assert alert.labels.items() >= TARGET.items()
        if not row.is_hidden:
            assert alert.active
            assert (alert.name, RECEIVERS[alert.labels["severity"]]) in told


def test_every_kind_of_incident_fires_an_alert_and_what_only_explains_need_not(outcome: Outcome) -> None:
    grave = {incident["kind"] for incident in outcome.incidents if incident["severity"] != "info"}
    kinds = {alert.labels["kind"] for alert in outcome.alerts if "kind" in alert.labels}
    assert len(grave) > 5
    assert grave <= kinds | BY_ITS_OWN_SERIES
    assert kinds <= {incident["kind"] for incident in outcome.incidents}


def test_no_alert_fires_that_no_fault_explains(outcome: Outcome) -> None:
    def is_explained(alert: Seen) -> bool:
        return any(
            alert.name in row_of(fault).may
            if alert.name not in row_of(fault).fires
            else is_of(fault, alert)
            for fault in FAULTS
            if began_in_time(outcome, fault, alert)
        )  # fmt: skip

    assert [alert for alert in outcome.alerts if not is_explained(alert)] == []


def test_the_cause_fires_once_and_does_not_come_and_go(outcome: Outcome) -> None:
    causes = {name for fault in FAULTS for name in row_of(fault).fires} - SLOWER
    assert Counter(alert.name for alert in outcome.alerts if alert.name in causes) == dict.fromkeys(causes, 1)


def test_alerts_are_resolved_when_it_is_over(outcome: Outcome) -> None:
    # Budgets of days are spent for longer than the story lasts, even ten times as fast.
    slow = [alert for alert in outcome.left if alert.name.endswith(BUDGETS) and alert.labels["severity"] == "warning"]
    assert outcome.left == slow
    last = {frozenset(notice.labels.items()): notice.status for notice in outcome.notices}
    still = {frozenset(alert.labels.items()) for alert in outcome.left}
    assert {status for labels, status in last.items() if labels not in still} == {"resolved"}


def test_what_alerts_say_is_complete(outcome: Outcome) -> None:
    anchors = {
        line[3:].lower() for line in (ROOT / "docs/RUNBOOKS.md").read_text().splitlines() if line.startswith("## ")
    }
    for alert in outcome.alerts:
        summary, description = alert.annotations["summary"], alert.annotations["description"]
        for text in (summary, description):
            assert not re.search(r"<no value>|<error|%!|\{\{|  |NaN|\b(on|of|by) *[.,;:)]", text), text
        assert alert.annotations["runbook_url"].partition("#")[2] in anchors
        page = alert.annotations.get("page")
        if page is not None and alert.labels["alertname"] != "ServingErrorBudgetBurn":  # empty where nothing failed
            assert re.match(r"http://127\.0\.0\.1:\d+/#/(now|latency|why)", page), (alert.labels, page)
        if (gpu := alert.labels.get("gpu")) is not None:
            assert f"GPU {gpu}" in summary
