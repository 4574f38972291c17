"""GPUs and nodes that need somebody: one row for each, with what to do, and none on a healthy fleet."""

from __future__ import annotations

from gpumon import catalogue as c
from gpumon.detect.detector import Severity
from gpumon.detect.xid import RECOVERY, XIDS
from gpumon.model import Metric
from grafana import columns
from grafana import panels as p
from grafana import queries as q
from grafana.boards.fleet_rules import HANDED_ON
from grafana.kit import Board
from grafana.queries import Query

_BY = "max by (cluster, node, gpu, uuid)"
_RUNNING, _AWAY = 'state="running"', 'state=~"unavailable|stuck"'
_JOB = 'job="gpumon"'
_DAY_S = 24 * 3600
_HARMLESS = "|".join(number for number, xid in XIDS.items() if xid.severity is Severity.INFO)
_LOST, _MISSING, _DOWN = "GPU lost", "GPUs missing", "gpumon down"
_ECC, _FAILED, _PENDING, _RETIRING = (
    "uncorrected memory errors",
    "row remap failed",
    "row remap pending",
    "page retirement pending",
)
_XID, _ACTION, _NVML = "XID", "recovery action", "NVML"

REMEDIES = {
    _LOST: "Drain the node; look for XID 79 or 119; reset the GPU, then power-cycle the node.",
    _MISSING: "NVML has fewer GPUs than the PCI bus: look in the kernel log for a GPU that did not come up.",
    _DOWN: "Is the node up? Does gpumon run there, and what does its log say? Nothing is known of its GPUs until then.",
    f"{_NVML} unavailable": "Nothing new can use the GPUs: nvidia-smi says why. After an upgrade, drain and reboot the node.",
    f"{_NVML} stuck": "A call of the driver does not return: look for XID 119 in the kernel log, drain and reboot the node.",
    _ECC: "Drain the GPU and reset it, whatever ran on it is suspect; see whether a row was remapped.",
    _FAILED: "The board has no spare rows left: replace it.",
    _PENDING: "Reset the GPU when it is idle: the row is replaced then.",
    _RETIRING: "Reset the GPU when it is idle: the page is taken out of use then.",
    **{f"{_XID} {number}": f"{xid.meaning}: {xid.advice}" for number, xid in XIDS.items()},
    **{f"{_ACTION} {number}": f"The driver asks for {words}." for number, words in RECOVERY.items()},
}
"""By problem. XIDs that stand here and are no more than an application's are left out by the query."""


def _flag(metric: Metric, problem: str) -> str:
    return q.named(f"{_BY} ({q.select(metric)} == 1)", problem=problem)


def _numbered(expr: str, label: str, problem: str) -> str:
    """The problem with its number, which a label has."""
    return f'label_replace({expr}, "problem", "{problem} $1", "{label}", "(.*)")'


def _needs() -> str:
    grave = q.select(c.GPU_XID_LAST, f'xid!~"{_HARMLESS}"')
    recent = f"(time() - max by (cluster, node, gpu, uuid, xid) ({grave}) < {_DAY_S})"
    lost = f"{q.select(c.GPU_PRESENT)} == 0 and on (cluster, node) {q.select(c.NVML_STATE, _RUNNING)} == 1"
    without = f"max by (cluster, node, state) ({q.select(c.NVML_STATE, _AWAY)} == 1)"
    # A day in steps, and what came after the last step: all samples of a day would be too many.
    wrong = q.select(c.GPU_ECC_ERRORS, 'kind="uncorrected"', 'scope="volatile"')
    asked = f'count_values by (cluster, node, gpu, uuid) ("number", {q.select(c.GPU_RECOVERY_ACTION)} > 0)'
    expected, present = (
        f"max by (cluster, node) ({q.select(c.GPU_COUNT, matcher)})"
        for matcher in ('state="expected"', 'state="present"')
    )
    down = f"max by (cluster, node) ({q.recorded('up', _JOB)} == 0)"
    return " or ".join(  # the gravest first: Prometheus and Grafana keep the order
        (
            q.named(f"{_BY} ({lost})", problem=_LOST),
            _numbered(without, "state", _NVML),
            _numbered(recent, "xid", _XID),
            _numbered(asked, "number", _ACTION),
            q.named(f"{_BY} (increase({wrong}[1d:15m]) > 0 or increase({wrong}[15m]) > 0)", problem=_ECC),
            _flag(c.GPU_ROW_REMAP_FAILED, _FAILED),
            _flag(c.GPU_ROW_REMAP_PENDING, _PENDING),
            _flag(c.GPU_RETIRED_PAGES_PENDING, _RETIRING),
            q.named(f"({expected} > {present})", problem=_MISSING),
            q.named(down, problem=_DOWN),
        )
    )


def rows(made: Board) -> None:
    """The row."""
    panel = p.rows(
        "Who needs somebody",
        "GPUs and nodes of the selection with a fault of the hardware or the driver, at the end of the time shown. XIDs and "
        "memory errors are of the last day, without the XIDs that applications cause. Slow GPUs are not here: they are "
        "incidents, below. Empty is healthy where nodes report at all.",
        Query(q.copied(_needs(), "problem", "action")),
        order=("cluster", "node", "gpu", "uuid", "problem", "action"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "gpu": "GPU",
            "uuid": "UUID",
            "problem": "Problem",
            "action": "What to do",
        },
        empty="nobody",
    )
    columns.linked(panel, "Node", "gpumon-node", "node", HANDED_ON)
    columns.telling(panel, "What to do", REMEDIES)
    for heading, pixels in (("Cluster", 100), ("Node", 150), ("GPU", 60), ("UUID", 330), ("Problem", 200)):
        columns.wide(panel, heading, pixels)
    made.row("Who needs somebody", (24, panel), height=7)
