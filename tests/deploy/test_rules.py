"""Rules of deploy/prometheus: their expressions hold against the catalogue, their names and texts to one form."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from grafana.promql import labels_of, problems
from grafana.promql_names import RULES, Recorded, load_recorded, rules_of

Rule = Mapping[str, Any]
ROOT = Path(__file__).parents[2]
ALL = [(path.name, rule) for path in sorted(RULES.glob("*.yaml")) for rule in rules_of(path)]
RECORDED = load_recorded()
RUNBOOKS = frozenset(re.findall(r"^## (\w+)$", (ROOT / "docs/RUNBOOKS.md").read_text(encoding="utf-8"), re.MULTILINE))

SEVERITIES = ("critical", "warning", "info")
DASHBOARDS = ("gpumon-fleet", "gpumon-node", "gpumon-inference", "gpumon-explain", "gpumon-health")
RUNBOOK_URL = "https://github.com/gpumon/gpumon/blob/main/docs/RUNBOOKS.md#{}"
ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard"}
PAGE = "page"
"""The link to the node's live page. tests/deploy/test_alert_pages.py says which alerts have none."""
ACCEPTED = {
    (
        "node_model_concurrency:gpumon_inter_token_latency_by_concurrency_seconds_count:rate5m",
        "* may match several series of the right: they can differ in name",
    ): "node:gpumon_gpu_info:count is of nodes with one kind of board, by its own condition",
    (
        "slo:gpumon_slo_bad_requests:least",
        "the level says slo, and the series have no such label",
    ): "one number for all objectives",
    (
        "cluster_model:gpumon_requests:first_rate5m",
        "min_over_time() of gpumon_requests_total, which is a counter: take increase() or rate()",
    ): "its first value, which increase() takes for none",
    (
        "GpumonDown",
        "the series have no label cluster: whose alert is it?",
    ): "no target at all, in no cluster",
}
"""Findings that are meant to be, with the reason."""

_RECORD = re.compile(r"(?P<level>[a-z]+(_[a-z]+)*):[a-z][a-z0-9_]*:[a-z0-9_]+")
_TEMPLATE = re.compile(r"\{\{.*?\}\}")
_LABEL = re.compile(r"\$labels\.(\w+)")


def expression(rule: Rule, recorded: Recorded) -> Iterator[str]:
    """Its expression holds."""
    yield from (problem.text for problem in problems(rule["expr"], recorded))


def record_name(rule: Rule, recorded: Recorded) -> Iterator[str]:
    """level:metric:operations, and the level is of labels that the series have."""
    if "record" not in rule:
        return
    named = _RECORD.fullmatch(rule["record"])
    if not named:
        yield "the name is not level:metric:operations"
        return
    has = (labels_of(rule["expr"], recorded) or frozenset()) | frozenset(rule.get("labels") or ())
    for label in named["level"].split("_"):
        if label not in has:
            yield f"the level says {label}, and the series have no such label"


def alert_labels(rule: Rule, recorded: Recorded) -> Iterator[str]:
    """A severity, and no label that changes while it fires; whose object has a cluster."""
    if "alert" not in rule:
        return
    severity = (rule.get("labels") or {}).get("severity")
    if severity not in SEVERITIES:
        yield f"severity is {severity}"
    if "$value" in str(rule.get("labels")):
        yield "a label has the value: each value is another alert"
    has = labels_of(rule["expr"], recorded)
    if has is not None and "cluster" not in has:
        yield "the series have no label cluster: whose alert is it?"


def alert_texts(rule: Rule, recorded: Recorded) -> Iterator[str]:
    """Summary and description, of labels that the series have; the summary stays as it is while the alert fires."""
    if "alert" not in rule:
        return
    annotations = rule.get("annotations") or {}
    if set(annotations) - {PAGE} != ANNOTATIONS:
        yield f"annotations are {', '.join(sorted(annotations))}: expected are {', '.join(sorted(ANNOTATIONS))}"
    summary = str(annotations.get("summary", ""))
    if "$value" in summary or "query" in summary:
        yield "the summary has a value: it changes while the alert fires"
    if "\n" in summary.strip() or len(_TEMPLATE.sub("", summary)) > 120:
        yield "the summary is no line"
    has = labels_of(rule["expr"], recorded)
    used = {label for text in annotations.values() for label in _LABEL.findall(str(text))}
    if has is not None:
        yield from (f"a text has $labels.{label}, and the series have no such label" for label in sorted(used - has))


def alert_leads(rule: Rule, _: Recorded) -> Iterator[str]:
    """To its section of the runbooks, and to a dashboard."""
    if "alert" not in rule:
        return
    annotations = rule.get("annotations") or {}
    if annotations.get("runbook_url") != RUNBOOK_URL.format(rule["alert"].lower()):
        yield f"runbook_url is {annotations.get('runbook_url')}"
    if rule["alert"] not in RUNBOOKS:
        yield "docs/RUNBOOKS.md has no section of its name"
    if annotations.get("dashboard") not in DASHBOARDS:
        yield f"dashboard is {annotations.get('dashboard')}"


