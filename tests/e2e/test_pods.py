"""Pods on GPUs, end to end: gpumon with a driver, a /proc with containers, log folders and a kubelet's socket."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.catalogue import GROUPS
from tests.e2e.conftest import Start
from tests.e2e.daemon import Daemon
from tests.e2e.page import Page, promtool_complaints
from tests.e2e.waiting import eventually, settle
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc
from tests.fixtures.hosts import write_host
from tests.kubelet import Claim, Container, Kubelet, Pod, holding
from tests.sources.cgroup_paths import LAYOUTS, cgroup

ALL_LAYOUTS = tuple(LAYOUTS)
FIRST_PID = 52_000


class Host:
    """The h200 host without its processes, and a /var/log, to which pods come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_host("h200", folder)
        for each in (folder / "proc").glob("41*"):
            shutil.rmtree(each)
        for name in ("pods", "containers"):
            (folder / "log" / name).mkdir(parents=True)

    def begin(self, pod: str, number: int, *, logged: bool = True) -> int:
        """A process in a container of a pod, with the next runtime's cgroup path; its pid."""
        pid, uid, id_ = FIRST_PID + number, f"{number:08x}-3c11-4d5e-9f00-a1b2c3d4e5f6", f"{number:064x}"
        if logged:
            (self.folder / "log" / "pods" / f"serving_{pod}_{uid}").mkdir()
            (self.folder / "log" / "containers" / f"{pod}_serving_server-{id_}.log").symlink_to("/nowhere")
        process = self.folder / "proc" / str(pid)
        process.mkdir()
        (process / "cgroup").write_bytes(cgroup(ALL_LAYOUTS[number % len(ALL_LAYOUTS)], uid, id_))
        ticks = round(time.clock_gettime(time.CLOCK_BOOTTIME) * 100) - 1
        (process / "stat").write_text(
            f"{pid} (python) S 1 {pid} {pid} 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} {'0 ' * 30}\n"
        )
        return pid

    def end(self, pid: int) -> None:
        shutil.rmtree(self.folder / "proc" / str(pid))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "kubelet.sock") as running:
        yield running


def flags(host: Host) -> list[str]:
    return [f"--{name}={host.folder / below}" for name, below in (("procfs", "proc"), ("cgroupfs", "cgroup"))]


def options(host: Host, kubelet: Kubelet, **more: str) -> dict[str, str]:
    return {
        "GPUMON_KUBERNETES__POD_RESOURCES": str(kubelet.path),
        "GPUMON_KUBERNETES__LOG_FOLDER": str(host.folder / "log"),
        "GPUMON_KUBERNETES__EVERY_S": "2",
        "GPUMON_NUMA__ENABLED": "false",
    } | more


def pods_by_gpu(page: Page) -> dict[str, str]:
    return {labels["uuid"]: labels["pod"] for labels, _ in page.select("gpumon_gpu_pod_info")}


def until_pods(daemon: Daemon, expected: dict[str, str]) -> Page:
    def look() -> Page | None:
        page = daemon.page()
        return page if pods_by_gpu(page) == expected else None

    return eventually(look, f"pods {expected}")


