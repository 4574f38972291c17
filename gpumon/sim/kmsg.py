"""Kernel log of the simulated node: ``host.kmsg.KernelLog`` with the driver's lines for the story's XIDs."""

from __future__ import annotations

from gpumon.host.clock import Clock
from gpumon.host.kmsg import MAX_RECORDS, KernelLine
from gpumon.sim import noise
from gpumon.sim.story import Kind
from gpumon.sim.world import World


class SimKernelLog:
    """The port over a simulated node. Starts at the end of the log: nothing before the first read is told."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.overruns = 0
        self._world = world
        self._clock = clock
        self._read_s: float | None = None

    def read(self) -> list[KernelLine]:
        now_s = self._clock.now_s()
        since_s, self._read_s = self._read_s, now_s
        if since_s is None:
            return []
        lines = [
            KernelLine(at_s, self._xid_line(at_s, event.gpu, int(event.rate)))
            for at_s, event in self._world.occurrences(Kind.XID, since_s, now_s)
        ]
        return lines[-MAX_RECORDS:]

    def _xid_line(self, at_s: float, gpu: int, xid: int) -> str:
        # Just before, the process that caused it was still alive.
        held = [task for task in self._world.gpu_tasks(gpu, at_s - 0.001) if task.server == "job"]
        culprit = held or self._world.gpu_tasks(gpu, at_s - 0.001)
        pci = self._world.boards[gpu].bdf.rpartition(".")[0]
        page = noise.bits(self._world.seed, gpu, int(at_s)) % (1 << 20) << 12
        return (
            f"NVRM: Xid (PCI:{pci}): {xid}, pid={culprit[0].pid}, name={culprit[0].comm}, Ch 00000014, "
            f"intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_6 faulted @ 0x7f2a_{page:08x}. "
            "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        )