CHECKS: tuple[Callable[[Rule, Recorded], Iterator[str]], ...] = (
    expression,
    record_name,
    alert_labels,
    alert_texts,
    alert_leads,
)


def wrong(rule: Rule, recorded: Recorded) -> list[tuple[str, str]]:
    """What is wrong with a rule: its name and what."""
    name = str(rule.get("record") or rule.get("alert"))
    return [(name, text) for check in CHECKS for text in check(rule, recorded)]


def name_of(rule: Rule) -> tuple[str, str]:
    """By what a rule is told from others: alerts by their severity, recorded series by what is added to them."""
    return str(rule.get("record") or rule.get("alert")), str(sorted((rule.get("labels") or {}).items()))


@pytest.mark.parametrize(("file", "rule"), ALL, ids=[f"{file}: {':'.join(name_of(rule))}" for file, rule in ALL])
def test_rule_is_right(file: str, rule: Rule) -> None:
    assert [found for found in wrong(rule, RECORDED) if found not in ACCEPTED] == []


def test_what_is_accepted_is_found() -> None:
    assert ACCEPTED.keys() <= {found for _, rule in ALL for found in wrong(rule, RECORDED)}


def test_no_two_rules_are_of_one_name() -> None:
    assert [name for name, times in Counter(name_of(rule) for _, rule in ALL).items() if times > 1] == []


def test_every_runbook_is_of_an_alert() -> None:
    assert {rule["alert"] for _, rule in ALL if "alert" in rule} == RUNBOOKS


def test_every_dashboard_of_an_alert_exists() -> None:
    assert {path.stem for path in (ROOT / "grafana/dashboards").glob("*.json")} == set(DASHBOARDS)


RECORDING: Rule = {"record": "cluster_node:gpumon_gpus:sum", "expr": "sum by (cluster, node) (gpumon_gpus)"}
ALERT: Rule = {
    "alert": "GpumonDown",
    "expr": 'up{job="gpumon"} == 0',
    "for": "5m",
    "labels": {"severity": "critical"},
    "annotations": {
        "summary": "gpumon on {{ $labels.node }} is down",
        "description": "Since five minutes: {{ $value }}. See whether {{ $labels.instance }} is up.",
        "runbook_url": RUNBOOK_URL.format("gpumondown"),
        "dashboard": "gpumon-health",
    },
}


def test_rules_that_are_right_are_taken() -> None:
    assert wrong(RECORDING, {}) == []
    assert wrong(ALERT, {}) == []
    assert wrong({**ALERT, "annotations": {**ALERT["annotations"], "page": "http://{{ $labels.instance }}/"}}, {}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"record": "gpus:sum"}, "not level:metric:operations"),
        ({"record": "Cluster:gpumon_gpus:sum"}, "not level:metric:operations"),
        ({"record": "cluster_model:gpumon_gpus:sum"}, "the level says model"),
        ({"expr": "sum by (cluster, node) (gpumon_gpuz)"}, "there is no gpumon_gpuz"),
    ],
)
def test_wrong_recording_rule_is_found(changes: dict[str, str], words: str) -> None:
    assert [text for _, text in wrong({**RECORDING, **changes}, {}) if words in text]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alert": "GpumonDawn"}, "no section of its name"),
        ({"expr": "gpumon_requests_total > 5"}, "is a counter"),
        ({"expr": 'sum by (node, instance) (up{job="gpumon"}) == 0'}, "no label cluster"),
        ({"expr": 'sum by (cluster, node) (up{job="gpumon"}) == 0'}, "$labels.instance"),
        ({"labels": {}}, "severity is None"),
        ({"labels": {"severity": "page"}}, "severity is page"),
        ({"labels": {"severity": "info", "now": "{{ $value }}"}}, "each value is another alert"),
        ({"annotations.summary": "{{ $value }} down"}, "it changes while"),
        ({"annotations.summary": 'down: {{ query "up" }}'}, "it changes while"),
        ({"annotations.summary": "gpumon\nis down"}, "the summary is no line"),
        ({"annotations.summary": "gpumon is down" * 10}, "the summary is no line"),
        ({"annotations.summary": "gpu {{ $labels.gpu }}"}, "$labels.gpu"),
        ({"annotations.hint": "?"}, "annotations are"),
        ({"annotations.page": "http://{{ $labels.pod }}/"}, "$labels.pod"),
        ({"annotations": {}}, "annotations are"),
        ({"annotations.runbook_url": RUNBOOK_URL.format("gpumon")}, "runbook_url is"),
        ({"annotations.dashboard": "gpumon"}, "dashboard is gpumon"),
    ],
)
def test_wrong_alert_is_found(changes: dict[str, Any], words: str) -> None:
    rule: dict[str, Any] = copy.deepcopy(dict(ALERT))
    for key, value in changes.items():
        outer, _, inner = key.partition(".")
        if inner:
            rule[outer][inner] = value
        else:
            rule[outer] = value
    assert [text for _, text in wrong(rule, {}) if words in text]
