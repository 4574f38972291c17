"""XID errors, and what the driver asks for to recover from one.

From the counters by XID (NVML events and the kernel log, each error once) and the driver's recovery action. XIDs that
gpumon counts from 0 are seen when they grow; of others the series is born with the first error. What was counted before
the first look is not reported. Tiers as operators of large fleets use them: what needs a reset, a reboot or a new board
is critical, what applications cause by themselves is information. Numbers and meanings: NVIDIA's XID documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.scene import Labels, Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

SHOWN_MAX: Final = 12
"""XIDs in one finding's evidence."""


class Xid(NamedTuple):
    """What an XID means, and what to do."""

    severity: Severity
    meaning: str
    advice: str


_APPLICATION: Final = "look at the application's log; if it comes with several applications, test the board"
_RESET: Final = "drain the GPU and reset it"
_PRECREATED: Final = frozenset(map(str, catalogue.XID_PRECREATED))
_UNKNOWN: Final = Xid(Severity.WARNING, "not one of the common ones", "look it up in NVIDIA's XID documentation")

XIDS: Final[Mapping[str, Xid]] = {
    "13": Xid(Severity.INFO, "graphics engine exception", _APPLICATION),
    "31": Xid(Severity.INFO, "memory page fault of an application", _APPLICATION),
    "32": Xid(Severity.INFO, "invalid push buffer", _APPLICATION),
    "43": Xid(Severity.INFO, "an application's channel was stopped", _APPLICATION),
    "45": Xid(Severity.INFO, "an application's work was removed", "see what ended it: an earlier XID, or a kill"),
    "48": Xid(Severity.CRITICAL, "uncorrectable memory error", "drain the GPU, reset it, and look at row remapping"),
    "62": Xid(Severity.CRITICAL, "the GPU's microcontroller halted", f"{_RESET}; replace the board if it comes again"),
    "63": Xid(Severity.INFO, "a memory row was remapped or a page retired", "reset the GPU when it is idle"),
    "64": Xid(Severity.CRITICAL, "a memory row could not be remapped", f"{_RESET}; replace the board if it failed"),
    "68": Xid(Severity.INFO, "video decoder exception", _APPLICATION),
    "69": Xid(Severity.INFO, "graphics class error", _APPLICATION),
    "74": Xid(Severity.CRITICAL, "NVLink error", "drain the node, look at nvidia-smi nvlink -e and the fabric manager"),
    "79": Xid(Severity.CRITICAL, "the GPU fell off the bus", "drain the node and power-cycle it; check power and seat"),
    "92": Xid(Severity.INFO, "many corrected memory errors", "watch it; reset the GPU when it is idle"),
    "94": Xid(Severity.WARNING, "contained memory error", "restart the application that got it; reset the GPU soon"),
    "95": Xid(Severity.CRITICAL, "uncontained memory error", "drain the GPU and reset it now: all its work is suspect"),
    "109": Xid(Severity.INFO, "context switch timed out", _APPLICATION),
    "119": Xid(
        Severity.CRITICAL, "the GPU's system processor does not answer", f"{_RESET}; update driver and firmware"
    ),
    "120": Xid(Severity.CRITICAL, "error of the GPU's system processor", f"{_RESET}; update driver and firmware"),
    "122": Xid(Severity.WARNING, "the GPU's configuration memory cannot be read", "reset the GPU when it is idle"),
    "140": Xid(Severity.CRITICAL, "uncorrectable memory error, not recovered", _RESET),
    "143": Xid(Severity.CRITICAL, "the GPU could not be initialised", "reset it, then reboot the node"),
    "149": Xid(
        Severity.CRITICAL, "NVLink error", "drain the node, look at nvidia-smi nvlink -e and the fabric manager"
    ),
    "154": Xid(Severity.WARNING, "what is needed to recover has changed", "see the recovery action"),
}

