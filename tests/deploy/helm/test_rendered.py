"""Whatever values CI has: Helm takes the chart, and an API server would take what comes of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

import gpumon
from gpumon.config_load import load
from tests.deploy.helm.charts import (
    CHART,
    NAMESPACE,
    VARIANTS,
    of_kind,
    one,
    texts,
    values_of,
    variant_objects,
    variant_text,
)
from tests.deploy.helm.crds import KINDS, unknown_fields

VERSIONS = sorted({tuple(map(int, version.split(".")[:2])) for version in kubernetes_validate.utils.all_versions()})
"""Of Kubernetes, that kubernetes-validate has the schemas of."""
LINT = "{extends: default, rules: {document-start: disable, line-length: disable, trailing-spaces: disable, \
comments-indentation: disable, indentation: {spaces: consistent, indent-sequences: whatever}, \
comments: {min-spaces-from-content: 1}}}"
PREFIX = "release-0123456789-of-a-team-with-a-long-name"


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_lint_has_nothing_to_warn_of(variant: str) -> None:
    report = helm_python.lint(CHART, values_of(variant), strict=True, namespace=NAMESPACE)
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]], ids=lambda version: ".".join(map(str, version)))
@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_knows_every_field(variant: str, version: tuple[int, int]) -> None:
    for each in variant_objects(variant):
        if each["kind"] not in KINDS:
            kubernetes_validate.validate(each, f"{version[0]}.{version[1]}", strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    (found,) = of_kind(variant_objects("full"), "DaemonSet")
    spec = found["spec"]["template"]["spec"]
    misspelt = {**found, "spec": {**found["spec"], "template": {"spec": {**spec, "hostPIDs": True}}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelt, f"{VERSIONS[-1][0]}.{VERSIONS[-1][1]}", strict=True)


def test_the_chart_asks_for_no_older_kubernetes_than_was_checked() -> None:
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert wanted == f">={VERSIONS[0][0]}.{VERSIONS[0][1]}.0-0"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_operator_knows_every_field(variant: str) -> None:
    for each in variant_objects(variant):
        if each["kind"] in KINDS:
            assert unknown_fields(each) == []


def test_a_misspelt_field_of_a_monitor_would_be_found() -> None:
    monitor = one(variant_objects("full"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    spec = {**monitor["spec"], "podMetricsEndpoints": [{**endpoint, "honourLabels": True}], "sampleLimits": 1}
    assert unknown_fields({**monitor, "spec": spec}) == [
        "spec.podMetricsEndpoints[0].honourLabels",
        "spec.sampleLimits",
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_yaml_is_clean_and_says_nothing_twice(variant: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "--format", "parsable", "-d", LINT, "-"],
        input=variant_text(variant).encode(),
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode() == ""
    assert done.returncode == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendering_twice_gives_the_same(variant: str) -> None:
    assert texts(values_of(variant)) == variant_text(variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_are_short_and_each_object_has_one_of_its_own(variant: str) -> None:
    for text in (variant_text(variant), texts(values_of(variant), name=f"{PREFIX}-{PREFIX}"[:53])):
        names = [(each["kind"], each["metadata"]["name"]) for each in yaml.load_all(text, yaml.CSafeLoader)]
        assert len(set(names)) == len(names)
        for _, name in names:
            assert len(name) <= 63
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_labels_are_what_kubernetes_takes(variant: str) -> None:
    for text in (variant_text(variant), texts(values_of(variant), name=f"{PREFIX}-{PREFIX}"[:53])):
        for each in yaml.load_all(text, yaml.CSafeLoader):
            for value in each["metadata"]["labels"].values():
                assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value)


def test_fullname_override_names_everything() -> None:
    found = variant_objects("overrides")
    name = values_of("overrides")["fullnameOverride"]
    assert {each["metadata"]["name"].removeprefix(name).split("-")[0] for each in found} == {""}
    assert one(found, "DaemonSet")["metadata"]["name"] == name


def test_objects_of_two_releases_have_different_names() -> None:
    def names(release: str) -> set[tuple[str, str]]:
        text = texts(values_of("full-labels"), name=release)
        return {(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(text)}

    assert not names("one") & names("two")


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_meet_the_pods_of_the_node_and_not_the_test_pod(variant: str) -> None:
    found = variant_objects(variant)
    pods = one(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    selectors: list[dict[str, str]] = [one(found, "DaemonSet")["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in of_kind(found, "Service")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(found, "NetworkPolicy")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(found, "PodMonitor")]
    for selector in selectors:
        assert selector.items() <= pods
        for pod in of_kind(found, "Pod"):
            assert not selector.items() <= pod["metadata"]["labels"].items()


def test_a_service_monitor_finds_the_service_of_the_metrics_alone() -> None:
    found = variant_objects("full-labels")
    selector = one(found, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    services = of_kind([*found, *variant_objects("full")], "Service")
    assert {each["metadata"]["name"] for each in services if selector <= each["metadata"]["labels"].items()} == {
        "gpumon"
    }


def test_ports_of_services_are_named_in_the_pod() -> None:
    found = variant_objects("full")
    (container,) = one(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 9450, "otlp-grpc": 4317, "otlp-http": 4318}
    for service in of_kind(found, "Service"):
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}.items() <= ports.items()


@pytest.mark.parametrize("variant", VARIANTS)
def test_gpumon_takes_the_configuration(variant: str, tmp_path: Path) -> None:
    found = variant_objects(variant)
    file = tmp_path / "gpumon.yaml"
    file.write_text(configuration(found))
    (container,) = one(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    environ = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    config = load(file, environ, {})
    assert config.host.kernel_log is None, "an unprivileged container has no /dev/kmsg"
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    for path in (config.http.web_config, config.state.folder, config.forward.spool):
        assert path is None or any(path.is_relative_to(mount) for mount in mounts)
    if values_of(variant).get("profile") == "full":
        assert str(config.host.cgroupfs) in mounts
        assert config.kubernetes.pod_resources is not None
        assert str(config.kubernetes.pod_resources.parent) in mounts
        assert config.kubernetes.api == bool(of_kind(found, "ClusterRole"))
        folder = config.kubernetes.log_folder
        assert folder is None or {str(folder / name) for name in ("pods", "containers")} <= mounts


def test_what_the_user_says_is_over_what_the_chart_says() -> None:
    config: dict[str, Any] = {
        "numa": {"enabled": True, "exact": False},
        "host": {"sysfs": "/elsewhere", "kernel_log": "/dev/kmsg"},
        "detect": {"off": ["xid"]},
        "otlp": {"http": None},
    }
    text = texts({"config": config})
    assert yaml.safe_load(configuration(list(yaml.safe_load_all(text)))) == config


def test_another_configuration_rolls_the_pods() -> None:
    def checksum(text: str) -> str:
        found = list(yaml.safe_load_all(text))
        return str(one(found, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum(texts({})) != checksum(texts({"config": {"log": {"format": "json"}}}))


def test_the_image_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == gpumon.__version__


def configuration(found: tuple[dict[str, Any], ...] | list[dict[str, Any]]) -> str:
    """The text of gpumon.yaml."""
    (text,) = [each["data"]["gpumon.yaml"] for each in of_kind(found, "ConfigMap") if "gpumon.yaml" in each["data"]]
    return str(text)
