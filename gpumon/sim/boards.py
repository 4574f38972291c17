"""The GPU models that a simulated node may have, as data, and the boards that stand in it.

Figures are those of NVIDIA's data sheets (SXM modules, dense BF16), except where a comment says otherwise; clocks,
memory, limits and link speed are what NVML tells on such boards. Units stand in the names; bandwidths are per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpumon.sim import noise

MIB: Final = 1 << 20
_BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")  # of an HGX board
MOST_GPUS: Final = len(_BUSES)


class Model(NamedTuple):
    """What every board of one model has in common."""

    name: str
    """As NVML tells it."""
    vbios: str
    architecture: int
    """NVML's number: 7 Ampere, 9 Hopper."""
    compute_capability: tuple[int, int]
    gpm: bool
    """Has NVML's performance metrics (Hopper and newer)."""
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    max_clock_mhz: int
    idle_clock_mhz: int
    clock_step_mhz: int
    memory_clock_mhz: int
    max_video_clock_mhz: int
    limit_w: float
    least_limit_w: float
    idle_w: float
    slowdown_c: float
    """Clocks are lowered so that the die stays a degree above this at most."""
    memory_bytes_s: float
    flops: float
    nvlinks: int
    nvlink_bytes_s: float
    """Of one link in one direction."""
    pcie_generation: int
    pcie_width: int
    pcie_bytes_s: float
    """In one direction at full generation and width."""


MODELS: Final[dict[str, Model]] = {
    "h200": Model(
        name="NVIDIA H200",
        vbios="96.00.D0.00.03",
        architecture=9,
        compute_capability=(9, 0),
        gpm=True,
        memory_mib=143_771,
        reserved_mib=607,
        bar1_mib=262_144,
        max_clock_mhz=1980,
        idle_clock_mhz=345,
        clock_step_mhz=15,
        memory_clock_mhz=3201,
        max_video_clock_mhz=1545,
        limit_w=700.0,
        least_limit_w=200.0,
        idle_w=75.0,
        slowdown_c=87.0,
        memory_bytes_s=4.8e12,
        flops=989e12,
        nvlinks=18,
        nvlink_bytes_s=26.562e9,
        pcie_generation=5,
        pcie_width=16,
        pcie_bytes_s=63e9,
    ),
    "h100": Model(
        name="NVIDIA H100 80GB HBM3",
        vbios="96.00.74.00.01",
        architecture=9,
        compute_capability=(9, 0),
        gpm=True,
        memory_mib=81_559,
        reserved_mib=551,
        bar1_mib=131_072,
        max_clock_mhz=1980,
        idle_clock_mhz=345,
        clock_step_mhz=15,
        memory_clock_mhz=2619,
        max_video_clock_mhz=1545,
        limit_w=700.0,
        least_limit_w=200.0,
        idle_w=70.0,
        slowdown_c=87.0,
        memory_bytes_s=3.35e12,
        flops=989e12,
        nvlinks=18,
        nvlink_bytes_s=26.562e9,
        pcie_generation=5,
        pcie_width=16,
        pcie_bytes_s=63e9,
    ),
    "a100": Model(
        name="NVIDIA A100-SXM4-80GB",
        vbios="92.00.45.00.03",
        architecture=7,
        compute_capability=(8, 0),
        gpm=False,
        memory_mib=81_920,
        reserved_mib=634,
        bar1_mib=131_072,
        max_clock_mhz=1410,
        idle_clock_mhz=210,
        clock_step_mhz=15,
        memory_clock_mhz=1593,
        max_video_clock_mhz=1290,
        limit_w=400.0,
        least_limit_w=100.0,
        idle_w=58.0,
        slowdown_c=89.0,
        memory_bytes_s=2.039e12,
        flops=312e12,
        nvlinks=12,
        nvlink_bytes_s=25.781e9,
        pcie_generation=4,
        pcie_width=16,
        pcie_bytes_s=31.5e9,
    ),
}
"""By the word that a scenario uses."""


@dataclass(frozen=True, slots=True)
class Board:
    """What one GPU is: never changes."""

    index: int
    uuid: str
    bdf: str
    """PCI address as the kernel spells it."""
    node: int
    """NUMA node."""


def boards(seed: int, gpus: int, numa_nodes: int) -> tuple[Board, ...]:
    """The boards of a node of 1 to MOST_GPUS GPUs: four to a socket, as on an HGX board."""
    return tuple(_board(seed, index, numa_nodes) for index in range(gpus))


def _board(seed: int, index: int, numa_nodes: int) -> Board:
    word = noise.digits(32, seed, 77, index)
    uuid = f"GPU-{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}"
    return Board(index, uuid, f"0000:{_BUSES[index]}:00.0", index * numa_nodes // MOST_GPUS)
