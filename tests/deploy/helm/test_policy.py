"""What no values of CI can make of gpumon: privileged, writable, greedy. Checked on every pod that is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from gpumon.config import ServersConfig
from tests.deploy.helm.charts import VARIANTS, daemonset, objects, of_kind, one, pod_specs, values_of, variant_objects

FULL = [variant for variant in VARIANTS if values_of(variant).get("profile") == "full"]
METRICS = [variant for variant in VARIANTS if variant not in FULL]
RESTRICTED_VOLUMES = {"configMap", "emptyDir", "secret"}
"""Kinds of volumes that the Pod Security Standard "restricted" allows, as far as they are used."""


def node_pod(variant: str) -> dict[str, Any]:
    spec = one(variant_objects(variant), "DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container(variant: str) -> dict[str, Any]:
    (only,) = node_pod(variant)["containers"]
    assert isinstance(only, dict)
    return only


def host_paths(variant: str) -> dict[str, str]:
    """Folder of the host by where it is mounted."""
    folders = {each["name"]: each["hostPath"]["path"] for each in node_pod(variant)["volumes"] if "hostPath" in each}
    mounts = container(variant)["volumeMounts"]
    return {each["mountPath"]: folders[each["name"]] for each in mounts if each["name"] in folders}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_container_is_privileged_or_can_become_more_than_it_is(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        assert "initContainers" not in spec
        for each in spec["containers"]:
            context = each["securityContext"]
            assert context["privileged"] is False
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_capabilities_are_these_two_at_most_with_profile_full_and_none_else(variant: str) -> None:
    wanted = values_of(variant).get("capabilities", ["SYS_PTRACE", "DAC_READ_SEARCH"])
    expected = wanted if variant in FULL else None
    assert container(variant)["securityContext"]["capabilities"].get("add") == expected
    for pod in of_kind(variant_objects(variant), "Pod"):
        assert "add" not in pod["spec"]["containers"][0]["securityContext"]["capabilities"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_profile_full_is_root_and_sees_the_hosts_processes(variant: str) -> None:
    spec = node_pod(variant)
    assert spec["securityContext"]["runAsUser"] == (0 if variant in FULL else 65534)
    assert spec.get("hostPID", False) is (variant in FULL)
    for _, each in pod_specs(variant_objects(variant)):
        assert not {"hostNetwork", "hostIPC", "shareProcessNamespace"} & set(each)


@pytest.mark.parametrize("variant", METRICS)
def test_profile_metrics_fits_into_the_restricted_standard(variant: str) -> None:
    spec = node_pod(variant)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
    if values_of(variant).get("gpuAccess") == "volumeMounts":
        assert host_paths(variant) == {"/var/run/nvidia-container-devices/all": "/dev/null"}
    else:
        assert kinds <= RESTRICTED_VOLUMES
    assert all("hostPort" not in port for port in container(variant)["ports"])


@pytest.mark.parametrize("variant", FULL)
def test_profile_full_mounts_these_folders_of_the_host(variant: str) -> None:
    kubernetes = values_of(variant).get("kubernetes", {})
    expected = {"/host/cgroup": "/sys/fs/cgroup", "/var/lib/kubelet/pod-resources": "/var/lib/kubelet/pod-resources"}
    if kubernetes.get("logFolder", True):
        expected |= {"/var/log/pods": "/var/log/pods", "/var/log/containers": "/var/log/containers"}
    if values_of(variant).get("state", {}).get("type") == "hostPath":
        expected["/var/lib/gpumon"] = "/var/lib/gpumon"
    if values_of(variant).get("gpuAccess") == "volumeMounts":
        expected["/var/run/nvidia-container-devices/all"] = "/dev/null"
    extra = {each["mountPath"] for each in values_of(variant).get("extraVolumeMounts", [])}
    assert {path: folder for path, folder in host_paths(variant).items() if path not in extra} == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_but_the_state_can_be_written(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        for each in spec["containers"]:
            writable = {mount["mountPath"] for mount in each.get("volumeMounts", []) if not mount.get("readOnly")}
            assert writable <= {"/var/lib/gpumon"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_mount_has_its_volume_and_every_volume_a_mount(variant: str) -> None:
    mounts = [each["name"] for each in container(variant)["volumeMounts"]]
    paths = [each["mountPath"] for each in container(variant)["volumeMounts"]]
    assert sorted(mounts) == sorted(each["name"] for each in node_pod(variant)["volumes"])
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_gpu_is_taken_away_and_no_cpu_time_held_back(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        for each in spec["containers"]:
            resources = each["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            assert set(resources["limits"]) == {"memory"}
            assert "claims" not in resources
        assert "resourceClaims" not in spec


@pytest.mark.parametrize("variant", VARIANTS)
def test_probes_ask_whether_it_lives_and_whether_it_is_ready(variant: str) -> None:
    each = container(variant)
    scheme = "HTTPS" if values_of(variant).get("webConfig", {}).get("https") else "HTTP"
    for probe, path in (("startupProbe", "healthy"), ("livenessProbe", "healthy"), ("readinessProbe", "ready")):
        assert each[probe]["httpGet"] == {"path": f"/-/{path}", "port": "http", "scheme": scheme}


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_have_a_version(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        for each in spec["containers"]:
            _, _, version = each["image"].rpartition("/")[2].partition("@" if "@" in each["image"] else ":")
            assert version not in ("", "latest")
    images = {spec["containers"][0]["image"] for _, spec in pod_specs(variant_objects(variant))}
    assert len(images) == 1, "the test pod needs no other image"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_is_there_only_for_the_api_server_and_may_only_look_at_pods(variant: str) -> None:
    found = variant_objects(variant)
    wanted = values_of(variant).get("kubernetes", {}).get("api", False)
    assert node_pod(variant)["automountServiceAccountToken"] is wanted
    for account in of_kind(found, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for pod in of_kind(found, "Pod"):
        assert pod["spec"]["automountServiceAccountToken"] is False
    rules = [each["rules"] for each in of_kind(found, "ClusterRole")]
    assert rules == (
        [[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]] if wanted else []
    )
    assert of_kind(found, "Role") == []
    if wanted:
        (subject,) = one(found, "ClusterRoleBinding")["subjects"]
        assert subject["name"] == node_pod(variant)["serviceAccountName"]
        assert subject["namespace"] == one(found, "DaemonSet")["metadata"]["namespace"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_services_add_no_variables_that_begin_like_gpumons(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("values", "visible"),
    [
        ({}, "all"),
        ({"gpuAccess": "volumeMounts"}, "/var/run/nvidia-container-devices"),
        ({"gpuAccess": "cdi"}, "nvidia.com/gpu=all"),
        ({"gpuAccess": "cdi", "cdiDevice": "management.nvidia.com/gpu=all"}, "management.nvidia.com/gpu=all"),
    ],
)
def test_gpus_are_asked_for_as_the_cluster_wants_it(values: dict[str, Any], visible: str) -> None:
    (only,) = daemonset(values)["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in only["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == visible
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    # The container toolkit does not start an unprivileged container that sets it.
    assert "NVIDIA_MIG_MONITOR_DEVICES" not in variables


def test_the_node_of_a_pod_is_known_to_it() -> None:
    variables = {each["name"]: each for each in container("full-labels")["env"]}
    assert variables["NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_without_state_there_is_no_folder_that_can_be_written() -> None:
    assert all(each["readOnly"] for each in container("metrics")["volumeMounts"])


def test_traces_stay_on_the_node_that_they_come_from() -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(variant_objects("full"), "Service")}
    assert services["gpumon-otlp"]["internalTrafficPolicy"] == "Local"
    assert services["gpumon"]["clusterIP"] == "None"


def test_a_network_policy_lets_in_who_is_named_and_the_test_pod() -> None:
    found = variant_objects("full-locked")
    policy = one(found, "NetworkPolicy")["spec"]
    metrics, traces = policy["ingress"]
    assert [port["port"] for port in metrics["ports"]] == ["http"]
    assert {port["port"] for port in traces["ports"]} == {"otlp-grpc", "otlp-http"}
    test, prometheus = metrics["from"]
    labels = one(found, "Pod")["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= labels.items()
    assert prometheus["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    dns, api, servers, asked_for = policy["egress"]
    assert [port["port"] for port in dns["ports"]] == [53, 53]
    assert [port["port"] for port in api["ports"]] == [443, 6443]
    assert servers["to"] == [{"namespaceSelector": {}}]
    assert asked_for == values_of("full-locked")["networkPolicy"]["egress"][0]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def server_ports(values: dict[str, Any]) -> list[range]:
    """Those that a policy lets gpumon ask."""
    spec = one(objects({"networkPolicy": {"enabled": True}, **values}), "NetworkPolicy")["spec"]
    rules = [rule for rule in spec["egress"] if rule.get("to") == [{"namespaceSelector": {}}]]
    return [range(port["port"], port.get("endPort", port["port"]) + 1) for rule in rules for port in rule["ports"]]


def test_a_network_policy_lets_gpumon_ask_the_servers_that_it_looks_for() -> None:
    assert server_ports({"profile": "full"}) == list(ServersConfig().asked)
    own = {"servers": {"ports": ["8000-8003", 9000]}}
    assert server_ports({"profile": "full", "config": own}) == [range(8000, 8004), range(9000, 9001)]
    assert server_ports({"profile": "full", "config": {"servers": None}}) == list(ServersConfig().asked)
    for values in (
        {},
        {"profile": "full", "config": {"servers": {"discover": False}}},
        {"profile": "full", "config": {"servers": {"ports": []}}},
    ):
        assert server_ports(values) == []


def test_capabilities_can_be_left_out() -> None:
    for left in (["SYS_PTRACE"], ["DAC_READ_SEARCH"], []):
        (only,) = daemonset({"profile": "full", "capabilities": left})["spec"]["template"]["spec"]["containers"]
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"], **({"add": left} if left else {})}


def test_linux_is_asked_for_whatever_else_is() -> None:
    for values in (
        {"nodeSelector": None},
        {"nodeSelector": {"kubernetes.io/os": None}},
        {"nodeSelector": {"kubernetes.io/os": None, "nvidia.com/gpu.present": None, "pool": "gpus"}},
    ):
        for _, spec in pod_specs(objects(values)):
            assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_test_pod_may_run_where_and_as_what_gpumon_does(variant: str) -> None:
    for pod in of_kind(variant_objects(variant), "Pod"):
        for key in ("nodeSelector", "tolerations", "affinity", "serviceAccountName"):
            assert pod["spec"].get(key) == node_pod(variant).get(key)


def test_a_network_policy_closes_the_ports_of_traces_where_nobody_may_send_any() -> None:
    for more in ({"networkPolicy": {"enabled": True, "otlpFrom": []}}, {"config": {"otlp": {"enabled": False}}}):
        values = {"networkPolicy": {"enabled": True}, **more}
        spec = one(objects(values), "NetworkPolicy")["spec"]
        assert [[port["port"] for port in rule["ports"]] for rule in spec["ingress"]] == [["http"]]


@pytest.mark.parametrize(
    ("otlp", "names"),
    [
        ({}, ["otlp-grpc", "otlp-http"]),
        ({"grpc": None}, ["otlp-http"]),
        ({"http": None, "grpc": "[::]:4317"}, ["otlp-grpc"]),
        ({"http": None, "grpc": None}, []),
        ({"enabled": False}, []),
    ],
)
def test_a_port_that_gpumon_does_not_open_is_nowhere(otlp: dict[str, Any], names: list[str]) -> None:
    values = {"config": {"otlp": otlp}, "networkPolicy": {"enabled": True}, "otlpService": {"enabled": bool(names)}}
    found = objects(values)
    (only,) = one(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert [port["name"] for port in only["ports"]] == ["http", *names]
    of_policy = [port["port"] for rule in one(found, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]]
    assert of_policy == ["http", *names]
    services = [each for each in of_kind(found, "Service") if each["metadata"]["name"].endswith("-otlp")]
    assert [port["targetPort"] for each in services for port in each["spec"]["ports"]] == names
