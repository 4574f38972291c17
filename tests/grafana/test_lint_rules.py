"""Rules of the lint: for each a dashboard that is right but for one thing."""

from __future__ import annotations

import copy

import pytest

from grafana.lint import lint
from grafana.lint_dashboard import RULES as DASHBOARD_RULES
from grafana.lint_panel import PANEL_RULES
from grafana.lint_target import TARGET_RULES
from grafana.promql_checks import CHECKS
from tests.grafana.lint_board import (
    BUCKETS,
    CHOSEN,
    FAILED,
    Change,
    asking,
    board_of,
    defaults,
    good,
    graph,
    heat,
    linking,
    mapped,
    no_longer,
    on_graph,
    on_variable,
    query,
    table,
    variable,
)

UP = f"sum by (source) (gpumon_source_up{{{CHOSEN}}})"
TTFT = "gpumon_request_time_to_first_token_seconds_bucket"
BAD: tuple[tuple[str, str, Change], ...] = (
    ("template-datasource", "0 variables", lambda raw: raw["templating"]["list"].pop(0)),
    ("template-datasource", "labelled 'Source'", on_variable(0, label="Source")),
    ("template-datasource", "labelled 'Data source'", on_variable(0, name="ds")),
    ("template-datasource", "of type loki", on_variable(0, query="loki")),
    ("template-job", "no variable job", on_variable(3, name="jobs")),
    ("template-job", "not a query", on_variable(3, type="custom")),
    ("template-job", "labelled 'Jobs'", on_variable(3, label="Jobs")),
    ("template-job", "several values", on_variable(3, allValue=".*")),
    ("template-instance", "no variable instance", on_variable(4, name="host")),
    ("template-label-promql", "expected is label_values", on_variable(1, query="label_values(cluster)")),
    ("template-label-promql", "expected is label_values", on_variable(1, query="query_result(up)")),
    (
        "template-label-promql",
        "there is no gpumon_bild_info",
        on_variable(1, query="label_values(gpumon_bild_info, node)"),
    ),
    ("template-label-promql", "no label gpu", on_variable(1, query="label_values(gpumon_build_info, gpu)")),
    ("template-on-time-change-reload", "refresh is 1", on_variable(1, refresh=1)),
    ("uneditable-dashboard", "editable", lambda raw: raw.update(editable=True)),
    ("uneditable-dashboard", "editable", no_longer("editable")),
    ("schema-version", "schemaVersion is 36", lambda raw: raw.update(schemaVersion=36)),
    ("panel-ids", "id 1", lambda raw: table(raw).update(id=1)),
    ("panel-ids", "id None", lambda raw: table(raw).pop("id")),
    ("panel-layout", "not inside", lambda raw: heat(raw)["gridPos"].update(x=13)),
    ("panel-layout", "not inside", lambda raw: heat(raw)["gridPos"].update(h=0)),
    ("panel-layout", "is on 'Failures'", lambda raw: heat(raw)["gridPos"].update(x=11)),
    ("panel-layout", "is on 'Failures'", lambda raw: raw["panels"][2]["gridPos"].update(y=7)),
    ("panel-layout", "no gridPos", lambda raw: table(raw).pop("gridPos")),
    ("datasource-uid", "'P123'", lambda raw: raw["annotations"]["list"][0].update(datasource={"uid": "P123"})),
    ("datasource-uid", "'Prometheus'", lambda raw: raw["annotations"]["list"][0].update(datasource="Prometheus")),
    ("datasource-uid", "__inputs", lambda raw: raw.update(__inputs=[])),
    ("variables-used", "is used nowhere", lambda raw: raw["templating"]["list"].append(variable("model"))),
    (
        "variables-used",
        "is used nowhere",
        lambda raw: raw["templating"]["list"].append(variable("model") | {"allValue": "$model"}),
    ),
    ("variables-used", "$gpu is used", on_graph(description="Of GPU $gpu.")),
    ("dashboard-links", "keepTime", lambda raw: raw["links"][0].update(keepTime=False)),
    (
        "dashboard-links",
        "includeVars",
        lambda raw: raw["links"].append({"type": "link", "url": "/d/a", "keepTime": True}),
    ),
    ("annotation-promql", "there is no", lambda raw: raw["annotations"]["list"][0].update(expr="gpumon_incidents")),
    ("annotation-promql", "no label gpu", lambda raw: raw["annotations"]["list"][0].update(textFormat="{{gpu}}")),
    ("annotation-promql", "no label uuid", lambda raw: raw["annotations"]["list"][0].update(tagKeys="kind,uuid")),
    (
        "panel-datasource",
        "expected is the variable",
        lambda raw: heat(raw).update(datasource={"uid": "-- Grafana --"}),
    ),
    ("panel-datasource", "query A", lambda raw: heat(raw)["targets"][0].pop("datasource")),
    ("panel-title-description", "no title", on_graph(title=" ")),
    ("panel-title-description", "no title", lambda raw: raw["panels"][2].pop("title")),
    ("panel-title-description", "no description", lambda raw: heat(raw).pop("description")),
    ("panel-units", "names no unit", lambda raw: defaults(graph(raw)).pop("unit")),
    ("panel-units", "'secs' is no unit", lambda raw: defaults(table(raw)).update(unit="secs")),
    ("panel-units", "'secs' is no unit", lambda raw: heat(raw)["options"]["yAxis"].update(unit="secs")),
    ("panel-no-targets", "asks nothing", lambda raw: heat(raw).update(targets=[])),
    ("panel-no-targets", "names that differ", lambda raw: graph(raw)["targets"].append(query(FAILED, "{{source}}"))),
    ("panel-no-value", "neither", lambda raw: defaults(heat(raw)).pop("noValue")),
    ("panel-no-value", "its query tells why", lambda raw: mapped(raw, "no data")),
    ("panel-blank-cells", "in every cell", lambda raw: table(raw)["fieldConfig"]["overrides"].pop(0)),
    (
        "panel-blank-cells",
        "in every cell",
        lambda raw: table(raw)["fieldConfig"]["overrides"][0]["properties"][0].update(value="-"),
    ),
    (
        "panel-blank-cells",
        "in every cell",
        lambda raw: table(raw)["fieldConfig"]["overrides"][0]["matcher"].update(options="/Power/"),
    ),
    ("panel-heatmap", "calculate", lambda raw: heat(raw)["options"].update(calculate=True)),
    ("panel-heatmap", "calculate", lambda raw: heat(raw).update(options={})),
    ("panel-links", "does not keep the time", linking("/d/board?${__all_variables}")),
    ("panel-links", "does not keep the variables", linking("/d/board?${__url_time_range}&var-node=a")),
    (
        "panel-link-cluster",
        "without its cluster",
        linking("/d/board?var-node=${__value.raw}&${cluster:queryparam}&${datasource:queryparam}&${__url_time_range}"),
    ),
    (
        "panel-link-cluster",
        "no column",
        lambda raw: table(raw)["transformations"][0]["options"]["include"].update(names=["node"]),
    ),
    ("target-promql", "parenthesis", asking("sum(")),
    ("target-rate-interval", "rate()", asking(FAILED.replace("$__rate_interval", "5m"), "{{source}}")),
    ("target-rate-interval", "rate()", asking(FAILED.replace("$__rate_interval", "$__interval"), "{{source}}")),
    ("target-rate-interval", "rate()", asking(FAILED.replace("$__rate_interval", "$__range"), "{{source}}")),
    (
        "target-rate-interval",
        "increase()",
        lambda raw: heat(raw)["targets"][0].update(expr=BUCKETS.replace("rate_", "")),
    ),
    ("target-job", "without job", asking(UP.replace('job=~"$job",', ""), "{{source}}")),
    ("target-instance", "without instance", asking(UP.replace(',instance=~"$instance"', ""), "{{source}}")),
    ("target-node", "without node", asking(UP.replace('node=~"$node",', ""), "{{source}}")),
    ("target-node", "without cluster", asking(UP.replace('cluster=~"$cluster",', ""), "{{source}}")),
    ("target-unit", "gives s^-1", lambda raw: defaults(graph(raw)).update(unit="s")),
    ("target-unit", "gives s^-1 J", lambda raw: table(raw)["fieldConfig"].update(overrides=[])),
    ("target-unit", "gives s^-1 J", lambda raw: table(raw).update(transformations=[])),
    ("target-unit", "gives s,", lambda raw: heat(raw)["options"]["yAxis"].update(unit="ms")),
    (
        "target-unit",
        "1000 times",
        asking(f"max by (node) (gpumon_gpu_last_sample_timestamp_seconds{{{CHOSEN}}})", "{{node}}"),
    ),
    ("target-label-text", "'Node' is of the label node", lambda raw: table(raw)["fieldConfig"]["overrides"].pop(1)),
    (
        "target-label-text",
        "'gpu' is of the label gpu",
        lambda raw: table(raw)["fieldConfig"]["overrides"][1]["matcher"].update(options="/^(Cluster|Node)$/"),
    ),
    (
        "target-label-text",
        "shown as 'watt'",
        lambda raw: table(raw)["fieldConfig"]["overrides"][1]["properties"][0].update(value="watt"),
    ),
    ("target-legend", "no label gpu", asking(FAILED, "{{gpu}}")),
    ("target-legend", "the same for all series", asking(FAILED, "failures")),
    ("target-heatmap", "expected is {{le}}", lambda raw: heat(raw)["targets"][0].update(legendFormat="")),
    (
        "target-heatmap",
        "not asked in format heatmap",
        lambda raw: heat(raw)["targets"][0].update(format="time_series"),
    ),
    ("target-heatmap", "panel of type timeseries", asking(BUCKETS, "{{le}}", format="heatmap")),
    (
        "target-heatmap",
        "by no label",
        lambda raw: heat(raw)["targets"][0].update(expr=f"histogram_quantile(0.9, {BUCKETS})"),
    ),
    (
        "target-heatmap",
        "by le, model",
        lambda raw: heat(raw)["targets"][0].update(expr=BUCKETS.replace("(le)", "(le, model)")),
    ),
    (
        "target-heatmap",
        "no buckets",
        lambda raw: heat(raw)["targets"][0].update(expr=f'label_replace(sum(up{{{CHOSEN}}}), "le", "1", "", "")'),
    ),
    ("metric-in-catalogue", "there is no", asking(UP.replace("source_up", "sourc_up"), "{{source}}")),
    ("target-counter-agg", "is a counter", asking(f"sum(gpumon_host_oom_kills_total{{{CHOSEN}}})")),
    ("promql-function", "no counter", asking(f"sum(rate(gpumon_source_up{{{CHOSEN}}}[$__rate_interval]))")),
    ("promql-labels", "no label gpu", asking(UP.replace("by (source)", "by (gpu)"))),
    ("promql-values", "state='los'", asking(f'sum(gpumon_gpus{{{CHOSEN},state="los"}})')),
    ("promql-histogram", "le", asking(f"sum(rate({TTFT}{{{CHOSEN}}}[$__rate_interval]))")),
    ("promql-match", "several series", asking(f"sum(gpumon_source_up{{{CHOSEN}}} / on (node) up{{{CHOSEN}}})")),
    ("promql-units", "different units", asking(f"sum(up{{{CHOSEN}}}) + time()")),
)


@pytest.mark.parametrize(("rule", "words", "change"), BAD, ids=[f"{rule}: {words}" for rule, words, _ in BAD])
def test_what_is_wrong_is_found_by_its_rule(rule: str, words: str, change: Change) -> None:
    raw = copy.deepcopy(good())
    change(raw)
    assert [finding for finding in lint(board_of(raw), {}) if finding.rule == rule and words in finding.text]


def test_every_rule_has_a_dashboard_that_breaks_it() -> None:
    tables = (DASHBOARD_RULES, PANEL_RULES, TARGET_RULES, CHECKS)
    rules = {name for table in tables for name, _ in table} | {"target-promql"}
    assert {rule for rule, _, _ in BAD} == rules - {"dashboard-size"}  # which is not a matter of the JSON
