"""A dashboard with which nothing is wrong, and ways to change one thing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grafana.lint import lint
from grafana.lint_model import Dashboard

Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'cluster=~"$cluster",node=~"$node",job=~"$job",instance=~"$instance"'
BUCKETS = f"sum by (le) (increase(gpumon_kv_sync_seconds_bucket{{{CHOSEN}}}[$__rate_interval]))"
FAILED = f"sum by (source) (rate(gpumon_source_errors_total{{{CHOSEN}}}[$__rate_interval]))"


def query(expr: str, legend: str = "", ref: str = "A", **more: object) -> Json:
    return {"refId": ref, "datasource": SOURCE, "expr": expr, "legendFormat": legend, "range": True, **more}


def panel(number: int, x: int, y: int, type_: str, title: str, unit: str, *queries: Json) -> Json:
    return {
        "id": number,
        "type": type_,
        "title": title,
        "description": "What it shows.",
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "noValue": "no data"}, "overrides": []},
        "options": {},
        "targets": list(queries),
    }


def variable(name: str) -> Json:
    return {
        "name": name,
        "label": name.title(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values(gpumon_build_info, {name})"},
        "refresh": 2,
        "multi": True,
        "allValue": ".+",
    }


def good() -> Json:
    """A dashboard with which nothing is wrong: a graph (1), a heatmap of buckets (2), and a table in a row (3, 4)."""
    heatmap = panel(2, 12, 0, "heatmap", "Spread", "short", query(BUCKETS, "{{le}}", format="heatmap"))
    heatmap["options"] = {"calculate": False, "yAxis": {"unit": "s"}, "cellValues": {"unit": "short"}}
    powers = f'sum by (cluster, node, gpu) (gpumon_gpu_power_watts{{{CHOSEN},kind="average"}})'
    table = panel(4, 0, 9, "table", "GPUs", "short", query(powers, ref="A", format="table", instant=True, range=False))
    renamed = {"cluster": "Cluster", "node": "Node", "Value #A": "Power"}
    table["transformations"] = [
        {"id": "filterFieldsByName", "options": {"include": {"names": ["cluster", "node", "gpu", "Value #A"]}}},
        {"id": "organize", "options": {"renameByName": renamed}},
    ]
    url = "/d/board?var-cluster=${__data.fields.cluster}&var-node=${__value.raw}"
    table["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": ""}]},
        {
            "matcher": {"id": "byRegexp", "options": "/^(Cluster|Node|gpu)$/"},
            "properties": [{"id": "unit", "value": "string"}],
        },
        {
            "matcher": {"id": "byName", "options": "Node"},
            "properties": [
                {"id": "links", "value": [{"url": f"{url}&${{datasource:queryparam}}&${{__url_time_range}}"}]}
            ],
        },
        {
            "matcher": {"id": "byName", "options": "Power"},
            "properties": [
                {"id": "unit", "value": "watt"},
                {"id": "links", "value": [{"url": "/d/board?${__url_time_range}&${__all_variables}"}]},
            ],
        },
    ]
    row = {"id": 3, "type": "row", "title": "More", "collapsed": True, "panels": [table]}
    return {
        "uid": "board",
        "title": "Board",
        "editable": False,
        "schemaVersion": 42,
        "links": [{"title": "Others", "type": "dashboards", "includeVars": True, "keepTime": True}],
        "annotations": {
            "list": [
                {
                    "name": "Incidents",
                    "datasource": SOURCE,
                    "expr": f"max by (node, kind) (gpumon_incident_active{{{CHOSEN}}})",
                    "titleFormat": "{{kind}}",
                    "textFormat": "{{node}}",
                    "tagKeys": "kind,node",
                }
            ]
        },
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                *(variable(name) for name in ("cluster", "node", "job", "instance")),
            ]
        },
        "panels": [
            panel(1, 0, 0, "timeseries", "Failures", "cps", query(FAILED, "{{source}}")),
            heatmap,
            {**row, "gridPos": {"x": 0, "y": 8, "w": 24, "h": 1}},
        ],
    }


def board_of(raw: Json, size: int = 1000, file: str = "board.json") -> Dashboard:
    return Dashboard(file, size, raw)


def rules_found(raw: Json) -> set[str]:
    return {finding.rule for finding in lint(board_of(raw), {})}


Change = Callable[[Json], object]


def graph(raw: Json) -> Json:
    found: Json = raw["panels"][0]
    return found


def heat(raw: Json) -> Json:
    found: Json = raw["panels"][1]
    return found


def table(raw: Json) -> Json:
    found: Json = raw["panels"][2]["panels"][0]
    return found


def asking(expr: str, legend: str = "", **more: object) -> Change:
    """The graph asks this."""
    return lambda raw: graph(raw)["targets"][0].update(expr=expr, legendFormat=legend, **more)


def on_graph(**keys: object) -> Change:
    return lambda raw: graph(raw).update(keys)


def on_variable(position: int, **keys: object) -> Change:
    return lambda raw: raw["templating"]["list"][position].update(keys)


def no_longer(key: str) -> Change:
    return lambda raw: raw.pop(key)


def defaults(panel: Json) -> Json:
    found: Json = panel["fieldConfig"]["defaults"]
    return found


def linking(url: str) -> Change:
    return on_graph(links=[{"title": "More", "url": url}])


def mapped(raw: Json, empty: str) -> None:
    panel = graph(raw)
    panel["targets"][0]["expr"] = f"{FAILED} or max by (source) (gpumon_source_up{{{CHOSEN}}} == 0) - 1"
    defaults(panel).update(noValue=empty, mappings=[{"type": "value", "options": {"-1": {"text": "down"}}}])
