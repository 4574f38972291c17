"""Health while the driver is sick: gpumon stays up, says what it does not know, and comes back by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.daemon import FAST, Daemon
from tests.e2e.page import Page
from tests.e2e.waiting import eventually
from tests.fakenvml.build import function_names
from tests.fakenvml.controller import FakeNode

QUICK_TO_KILL = {"GPUMON_NVML__STUCK_AFTER_S": "0.5", "GPUMON_NVML__RESTART_AFTER_S": "2"}
HEALTHY_WITHIN_S = 0.5
OPEN = "nvmlInitWithFlags"


def asked_s(daemon: Daemon, path: str) -> float:
    """Seconds that a good answer took."""
    began_s = time.monotonic()
    assert daemon.ask(path).status == 200
    return time.monotonic() - began_s


def hang_everything(node: FakeNode) -> None:
    """Every call of the driver that is made from now on hangs; returns when every GPU's thread does."""
    used = [function for function in function_names() if node.calls(function)]
    for function in used:
        node.hang(function)
    threads = len(node.gpus)
    eventually(lambda: sum(node.hanging(function) for function in used) >= threads, "every GPU hangs")


def gpu_families(page: Page) -> set[str]:
    return {name for name in page.names() if name.startswith("gpumon_gpu_")}


def test_ready_waits_for_the_first_passes(node: FakeNode, start: Start) -> None:
    node.hang("nvmlDeviceGetName")  # the first inventory asks for it
    daemon = start(node)
    eventually(lambda: node.hanging("nvmlDeviceGetName") == 8, "the inventory has begun", every_s=0.01)
    reply = daemon.ask("/-/ready")
    assert (reply.status, reply.text.split(": ")[0]) == (503, "waiting for the first pass of")
    assert "gpu_inventory" in reply.text
    assert daemon.ask("/-/healthy").status == 200
    node.release()
    daemon.await_ready()


def test_a_driver_that_hangs_from_the_start_delays_no_answer(node: FakeNode, start: Start) -> None:
    node.hang(OPEN)
    daemon = start(node, options=QUICK_TO_KILL)
    eventually(lambda: node.hanging(OPEN) > 0, "the driver hangs")
    assert max(asked_s(daemon, "/-/healthy") for _ in range(10)) < HEALTHY_WITHIN_S
    daemon.await_ready()  # the host's own metrics do not wait for NVML
    page = daemon.await_series("gpumon_host_page_faults_total", 2)
    assert gpu_families(page) == set()
    assert page.value("gpumon_nvml_state", state="running") == 0
    node.release()
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)


def test_a_driver_that_begins_to_hang_delays_no_answer_and_its_sampler_is_replaced(
    node: FakeNode, start: Start
) -> None:
    daemon = start(node, options=QUICK_TO_KILL)
    before = daemon.await_series("gpumon_gpu_energy_joules_total", 8).by("gpu", "gpumon_gpu_energy_joules_total")
    hang_everything(node)
    assert max(asked_s(daemon, path) for path in ("/-/healthy", "/metrics") for _ in range(10)) < HEALTHY_WITHIN_S
    page = daemon.await_series("gpumon_gpu_utilization_ratio", 0)
    assert page.select("gpumon_host_page_faults_total")
    gone = lambda: set(daemon.page().by("gpu", "gpumon_gpu_present").values()) == {0.0}  # noqa: E731
    eventually(gone, "every GPU is called absent")
    assert max(asked_s(daemon, "/-/healthy") for _ in range(10)) < HEALTHY_WITHIN_S
    node.release()
    page = daemon.await_series("gpumon_gpu_energy_joules_total", 8, within_s=60)
    after = page.by("gpu", "gpumon_gpu_energy_joules_total")
    assert all(after[gpu] >= before[gpu] for gpu in before)


def test_without_the_library_the_host_is_watched_and_the_reason_told(tmp_path: Path) -> None:
    options = FAST | {"GPUMON_NVML__LIBRARY": str(tmp_path / "libnvidia-ml.so.1")}
    with Daemon(tmp_path, options=options) as daemon:
        assert daemon.ask("/-/healthy").status == 200
        daemon.await_ready()
        page = daemon.await_series("gpumon_nvml_state", 1, state="unavailable")
        eventually(lambda: daemon.page().value("gpumon_nvml_state", state="unavailable") == 1, "unavailable")
        assert page.select("gpumon_host_page_faults_total")
        assert gpu_families(page) == set()
        daemon.await_series("gpumon_source_up", 1, source="nvml")
        assert daemon.page().value("gpumon_source_up", source="nvml") == 0
        assert "advice='install the NVIDIA driver" in daemon.log
        assert daemon.end() == 0


def test_a_driver_that_goes_and_comes_is_taken_again(node: FakeNode, start: Start) -> None:
    daemon = start(node, options={"GPUMON_NVML__RETRY_MIN_S": "0.2", "GPUMON_NVML__RETRY_MAX_S": "0.5"})
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    node.unload_driver()
    page = daemon.await_series("gpumon_gpu_utilization_ratio", 0)
    assert page.select("gpumon_host_page_faults_total")
    assert daemon.ask("/-/healthy").status == 200
    node.reload_driver()
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)


@pytest.mark.parametrize("when", ["from the start", "later"])
def test_sigterm_ends_it_within_a_pods_grace_even_if_the_driver_hangs(node: FakeNode, start: Start, when: str) -> None:
    if when == "from the start":
        node.hang(OPEN)
        daemon = start(node)
        eventually(lambda: node.hanging(OPEN) > 0, "the driver hangs")
    else:
        daemon = start(node)
        daemon.await_series("gpumon_gpu_utilization_ratio", 8)
        hang_everything(node)
    began_s = time.monotonic()
    assert daemon.end(signal.SIGTERM, within_s=30.0) == 0
    assert time.monotonic() - began_s < 30.0
