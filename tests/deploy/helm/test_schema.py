"""Values that are wrong are refused by Helm, before anything is changed, and the message names the key."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests.deploy.helm.charts import CHART, VARIANTS, refused, texts, values_of

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FREE = {
    "affinity",
    "commonLabels",
    "config",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "resources.limits",
    "resources.requests",
    "dashboards.annotations",
    "dashboards.labels",
    "monitor.authorization",
    "monitor.basicAuth",
    "monitor.labels",
    "monitor.tlsConfig",
    "otlpService.annotations",
    "prometheusRule.alertLabels",
    "prometheusRule.labels",
    "service.annotations",
    "serviceAccount.annotations",
}
"""Maps whose keys are the user's, or Kubernetes'."""


def sections(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the schema, with its path."""
    if schema.get("type") == "object":
        yield path, schema
        for key, value in schema.get("properties", {}).items():
            yield from sections(value, f"{path}.{key}".lstrip("."))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_values_of_ci_are_taken(variant: str) -> None:
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values_of(variant))


def test_there_is_no_map_to_put_a_misspelt_key_into() -> None:
    for path, schema in sections(SCHEMA):
        if path not in FREE | {"global"}:
            assert schema["additionalProperties"] is False, path


def test_defaults_and_schema_have_the_same_keys() -> None:
    def keys(values: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, value in values.items():
            yield f"{path}{key}"
            if isinstance(value, dict) and f"{path}{key}" not in FREE:
                yield from keys(value, f"{path}{key}.")

    known = {path for path, _ in sections(SCHEMA)}
    of_schema = {
        f"{path}.{key}".lstrip(".") for path, schema in sections(SCHEMA) for key in schema.get("properties", {})
    }
    not_defaulted = {
        "enabled",
        "global",
        "resources.requests",
        "resources.limits",
        "updateStrategy.rollingUpdate.maxSurge",
    }
    not_defaulted |= {key for key in of_schema if key.startswith(("seLinuxOptions.", "config.", "imagePullSecrets."))}
    assert known
    assert set(keys(DEFAULTS)) == of_schema - not_defaulted


def test_every_key_has_a_comment_above_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    section = ""
    for above, line in itertools.pairwise(lines):
        key = re.match(r"(|  )([A-Za-z]+):", line)
        if key and not key[1]:
            section = key[2]
        if key and (not key[1] or section not in FREE):
            assert above.lstrip().startswith("#"), line


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"profil": "full"}, "profil"),
        ({"image": {"tags": "1"}}, "image"),
        ({"monitor": {"sampleLimits": 1}}, "monitor"),
        ({"kubernetes": {"podResource": "/x"}}, "kubernetes"),
        ({"seccompProfile": {"kind": "RuntimeDefault"}}, "seccompProfile"),
    ],
)
def test_an_unknown_key_is_refused(values: dict[str, Any], named: str) -> None:
    assert named in refused(values)