def test_pods_of_every_runtime_are_named_on_their_gpus_and_processes(
    host: Host, kubelet: Kubelet, node: FakeNode, start: Start
) -> None:
    gpus = node.gpus
    pods = [holding("web", f"web-{n}") for n in range(190)]
    for number in range(6):
        gpus[number].set_processes([Proc(host.begin(f"vllm-{number}", number), 1 << 30)])
        pods.append(holding("serving", f"vllm-{number}", gpus[number].uuid))
    gpus[6].set_processes([Proc(host.begin(f"share-{n}", 6 + n), 1 << 30) for n in range(3)])
    pods += [holding("serving", f"share-{n}", f"{gpus[6].uuid}::{n}") for n in range(3)]
    claim = Claim("serving", "one-gpu", "gpu-7")
    pods.append(Pod("serving", "by-claim", (Container("server", claims=(claim,)),)))
    pods.append(holding("serving", "ghost", "GPU-00000000-0000-0000-0000-000000000000"))
    kubelet.pods = pods
    kubelet.offered = [*(gpu.uuid for gpu in gpus[:6]), *(f"{gpus[6].uuid}::{n}" for n in range(4))]
    daemon = start(node, *flags(host), options=options(host, kubelet)).await_ready()
    expected = {gpus[n].uuid: f"vllm-{n}" for n in range(6)} | {gpus[7].uuid: "by-claim"}
    until_pods(daemon, expected)
    page = eventually(lambda: _all_named(daemon, 9), "nine processes with names")
    for gpu in gpus[:6]:
        ((labels, _),) = page.select("gpumon_process_gpu_memory_bytes", uuid=gpu.uuid)
        assert (labels["namespace"], labels["pod"], labels["container"]) == ("serving", expected[gpu.uuid], "server")
    assert set(page.by("pod", "gpumon_process_gpu_memory_bytes", uuid=gpus[6].uuid)) == {
        "share-0",
        "share-1",
        "share-2",
    }
    assert page.by("gpu", "gpumon_gpu_pods") == {str(n): 3.0 if n == 6 else 1.0 for n in range(8)}
    assert len(page.select("gpumon_gpu_allocations", uuid=gpus[6].uuid)) == 3
    assert page.value("gpumon_gpu_allocatable", uuid=gpus[6].uuid) == 4
    assert page.value("gpumon_gpu_claim_info", uuid=gpus[7].uuid, claim="one-gpu") == 1
    assert page.value("gpumon_pod_devices_unknown") == 1
    assert page.value("gpumon_pod_mapping_state", state="ok") == 1
    assert abs(page.value("gpumon_pod_mapping_timestamp_seconds") - time.time()) < 10
    shown = {metric.name for metric in GROUPS["pods"]} - {"gpumon_pod_label_info"}
    assert shown <= page.names()
    assert promtool_complaints(daemon.ask("/metrics").body) == ""
    dcgm = daemon.page("?names=dcgm")
    for gpu in gpus:
        ((labels, _),) = dcgm.select("DCGM_FI_DEV_GPU_UTIL", UUID=gpu.uuid)
        assert labels.get("pod", "") == expected.get(gpu.uuid, "")


def _all_named(daemon: Daemon, count: int) -> Page | None:
    page = daemon.page()
    told = page.select("gpumon_process_gpu_memory_bytes", container="server")
    return page if len(told) == count else None


def test_scrapes_are_fast_and_labels_stay_while_the_kubelet_takes_eight_seconds(
    host: Host, kubelet: Kubelet, node: FakeNode, start: Start
) -> None:
    uuid = node.gpu(0).uuid
    kubelet.pods = [holding("serving", "vllm-0", uuid)]
    daemon = start(node, *flags(host), options=options(host, kubelet)).await_ready()
    until_pods(daemon, {uuid: "vllm-0"})
    kubelet.delay_s = 8.0
    asked = kubelet.asked["List"]
    eventually(lambda: kubelet.asked["List"] > asked, "another question")
    slowest_s = 0.0
    for _ in range(60):
        began_s = time.monotonic()
        page = daemon.page()
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert pods_by_gpu(page) == {uuid: "vllm-0"}
        settle(0.1)
    assert slowest_s < 1.0
    assert kubelet.asked["List"] <= asked + 2
    assert daemon.end() == 0


