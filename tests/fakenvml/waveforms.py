"""Waveforms for ``FakeNode.play``: GPUs that look like an inference server's.

Not a model of any real server: phases of the right length and the right mix of signals, the same
for the same seed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence

from tests.fakenvml.controller import FakeNode, Step
from tests.fakenvml.gpu import FakeGpu, Proc, ProcUtil

_TICK_S = 0.1
_HEAT_TIME_S = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """What a GPU does for a while: ratios of its peaks, and for how long."""

    sm: float
    tensor: float
    dram: float
    power: float
    nvlink_gb_s: float
    pcie_gb_s: float
    seconds: tuple[float, float]


PREFILL = Phase(0.96, 0.62, 0.34, 0.97, 120, 2.5, (0.1, 0.5))
DECODE = Phase(0.84, 0.11, 0.78, 0.68, 45, 0.3, (0.8, 3.0))
STARVED = Phase(0.02, 0.0, 0.01, 0.18, 0, 0.05, (0.2, 1.0))
_CYCLE = (PREFILL, DECODE, DECODE, PREFILL, DECODE, STARVED)


@dataclasses.dataclass(slots=True)
class _Worker:
    gpu: FakeGpu
    rng: random.Random
    limit_w: float
    heat_c: float
    max_mhz: float
    phase: int = 0
    left_s: float = 0.0

    def tick(self) -> None:
        if self.left_s <= 0:
            self.phase = (self.phase + 1) % len(_CYCLE)
            self.left_s = self.rng.uniform(*_CYCLE[self.phase].seconds)
        self.left_s -= _TICK_S
        self.apply(_CYCLE[self.phase])

    def apply(self, phase: Phase) -> None:
        def noisy(ratio: float) -> float:
            return min(1.0, max(0.0, ratio * self.rng.uniform(0.96, 1.04)))

        gpu = self.gpu
        watts = self.limit_w * noisy(phase.power)
        self.heat_c += (30 + 58 * watts / self.limit_w - self.heat_c) * _TICK_S / _HEAT_TIME_S
        capped, hot = watts > 0.96 * self.limit_w, self.heat_c > 83
        gpu.set_power(watts)
        gpu.set_temperature(round(self.heat_c), round(self.heat_c + 6))
        gpu.set_clock(round(self.max_mhz * (0.82 if hot else 0.93 if capped else 1.0)))
        gpu.throttle("sw_power_cap", 0.4 if capped else 0.0)
        gpu.throttle("sw_thermal", 0.7 if hot else 0.0)
        gpu.throttle("idle", 1.0 if phase is STARVED else 0.0)
        gpu.set_utilization(1.0 if phase is not STARVED else 0.05, noisy(phase.dram * 0.6))
        gpu.set_pcie(phase.pcie_gb_s * 4e8, phase.pcie_gb_s * 6e8)
        gpu.set_nvlink(phase.nvlink_gb_s * 1e9, phase.nvlink_gb_s * 1e9)
        if gpu.get("gpm_supported"):
            for metric, ratio in (
                ("graphics", phase.sm), ("sm", phase.sm), ("sm_occupancy", phase.sm * 0.4),
                ("tensor", phase.tensor), ("hmma", phase.tensor * 0.9), ("dram", phase.dram),
                ("fp32", phase.sm * 0.05), ("integer", phase.sm * 0.2),
            ):  # fmt: skip
                gpu.set_gpm(metric, noisy(ratio))


def serving(
    node: FakeNode, *, seed: int = 1, pids: Sequence[int] = (), gpus: Sequence[FakeGpu] = ()
) -> Iterator[Step]:
    """Endless prefill and decode on the GPUs (default all); ``pids``: one process for each."""
    workers = []
    for index, gpu in enumerate(gpus or node.gpus):
        total = gpu.get("memory_total")
        gpu.set_memory(round(total * 0.9))
        if index < len(pids):
            gpu.set_processes([Proc(pids[index], round(total * 0.89))])
            gpu.set_process_utilization([ProcUtil(pids[index], sm=80, mem=50)])
        limit = gpu.get("power_limit_mw") / 1000 or 100.0
        workers.append(
            _Worker(gpu, random.Random(f"{seed}/{index}"), limit, gpu.get("temp_gpu_c"),
                    gpu.get("clock_max_sm_mhz"), phase=index)
        )  # fmt: skip
    tick = 0
    while True:
        at_s = tick * _TICK_S
        for worker in workers:
            yield at_s, functools.partial(worker.tick)
        tick += 1
