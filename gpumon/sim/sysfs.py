"""The simulated host's /sys, as far as gpumon reads it: NUMA nodes and PCI devices."""

from __future__ import annotations

from gpumon.sim.state import HostTotals
from gpumon.sim.world import CPUS, MEMORY_KB_PER_NODE, World

NODE_FILES = ("cpulist", "meminfo", "numastat")
DEVICE_FILES = ("class", "local_cpulist", "numa_node", "vendor")

_OTHER_DEVICES = {  # what a scan of the bus for NVIDIA's 3D controllers must tell apart: vendor, class, node
    "0000:00:00.0": ("0x8086", "0x060000", 0),
    "0000:05:00.0": ("0x10de", "0x068000", 0),  # NVSwitches
    "0000:06:00.0": ("0x10de", "0x068000", 0),
    "0000:07:00.0": ("0x10de", "0x068000", 0),
    "0000:08:00.0": ("0x10de", "0x068000", 0),
    "0000:1a:00.0": ("0x15b3", "0x020700", 0),
    "0000:9c:00.0": ("0x15b3", "0x020700", 1),
}


def devices(world: World) -> dict[str, tuple[str, str, int]]:
    """PCI devices by address: vendor, class, NUMA node (of two; there may be one only)."""
    return _OTHER_DEVICES | {board.bdf: ("0x10de", "0x030200", board.node) for board in world.boards}


def device_file(device: tuple[str, str, int], nodes: int, file: str) -> bytes | None:
    """A file of a PCI device; None where there is none."""
    vendor, kind, node = device
    node = min(node, nodes - 1)
    match file:
        case "vendor":
            content = vendor
        case "class":
            content = kind
        case "numa_node":
            # With one node the firmware tells none, and the kernel writes -1.
            content = str(node if nodes > 1 else -1)
        case "local_cpulist":
            content = node_cpus(node, nodes)
        case _:
            return None
    return f"{content}\n".encode()


def node_cpus(node: int, nodes: int) -> str:
    """CPU list of a node: its share of the cores and their second threads, as firmware numbers them."""
    cores = CPUS // 2
    share = cores // nodes
    first = node * share
    return f"{first}-{first + share - 1},{cores + first}-{cores + first + share - 1}"


def node_file(host: HostTotals, nodes: int, node: int, file: str) -> bytes | None:
    """A file of a NUMA node; None where there is none."""
    match file:
        case "numastat":
            return _numastat(host, nodes)
        case "meminfo":
            return _meminfo(host, node)
        case "cpulist":
            return f"{node_cpus(node, nodes)}\n".encode()
    return None


def _numastat(host: HostTotals, nodes: int) -> bytes:
    # As many pages were refused here as were taken from here by the other node: the sums over nodes agree.
    miss = host.numa_misses // 2 if nodes > 1 else 0
    return (
        f"numa_hit {host.numa_hits}\nnuma_miss {miss}\nnuma_foreign {miss}\ninterleave_hit 5120\n"
        f"local_node {host.numa_hits - miss}\nother_node {2 * miss}\n"
    ).encode()


def _meminfo(host: HostTotals, node: int) -> bytes:
    total = MEMORY_KB_PER_NODE
    programs = int(total * host.used_share)
    # Files have a quarter of the memory, and less where programs need it.
    cached = min(total // 4, (total - programs) * 3 // 4)
    rows = {
        "MemTotal": total,
        "MemFree": total - cached - programs,
        "MemUsed": cached + programs,
        "SwapCached": 1_560,
        "Active": programs + cached * 2 // 5,
        "Inactive": cached * 3 // 5,
        "Active(anon)": programs - programs // 500,
        "Inactive(anon)": programs // 500,
        "Active(file)": cached * 2 // 5,
        "Inactive(file)": cached * 3 // 5,
        "Unevictable": 14_680_064,
        "Mlocked": 14_680_064,
        "Dirty": 2_060,
        "Writeback": 0,
        "FilePages": cached,
        "Mapped": 9_120_400,
        "AnonPages": programs,
        "Shmem": 20_971_520,
        "KernelStack": 41_200,
        "PageTables": 904_112,
        "SReclaimable": 4_120_556,
    }
    return "".join([f"Node {node} {key + ':':<16}{value:8} kB\n" for key, value in rows.items()]).encode()