@pytest.mark.parametrize("logged", [True, False])
def test_a_pod_that_is_replaced_leaves_none_of_its_labels(
    host: Host, kubelet: Kubelet, node: FakeNode, start: Start, logged: bool
) -> None:
    gpu = node.gpu(0)
    old = host.begin("old", 1, logged=logged)
    gpu.set_processes([Proc(old, 1 << 30)])
    kubelet.pods = [holding("serving", "old", gpu.uuid)]
    slow = options(host, kubelet, GPUMON_KUBERNETES__EVERY_S="300")
    daemon = start(node, *flags(host), options=slow).await_ready()
    if logged:
        page = eventually(lambda: _all_named(daemon, 1), "the old pod's process with its name")
        assert set(page.by("pod", "gpumon_process_gpu_memory_bytes")) >= {"old"}
    until_pods(daemon, {gpu.uuid: "old"})
    host.end(old)
    gpu.set_processes([Proc(host.begin("new", 2, logged=logged), 1 << 30)])
    kubelet.delay_s = 4.0  # what it says now comes late; until then nothing may be told that was true before
    kubelet.pods = [holding("serving", "new", gpu.uuid)]
    if logged:
        for name in _names_until_told(daemon, "new"):
            assert name in ("", "new")
    page = until_pods(daemon, {gpu.uuid: "new"})
    if not logged:  # the kubelet's listing names no process
        assert set(page.by("pod", "gpumon_process_gpu_memory_bytes")) == {""}
    assert 'pod="old"' not in daemon.page().text


def test_a_process_on_a_gpu_of_an_idle_pod_is_never_called_by_that_pods_name(
    host: Host, kubelet: Kubelet, node: FakeNode, start: Start
) -> None:
    gpu = node.gpu(0)
    gpu.set_processes([Proc(host.begin("foreign", 1, logged=False), 1 << 30)])
    kubelet.pods = [holding("serving", "idle", *(each.uuid for each in node.gpus))]
    daemon = start(node, *flags(host), options=options(host, kubelet)).await_ready()
    until_pods(daemon, {each.uuid: "idle" for each in node.gpus})

    def watched() -> bool:
        told = daemon.page().select("gpumon_process_gpu_memory_bytes", pid=str(FIRST_PID + 1))
        assert {labels["pod"] for labels, _ in told} <= {""}
        return bool(told)

    eventually(watched, "the process")
    asked = kubelet.asked["List"]
    eventually(lambda: watched() and kubelet.asked["List"] > asked + 1, "newer listings")


def _names_until_told(daemon: Daemon, pod: str) -> Iterator[str]:
    """Of the process of the new pod, as long as it is watched."""

    def look() -> list[str]:
        told = daemon.page().select("gpumon_process_gpu_memory_bytes", pid=str(FIRST_PID + 2))
        seen.extend(labels["pod"] for labels, _ in told)
        return [name for name in seen if name == pod]

    seen: list[str] = []
    eventually(look, f"a process of {pod}")
    yield from seen


def test_a_kubelet_that_goes_away_is_told_with_its_reason_and_found_again(
    host: Host, kubelet: Kubelet, node: FakeNode, start: Start
) -> None:
    uuid = node.gpu(0).uuid
    kubelet.pods = [holding("serving", "vllm-0", uuid)]
    daemon = start(node, *flags(host), options=options(host, kubelet)).await_ready()
    until_pods(daemon, {uuid: "vllm-0"})
    kubelet.stop()

    def is_told() -> bool:
        page = daemon.page()
        is_told = page.value("gpumon_pod_mapping_state", state="unavailable") == 1
        return is_told and page.value("gpumon_source_up", source="kubelet") == 0

    eventually(is_told, "that the kubelet is gone")
    assert pods_by_gpu(daemon.page()) == {uuid: "vllm-0"}
    assert daemon.page().value("gpumon_source_errors_total", source="kubelet", reason="unavailable") > 0
    kubelet.pods = [holding("serving", "vllm-1", uuid)]
    kubelet.start()
    until_pods(daemon, {uuid: "vllm-1"})


def test_without_a_kubelet_there_is_nothing_of_pods(node: FakeNode, start: Start) -> None:
    daemon = start(node).await_ready()
    names = daemon.page().names()
    assert names.isdisjoint(metric.name for metric in GROUPS["pods"])
    assert set(daemon.page().by("source", "gpumon_source_up")).isdisjoint({"kubelet", "pods", "pod_names"})
