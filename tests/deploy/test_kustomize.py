"""deploy/kustomize is what the chart renders, and an API server would take it."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from scripts.gen_kustomize import FOLDERS, STANDARDS, main, stale
from tests.deploy.helm.charts import objects

ROOT = Path(__file__).parents[2] / "deploy/kustomize"
LATEST = kubernetes_validate.latest_version()


def test_the_folders_are_fresh() -> None:
    assert stale(ROOT) == []
    assert main(["--check"]) == 0


def test_a_changed_and_a_missing_file_are_found(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        for path in (ROOT / folder).iterdir():
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    assert stale(tmp_path) == []
    (tmp_path / "base/gpumon.yaml").write_text("kind: DaemonSet\n")
    (tmp_path / "metrics/namespace.yaml").unlink()
    assert stale(tmp_path) == ["base/gpumon.yaml", "metrics/namespace.yaml"]


def test_other_arguments_are_refused() -> None:
    assert main(["--chek"]) == 2


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_a_resource_and_every_resource_a_file(folder: str) -> None:
    kustomization = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())
    assert {"kustomization.yaml", *kustomization["resources"]} == {path.name for path in (ROOT / folder).iterdir()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_takes_the_objects_and_they_are_all_of_one_namespace(folder: str) -> None:
    texts = [(ROOT / folder / name).read_text() for name in ("namespace.yaml", "gpumon.yaml")]
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    for each in found:
        kubernetes_validate.validate(each, LATEST, strict=True)
    namespace, *others = found
    assert {each["metadata"]["namespace"] for each in others} == {namespace["metadata"]["name"]}
    standard = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert standard == STANDARDS[FOLDERS[folder]]


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_of_helms_is_left(folder: str) -> None:
    text = (ROOT / folder / "gpumon.yaml").read_text()
    assert "helm" not in text.lower().replace("deploy/helm/gpumon", "")
    kinds = [each["kind"] for each in yaml.safe_load_all(text)]
    of_chart = {each["kind"] for each in objects({"profile": FOLDERS[folder]})}
    assert set(kinds) == of_chart - {"Pod"}
    assert len(set(kinds)) == len(kinds)
