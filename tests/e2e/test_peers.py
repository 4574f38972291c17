"""gpumon and nvitop-exporter watch the same node: where both export a value, it is the same one."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import FAST, Daemon
from tests.e2e.page import Page
from tests.e2e.peers import MIB, RATES, SAME, SAME_OF_PROCESSES, Nvitop
from tests.e2e.waiting import eventually, settle
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil

pytestmark = pytest.mark.slow
REAL = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", "/sys/fs/cgroup")
"""nvitop-exporter looks for processes in this machine's own /proc."""


@pytest.fixture
def worker() -> Iterator[int]:
    """The process id of something that runs and does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def busy(node: FakeNode, worker: int) -> None:
    """Values that stand still, differ from GPU to GPU, and are none of the defaults."""
    for slot, gpu in enumerate(node.gpus):
        gpu.set_utilization(0.10 + 0.05 * slot, 0.05 + 0.05 * slot, encoder=0.01 * slot, decoder=0.02 * slot)
        gpu.set_memory((1000 + 10 * slot) * round(MIB))
        gpu.set_clock(1200 + 10 * slot)
        gpu.set_power(150.0 + 10 * slot)
        gpu.set_power_limit(500.0 + 10 * slot)
        gpu.set_temperature(50 + slot)
        gpu.set_pcie(1e8 * (slot + 1), 2e8 * (slot + 1))
        gpu.set_nvlink(1e9 * (slot + 1), 2e9 * (slot + 1))
        gpu.set_processes([Proc(worker, (500 + slot) * round(MIB))])
        gpu.set_process_utilization([ProcUtil(worker, sm=30 + slot, mem=10)])


def test_both_say_the_same_of_the_same_gpus(node: FakeNode, tmp_path: Path, worker: int) -> None:
    busy(node, worker)
    env = node.env()
    with Daemon(tmp_path, *REAL, env=env, options=FAST) as gpumon, Nvitop(tmp_path, env) as nvitop:
        gpumon.await_series("gpumon_process_gpu_sm_ratio", 8)
        eventually(lambda: len(nvitop.page().select("process_gpu_memory_MiB")) == 8, "nvitop sees the processes")
        before = gpumon.page()
        settle(5.0)
        ours, theirs = gpumon.page(), nvitop.page()
    for row in SAME:
        expected = {uuid: value * row.factor for uuid, value in theirs.by("uuid", row.theirs).items()}
        assert len(set(expected.values())) > 1 or row.theirs in ("gpu_clock_memory_MHz", "gpu_clock_video_MHz"), row
        assert ours.by("uuid", row.ours, **dict(row.labels)) == pytest.approx(expected), row
    for row in SAME_OF_PROCESSES:
        expected = {uuid: value * row.factor for uuid, value in theirs.by("uuid", row.theirs, pid=str(worker)).items()}
        assert len(expected) == 8
        assert ours.by("uuid", row.ours, pid=str(worker)) == pytest.approx(expected), row
    for uuid, mebibytes in theirs.by("uuid", "gpu_memory_total_MiB").items():
        assert sum(ours.by("state", "gpumon_gpu_memory_bytes", uuid=uuid).values()) == mebibytes * MIB
    for row in RATES:
        rates = _rates(before, ours, row.ours, dict(row.labels))
        expected = {uuid: value * row.factor for uuid, value in theirs.by("uuid", row.theirs).items()}
        assert rates == pytest.approx(expected, rel=0.05), row


def test_one_lost_gpu_leaves_the_rest_equal(node: FakeNode, tmp_path: Path, worker: int) -> None:
    busy(node, worker)
    env = node.env()
    with Daemon(tmp_path, *REAL, env=env, options=FAST) as gpumon, Nvitop(tmp_path, env) as nvitop:
        gpumon.await_series("gpumon_gpu_temperature_celsius", 8, sensor="gpu")
        # nvitop-exporter reads one GPU after the other: on a slow machine its first pass is still under way here.
        eventually(lambda: len(nvitop.page().select("gpu_temperature_C")) == 8, "nvitop sees the GPUs")
        lost = node.gpu(5)
        lost.lose()
        node.gpu(2).set_temperature(77)
        ours = gpumon.await_series("gpumon_gpu_temperature_celsius", 7, sensor="gpu")
        eventually(lambda: gpumon.page().value("gpumon_gpu_temperature_celsius", gpu="2", sensor="gpu") == 77, "77 C")
        eventually(lambda: nvitop.page().value("gpu_temperature_C", index="2") == 77, "77 C in nvitop")
        # It reads one GPU after the other: this one comes later in the same pass.
        eventually(lambda: math.isnan(nvitop.page().by("uuid", "gpu_temperature_C")[lost.uuid]), "NaN of the lost GPU")
        ours, theirs = gpumon.page(), nvitop.page()
    expected = theirs.by("uuid", "gpu_temperature_C")
    assert math.isnan(expected.pop(lost.uuid))  # nvitop's way to say that it has no reading
    assert ours.by("uuid", "gpumon_gpu_temperature_celsius", sensor="gpu") == expected


def _rates(before: Page, after: Page, counter: str, labels: dict[str, str]) -> dict[str, float]:
    """Growth per second of the GPU's own time, by uuid."""
    first, last = before.by("uuid", counter, **labels), after.by("uuid", counter, **labels)
    began_s, ended_s = (page.by("uuid", "gpumon_gpu_last_sample_timestamp_seconds") for page in (before, after))
    return {uuid: (last[uuid] - first[uuid]) / (ended_s[uuid] - began_s[uuid]) for uuid in last}
