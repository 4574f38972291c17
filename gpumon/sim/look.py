"""One simulated GPU as NVML's calls see it: its state is asked of the world once for all calls of an instant.

A fast row is a dozen calls at the same moment; on a stepped clock they all find the same state here. Belongs to one
thread at a time, as the device does that it stands behind.
"""

from __future__ import annotations

from itertools import pairwise

from gpumon.host.nvml import Code
from gpumon.sim.state import GpuMoment, Hardware, Rate
from gpumon.sim.timeline import Timeline
from gpumon.sim.world import Model, World

TICK_S = 1 / 7
"""Period of the driver's own utilization samples."""

_DRIVER_CODES = {"unloaded": Code.DRIVER_NOT_LOADED, "mismatch": Code.LIB_RM_VERSION_MISMATCH}


def driver_fault(world: World, at_s: float) -> Code | None:
    """What every call answers while the driver is gone; None while it is there."""
    state = world.driver(at_s)
    return None if state == "loaded" else _DRIVER_CODES[state]


class Look:
    """See the module. ``turn`` first, then read."""

    __slots__ = ("_timeline", "_utilization", "_world", "at_s", "fault", "hardware", "index", "model", "moment")

    def __init__(self, world: World, timeline: Timeline, index: int, at_s: float) -> None:
        """timeline: of the world's scenario."""
        self._world = world
        self._timeline = timeline
        self._utilization: tuple[int, float, float, tuple[int, int]] = (0, 0.0, 0.0, (0, 0))
        """Tick, busy and DRAM seconds up to it, and the percentages of the tick before it."""
        self.index = index
        self.model: Model = world.model
        self.fault: Code | None = None
        """What every call answers instead; None while the GPU is there."""
        self.at_s = at_s
        self.hardware: Hardware
        self.moment: GpuMoment
        self.turn(at_s)

    def turn(self, at_s: float) -> None:
        """Look at the GPU at a moment."""
        self.at_s = at_s
        self.hardware = self._world.hardware(self.index, at_s)
        self.moment = self._world.gpu(self.index, at_s)
        self.fault = driver_fault(self._world, at_s) or (None if self.hardware.present else Code.GPU_IS_LOST)

    def mean_power_mw(self) -> int:
        """Of the last second: what NVML calls average power on Ampere and newer."""
        before = self._world.gpu(self.index, self.at_s - 1.0)
        return int((self.moment.total(Rate.POWER) - before.total(Rate.POWER)) * 1000)

    def enforced_limit_w(self) -> float:
        """Power limit, as far as it has been lowered."""
        lowered = self._timeline.at_work("power_throttle", self._world.story_s(self.at_s))
        lost = max((fault.strength for fault in lowered if fault.gpu == self.index), default=0.0)
        return self.model.limit_w * (1 - lost)

    def utilization(self) -> tuple[int, int]:
        """Percent of the newest whole tick in which a kernel ran, and in which memory was touched."""
        tick = int(self.at_s // TICK_S)
        known, busy_s, dram_s, percents = self._utilization
        if tick != known:
            if tick != known + 1:
                busy_s, dram_s = self._worked_s(tick - 1)
            newer_busy_s, newer_dram_s = self._worked_s(tick)
            busy = percent(newer_busy_s - busy_s)
            # Time in which memory was touched at all, not bandwidth.
            percents = (busy, min(busy, percent(0.6 * (newer_dram_s - dram_s))))
            self._utilization = (tick, newer_busy_s, newer_dram_s, percents)
        return percents

    def busy_percents(self, first: int, last: int) -> list[int]:
        """Percent busy of ticks ``first`` to ``last``, each of the time before it."""
        totals = [self._world.gpu(self.index, tick * TICK_S).total(Rate.BUSY) for tick in range(first - 1, last + 1)]
        return [percent(newer - older) for older, newer in pairwise(totals)]

    def shares(self, tick: int, ticks: int) -> list[tuple[int, int, int]]:
        """Pid, percent of the SMs and percent of memory, of each process over the ``ticks`` before ``tick``."""
        until_s, length_s = tick * TICK_S, ticks * TICK_S
        tasks = self._world.gpu_tasks(self.index, until_s)
        if not tasks:
            return []
        newer, older = self._world.gpu(self.index, until_s), self._world.gpu(self.index, until_s - length_s)
        sm = 100 * (newer.total(Rate.SM) - older.total(Rate.SM)) / length_s
        memory = 60 * (newer.total(Rate.DRAM) - older.total(Rate.DRAM)) / length_s
        servers = {server.name for server in self._world.servers}
        guests = sum(task.server not in servers for task in tasks)
        taken = self._time_taken(until_s) if guests < len(tasks) else 1.0
        rows = []
        for task in tasks:
            share = taken / guests if task.server not in servers else (1 - taken if guests else 1.0)
            rows.append((task.pid, min(100, int(share * sm)), min(100, int(share * memory))))
        return rows

    def _time_taken(self, at_s: float) -> float:
        """Share of the GPU's time that processes beside its server take."""
        faults = self._timeline.at(self._world.story_s(at_s)).faults
        jobs = [fault for fault in faults if fault.kind in {"gpu_contention", "short_job"}]
        return max((job.strength for job in jobs if job.gpu == self.index), default=0.0)

    def _worked_s(self, tick: int) -> tuple[float, float]:
        moment = self._world.gpu(self.index, tick * TICK_S)
        return moment.total(Rate.BUSY), moment.total(Rate.DRAM)


def percent(busy_s: float) -> int:
    """Of a tick."""
    return min(100, max(0, round(100 * busy_s / TICK_S)))
