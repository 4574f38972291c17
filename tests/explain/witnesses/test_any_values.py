"""Whatever the host and the pages say, witnesses say what can be true."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.explain.signs import Witness
from gpumon.explain.witnesses.cpu import CpuStarvation
from gpumon.explain.witnesses.graphs import Graphs
from gpumon.explain.witnesses.kv import KvPressure
from gpumon.explain.witnesses.memory_pressure import MemoryPressure
from gpumon.explain.witnesses.numa import NumaRemote
from gpumon.explain.witnesses.page_faults import PageFaults
from gpumon.explain.witnesses.queue import Queueing
from gpumon.explain.witnesses.stopped import Stopped
from gpumon.model import Metric
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.looks import Looks, incident

PROCESS = ("11", "x y", "llm", "", "c")
SERVER = ("vllm", "", "")
HOST = (("memory", "some"), ("cpu", "some"), ("io", "some"))

SERIES: list[tuple[Metric, tuple[str, ...]]] = [
    (catalogue.PROCESS_CPU_SECONDS, PROCESS),
    (catalogue.PROCESS_RUNQUEUE_SECONDS, PROCESS),
    (catalogue.PROCESS_STOPPED_SECONDS, PROCESS),
    (catalogue.PROCESS_CPU_THROTTLED, PROCESS),
    (catalogue.PROCESS_PAGE_FAULTS, (*PROCESS, "major")),
    *((catalogue.PROCESS_PRESSURE, (*PROCESS, *kind)) for kind in HOST),
    *((catalogue.HOST_PRESSURE, kind) for kind in HOST),
    (catalogue.HOST_SWAP_PAGES, ("in",)),
    (catalogue.HOST_PAGE_FAULTS, ("major",)),
    (catalogue.HOST_NUMA_PAGES, ("0", "miss")),
    (catalogue.HOST_MEMORY, ("0", "free")),
    (catalogue.PROCESS_NUMA_LOCAL, (*gpu(), *PROCESS)),
    (catalogue.PROCESS_CPUS_LOCAL, (*gpu(), *PROCESS)),
    (catalogue.SERVER_RUNNING, SERVER),
    (catalogue.SERVER_WAITING, SERVER),
    (catalogue.SERVER_KV_USAGE, SERVER),
    (catalogue.SERVER_PREEMPTIONS, SERVER),
    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "eager")),
    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "graph")),
]
WITNESSES: list[type[Witness]] = [
    *(PageFaults, Stopped, MemoryPressure, CpuStarvation),
    *(NumaRemote, Graphs, KvPressure, Queueing),
]
KINDS = (
    *("page_fault_burst", "process_stopped", "memory_pressure", "cpu_starvation"),
    *("numa_remote", "graph_fallback", "kv_pressure", "queue_buildup"),
)
EXTREMES = (0.0, 1e300, 5e-324, -1e300)


def any_value(random: Random) -> float | None:
    """Ordinary, odd, or None for a series that goes away."""
    match random.randrange(5):
        case 0:
            return None
        case 1:
            return random.choice(EXTREMES)
        case 2:
            return random.uniform(-1e3, 1e5)
        case _:
            return random.uniform(0.0, 2.0)


@pytest.mark.parametrize("witness", WITNESSES)
@settings(deadline=None, max_examples=30)
@given(random=st.randoms(use_true_random=False))
def test_signs_are_always_possible(witness: type[Witness], random: Random) -> None:
    """Values rise, jump, fall and go away; the time between two looks varies."""
    stage, looks = Stage(), Looks(witness())
    for _ in range(20):  # an ordinary past
        stage.grow(dict.fromkeys(SERIES, 0.4))
        looks.step(stage.step(1.0))
    looks.incidents = [
        *(incident(kind, "process", "pid 11 x y") for kind in KINDS),
        *(incident(kind, "server", "vllm") for kind in KINDS),
    ]
    for _ in range(8):
        for series in SERIES:
            value = any_value(random)
            if value is None:
                stage.drop(series[0], labels=series[1])
            else:
                stage.put({series: value})
        looks.step(stage.step(random.choice([0.5, 1.0, 5.0, 100.0])))
