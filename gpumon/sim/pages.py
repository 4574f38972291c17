"""Page placement of the simulated processes: ``host.pages.Pages`` over a ``World``.

A page lies on the node of its process's GPU, but for the share that the world says is on the other one. Which page
is where depends on its address alone, so every look sees the same as long as that share stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.model import Reason
from gpumon.sim import noise
from gpumon.sim.procfs import PAGE
from gpumon.sim.tasks import Census
from gpumon.sim.world import World

_ABSENT = 0.04  # of the pages in the arenas
_NOWHERE = -1
_WINDOWS = range(0x7FB0_0000_0000, 0x7FC0_0000_0000)  # as procfs.maps writes them: no pages of the host


class SimPages:
    """The port over a simulated host."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock
        self._census = Census(world)

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        world, at_s = self._world, self._clock.now_s()
        task = self._census.at(at_s).by_pid.get(pid)
        if task is None:
            raise ReadError(f"pid {pid}", Reason.UNAVAILABLE, "no such process")
        home = 0 if task.gpu is None else min(world.boards[task.gpu].node, world.numa_nodes - 1)
        remote = world.remote_share(task, at_s) if world.numa_nodes > 1 else 0.0
        places = np.array(addresses, np.uint64)
        draws = noise.units(places // np.uint64(PAGE), world.seed, pid)
        nodes = np.where(draws < _ABSENT + remote * (1 - _ABSENT), 1 - home, home)
        nodes[(draws < _ABSENT) | ((places >= _WINDOWS.start) & (places < _WINDOWS.stop))] = _NOWHERE
        return [None if number == _NOWHERE else number for number in nodes.tolist()]
