"""What of a simulated GPU changes seldom, and what its driver says: links, errors, rows, XIDs. In closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpumon.sim import noise
from gpumon.sim.boards import Model
from gpumon.sim.effects import link, links_left
from gpumon.sim.scenario import Fault, Scenario
from gpumon.sim.state import Hardware
from gpumon.sim.timeline import Timeline

NO_ACTION: Final = 0
GPU_RESET: Final = 1
NODE_REBOOT: Final = 2
DRAIN_AND_RESET: Final = 4
"""nvmlDeviceGetFieldValues, field 230."""

_CHANGING = frozenset(
    (
        *("nvlink_degraded", "pcie_degraded", "ecc_corrected", "ecc_uncorrected"),
        *("row_remap_pending", "row_remap_failed", "gpu_lost"),
    )
)
_DRIVER = frozenset(("driver_restart", "driver_mismatch"))
_LINK_ERRORS = 40.0  # per second and lost link, on the links that are left
_REPLAYS = 3.0  # per second, on a link that trained down
_SECOND_XID_S = 0.2  # an uncorrected error is told twice: as it is found, and as it is contained
_XIDS: dict[str, Callable[[Fault], tuple[tuple[float, int], ...]]] = {
    "xid": lambda fault: ((0.0, int(fault.strength)),),
    "ecc_uncorrected": lambda _: ((0.0, 48), (_SECOND_XID_S, 94)),
    "row_remap_pending": lambda _: ((0.0, 63),),
    "row_remap_failed": lambda _: ((0.0, 64),),
    "gpu_lost": lambda _: ((0.0, 79),),
}


def hardware_changes(scenario: Scenario, gpu: int) -> bool:
    """Whether ``hardware_at`` is not the same at every moment."""
    return any(fault.gpu == gpu and fault.kind in _CHANGING for fault in scenario.faults)


def driver_changes(scenario: Scenario) -> bool:
    """Whether the driver is not always loaded."""
    return any(fault.kind in _DRIVER for fault in scenario.faults)


def hardware_at(scenario: Scenario, timeline: Timeline, model: Model, seed: int, gpu: int, story_s: float) -> Hardware:
    """Of one GPU at a moment of the story."""
    mine = [fault for fault in scenario.faults if fault.gpu == gpu]
    now = {fault.kind: fault for fault in timeline.at(story_s).faults if fault.gpu == gpu}
    links, generation, width = model.nvlinks, model.pcie_generation, model.pcie_width
    if "nvlink_degraded" in now:
        links = links_left(model, now["nvlink_degraded"].strength)
    if "pcie_degraded" in now:
        generation, width = link(model, now["pcie_degraded"].strength)
    action = NO_ACTION
    if "row_remap_failed" in now or "ecc_uncorrected" in now:
        action = GPU_RESET
    if "row_remap_pending" in now:
        action = DRAIN_AND_RESET
    if "gpu_lost" in now:
        action = NODE_REBOOT
    return Hardware(
        present="gpu_lost" not in now,
        nvlinks_active=links,
        nvlink_errors=_count(mine, "nvlink_degraded", timeline, story_s, lambda fault: _LINK_ERRORS * fault.strength),
        pcie_generation=generation,
        pcie_width=width,
        pcie_replays=2
        + noise.bits(seed, gpu, 94) % 9
        + _count(mine, "pcie_degraded", timeline, story_s, lambda _: _REPLAYS),
        ecc_corrected=_count(mine, "ecc_corrected", timeline, story_s, lambda fault: fault.strength),
        ecc_uncorrected=_times(mine, "ecc_uncorrected", timeline, story_s),
        rows_remapped=(0, _times(mine, "row_remap_pending", timeline, story_s, ended=True)),
        row_remap_pending="row_remap_pending" in now,
        row_remap_failed="row_remap_failed" in now,
        recovery_action=action,
    )


def xids_between(timeline: Timeline, since_s: float, until_s: float) -> list[tuple[float, int, int]]:
    """Time of the story, GPU and number of each, from ``since_s`` (not itself) to ``until_s``; by time."""
    found = []
    for at_s, fault in timeline.begins(lambda fault: fault.kind in _XIDS, since_s - _SECOND_XID_S, until_s):
        assert fault.gpu is not None
        for after_s, xid in _XIDS[fault.kind](fault):
            if since_s < at_s + after_s <= until_s:
                found.append((at_s + after_s, fault.gpu, xid))
    return sorted(found)


def driver_at(timeline: Timeline, story_s: float) -> str:
    """What the driver is at a moment; see ``World.driver``."""
    kinds = {fault.kind for fault in timeline.at(story_s).faults}
    if "driver_restart" in kinds:
        return "unloaded"
    return "mismatch" if "driver_mismatch" in kinds else "loaded"


def _count(faults: list[Fault], kind: str, timeline: Timeline, story_s: float, per_s: Callable[[Fault], float]) -> int:
    """Things that happen at a rate while a fault is at work."""
    return sum([int(per_s(fault) * timeline.seconds(fault, story_s)) for fault in faults if fault.kind == kind])


def _times(faults: list[Fault], kind: str, timeline: Timeline, story_s: float, *, ended: bool = False) -> int:
    """Things that happen when a fault begins, or when it has ended: as many as its strength."""
    count = 0
    for fault in faults:
        if fault.kind == kind:
            moment_s = fault.at_s + fault.for_s if ended else fault.at_s
            count += int(fault.strength) * timeline.passed(moment_s, story_s)
    return count
