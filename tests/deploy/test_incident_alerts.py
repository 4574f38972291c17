"""Incidents against alerts: what is a warning or worse has an alert with a runbook, and no alert waits for what no
detector finds. Queries in their texts, which promtool does not look at, are ones that Prometheus can answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpumon.catalogue import INCIDENT_KINDS
from gpumon.detect.detector import IncidentKind, Severity
from gpumon.detect.detectors import DETECTORS
from grafana.promql import check
from grafana.promql_names import recorded_of

ROOT = Path(__file__).parents[2]
RULE_FILES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml"))
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
KINDS = [kind for detector in DETECTORS for kind in detector.kinds]
RUNBOOKS = (ROOT / "docs/RUNBOOKS.md").read_text()

BY_ITS_OWN_SERIES = {
    "gpu_lost": ("GpuLost", "GpumonNvmlUnavailable"),
    "driver_mismatch": ("GpuDriverMismatch",),
    "xid": ("GpuXidCritical", "GpuXidWarning", "GpuRecoveryActionNeeded"),
    "ecc": ("GpuUncorrectableEcc", "GpuCorrectableEccStorm"),
    "row_remap": ("GpuRowRemapFailure", "GpuRowRemapPending"),
}
"""Kinds whose alerts read the driver's own counters and flags: an incident of such a kind closes after a minute, and
what it is of stays, and has several severities, each with an alert of its own."""

ONE_FOR_EACH_NODE = "* may match several series of the right: they can differ in page"
"""What the check of queries cannot see: node:gpumon_page:info is the first of each node, by topk()."""

_INCIDENT = re.compile(r"gpumon_incident(?:_active|s_total)\{([^}]*)\}")
_KIND = re.compile(r'\bkind\s*(=|!=|=~|!~)\s*"([^"]*)"')
_ASKED = re.compile(r"/api/v1/incidents\?kind=(\w+)")
_QUERY = re.compile(r"printf `([^`]+)`((?: \$labels\.\w+)+) \| query\b")


def kinds_of(alert: dict[str, Any]) -> Iterator[str]:
    """The kinds of incident that its expression reads."""
    for selector in _INCIDENT.findall(alert["expr"]):
        for operator, value in _KIND.findall(selector):
            assert operator in ("=", "=~"), f"{alert['alert']}: all kinds but some are for no one to act on"
            yield from value.split("|") if operator == "=~" else [value]


def alerts_of(kind: str) -> set[str]:
    """Names of the alerts that tell of the kind."""
    return {alert["alert"] for alert in ALERTS if kind in kinds_of(alert)}.union(BY_ITS_OWN_SERIES.get(kind, ()))


def queries() -> list[tuple[str, str]]:
    """The queries that texts ask, filled in, by the names of their alerts."""
    found = [(alert["alert"], text.replace("%q", '"x"')) for alert in ALERTS for text, _ in asked_by(alert)]
    return list(dict.fromkeys(found))


def asked_by(alert: dict[str, Any]) -> list[tuple[str, str]]:
    """Queries of its annotations, and the labels that are filled in."""
    return [query for text in alert["annotations"].values() for query in _QUERY.findall(text)]


def test_every_kind_is_the_catalogues() -> None:
    assert {kind.name for kind in KINDS} == set(INCIDENT_KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_that_is_more_than_information_has_an_alert(kind: IncidentKind) -> None:
    if set(kind.severities) != {Severity.INFO}:
        assert alerts_of(kind.name), f"no alert tells of {kind.name}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kinds_alerts_exist_and_have_runbooks(kind: IncidentKind) -> None:
    named = {alert["alert"]: alert for alert in ALERTS}
    sections = {line.removeprefix("## ") for line in RUNBOOKS.splitlines() if line.startswith("## ")}
    for name in alerts_of(kind.name):
        assert name in named, f"there is no alert {name} for {kind.name}"
        assert named[name]["annotations"]["runbook_url"].endswith(f"docs/RUNBOOKS.md#{name.lower()}")
        assert name in sections, f"docs/RUNBOOKS.md has no section {name}"


def test_kinds_with_series_of_their_own_are_not_read_as_incidents_too() -> None:
    read = {kind for alert in ALERTS for kind in kinds_of(alert)}
    assert not read & BY_ITS_OWN_SERIES.keys(), "an alert reads the incident: take the kind off the list"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
def test_an_alert_names_kinds_that_exist(alert: dict[str, Any]) -> None:
    assert set(kinds_of(alert)) <= set(INCIDENT_KINDS)
    asked = set(_ASKED.findall(alert["annotations"]["description"]))
    assert asked <= set(INCIDENT_KINDS)
    if read := set(kinds_of(alert)):
        assert asked == read, "its description sends people to incidents of another kind"


def test_every_selector_of_incidents_names_a_kind_or_is_a_sum_over_them() -> None:
    for alert in ALERTS:
        for selector in _INCIDENT.findall(alert["expr"]):
            assert _KIND.search(selector), f"{alert['alert']} fires for any incident"


def test_texts_ask_queries() -> None:
    """So that the tests below look at some; a template that they do not understand would be passed over."""
    assert len(queries()) > 20
    for alert in ALERTS:
        assert len(asked_by(alert)) == sum(text.count("| query") for text in alert["annotations"].values())


@pytest.mark.parametrize(("alert", "query"), queries())
def test_a_query_of_a_text_can_be_answered(alert: str, query: str) -> None:
    is_joined = "group_left (page) node:gpumon_page:info" in query
    assert check(query, recorded_of(RULES)) == ([ONE_FOR_EACH_NODE] if is_joined else []), alert


def test_a_query_of_a_text_gets_as_many_labels_as_it_has_room_for() -> None:
    for alert in ALERTS:
        for text, labels in asked_by(alert):
            wanted = re.findall(r"(\w+)=%q", text)
            assert labels.split() == [f"$labels.{name}" for name in wanted], f"{alert['alert']}: {text}"
            assert text.count("%") == len(wanted)
