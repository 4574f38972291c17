"""Rows of gpumon-node: device memory, PCIe and NVLink, faults of the boards, MIG instances."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common

from gpumon import catalogue as c
from gpumon.detect.xid import RECOVERY, XIDS
from gpumon.model import Metric
from grafana import panels
from grafana.boards.node_activity import BY_GPU, GPU
from grafana.columns import BAD_ABOVE_ZERO, WARN_ABOVE_ZERO, colored, wide, worded
from grafana.kit import Board
from grafana.queries import Query, increase, named, or_why, rate, select, where

_LANE_GEN3 = "0.985e9"
"""Bytes per second of a PCIe lane of generation 3; each generation doubles it (from 5 to 6 a little less)."""
_VOLATILE = where("scope", "volatile")
_MIG = "cluster, node, gpu, gpu_instance, compute_instance, profile"
_MIG_LEGEND = "{{node}} GPU {{gpu}} {{profile}} ({{gpu_instance}}/{{compute_instance}})"


def add(board: Board) -> None:
    """Adds the rows of whole boards."""
    board.row("Device memory", (12, _memory_share()), (12, _memory_bytes()))
    board.row("Links", (8, _pcie()), (8, _pcie_share()), (8, _nvlink()))
    board.add((12, _link_state()), (12, _link_errors()))
    board.row("Faults of the boards", (14, _board_health()), (10, _xids()), height=9)
    board.add((12, _ecc()), (12, _memory_repair()))


def add_mig(board: Board) -> None:
    """Adds the row of MIG instances, closed."""
    board.row(
        "MIG instances",
        *((24, _instances()), (12, _mig_activity("SM activity", c.MIG_SM_ACTIVE_SECONDS))),
        *((12, _mig_activity("Memory bandwidth", c.MIG_DRAM_ACTIVE_SECONDS)), (24, _mig_memory())),
        collapsed=True,
    )


def _memory_share() -> panels.Panel:
    used = select(c.GPU_MEMORY, where("state", "used"))
    return panels.number(
        "Device memory used",
        "Of the board's memory. Inference servers take nearly all of it when they start and keep it, so 95 % is normal "
        "and tells nothing of load: the KV cache's own usage is in gpumon / Inference. A GPU with unified memory has "
        "none of its own.",
        Query(or_why(f"sum {BY_GPU} ({used}) / sum {BY_GPU} ({select(c.GPU_MEMORY)})", "memory", "gpu_fast"), GPU),
        unit="percentunit",
        mappings=panels.WHY,
        empty="",
    )


def _memory_bytes() -> panels.Panel:
    return panels.graph(
        "Device memory over time",
        "Bytes used. Steady growth in a server that has warmed up is a leak or fragmentation: see the incident "
        "allocator_gap. A drop to nothing is a process that ended: look at XIDs and at the kernel log.",
        Query(select(c.GPU_MEMORY, where("state", "used")), GPU),
        unit="bytes",
    )


def _pcie() -> panels.Panel:
    return panels.graph(
        "PCIe",
        "Bytes per second, seen from the GPU: rx is from the host. Serving moves little; much of it is weights being "
        "loaded, KV cache swapped to the host, or tensor parallelism without NVLink.",
        Query(rate(c.GPU_PCIE_BYTES), f"{GPU} {{{{direction}}}}"),
        unit="Bps",
    )


def _pcie_share() -> panels.Panel:
    current = where("kind", "current")
    lanes = f"sum {BY_GPU} ({select(c.GPU_PCIE_WIDTH, current)})"
    generation = f"sum {BY_GPU} ({select(c.GPU_PCIE_GENERATION, current)})"
    link = f"({lanes} * {_LANE_GEN3} * 2 ^ ({generation} - 3))"
    return panels.graph(
        "PCIe over what the link can carry",
        "The busier direction, over the raw bandwidth of the lanes and the generation that the link has now. Packet "
        "headers take about a tenth, so 0.85 is full. An idle GPU lowers its generation, and its small traffic then "
        "looks larger.",
        Query(f"max {BY_GPU} ({rate(c.GPU_PCIE_BYTES)}) / {link}", GPU),
        unit="percentunit",
        steps=((None, "green"), (0.85, "red")),
    )


def _nvlink() -> panels.Panel:
    return panels.graph(
        "NVLink",
        "Payload bytes per second over all links, seen from the GPU. GPUs of one tensor-parallel server move the same "
        "amount; one that differs, or none at all while the others talk, is out of step.",
        Query(rate(c.GPU_NVLINK_BYTES), f"{GPU} {{{{direction}}}}"),
        unit="Bps",
    )


def _link_state() -> panels.Panel:
    def least(metric: Metric, kind: str) -> str:
        return f"sum {BY_GPU} ({select(metric, where('kind', kind))})"

    width = f"{least(c.GPU_PCIE_WIDTH, 'current')} / {least(c.GPU_PCIE_WIDTH, 'max')}"
    step = f"{least(c.GPU_PCIE_GENERATION, 'current')} - {least(c.GPU_PCIE_GENERATION, 'max')}"
    active = select(c.GPU_NVLINKS, where("state", "active"))
    return panels.states(
        "Links: share of what they can be",
        "Green: all lanes at the highest generation, and all NVLinks active. PCIe at half is one generation or half of "
        "the lanes too little: normal for an idle GPU, under load it is a bad seat, riser or BIOS setting. NVLink below "
        "full: drain the GPU, and look at nvidia-smi nvlink -s and XID 74. Inactive links may belong to no neighbour at "
        "all: compare with the node's other GPUs.",
        Query(f"{width} * 2 ^ ({step})", f"{GPU} PCIe"),
        Query(f"sum {BY_GPU} ({active}) / sum {BY_GPU} ({select(c.GPU_NVLINKS)})", f"{GPU} NVLink"),
        unit="percentunit",
        steps=((None, "red"), (0.26, "orange"), (0.99, "green")),
    )


def _link_errors() -> panels.Panel:
    return panels.graph(
        "Link errors",
        "PCIe packets sent again, and NVLink errors by kind, each second, of the worst GPU. A few replays are harmless; "
        "a steady rate is a bad contact. NVLink replay, recovery and ECC errors should be none.",
        Query(f"max by (cluster, node) ({rate(c.GPU_PCIE_REPLAYS)})", "{{node}} PCIe replays"),
        Query(f"max by (cluster, node, kind) ({rate(c.GPU_NVLINK_ERRORS)})", "{{node}} NVLink {{kind}}"),
        unit="cps",
    )


def _board_health() -> panels.Panel:
    def all_of(metric: Metric) -> str:
        return f"sum {BY_GPU} ({select(metric)})"

    def new(kind: str) -> str:
        return f"round(sum {BY_GPU} ({increase(c.GPU_ECC_ERRORS, where('kind', kind), _VOLATILE, window='$__range')}))"

    columns = {
        "Asked for": all_of(c.GPU_RECOVERY_ACTION),
        "Uncorrectable ECC": new("uncorrected"),
        "Corrected ECC": new("corrected"),
        "Remapped or retired": f"{all_of(c.GPU_REMAPPED_ROWS)} or {all_of(c.GPU_RETIRED_PAGES)}",
        "Repair pending": f"{all_of(c.GPU_ROW_REMAP_PENDING)} or {all_of(c.GPU_RETIRED_PAGES_PENDING)}",
        "Repair failed": all_of(c.GPU_ROW_REMAP_FAILED),
    }
    values = {f"Value #{chr(ord('A') + index)}": heading for index, heading in enumerate(columns)}
    panel = panels.rows(
        "State of the boards",
        "Asked for: what the driver wants in order to recover. ECC errors are those of the time selected; after an "
        "uncorrectable one, what ran is dead or wrong: drain the GPU and reset it. Memory rows are remapped, pages "
        "(before Ampere) retired. Repair pending: reset the GPU when it is drained. Repair failed: have the board "
        "replaced. A blank is not supported here.",
        *(Query(expr) for expr in columns.values()),
        rename={"node": "Node", "gpu": "GPU"} | values,
        order=("node", "gpu", *values),
        empty=panels.NO_DATA,
    )
    for heading in ("Uncorrectable ECC", "Repair failed"):
        colored(panel, heading, steps=BAD_ABOVE_ZERO)
    for heading in ("Corrected ECC", "Repair pending"):
        colored(panel, heading, steps=WARN_ABOVE_ZERO)
    asked = {str(action): (words, "red") for action, words in RECOVERY.items()}
    return colored(panel, "Asked for", mappings=panels.values({"0": ("nothing", "green")} | asked))


def _xids() -> panels.Panel:
    age = f"time() - max by (cluster, node, gpu, uuid, xid) ({select(c.GPU_XID_LAST)})"
    panel = panels.rows(
        "XIDs in this time",
        "The driver's errors, the newest first, by when each was last seen. 13, 31, 43 and 45 come from applications; "
        "48, 62, 64, 74, 79, 95, 119, 120, 140, 143 and 149 want a drain and a reset before anything else. `dmesg | "
        "grep -i xid` has the whole line.",
        Query(f"({age}) < $__range_s"),
        rename={"node": "Node", "gpu": "GPU", "xid": "XID", "Value #A": "Ago"},
        order=("node", "gpu", "xid", "Value #A"),
        units={"Ago": "s"},
        empty="no XID in this time; none at all if What is missing tells of a source xid that is down",
    )
    colors = {"critical": "red", "warning": "orange", "info": "text"}
    known = {number: (f"{number}: {xid.meaning}", colors[xid.severity]) for number, xid in XIDS.items()}
    panel.sort_by([common.TableSortByFieldState().display_name("Ago").desc(False)])
    return wide(worded(panel, "XID", panels.values(known)), "XID", 300)


def _ecc() -> panels.Panel:
    return panels.graph(
        "ECC errors",
        "Per second, by kind. Single corrected ones now and then are normal on a large memory; a rate that stays comes "
        "before uncorrectable ones. No uncorrectable one is normal.",
        Query(
            f"sum by (cluster, node, gpu, uuid, kind) ({rate(c.GPU_ECC_ERRORS, _VOLATILE)})",
            f"{GPU} {{{{kind}}}}",
        ),
        unit="cps",
    )


def _memory_repair() -> panels.Panel:
    return panels.graph(
        "Rows remapped and pages retired",
        "Over the board's life, by cause. A step is a new fault of the memory. It is repaired at the next reset while "
        "spare rows are left.",
        Query(
            f"{named(select(c.GPU_REMAPPED_ROWS), what='rows')} or {named(select(c.GPU_RETIRED_PAGES), what='pages')}",
            f"{GPU} {{{{what}}}} {{{{cause}}}}",
        ),
        unit="short",
    )


def _of_gpu(expr: str) -> str:
    """A figure of MIG instances with the GPU's number, filtered by it."""
    return f"({expr}) * on (cluster, node, uuid) group_left (gpu) ({select(c.MIG_INFO)})"