RECOVERY: Final[Mapping[int, str]] = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "draining peer-to-peer work",
    4: "draining and a reset",
    5: "a recovery of IMEX",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
"""What values of ``gpumon_gpu_recovery_action`` ask for."""


@dataclass(slots=True)
class _Told:
    """What belongs together on one GPU: no further apart than the incident stays open."""

    since_s: float
    newest_s: float
    counts: dict[str, float] = field(default_factory=dict)
    """By XID, the newest last."""


class XidErrors:
    """New XIDs, one incident per GPU."""

    HOLD_S: ClassVar[float] = 60.0

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "xid",
            "The driver reported a new XID error on a GPU, or asks for an action to recover. Critical: 48, 62, 64, 74, "
            "79, 95, 119, 120, 140, 143, 149, or an action asked for; information: what applications cause (13, 31, "
            "32, 43, 45, 68, 69, 109), 63 and 92; warning: all others.",
            (Severity.CRITICAL, Severity.WARNING, Severity.INFO),
            "The summary says what to do for the newest one; dmesg | grep -i xid has the whole line. Critical ones end "
            "the work on the GPU: drain it before anything else.",
            hold_s=HOLD_S,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._counts: dict[Labels, float] = {}
        self._gpus: set[Gpu] = set()
        self._told: dict[Gpu, _Told] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        at_s = scene.at_s
        new = self._new(scene)
        asked = {gpu: value for gpu, value in scene.values(catalogue.GPU_RECOVERY_ACTION).items() if value > 0}
        for gpu in [gpu for gpu, told in self._told.items() if at_s - told.newest_s > self.HOLD_S]:
            del self._told[gpu]
        for gpu in sorted(new.keys() | asked.keys()):
            told = self._told.setdefault(gpu, _Told(at_s, at_s))
            told.newest_s = at_s
            # Of several at once, the worst counts as the newest.
            for xid, count in sorted(new.get(gpu, {}).items(), key=lambda each: _rank(each[0])):
                told.counts[xid] = told.counts.pop(xid, 0.0) + count
            yield _finding(gpu, told, asked.get(gpu))

    def _new(self, scene: Scene) -> dict[Gpu, dict[str, float]]:
        """XIDs since the last step, by GPU."""
        counts = scene.values(catalogue.GPU_XID_ERRORS)
        if not counts or counts == self._counts:
            return {}
        new: dict[Gpu, dict[str, float]] = {}
        for labels, count in counts.items():
            gpu, xid = labels[:2], labels[2]
            before = self._counts.get(labels)
            if before is None:
                before = 0.0 if gpu in self._gpus and xid not in _PRECREATED else count
            if count > before:
                new.setdefault(gpu, {})[xid] = count - before
        self._counts = counts
        self._gpus = {labels[:2] for labels in counts}
        return new


def _rank(xid: str) -> tuple[int, str]:
    return list(Severity).index(XIDS.get(xid, _UNKNOWN).severity), xid


def _finding(gpu: Gpu, told: _Told, action: float | None) -> Finding:
    evidence = [Evidence(f"xid_{xid}", count, Unit.NONE) for xid, count in [*told.counts.items()][-SHOWN_MAX:]]
    parts: list[str] = []
    severities = [XIDS.get(xid, _UNKNOWN).severity for xid in told.counts]
    if told.counts:
        newest = next(reversed(told.counts))
        meant = XIDS.get(newest, _UNKNOWN)
        parts.append(f"XID {newest}, {meant.meaning}: {meant.advice}")
    if action is not None:
        evidence.append(Evidence("recovery_action", action, Unit.NONE))
        parts.append(f"the driver asks for {RECOVERY.get(int(action), f'recovery action {action:.0f}')}")
        severities.append(Severity.CRITICAL)
    worst = max(severities, key=list(Severity).index)
    return Finding("xid", gpu_entity(gpu), worst, told.since_s, "; ".join(parts), tuple(evidence))
