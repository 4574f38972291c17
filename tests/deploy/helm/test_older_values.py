"""``helm upgrade --reuse-values``: the values are those of an older chart, and every key that came later is missing."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm.charts import CHART, NAMESPACE, one, texts

DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ON: dict[str, Any] = {
    "profile": "full",
    "gpuAccess": "volumeMounts",
    "webConfig": {"existingSecret": "web", "https": True},
    "kubernetes": {"api": True, "labels": ["team"]},
    "otlpService": {"enabled": True},
    "monitor": {"kind": "PodMonitor", "cluster": "a"},
    "networkPolicy": {"enabled": True},
}
"""As many templates as there are, but rules and dashboards, which take longer."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return base | {
        key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }


def paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict) and key not in ("nodeSelector", "config"):
            yield from paths(value, (*above, key))


def without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    left = copy.deepcopy(values)
    section = left
    for key in path[:-1]:
        section = section[key]
    del section[path[-1]]
    return left


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for values that are not its own. Without its schema, which speaks of what Helm has merged."""
    folder = tmp_path_factory.mktemp("chart") / "gpumon"
    shutil.copytree(CHART, folder)
    return folder


def rendered(chart: Path, values: dict[str, Any]) -> str:
    """With these values and no defaults."""
    (chart / "values.yaml").write_text(yaml.safe_dump(values))
    return texts({}, chart=chart)


@pytest.mark.parametrize("path", list(paths(DEFAULTS)), ids=".".join)
@pytest.mark.parametrize("profile", ["metrics", "full"])
def test_any_key_may_be_missing(chart: Path, path: tuple[str, ...], profile: str) -> None:
    values = merged(DEFAULTS, ON if profile == "full" else {})
    if path[0] in ("prometheusRule", "dashboards"):
        values = merged(values, {path[0]: {"enabled": True}})
    # What contradicts without the key: nothing to do with what is missing.
    if path in (("service",), ("service", "enabled")):
        values["monitor"]["kind"] = ""
    if path == ("webConfig", "existingSecret"):
        values["webConfig"]["https"] = False
    if path in (("profile",), ("kubernetes", "api")):
        values["kubernetes"] = {**values["kubernetes"], "api": False, "labels": []}
    found = list(yaml.safe_load_all(rendered(chart, without(values, path))))
    assert one(found, "DaemonSet")


def test_with_no_values_at_all_there_is_what_the_least_needs(chart: Path) -> None:
    found = list(yaml.safe_load_all(rendered(chart, {})))
    spec = one(found, "DaemonSet")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsUser"] == 65534
    (container,) = spec["containers"]
    assert container["image"].startswith("ghcr.io/gpumon/gpumon:")
    assert container["resources"]["limits"]["memory"] == "384Mi"
    assert [each["name"] for each in container["volumeMounts"]] == ["config", "state"]
    assert {each["kind"] for each in found} == {"ConfigMap", "DaemonSet"}, "nothing new is on by itself"


@pytest.mark.parametrize("section", [key for key, value in DEFAULTS.items() if isinstance(value, dict)])
def test_a_section_that_is_null_is_one_that_is_missing(section: str) -> None:
    assert one(list(yaml.safe_load_all(texts({section: None}))), "DaemonSet")["metadata"]["namespace"] == NAMESPACE
