"""Page placement of the simulated processes: ``host.pages.Pages`` over a ``World``.

A page lies on the node of its process's GPU, but for a few that every process has elsewhere, and the process that
the story gives remote memory. Which page is where depends on its address alone, so every look sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.model import Reason
from gpumon.sim import noise
from gpumon.sim.procfs import PAGE
from gpumon.sim.story import Kind, events
from gpumon.sim.world import World

_ABSENT = 0.04  # of the pages in the arenas
_ELSEWHERE = 0.03  # of the present pages of a well placed process
_DEVICE_WINDOWS = range(0x7FB0_0000_0000, 0x7FC0_0000_0000)  # as procfs.maps writes them: no pages of the host


class SimPages:
    """The port over a simulated host."""

    def __init__(self, world: World, clock: Clock, numa_nodes: int = 2) -> None:
        self._world = world
        self._clock = clock
        self._nodes = numa_nodes

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        task = next((task for task in self._world.tasks(self._clock.now_s()) if task.pid == pid), None)
        if task is None:
            raise ReadError(f"pid {pid}", Reason.UNAVAILABLE, "no such process")
        home = 0 if task.gpu is None else min(self._world.boards[task.gpu].node, self._nodes - 1)
        remote = _ELSEWHERE
        if task.server != "job" and task.gpu is not None:
            remote = next((row.rate for row in events(Kind.REMOTE_MEMORY, task.gpu)), _ELSEWHERE)
        return [self._node(pid, address, home, remote) for address in addresses]

    def _node(self, pid: int, address: int, home: int, remote: float) -> int | None:
        if address in _DEVICE_WINDOWS:
            return None
        draw = noise.unit(self._world.seed, pid, address // PAGE)
        if draw < _ABSENT:
            return None
        away = self._nodes > 1 and draw < _ABSENT + remote * (1 - _ABSENT)
        return 1 - home if away else home