def _instances() -> panels.Panel:
    return panels.rows(
        "Instances",
        "The MIG instances of the node, as they are now.",
        Query(f"max by ({_MIG}, name, uuid) ({select(c.MIG_INFO)})"),
        rename={
            "node": "Node",
            "gpu": "GPU",
            "profile": "Profile",
            "gpu_instance": "GPU instance",
            "compute_instance": "Compute instance",
            "name": "Name",
            "uuid": "UUID",
        },
        order=("node", "gpu", "profile", "gpu_instance", "compute_instance", "name", "uuid"),
        empty="no MIG instance",
    )


def _mig_activity(what: str, metric: Metric) -> panels.Panel:
    return panels.graph(
        f"{what} of instances",
        "Share within the instance, not of the GPU: 1 is an instance that uses all that it has. Only GPUs with GPM tell.",
        Query(f"sum by ({_MIG}) ({_of_gpu(rate(metric))})", _MIG_LEGEND),
        unit="percentunit",
        most=1,
        empty="no MIG instance, or one whose GPU has no GPM",
    )


def _mig_memory() -> panels.Panel:
    used = f"sum by ({_MIG}) ({_of_gpu(select(c.MIG_MEMORY, where('state', 'used')))})"
    total = f"sum by ({_MIG}) ({_of_gpu(select(c.MIG_MEMORY))})"
    return panels.graph(
        "Memory used by instances",
        "Over the instance's own memory. At 1, what runs in it fails to get more, whatever its neighbours have free.",
        Query(f"{used} / {total}", _MIG_LEGEND),
        unit="percentunit",
        most=1,
        empty="no MIG instance",
    )
