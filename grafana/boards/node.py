"""The dashboard gpumon-node: one node, from what is missing to why its tokens are slow. Rows are in other modules."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels, queries
from grafana.boards import node_activity, node_clocks, node_hardware, node_host, node_processes
from grafana.boards.findings import OF_NODE, UNREACHABLE, told
from grafana.columns import colored, wide
from grafana.kit import Board
from grafana.queries import Query

_GPU = ("cluster", "node", "gpu", "uuid")
_FACTS = (
    *("name", "pci_bus_id", "numa_node", "driver_version"),
    *("mig_mode", "memory_model", "activity_source"),
)


def board() -> Board:
    """The dashboard."""
    made = Board(
        "gpumon-node",
        "gpumon / Node",
        "One node: what its GPUs are, what is missing, and what limited them. Choose one node; all of them at once are "
        "many lines. Empty graphs are explained in the first row.",
        variables=("cluster", "node", "gpu", "model", "server"),
    )
    made.row("This node", (10, _gpus()), (7, _missing()), (7, _unsupported()))
    made.add((24, _incidents()), height=6)
    node_activity.add(made)
    node_clocks.add(made)
    node_hardware.add(made)
    node_processes.add(made)
    node_host.add(made)
    node_hardware.add_mig(made)
    return made


def _gpus() -> panels.Panel:
    present = f"max by ({', '.join(_GPU)}) ({queries.select(c.GPU_PRESENT)})"
    info = f"max by ({', '.join((*_GPU, *_FACTS))}) ({queries.select(c.GPU_INFO)})"
    on = "on (cluster, node, uuid)"
    panel = panels.rows(
        "GPUs",
        "What the GPUs are, and whether they answer. A lost one may have no name any more: drain the node, and look "
        "for XID 79 or 119 in the kernel log. NUMA node is where its CPUs and memory should be. Activity `gpm` means "
        "that SM and memory activity are measured; `utilization`, that this GPU tells only whether any kernel ran.",
        Query(f"({info}) * {on} group_left () ({present}) or ({present}) unless {on} ({info})"),
        rename={
            "node": "Node",
            "gpu": "GPU",
            "Value #A": "State",
            "name": "Name",
            "numa_node": "NUMA node",
            "activity_source": "Activity",
            "mig_mode": "MIG",
            "memory_model": "Memory",
            "driver_version": "Driver",
            "pci_bus_id": "PCI bus",
            "uuid": "UUID",
        },
        order=(
            *("node", "gpu", "Value #A", "name", "numa_node", "activity_source", "mig_mode", "memory_model"),
            *("driver_version", "pci_bus_id", "uuid"),
        ),
        empty="no GPU is known: see What is missing",
    )
    return colored(panel, "State", mappings=panels.values({"0": ("lost", "red"), "1": ("answers", "green")}))


def _missing() -> panels.Panel:
    up = queries.select(c.SOURCE_UP)
    lost = f"{queries.select(c.GPU_PRESENT)} == 0"
    expected = f"max {OF_NODE} ({queries.select(c.GPU_COUNT, queries.where('state', 'expected'))})"
    present = f"max {OF_NODE} ({queries.select(c.GPU_COUNT, queries.where('state', 'present'))})"
    absent = f"({expected} - {present}) > 0"
    released = f"max {OF_NODE} ({queries.select(c.NVML_STATE, queries.where('state', 'released'))}) == 1"
    wrong = f"count {OF_NODE} ({up} == 0) or count {OF_NODE} ({lost}) or {absent}"
    arms = (
        told(UNREACHABLE, "everything", "Prometheus cannot read gpumon"),
        told(released, "NVML", "it was released by request: its sources are down until it is taken back"),
        told(f"max by (cluster, node, source) ({up} == 0)", "source $1", "it fails: see gpumon / Health", "source"),
        told(f"max by (cluster, node, gpu) ({lost})", "GPU $1", "it does not answer any more", "gpu"),
        told(absent, "GPUs", "they are on the PCI bus, and the driver does not show them"),
        told(f"count {OF_NODE} ({up}) unless on (cluster, node) ({wrong})", "nothing", "all sources are up"),
    )
    panel = panels.rows(
        "What is missing",
        "Sources of gpumon that fail and GPUs that do not answer: their graphs are empty or end, and that is no good "
        "news. A healthy node has the one row `nothing`. What the GPU itself does not have is in the next table.",
        Query(" or ".join(arms)),
        rename={"node": "Node", "what": "Missing", "why": "Because"},
        order=("node", "what", "why"),
        empty="no data from gpumon at all: is this node scraped?",
    )
    words = panels.values({"nothing": ("nothing", "green"), "everything": ("everything", "red")})
    return wide(colored(panel, "Missing", mappings=words), "Missing", 150)


def _unsupported() -> panels.Panel:
    supported = queries.select(c.GPU_FIELD_SUPPORTED)
    group = "by (cluster, node, field)"
    never = f"count {group} ({supported} == 0)"
    return panels.rows(
        "What is missing: not supported by the GPU",
        "Readings for which GPU and driver said that they never answer: their graphs are empty, and nothing is wrong. "
        "`gpm` is SM and memory activity (Hopper and newer). Missing on some GPUs of a node and not on others of the "
        "same name is odd: compare driver, MIG and ECC settings.",
        Query(never),
        Query(f"(count {group} ({supported})) and on (cluster, node, field) ({never})"),
        rename={"node": "Node", "field": "Reading", "Value #A": "Not on", "Value #B": "Of GPUs"},
        order=("node", "field", "Value #A", "Value #B"),
        sort_by="Not on",
        empty="all readings are supported",
    )


def _incidents() -> panels.Panel:
    active = queries.select(c.INCIDENT_ACTIVE, 'gpu=~"$gpu|"', without=("gpu",))
    opened = f"max by (cluster, node, kind, gpu) ({active}) > 0"
    return panels.states(
        "Incidents open",
        "What gpumon found, from its beginning to its end; those of a server or of the host have no GPU. What each kind "
        "means and what to do is in docs/DETECTORS.md, the evidence in gpumon's own page. The first row tells that "
        "gpumon was looking: where it is blank, silence means nothing.",
        Query(f"0 * count by (cluster, node) ({active})", "{{node}}: gpumon looks"),
        Query(f'label_replace({opened}, "of", " GPU $1", "gpu", "(.+)")', "{{node}} {{kind}}{{of}}"),
        mappings=panels.values({"0": ("looks", "green")}),
        steps=((None, "green"), (1, "red")),
    )
