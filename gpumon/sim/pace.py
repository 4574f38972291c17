"""How much slower than on healthy hardware a server's steps are now, and who is to blame.

The rank that is slowest decides: in tensor parallel the others wait for it. Worked out once per tick, and only where
something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpumon.sim.costs import MOE_BALANCE, MOE_SHARE
from gpumon.sim.effects import GpuEffects, ServerEffects
from gpumon.sim.physics import Gpu
from gpumon.sim.truth import Slowing, slowing

_MEMORY_EXPONENT = 0.75  # of the SM clock in memory-bound work: the caches and crossbar run on it, the DRAM does not
_REMOTE_HOST = 1.5  # what host work takes longer on memory that is all remote
_REMOTE_COPY = 1.0


class Pace(NamedTuple):
    """Factors on the parts of a step."""

    memory: Slowing = Slowing()
    compute: Slowing = Slowing()
    reduce: Slowing = Slowing()
    copy: Slowing = Slowing()
    host: Slowing = Slowing()
    ranks: tuple[float, ...] = ()
    """How long each rank works on a pass, over the slowest; empty while all are alike."""


FULL: Final = Pace()


def pace(gpus: Sequence[Gpu], effects: Sequence[GpuEffects], server: ServerEffects) -> Pace:
    """Of a server: its GPUs and their effects by rank, and what strikes the server itself."""
    if all(gpu.pace == 1.0 for gpu in gpus) and not any(row.slows for row in effects) and not _slows(server):
        return FULL
    memory, compute = [], []
    for gpu, row in zip(gpus, effects, strict=True):
        clock = [(gpu.cause, 1 / gpu.pace)] if gpu.cause is not None else []
        slow = [("gpu_contention", 1 / (1 - row.time_taken)), ("straggler", row.straggle)]
        clock_in_memory = [(cause, factor**_MEMORY_EXPONENT) for cause, factor in clock]
        memory.append([*clock_in_memory, ("memory_bandwidth", 1 / (1 - row.bandwidth_taken)), *slow])
        compute.append([*clock, *slow])
    uneven = []
    if server.imbalance:
        usual = 1 + MOE_SHARE * (1 / MOE_BALANCE - 1)
        uneven.append(("moe_imbalance", max(1.0, (1 + MOE_SHARE * (server.imbalance - 1)) / usual)))
    memory_factors = [slowing(row).factor for row in memory]
    slowest = max(memory_factors)
    computing = max(compute, key=lambda row: slowing(row).factor)
    links = min(row.link_share * (1 - row.link_taken) for row in effects)
    return Pace(
        memory=slowing([*memory[memory_factors.index(slowest)], *uneven]),
        compute=slowing([*computing, *uneven]),
        reduce=slowing([("nvlink", 1 / min(row.nvlink_share for row in effects))]),
        copy=slowing([("pcie", 1 / links), ("numa_remote", 1 + _REMOTE_COPY * server.numa_remote)]),
        host=slowing(
            [
                ("cpu_starvation", 1 / (1 - server.cpu_starvation)),
                ("numa_remote", 1 + _REMOTE_HOST * server.numa_remote),
            ]
        ),
        ranks=() if slowest == min(memory_factors) else tuple([factor / slowest for factor in memory_factors]),
    )


def _slows(server: ServerEffects) -> bool:
    return bool(server.numa_remote or server.cpu_starvation or server.imbalance)
