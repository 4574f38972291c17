"""Alerts, dashboards and monitors in the cluster are those of the repository, and expect what the others give."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpumon.catalogue import METRICS
from tests.deploy.helm.charts import CHART, ROOT, Object, objects, of_kind, one, values_of, variant_objects

RULES = {
    path.stem.removeprefix("gpumon-"): yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml"))
}
DASHBOARDS = {path.name: path.read_text() for path in sorted((ROOT / "grafana/dashboards").glob("*.json"))}
ANNOTATION_BYTES = 256 * 1024
"""kubectl apply keeps the whole object in an annotation, and all annotations together have this much room."""


def rules_of(values: dict[str, Any]) -> dict[str, Any]:
    """Groups by file, of the objects that are rendered."""
    found = of_kind(objects(values), "PrometheusRule")
    return {each["metadata"]["name"].removeprefix("gpumon-"): each["spec"] for each in found}


def relabelings(monitor: Object) -> list[dict[str, Any]]:
    (endpoint,) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    found: list[dict[str, Any]] = endpoint["relabelings"]
    return found


def relabeled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str]:
    """Labels of a target afterwards, by the two actions that the chart uses; Prometheus anchors its expressions."""
    labels = dict(labels)
    for rule in rules:
        if rule["action"] == "replace":
            source = ";".join(labels.get(name, "") for name in rule.get("sourceLabels", []))
            labels[rule["targetLabel"]] = rule.get("replacement", source)
        else:
            assert rule["action"] == "labeldrop"
            labels = {name: value for name, value in labels.items() if not re.fullmatch(rule["regex"], name)}
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def test_the_chart_has_the_files_themselves_and_no_copies() -> None:
    assert (CHART / "rules").is_symlink()
    assert (CHART / "rules").resolve() == ROOT / "deploy/prometheus/rules"
    assert (CHART / "dashboards").is_symlink()
    assert (CHART / "dashboards").resolve() == ROOT / "grafana/dashboards"


def test_rules_in_the_cluster_are_the_files(tmp_path: Path) -> None:
    rendered = rules_of({"prometheusRule": {"enabled": True}})
    assert rendered == RULES
    for name, spec in rendered.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    files = sorted(tmp_path.iterdir())
    done = subprocess.run(["promtool", "check", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(len(group["rules"]) for spec in RULES.values() for group in spec["groups"])
    assert sum(int(found) for found in re.findall(r"SUCCESS: (\d+) rules? found", done.stdout)) == count


def test_alerts_and_files_can_be_left_out_and_alerts_labelled(tmp_path: Path) -> None:
    wanted = {"enabled": True, "withoutFiles": ["slo"], "withoutAlerts": ["GpumonDown"], "alertLabels": {"team": "a"}}
    rendered = rules_of({"prometheusRule": wanted})
    assert set(rendered) == set(RULES) - {"slo"}
    for name, spec in rendered.items():
        rules = [rule for group in spec["groups"] for rule in group["rules"]]
        before = [rule for group in RULES[name]["groups"] for rule in group["rules"]]
        kept = [rule for rule in before if rule.get("alert") != "GpumonDown"]
        assert rules == [
            {**rule, "labels": {**rule["labels"], "team": "a"}} if "alert" in rule else rule for rule in kept
        ]
    assert sum(rule.get("alert") == "GpumonDown" for group in RULES["self"]["groups"] for rule in group["rules"])


def test_a_file_of_which_nothing_is_left_has_no_object() -> None:
    alerts = sorted({rule["alert"] for group in RULES["slo"]["groups"] for rule in group["rules"] if "alert" in rule})
    recorded = [rule for group in RULES["slo"]["groups"] for rule in group["rules"] if "record" in rule]
    rendered = rules_of({"prometheusRule": {"enabled": True, "withoutAlerts": alerts}})
    assert ("slo" in rendered) is bool(recorded)


def test_the_operator_can_be_told_which_rules_are_its() -> None:
    for each in of_kind(variant_objects("full"), "PrometheusRule"):
        assert each["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_dashboards_in_the_cluster_are_the_files() -> None:
    found = of_kind(objects({"dashboards": {"enabled": True}}), "ConfigMap")
    maps = [each for each in found if "dashboard" in each["metadata"]["name"]]
    assert {name: text for each in maps for name, text in each["data"].items()} == DASHBOARDS
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "gpumon"}
        assert len(each["data"]) == 1
        assert len(json.dumps(each)) < ANNOTATION_BYTES - 1024


def test_dashboards_can_live_where_grafana_does() -> None:
    found = of_kind(variant_objects("overrides"), "ConfigMap")
    maps = [each for each in found if "dashboard" in each["metadata"]["name"]]
    assert len(maps) == len(DASHBOARDS)
    assert {each["metadata"]["namespace"] for each in maps} == {"monitoring"}
    assert {each["metadata"]["annotations"]["grafana_folder"] for each in maps} == {"GPUs"}


@pytest.mark.parametrize(("variant", "kind"), [("full", "PodMonitor"), ("full-labels", "ServiceMonitor")])
def test_a_target_has_the_labels_that_rules_expect_and_none_of_gpumons_own_pod(variant: str, kind: str) -> None:
    monitor = one(variant_objects(variant), kind)
    by_the_operator = {
        "job": "gpu-observability/gpumon",
        "instance": "10.0.0.7:9450",
        "namespace": "gpu-observability",
        "pod": "gpumon-x7k2p",
        "container": "gpumon",
        "service": "gpumon",
        "endpoint": "http",
        "__meta_kubernetes_pod_node_name": "gpu-01",
    }
    expected = {"job": "gpumon", "node": "gpu-01", "instance": "gpu-01"}
    if cluster := values_of(variant)["monitor"].get("cluster"):
        expected["cluster"] = cluster
    assert relabeled(relabelings(monitor), by_the_operator) == expected


@pytest.mark.parametrize(("variant", "kind"), [("full", "PodMonitor"), ("full-labels", "ServiceMonitor")])
def test_labels_of_series_are_kept_and_pages_have_bounds(variant: str, kind: str) -> None:
    found = variant_objects(variant)
    other = {"PodMonitor", "ServiceMonitor"} - {kind}
    assert not of_kind(found, other.pop())
    spec = one(found, kind)["spec"]
    (endpoint,) = spec.get("podMetricsEndpoints") or spec["endpoints"]
    assert endpoint["honorLabels"] is True
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == ("http", "/metrics", "http")
    assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])
    assert spec["sampleLimit"] == 50000
    most = max(len(metric.labels) for metric in METRICS)
    target_labels = 4
    assert spec["labelLimit"] >= 2 * (most + target_labels)
    assert spec["namespaceSelector"]["matchNames"] == [one(found, "DaemonSet")["metadata"]["namespace"]]


def test_limits_are_those_of_the_example_for_prometheus() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    spec = one(variant_objects("full"), "PodMonitor")["spec"]
    assert spec["sampleLimit"] == job["sample_limit"]
    assert spec["podMetricsEndpoints"][0]["honorLabels"] == job["honor_labels"]


def test_credentials_and_tls_reach_the_monitor() -> None:
    (endpoint,) = one(variant_objects("full-locked"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    wanted = values_of("full-locked")["monitor"]
    assert endpoint["scheme"] == "https"
    assert (endpoint["tlsConfig"], endpoint["basicAuth"]) == (wanted["tlsConfig"], wanted["basicAuth"])
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("30s", "25s")


def test_prometheus_takes_the_relabelings(tmp_path: Path) -> None:
    monitor = one(variant_objects("overrides"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    config = {
        "scrape_configs": [
            {
                "job_name": "gpumon",
                "relabel_configs": [
                    {names.get(key, key): value for key, value in rule.items()} for rule in endpoint["relabelings"]
                ],
                "metric_relabel_configs": [
                    {names.get(key, key): value for key, value in rule.items()}
                    for rule in endpoint["metricRelabelings"]
                ],
            }
        ]
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    done = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert endpoint["relabelings"][-1]["targetLabel"] == "region", "the user's come last"
