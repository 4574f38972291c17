"""The simulated host's /sys, as far as gpumon reads it: NUMA nodes and PCI devices."""

from __future__ import annotations

from gpumon.sim.tasks import numa_pages, used_share
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
    """PCI devices by address: vendor, class, NUMA node on a host of two."""
    return _OTHER_DEVICES | {board.bdf: ("0x10de", "0x030200", board.node) for board in world.boards}


def device_file(world: World, nodes: int, bdf: str, file: str) -> bytes | None:
    """A file of a PCI device; None where there is none."""
    device = devices(world).get(bdf)
    if device is None:
        return None
    vendor, kind, node = device
    node = min(node, nodes - 1)
    contents = {
        "vendor": vendor,
        "class": kind,
        # With one node the firmware tells none, and the kernel writes -1.
        "numa_node": str(node if nodes > 1 else -1),
        "local_cpulist": node_cpus(node, nodes),
    }
    return f"{contents[file]}\n".encode() if file in contents else None


def node_cpus(node: int, nodes: int) -> str:
    """CPU list of a node: its share of the cores and their second threads, as firmware numbers them."""
    cores = CPUS // 2
    share = cores // nodes
    first = node * share
    return f"{first}-{first + share - 1},{cores + first}-{cores + first + share - 1}"


def node_file(world: World, nodes: int, node: int, file: str, at_s: float) -> bytes | None:
    """A file of a NUMA node; None where there is none."""
    match file:
        case "numastat":
            return _numastat(world, nodes, at_s)
        case "meminfo":
            return _meminfo(world, node, at_s)
        case "cpulist":
            return f"{node_cpus(node, nodes)}\n".encode()
    return None


def _numastat(world: World, nodes: int, at_s: float) -> bytes:
    hit, wrong = numa_pages(world, at_s)
    # As many pages were refused here as were taken from here by the other node: the sums over nodes agree.
    miss = wrong // 2 if nodes > 1 else 0
    rows = {
        "numa_hit": hit,
        "numa_miss": miss,
        "numa_foreign": miss,
        "interleave_hit": 5_120,
        "local_node": hit - miss,
        "other_node": 2 * miss,
    }
    return "".join(f"{key} {value}\n" for key, value in rows.items()).encode()


def _meminfo(world: World, node: int, at_s: float) -> bytes:
    total = MEMORY_KB_PER_NODE
    cached = total // 4
    programs = int(total * used_share(world, at_s))
    rows = {
        "MemTotal": total,
        "MemFree": total - cached - programs,
        "MemUsed": cached + programs,
        "SwapCached": 1_560,
        "Active": programs + cached * 2 // 5,
        "Inactive": cached * 3 // 5,
        "Active(anon)": programs - 600_000,
        "Inactive(anon)": 600_000,
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
    return "".join(f"Node {node} {key + ':':<16}{value:8} kB\n" for key, value in rows.items()).encode()
