"""AppArmor's profile: a field of the pod where Kubernetes has it, an annotation before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.deploy.helm.charts import CHART, Object, daemonset, objects, one

ANNOTATION = "container.apparmor.security.beta.kubernetes.io/gpumon"
LOCAL = {"type": "Localhost", "localhostProfile": "gpumon"}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, on Kubernetes 1.29."""
    folder = tmp_path_factory.mktemp("charts") / "gpumon"
    shutil.copytree(CHART, folder)
    template = folder / "templates/_node.tpl"
    text = template.read_text()
    assert text.count(".Capabilities.KubeVersion.Version") == 1
    template.write_text(text.replace(".Capabilities.KubeVersion.Version", '"v1.29.6-gke.100"'))
    return folder


def pod(found: Object) -> Object:
    template = found["spec"]["template"]
    assert isinstance(template, dict)
    return template


@pytest.mark.parametrize("profile", [{"type": "Unconfined"}, {"type": "RuntimeDefault"}, LOCAL])
def test_it_is_a_field_of_the_pod(profile: dict[str, Any]) -> None:
    found = daemonset({"profile": "full", "appArmorProfile": profile})
    assert pod(found)["spec"]["securityContext"]["appArmorProfile"] == profile
    assert ANNOTATION not in pod(found)["metadata"]["annotations"]
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("profile", "value"),
    [
        ({"type": "Unconfined"}, "unconfined"),
        ({"type": "RuntimeDefault"}, "runtime/default"),
        (LOCAL, "localhost/gpumon"),
    ],
)
def test_before_1_30_it_is_an_annotation_of_the_container(older: Path, profile: dict[str, Any], value: str) -> None:
    found = one(objects({"profile": "full", "appArmorProfile": profile}, chart=older), "DaemonSet")
    assert pod(found)["metadata"]["annotations"][ANNOTATION] == value
    assert "appArmorProfile" not in pod(found)["spec"]["securityContext"]
    (container,) = pod(found)["spec"]["containers"]
    assert ANNOTATION.endswith(f"/{container['name']}")
    kubernetes_validate.validate(found, "1.29", strict=True)


def test_unsaid_it_is_nowhere(older: Path) -> None:
    for chart in (CHART, older):
        found = one(objects({"profile": "full"}, chart=chart), "DaemonSet")
        assert "apparmor" not in str(found).lower()
