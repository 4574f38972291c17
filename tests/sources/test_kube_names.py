"""Names in Kubernetes: what is one, and whose uid or container id it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sources.kube_names import (
    ContainerName,
    PodName,
    is_container,
    is_pod,
    names_of,
    parse_container_log,
    parse_pod_folder,
)

UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
MANIFEST = "0123456789abcdef0123456789abcdef"
ID = "a" * 63 + "1"
VLLM = PodName("serving", "vllm-0")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"serving_vllm-0_{UID}", (UID, VLLM)),
        (
            f"kube-system_kube-apiserver-node-1.example.com_{MANIFEST}",
            (MANIFEST, ("kube-system", "kube-apiserver-node-1.example.com")),
        ),
        (f"serving_{'p' * 253}_{UID}", (UID, ("serving", "p" * 253))),
        (f"serving_{'p' * 254}_{UID}", None),
        (f"{'n' * 64}_vllm-0_{UID}", None),
        (f"serving_vllm_0_{UID}", None),
        (f"Serving_vllm-0_{UID}", None),
        (f"serving_vllm-0_{UID}x", None),
        (f"serving_vllm-0_{UID}\n", None),
        (f"serving__{UID}", None),
        ("serving_vllm-0", None),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_folders_of_pods(name: str, expected: object) -> None:
    assert parse_pod_folder(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"vllm-0_serving_server-{ID}.log", (ID, (VLLM, "server"))),
        (f"vllm-0_serving_a-b-c-{ID}.log", (ID, (VLLM, "a-b-c"))),
        (f"vllm-0.x_serving_server-{ID}.log", (ID, (("serving", "vllm-0.x"), "server"))),
        (f"vllm-0_serving_server-{ID[:-1]}.log", None),  # cut by the kubelet for its length
        (f"vllm-0_serving_{ID}.log", None),
        (f"vllm-0_serving_server-{ID}", None),
        (f"vllm-0_ser.ving_server-{ID}.log", None),
        (f"vllm-0_serving_ser_ver-{ID}.log", None),
    ],
)
def test_logs_of_containers(name: str, expected: object) -> None:
    assert parse_container_log(name) == expected


def test_only_those_who_are_wanted_are_kept() -> None:
    names = names_of([f"serving_vllm-0_{UID}", f"kube-system_x_{MANIFEST}"], [f"vllm-0_serving_server-{ID}.log"], {UID})
    assert names.pods == {UID: VLLM}
    assert names.containers == {}


def test_two_names_for_one_uid_or_id_are_nobodys() -> None:
    folders = [f"serving_vllm-0_{UID}", f"other_vllm-0_{UID}", f"serving_vllm-0_{UID}"]
    logs = [f"vllm-0_serving_a-{ID}.log", f"vllm-0_serving_b-{ID}.log"]
    names = names_of(folders, logs, {UID, ID})
    assert names.pods == {}
    assert names.containers == {}


LABELS = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z")


@given(LABELS, LABELS, LABELS, st.uuids(), st.binary(min_size=32, max_size=32))
def test_what_the_kubelet_writes_is_read_back(
    namespace: str, pod: str, container: str, uid: object, id_: bytes
) -> None:
    assert parse_pod_folder(f"{namespace}_{pod}_{uid}") == (str(uid), (namespace, pod))
    found = parse_container_log(f"{pod}_{namespace}_{container}-{id_.hex()}.log")
    assert found == (id_.hex(), ContainerName(PodName(namespace, pod), container))


@given(st.text(max_size=400) | st.from_regex(r"[a-z_.-]{0,80}[0-9a-f-]{0,80}(\.log)?"))
def test_any_text_has_a_name_that_can_be_one_or_none(name: str) -> None:
    folder, log = parse_pod_folder(name), parse_container_log(name)
    if folder is not None:
        assert is_pod(*folder[1])
        assert name == f"{folder[1].namespace}_{folder[1].pod}_{folder[0]}"
    if log is not None:
        assert is_pod(*log[1].pod)
        assert is_container(log[1].container)
