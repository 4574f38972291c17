"""deploy/openshift/scc.yaml admits what profile full renders, and nothing beside it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.helm.charts import ROOT, VARIANTS, Object, objects, pod_specs, values_of, variant_objects

SCC: dict[str, Any] = yaml.safe_load((ROOT / "deploy/openshift/scc.yaml").read_text())
FULL = [variant for variant in VARIANTS if values_of(variant).get("profile") == "full"]
FIELDS = {
    *("apiVersion", "kind", "metadata", "priority", "users", "groups", "volumes", "readOnlyRootFilesystem"),
    *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts"),
    *("allowPrivilegedContainer", "allowPrivilegeEscalation", "defaultAddCapabilities", "allowedCapabilities"),
    *("requiredDropCapabilities", "seccompProfiles", "runAsUser", "seLinuxContext", "fsGroup", "supplementalGroups"),
}
"""Of an SCC, security.openshift.io/v1, without those for FlexVolumes and sysctls."""


def refusals(spec: Object) -> list[str]:
    """What in a pod the SCC does not allow, by the rules of its admission."""
    kinds = {next(key for key in volume if key != "name") for volume in spec.get("volumes", [])}
    if spec["automountServiceAccountToken"]:
        kinds.add("projected")
    problems = sorted(kinds - set(SCC["volumes"]))
    problems += [key for key in ("hostPID", "hostIPC", "hostNetwork") if spec.get(key) and not SCC[f"allowH{key[1:]}"]]
    seccomp = spec["securityContext"]["seccompProfile"]["type"]
    problems += [seccomp] if seccomp == "RuntimeDefault" and "runtime/default" not in SCC["seccompProfiles"] else []
    for container in spec["containers"]:
        rights = container["securityContext"]
        problems += set(rights["capabilities"].get("add", [])) - set(SCC["allowedCapabilities"])
        problems += set(SCC["requiredDropCapabilities"]) - set(rights["capabilities"]["drop"])
        problems += ["privileged"] if rights["privileged"] else []
        problems += ["escalation"] if rights["allowPrivilegeEscalation"] else []
        problems += ["root"] if SCC["readOnlyRootFilesystem"] and not rights["readOnlyRootFilesystem"] else []
        problems += ["hostPort"] if any("hostPort" in port for port in container.get("ports", [])) else []
    return problems


@pytest.mark.parametrize("variant", FULL)
def test_the_scc_admits_profile_full_and_the_test_pod(variant: str) -> None:
    for _, spec in pod_specs(variant_objects(variant)):
        assert refusals(spec) == []


def test_it_would_not_admit_more() -> None:
    (_, spec), *_ = pod_specs(objects({"profile": "full"}))
    assert refusals({**spec, "hostNetwork": True}) == ["hostNetwork"]
    assert refusals({**spec, "volumes": [{"name": "a", "persistentVolumeClaim": {}}]}) == ["persistentVolumeClaim"]


def test_it_has_every_field_and_no_other() -> None:
    assert set(SCC) == FIELDS
    for key in ("runAsUser", "seLinuxContext", "fsGroup", "supplementalGroups"):
        assert SCC[key] == {"type": "RunAsAny"}
    allowed = {key for key, value in SCC.items() if key.startswith("allow") and value is True}
    assert allowed == {"allowHostPID", "allowHostDirVolumePlugin"}
    assert (SCC["users"], SCC["groups"]) == ([], []), "given by hand, to one account"
