"""Fake nodes by the name of their profile, each with a host that fits it, and gpumon on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.daemon import FAST, Daemon
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil
from tests.fakenvml.profiles import MigSpec

HOSTS = {"a100-mig": "a100-mig", "t4": "t4", "gb10": "gb10", "sick8": "sick"}
"""Fixture host by profile; h200 for the rest."""
COUNTS = {"a100-mig": 2, "t4": 1, "gb10": 1}
PROFILES = ("h100", "h200", "a100-mig", "l40s", "t4", "gb10", "sick8")
FIRST_PID = 41000
"""The h200 host has vLLM workers with eight process ids from here on."""


def make(folder: Path, profile: str, count: int | None = None) -> FakeNode:
    """The node, at work: on the h200 host with a process on each GPU."""
    node = FakeNode.create(folder / "node", profile=profile, count=count or COUNTS.get(profile, 8))
    if profile in ("h100", "h200", "l40s"):
        for slot, gpu in enumerate(node.gpus):
            gpu.set_memory(round(gpu.get("memory_total") * 0.5))
            gpu.set_processes([Proc(FIRST_PID + slot, round(gpu.get("memory_total") * 0.4))])
            gpu.set_process_utilization([ProcUtil(FIRST_PID + slot, sm=60, mem=30)])
    return node


def make_rare(folder: Path) -> FakeNode:
    """Two H100 with what the others have not: fans, MIG beside GPM, an XID, readings that cannot be true."""
    node = make(folder, "h100", 2)
    first, second = node.gpus
    for function in ("nvmlDeviceGetNumFans", "nvmlDeviceGetFanSpeed_v2"):
        first.unsupported(function, code=0)
    first.set("fans", 2)
    first.set("fan_percent", 40)
    first.set("temp_gpu_c", -300)
    second.set_mig([MigSpec("1g.10gb", 7), None, MigSpec("2g.20gb", 3)])
    return node


@contextmanager
def running(folder: Path, profile: str, options: Mapping[str, str] | None = None) -> Iterator[tuple[FakeNode, Daemon]]:
    """The node of the profile and gpumon on it, every source's first pass made."""
    folder.mkdir(parents=True, exist_ok=True)
    with make(folder, profile) as node:
        host = HOSTS.get(profile, "h200")
        with Daemon(folder, env=node.env(), host=host, options=FAST | dict(options or {})) as daemon:
            daemon.await_ready()
            daemon.await_series("gpumon_gpus", 3)
            yield node, daemon
