"""Names that YAML would read as something else: a number, a truth value, nothing. They stay names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.deploy.helm.charts import objects, of_kind, one, pod_specs
from tests.deploy.helm.crds import KINDS

ALL: dict[str, Any] = {
    "profile": "full",
    "webConfig": {"existingSecret": "123"},
    "imagePullSecrets": [{"name": "0x1"}],
    "runtimeClassName": "1",
    "priorityClassName": "1",
    "commonLabels": {"team": "1"},
    "podLabels": {"pool": "on"},
    "podAnnotations": {"since": "2024-01-01"},
    "nodeSelector": {"pool": "1e3"},
    "kubernetes": {"api": True, "labels": ["team"]},
    "otlpService": {"enabled": True, "annotations": {"a": "1"}},
    "service": {"annotations": {"a": "null"}},
    "serviceAccount": {"annotations": {"a": "~"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "1"}, "alertLabels": {"team": "1"}},
    "dashboards": {"enabled": True, "labels": {"grafana_dashboard": "1"}},
    "networkPolicy": {"enabled": True},
    "monitor": {"cluster": "1"},
    "image": {"tag": "1.10"},
}
"""Whatever has a name in it."""


def not_texts(value: object, path: str = "") -> Iterator[str]:
    """Names, namespaces, labels and annotations that are no text."""
    if isinstance(value, list):
        for item in value:
            yield from not_texts(item, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}"
            inside = path.rpartition(".")[2] in ("labels", "annotations", "matchLabels", "nodeSelector", "matchNames")
            is_name = key in ("name", "namespace", "serviceAccountName", "secretName", "replacement") or inside
            if is_name and not isinstance(item, str | dict | list):
                yield f"{here} = {item!r}"
            yield from not_texts(item, here)


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
@pytest.mark.parametrize(
    ("name", "namespace", "values"),
    [
        ("1", "123", {"fullnameOverride": "gpumon"}),
        ("true", "0x1", {}),
        ("null", "null", {"nameOverride": "123"}),
        ("a.b", "1e3", {"dashboards": {"enabled": True, "namespace": "456"}}),
        ("gpumon", "123", {"fullnameOverride": "true"}),
        ("gpumon", "1", {"fullnameOverride": "no", "serviceAccount": {"create": False, "name": "123"}}),
        ("e1", "0o7", {"nameOverride": "e1", "serviceAccount": {"name": "1e3"}}),
    ],
)
def test_a_name_is_a_text(name: str, namespace: str, values: dict[str, Any], kind: str) -> None:
    found = objects(ALL | values | {"monitor": {"kind": kind, "cluster": "1"}}, name=name, namespace=namespace)
    assert [problem for each in found for problem in not_texts(each, each["kind"])] == []
    for each in found:
        if each["kind"] not in KINDS:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    assert one(found, kind)["spec"]["namespaceSelector"]["matchNames"] == [namespace]
    assert one(found, "DaemonSet")["metadata"]["labels"]["app.kubernetes.io/instance"] == name
    for each in of_kind(found, "Service"):
        assert "." not in each["metadata"]["name"]


def test_what_the_test_pod_asks_is_a_text() -> None:
    found = objects({"fullnameOverride": "e1"}, namespace="5")
    for _, spec in pod_specs(found):
        assert all(isinstance(each, str) for each in spec["containers"][0]["args"])
    assert one(found, "Pod")["spec"]["containers"][0]["args"][-2] == "e1.5"


def test_a_number_would_be_found() -> None:
    assert list(not_texts({"metadata": {"name": 1, "labels": {"a": True}}}))
