"""Cgroup folders in each kind of tree, and containers and pods by the path conventions of every runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import SourceError
from gpumon.sources.cgroup import (
    CgroupFolders,
    Identity,
    container_id,
    identify,
    locate,
    parse_cpu_throttled,
    pod_uid,
)
from gpumon.sources.procfs import parse_cgroup

A = "a" * 63 + "1"
B = "b" * 63 + "2"
UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
UID_ = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"

PATHS = [
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{A}.scope", A, UID),
    (f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{A}.scope/container", A, UID),
    (f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{A}.scope", None, UID),
    (f"/kubepods/besteffort/pod{UID}/{A}", A, UID),
    (f"/kubepods/pod{STATIC}/{A}", A, STATIC),
    (f"/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{A}", A, UID),
    (f"/system.slice/containerd.service/kubepods-pod{UID_}.slice:cri-containerd:{A}", A, UID),
    (f"/docker/{A}", A, None),
    (f"/system.slice/docker-{A}.scope", A, None),
    (f"/machine.slice/libpod-{A}.scope/container", A, None),
    (f"/machine.slice/libpod-payload-{A}", A, None),
    (
        f"/docker/{B}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{A}.scope",
        A,
        UID,
    ),
    (f"/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}", A, UID),
    ("/user.slice/user-1000.slice/session-3.scope", None, None),
    # Made by what runs in the container.
    (f"/kubepods/burstable/pod{UID}/{A}/{B}", A, UID),
    (f"/kubepods/burstable/pod{UID}/{A}/pod{STATIC}/{B}", A, UID),
    (f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope/kubepods-pod{STATIC}.slice/{B}", A, UID),
    (f"/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{A}/kubepods-pod{STATIC}.slice:cri-containerd:{B}", A, UID),
    (f"/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}/kubepods/pod{STATIC}/{B}", A, UID),
    (f"/../../kubepods-pod{UID_}.slice/cri-containerd-{A}.scope/pod{STATIC}/{B}", A, UID),
    (f"/kubepods/pod{UID}/{B[:8]}/pod{STATIC}", None, UID),
    (f"/docker/{A}/docker/{B}", A, None),
    # Made by whoever has a session on the host.
    (f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{A}", A, None),
    (f"/../../../user.slice/user-1000.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope", A, None),
    # Podman's own pods have ids too.
    (f"/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope", A, None),
    (f"/libpod_parent/{B}/libpod-{A}", A, None),
    (f"/machine.slice/libpod-conmon-{A}.scope", None, None),
    ("/", None, None),
    ("/../../x", None, None),
    (f"/docker/{A}0", None, None),
    (f"/docker/{A[:-1]}", None, None),
    ("/podman-pods/podcast", None, None),
]


@pytest.mark.parametrize(("path", "container", "pod"), PATHS)
def test_container_and_pod_by_path(path: str, container: str | None, pod: str | None) -> None:
    assert container_id(path) == container
    assert pod_uid(path) == pod


@given(st.text(max_size=300))
def test_any_path_has_a_container_of_64_hex_digits_or_none(path: str) -> None:
    found = container_id(path)
    assert found is None or (len(found) == 64 and found in path)
    pod_uid(path)


def folders(text: str) -> CgroupFolders:
    return locate(parse_cgroup(text.encode()))


def test_version_2_alone_is_at_the_root_of_the_tree() -> None:
    assert folders("0::/kubepods/x\n") == CgroupFolders(("cgroup/kubepods/x",), ("cgroup/kubepods/x",))


def test_the_root_cgroup_is_the_tree_itself() -> None:
    assert folders("0::/\n") == CgroupFolders(("cgroup",), ("cgroup",))


def test_version_1_counts_in_the_cpu_controller_and_has_no_pressure() -> None:
    assert folders("5:cpu,cpuacct:/d/x\n4:memory:/d/x\n") == CgroupFolders(
        ("cgroup/cpu,cpuacct/d/x", "cgroup/cpu/d/x"), ()
    )


def test_hybrid_counts_in_version_1_and_has_pressure_in_unified() -> None:
    assert folders("2:cpu:/a\n1:name=systemd:/a\n0::/b\n") == CgroupFolders(("cgroup/cpu/a",), ("cgroup/unified/b",))


def test_hybrid_without_a_cpu_controller_in_version_1_counts_in_unified() -> None:
    assert folders("1:name=systemd:/a\n0::/b\n") == CgroupFolders(("cgroup/unified/b",), ("cgroup/unified/b",))


@pytest.mark.parametrize("path", ["/..", "/../../x", "/../x", "/x (deleted)"])
def test_a_path_of_another_namespace_or_of_a_removed_group_leads_nowhere(path: str) -> None:
    assert folders(f"0::{path}\n") == CgroupFolders((), ())


def test_no_lines_no_folders() -> None:
    assert folders("") == CgroupFolders((), ())


def test_the_memory_controllers_path_names_the_container_in_a_hybrid_tree() -> None:
    lines = parse_cgroup(f"9:cpu:/docker/{B}\n4:memory:/docker/{A}\n0::/\n".encode())
    assert identify(lines) == Identity(A, None)


def test_a_container_known_to_one_hierarchy_only_is_found() -> None:
    assert identify(parse_cgroup(f"4:memory:/\n0::/docker/{A}\n".encode())) == Identity(A, None)
    assert identify(parse_cgroup(b"4:memory:/\n0::/\n")) == Identity(None, None)


def test_throttled_time_is_seconds_in_both_versions() -> None:
    assert parse_cpu_throttled(b"usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n") == 2.5
    assert parse_cpu_throttled(b"nr_periods 1\nnr_throttled 1\nthrottled_time 2500000000\n") == 2.5


def test_a_controller_that_is_off_counts_nothing_rather_than_zero() -> None:
    assert parse_cpu_throttled(b"usage_usec 9\nuser_usec 5\n") is None


@given(st.binary(max_size=100) | st.binary(max_size=20).map(lambda data: b"throttled_usec " + data))
def test_any_cpu_stat_is_seconds_none_or_malformed(data: bytes) -> None:
    try:
        value = parse_cpu_throttled(data)
    except SourceError:
        return
    assert value is None or 0 <= value < 1e14