@pytest.mark.parametrize(
    "values",
    [
        {"profile": "privileged"},
        {"profile": None, "gpuAccess": "privileged"},
        {"image": {"tag": 1}},
        {"image": {"tag": "latest"}},
        {"image": {"digest": "sha256:12"}},
        {"image": {"repository": "gpumon:1"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"podLabels": {"app.kubernetes.io/name": "other"}},
        {"podLabels": ["a"]},
        {"nodeSelector": {"nvidia.com/gpu.present": True}},
        {"tolerations": {"operator": "Exists"}},
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        {"resources": {"limits": {"memory": "a lot"}}},
        {"config": "forward: {}"},
        {"config": {"forward": "http://elsewhere"}},
        {"config": {"http": {"listen": "0.0.0.0:80"}}},
        {"config": {"http": {"listen": "127.0.0.1:9450"}}},
        {"config": {"http": {"listen": "garbage:9450"}}},
        {"config": {"http": {"listen": None}}},
        {"config": {"otlp": {"grpc": "0.0.0.0:14317"}}},
        {"config": {"otlp": {"grpc": "127.0.0.1:4317"}}},
        {"config": {"otlp": {"http": "[::1]:4318"}}},
        {"config": {"otlp": {"http": "a b:4318"}}},
        {"resources": {"limits": {"memory": "1 Gi"}}},
        {"resources": {"limits": {"memory": "1e"}}},
        {"resources": {"limits": {"memory": "1KI"}}},
        {"resources": {"requests": {"cpu": -0.5}}},
        {"resources": {"requests": {"cpu": "-1"}}},
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "some"}}},
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": -1}}},
        {"capabilities": ["SYS_ADMIN"]},
        {"capabilities": "SYS_PTRACE"},
        {"appArmorProfile": {"type": "unconfined"}},
        {"enabled": "yes"},
        {"kubernetes": {"podResources": "/var/lib/kubelet/pod-resources/kubelet.sock"}},
        {"kubernetes": {"podResources": "relative"}},
        {"kubernetes": {"labels": "team"}},
        {"state": {"type": "persistentVolumeClaim"}},
        {"monitor": {"interval": "1m30s"}},
        {"monitor": {"interval": 15}},
        {"monitor": {"sampleLimit": 0}},
        {"prometheusRule": {"enabled": "yes"}},
        {"prometheusRule": {"withoutFiles": ["gpumon-slo.yaml"]}},
        {"fullnameOverride": "Not-A-Name"},
        {"fullnameOverride": "a" * 41},
        {"extraArgs": [1]},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(values: dict[str, Any]) -> None:
    assert "schema" in refused(values)


@pytest.mark.parametrize(
    "values",
    [
        {"monitor": {"kind": "PodMonitor,ServiceMonitor"}},
        {"monitor": {"kind": ["PodMonitor", "ServiceMonitor"]}},
        {"monitor": {"kind": "ServiceMonitor"}, "service": {"enabled": False}},
        {"monitor": {"basicAuth": {"username": {}}, "authorization": {"credentials": {}}}},
        {"profile": "metrics", "state": {"type": "hostPath"}},
        {"profile": "metrics", "kubernetes": {"api": True}},
        {"profile": "full", "kubernetes": {"labels": ["team"]}},
        {"otlpService": {"enabled": True}, "config": {"otlp": {"enabled": False}}},
        {"webConfig": {"https": True}},
        {"seccompProfile": {"type": "Localhost"}},
        {"seccompProfile": {"localhostProfile": "profiles/gpumon.json"}},
        {"appArmorProfile": {"type": "Localhost"}},
        {"appArmorProfile": {"localhostProfile": "gpumon"}},
        {"enabled": False},
    ],
    ids=str,
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any]) -> None:
    assert "schema" in refused(values)


@pytest.mark.parametrize("timeout", ["15s", "16s", "100s"])
def test_a_scrape_must_end_before_the_next(timeout: str) -> None:
    values = {"monitor": {"kind": "PodMonitor", "scrapeTimeout": timeout}}
    assert f"monitor.scrapeTimeout = {timeout}: expected less than monitor.interval = 15s" in refused(values)
    assert texts({"monitor": {"kind": "PodMonitor", "interval": "101s", "scrapeTimeout": timeout}})


@pytest.mark.parametrize(
    "values",
    [
        {"nodeSelector": {"nvidia.com/gpu.present": None}},
        {"resources": {"requests": {"cpu": 1, "memory": "256Mi"}, "limits": {"memory": "1Gi"}}},
        {"resources": {"requests": {"cpu": 0.5, "memory": "1e9"}, "limits": {"memory": "1E", "cpu": "1.5"}}},
        {"resources": {"requests": {"cpu": ".5", "memory": 1e9}, "limits": {"memory": "128974848000m"}}},
        {"state": {"sizeLimit": 5368709120}},
        {"global": {"imageRegistry": "of a parent chart"}},
        {"enabled": True},
        {"config": {"otlp": {"grpc": None, "http": "[::]:4318"}, "forward": None}},
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}},
        {"image": {"repository": "registry.example:5000/gpumon", "tag": "1.2.3-rc.1"}},
    ],
    ids=str,
)
def test_what_is_unusual_and_right_is_taken(values: dict[str, Any]) -> None:
    assert texts(values)
