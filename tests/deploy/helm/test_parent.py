"""The chart as a part of another one, which switches it on and off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.deploy.helm.charts import CHART, objects, refused, texts

PARENT = """apiVersion: v2
name: parent
version: 1.0.0
dependencies:
  - {name: gpumon, version: 0.1.0, repository: "", condition: gpumon.enabled}
"""


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charts") / "parent"
    shutil.copytree(CHART, folder / "charts/gpumon")
    (folder / "Chart.yaml").write_text(PARENT)
    (folder / "templates").mkdir()
    return folder


def test_the_condition_of_a_parent_is_taken(parent: Path) -> None:
    values = {"gpumon": {"enabled": True, "profile": "full"}, "global": {"registry": "x"}}
    kinds = {each["kind"] for each in objects(values, chart=parent)}
    assert {"DaemonSet", "ConfigMap", "Service", "ServiceAccount"} <= kinds


def test_switched_off_it_is_not_there(parent: Path) -> None:
    assert texts({"gpumon": {"enabled": False}}, chart=parent) == ""


def test_its_schema_is_in_force_there(parent: Path) -> None:
    assert "profile" in refused({"gpumon": {"enabled": True, "profile": "privileged"}}, chart=parent)


def test_alone_it_cannot_be_switched_off() -> None:
    assert "enabled" in refused({"enabled": False})
