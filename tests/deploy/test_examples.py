"""The examples: an API server takes them, and they fit what gpumon's chart makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from gpumon.config import Config
from tests.deploy.helm.charts import ROOT, objects, of_kind, pod_specs

FOLDER = ROOT / "deploy/examples"
MANIFESTS = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.endswith("-values.yaml"))
LATEST = kubernetes_validate.latest_version()
SERVERS = {"vllm.yaml": "--otlp-traces-endpoint=http://", "sglang.yaml": "--otlp-traces-endpoint="}


def found_in(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def otlp_addresses() -> set[str]:
    """Where gpumon takes OTLP/gRPC, by the chart, in the namespace that the examples speak of."""
    services = of_kind(objects({"otlpService": {"enabled": True}}), "Service")
    (otlp,) = [each for each in services if each["metadata"]["name"].endswith("-otlp")]
    return {f"{otlp['metadata']['name']}.gpumon:{port['port']}" for port in otlp["spec"]["ports"]}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_takes_it(path: Path) -> None:
    for each in found_in(path):
        kubernetes_validate.validate(each, LATEST, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_have_probes_versions_and_no_more_rights_than_they_need(path: Path) -> None:
    for _, spec in pod_specs(found_in(path)):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for each in spec["containers"]:
            assert "readinessProbe" in each
            assert re.search(r":v?[0-9]", each["image"])
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "cpu" not in each["resources"]["limits"]


@pytest.mark.parametrize("name", SERVERS)
def test_servers_send_to_the_gpumon_of_their_node_and_say_who_they_are(name: str) -> None:
    ((_, spec),) = pod_specs(found_in(FOLDER / name))
    (container,) = spec["containers"]
    (endpoint,) = [argument for argument in container["args"] if "otlp-traces-endpoint" in argument]
    assert endpoint.removeprefix(SERVERS[name]) in otlp_addresses()
    names = [each["name"] for each in container["env"]]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["POD_UID"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "k8s.pod.uid=$(POD_UID)" in variables["OTEL_RESOURCE_ATTRIBUTES"]["value"].split(",")
    assert names.index("POD_UID") < names.index("OTEL_RESOURCE_ATTRIBUTES"), "else it is not replaced"
    assert variables["OTEL_SERVICE_NAME"]["value"]


def test_the_collector_sends_to_gpumon_and_takes_what_it_is_told_to() -> None:
    found = found_in(FOLDER / "otel-collector.yaml")
    (config_map,) = of_kind(found, "ConfigMap")
    config = yaml.safe_load(config_map["data"]["config.yaml"])
    assert config["exporters"]["otlp/gpumon"]["endpoint"] in otlp_addresses()
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part])
    assert config["service"]["pipelines"]["traces"]["exporters"] == ["otlp/gpumon"]
    (service,) = of_kind(found, "Service")
    ((agent, spec),) = pod_specs(found)
    assert agent["kind"] == "DaemonSet", "its gpumon is that of its node"
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert {int(each["endpoint"].rpartition(":")[2]) for each in config["receivers"]["otlp"]["protocols"].values()} == {
        *ports.values()
    }


def test_the_values_for_forwarding_are_a_configuration_of_gpumon() -> None:
    values = yaml.safe_load((FOLDER / "gpumon-forward-values.yaml").read_text())
    found = objects(values)
    (text,) = [each["data"]["gpumon.yaml"] for each in of_kind(found, "ConfigMap")]
    config = Config.model_validate(yaml.safe_load(text))
    assert config.forward.spool is not None
    assert config.state.folder is not None
    assert config.forward.spool.is_relative_to(config.state.folder)
    gibibytes = int(values["state"]["sizeLimit"].removesuffix("Gi"))
    assert gibibytes << 30 > config.forward.spool_bytes + config.recorder.folder_bytes
