"""All witnesses, in the order in which they look: the class of every file of this folder that has one."""

from __future__ import annotations

from typing import Final

from gpumon.explain.signs import Witness
from gpumon.explain.witnesses.clocks import Clocks
from gpumon.explain.witnesses.contention import Contention
from gpumon.explain.witnesses.cpu import CpuStarvation
from gpumon.explain.witnesses.gpu_errors import GpuErrors
from gpumon.explain.witnesses.graphs import Graphs
from gpumon.explain.witnesses.kv import KvPressure
from gpumon.explain.witnesses.memory_bandwidth import MemoryBandwidth
from gpumon.explain.witnesses.memory_pressure import MemoryPressure
from gpumon.explain.witnesses.moe import UnevenExperts
from gpumon.explain.witnesses.numa import NumaRemote
from gpumon.explain.witnesses.nvlink import NvLink
from gpumon.explain.witnesses.page_faults import PageFaults
from gpumon.explain.witnesses.pcie import Pcie
from gpumon.explain.witnesses.prompts import Prompts
from gpumon.explain.witnesses.queue import Queueing
from gpumon.explain.witnesses.stopped import Stopped
from gpumon.explain.witnesses.straggler import LateRank

WITNESSES: Final[tuple[type[Witness], ...]] = (
    # The GPUs and what is between them.
    Clocks,
    MemoryBandwidth,
    Contention,
    Pcie,
    NvLink,
    LateRank,
    GpuErrors,
    # The host and its processes.
    PageFaults,
    MemoryPressure,
    NumaRemote,
    CpuStarvation,
    Stopped,
    # The servers.
    Queueing,
    KvPressure,
    Prompts,
    UnevenExperts,
    Graphs,
)


def make_witnesses() -> list[Witness]:
    """New ones: they remember."""
    return [witness() for witness in WITNESSES]
