"""Values that Helm would take and with which gpumon would not run as they say: refused, in words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.helm.charts import daemonset, objects, of_kind, refused, texts

ROLLING = "updateStrategy.rollingUpdate"


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("kubernetes.pod_resources", "kubernetes.podResources"),
        ("kubernetes.log_folder", "kubernetes.logFolder"),
        ("kubernetes.api", "kubernetes.api"),
        ("kubernetes.labels", "kubernetes.labels"),
        ("http.web_config", "webConfig.existingSecret"),
        ("state.folder", "state"),
    ],
)
@pytest.mark.parametrize("value", ["/x", None, True])
def test_what_has_a_value_of_its_own_is_not_set_in_config(path: str, instead: str, value: object) -> None:
    section, key = path.split(".")
    for profile in ("metrics", "full"):
        message = refused({"profile": profile, "config": {section: {key: value}}})
        assert f"config.{path}: expected {instead}" in message


def test_the_rest_of_those_sections_can_be_set() -> None:
    config = {"kubernetes": {"every_s": 30}, "http": {"ui": False}, "state": {}}
    assert texts({"profile": "full", "config": config})
    assert "/data" in texts({"state": {"type": "none"}, "config": {"state": {"folder": "/data"}}})


@pytest.mark.parametrize("otlp", [{"grpc": None, "http": None}])
def test_a_service_without_a_receiver_is_refused(otlp: dict[str, Any]) -> None:
    values = {"otlpService": {"enabled": True}, "config": {"otlp": otlp}}
    assert "otlpService.enabled: config.otlp takes no traces" in refused(values)
    assert texts({"config": {"otlp": otlp}})


@pytest.mark.parametrize("argument", ["--config=/x", "--config", "--listen=:1", "--otlp-grpc", "--cgroupfs=/"])
def test_arguments_of_the_charts_own_are_refused(argument: str) -> None:
    assert f"extraArgs: {argument} is the chart's own" in refused({"extraArgs": ["--log-level", "debug", argument]})


def test_arguments_that_only_begin_like_them_are_taken() -> None:
    assert texts({"extraArgs": ["--log-level=debug", "--procfs=/host/proc"]})


@pytest.mark.parametrize(
    "name",
    [
        "NODE_NAME",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "GPUMON_HTTP__LISTEN",
        "GPUMON_OTLP__GRPC",
        "GPUMON_OTLP__ENABLED",
        "GPUMON_KUBERNETES__API",
        "GPUMON_STATE__FOLDER",
    ],
)
def test_variables_of_the_charts_own_are_refused(name: str) -> None:
    assert f"extraEnv: {name} is the chart's own" in refused({"extraEnv": [{"name": name, "value": "x"}]})


def test_other_variables_are_taken() -> None:
    assert texts({"extraEnv": [{"name": "GPUMON_HTTP__ADMIN", "value": "true"}, {"name": "TZ", "value": "UTC"}]})


def test_no_key_of_the_pods_annotations_is_there_twice() -> None:
    assert "podAnnotations: checksum/config is the chart's own" in refused({"podAnnotations": {"checksum/config": "x"}})


@pytest.mark.parametrize("path", ["/", "//", "/.", "/var/../..", "/var/lib/../x"])
def test_the_whole_host_is_not_mounted(path: str) -> None:
    state = {"profile": "full", "state": {"type": "hostPath", "hostPath": path}}
    assert f"state.hostPath = {path}: expected a folder of its own" in refused(state)
    kubelet = {"profile": "full", "kubernetes": {"podResources": path}}
    assert f"kubernetes.podResources = {path}: expected a folder of its own" in refused(kubelet)


def test_a_folder_with_dots_in_its_name_is_taken() -> None:
    assert texts({"profile": "full", "state": {"type": "hostPath", "hostPath": "/var/lib/..gpumon"}})


@pytest.mark.parametrize(
    ("rolling", "message"),
    [
        ({"maxSurge": 1}, "maxSurge needs maxUnavailable 0"),
        ({"maxSurge": "10%", "maxUnavailable": 1}, "maxSurge needs maxUnavailable 0"),
        ({"maxSurge": 1, "maxUnavailable": None}, "maxSurge needs maxUnavailable 0"),
        ({"maxUnavailable": 0}, "no pod could be replaced"),
        ({"maxUnavailable": "0%", "maxSurge": 0}, "no pod could be replaced"),
    ],
)
def test_an_update_that_the_api_server_would_refuse_is_refused(rolling: dict[str, Any], message: str) -> None:
    assert f"{ROLLING}: {message}" in refused({"updateStrategy": {"rollingUpdate": rolling}}).replace(
        "maxUnavailable and maxSurge are both 0: ", ""
    )


@pytest.mark.parametrize(
    "update",
    [
        {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
        {"type": "OnDelete"},
    ],
)
def test_an_update_that_it_would_take_is_taken(update: dict[str, Any]) -> None:
    assert daemonset({"updateStrategy": update})["spec"]["updateStrategy"].items() >= update.items()


def test_a_service_whose_name_kubernetes_would_refuse_is_refused() -> None:
    message = "expected a letter first, for the name of a service; fullnameOverride"
    assert f"1-gpumon: {message}" in refused({}, name="1")
    assert f"1e3: {message}" in refused(
        {"service": {"enabled": False}, "otlpService": {"enabled": True}, "fullnameOverride": "1e3"}
    )
    assert of_kind(objects({"service": {"enabled": False}}, name="1"), "DaemonSet")
    assert objects({"fullnameOverride": "gpumon"}, name="1")
