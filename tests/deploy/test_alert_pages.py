"""The annotation ``page`` of alerts: which have it, whence its address is, and that the live page has such a view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from grafana.promql import labels_of
from grafana.promql_names import RULES, load_recorded, rules_of

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "gpumon/web/static"
ALERTS: list[dict[str, Any]] = [
    dict(rule) for path in sorted(RULES.glob("*.yaml")) for rule in rules_of(path) if "alert" in rule
]
CHOICES = "".join(path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.js")))
WITH_PAGE = [alert for alert in ALERTS if "page" in alert["annotations"]]
RECORDED = load_recorded()
WALK = (ROOT / "docs/FROM_ALERT_TO_CAUSE.md").read_text(encoding="utf-8")

_OWN_HEALTH = "it is about gpumon itself, and its live page shows GPUs and requests"
WITHOUT_PAGE = {
    "ServingModelGone": "no node is left that has one",
    "GpumonDown": "the page is down, too",
    "GpumonTargetGone": "nobody knows the address any more",
    "GpumonRestarting": "the page begins anew each time, and why is in the log",
    "GpumonClockSkew": "the node's own clock is all that its page knows",
    "GpumonNodeWithoutTraces": "without traces its page has no requests",
    "GpumonTracesStopped": "without traces its page has no requests",
    "GpumonSamplerRestarting": _OWN_HEALTH,
    "GpumonSeriesDropped": _OWN_HEALTH,
    "GpumonSamplesRejected": _OWN_HEALTH,
    "GpumonOtlpRefused": _OWN_HEALTH,
    "GpumonForwardFailing": _OWN_HEALTH,
    "GpumonForwardDropping": _OWN_HEALTH,
    "GpumonDetectorFailing": _OWN_HEALTH,
    "GpumonConfigReloadFailed": _OWN_HEALTH,
    "GpumonStateFolderUnwritable": _OWN_HEALTH,
}

_NODES = "{{ with printf `node:gpumon_page:info{cluster=%q, node=%q}` $labels.cluster $labels.node | query -}}"
_JOINED = " * on (cluster, node) group_left (page) node:gpumon_page:info`"
_BASE = '{{ . | first | label "page" }}'
_TEMPLATE = re.compile(r"\{\{.*?\}\}")


def name_of(alert: dict[str, Any]) -> str:
    return f"{alert['alert']}-{alert['labels'].get('window', alert['labels']['severity'])}"


def address_of(alert: dict[str, Any]) -> str:
    """What comes after the node's address, with a letter for what is filled in."""
    _, _, after = alert["annotations"]["page"].partition(_BASE)
    return _TEMPLATE.sub("x", after.removesuffix(" {{- end }}"))


def is_asked_for(view: str, parameter: str) -> bool:
    """Whether the view reads this of its address."""
    module = (STATIC / f"{view}.js").read_text(encoding="utf-8")
    return f'parameters.get("{parameter}")' in module or f'one("{parameter}",' in module


def test_every_alert_leads_to_a_page_or_has_a_reason_why_not() -> None:
    assert {alert["alert"] for alert in ALERTS} - {alert["alert"] for alert in WITH_PAGE} == WITHOUT_PAGE.keys()
    assert not {alert["alert"] for alert in WITH_PAGE} & WITHOUT_PAGE.keys()


@pytest.mark.parametrize("alert", WITH_PAGE, ids=name_of)
def test_an_address_is_that_of_the_alerts_node_or_of_one_that_is_looked_for(alert: dict[str, Any]) -> None:
    page = alert["annotations"]["page"]
    if "node" in (labels_of(alert["expr"], RECORDED) or ()):
        assert page.startswith(f"{_NODES} {_BASE}#/")
    else:
        assert page.startswith("{{ with printf `topk(1, sum by (cluster, node")
        assert f"{_JOINED} $labels.cluster $labels.model | query -}}}} {_BASE}#/" in page
    assert page.endswith(" {{- end }}")


@pytest.mark.parametrize("alert", WITH_PAGE, ids=name_of)
def test_nothing_but_the_rule_of_addresses_says_how_a_page_is_reached(alert: dict[str, Any]) -> None:
    assert "http" not in alert["annotations"]["page"]
    assert "9450" not in alert["annotations"]["page"]


@pytest.mark.parametrize("alert", WITH_PAGE, ids=name_of)
def test_the_live_page_has_the_view_and_understands_what_it_is_asked(alert: dict[str, Any]) -> None:
    view, _, query = address_of(alert).removeprefix("#/").partition("?")
    listed = (STATIC / "page.js").read_text(encoding="utf-8").partition("const VIEWS")[2].partition("];")[0]
    assert f'["{view}", ' in listed
    for parameter, value in parse_qsl(query, strict_parsing=bool(query)):
        assert is_asked_for(view, parameter), parameter
        assert re.fullmatch(r"[x\n]+", value) or f'["{value}", ' in CHOICES, value


@pytest.mark.parametrize(
    ("alert", "phase", "of"),
    [
        ("ServingTimeToFirstTokenBudgetBurn", "first_token", "ttft"),
        ("ServingInterTokenBudgetBurn", "decode", "inter_token"),
    ],
)
def test_a_budget_of_latency_leads_to_that_latency_of_its_model(alert: str, phase: str, of: str) -> None:
    pages = {each["annotations"]["page"] for each in ALERTS if each["alert"] == alert}
    (page,) = pages
    assert f'phase="{phase}"' in page
    assert f"#/latency?of={of}&of_model=" in page
    assert page.rstrip().endswith('label "server" | urlquery }}%0A{{ $labels.model | urlquery }} {{- end }}')


def test_the_alert_that_the_walk_begins_with_has_the_link_that_it_shows() -> None:
    shown = re.search(r"^page: http://gpu-07:9450/(#/.*)$", WALK, re.MULTILINE)
    (address,) = {address_of(each) for each in ALERTS if each["alert"] == "ServingInterTokenBudgetBurn"}
    assert shown
    assert shown[1] == address.replace("=x%0Ax", "=vllm%0Allama-3.1-70b-instruct")


def test_a_view_that_does_not_ask_is_found() -> None:
    assert is_asked_for("latency", "of")
    assert is_asked_for("latency", "of_model")
    assert not is_asked_for("latency", "off")
    assert not is_asked_for("now", "of")
