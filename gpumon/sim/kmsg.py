"""Kernel log of the simulated node: ``host.kmsg.KernelLog`` with the driver's lines for the world's XIDs."""

from __future__ import annotations

from gpumon.host.clock import Clock
from gpumon.host.kmsg import MAX_RECORDS, KernelLine
from gpumon.sim import noise
from gpumon.sim.state import XidEvent
from gpumon.sim.tasks import Census
from gpumon.sim.world import World

_JUST_BEFORE_S = 0.001
_SAID = {  # in the driver's own manner (docs.nvidia.com/deploy/xid-errors), shortened
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000014, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_6 faulted @ 0x7f2a_{page:08x}. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000014, engmask 00000101",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, "
    "subpartition 1.",
    63: "Row Remapper: New row (0x{page:08x}) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: All reserved rows for bank are remapped, (0x{page:08x}) will not be remapped.",
    74: "NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: FBHUB. RST: No, D-RST: No",
    95: "Uncontained: FBHUB. RST: Yes, D-RST: No",
    119: "Timeout after 45s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL).",
}
_OTHER = "Ch 00000014"


class SimKernelLog:
    """The port over a simulated node. Starts at the end of the log: nothing before the first read is told."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.overruns = 0
        self._world = world
        self._clock = clock
        self._census = Census(world)
        self._read_s: float | None = None

    def read(self) -> list[KernelLine]:
        now_s = self._clock.now_s()
        since_s, self._read_s = self._read_s, now_s
        if since_s is None:
            return []
        lines = [KernelLine(event.at_s, self._line(event)) for event in self._world.xids(since_s, now_s)]
        return lines[-MAX_RECORDS:]

    def _line(self, event: XidEvent) -> str:
        # Just before, the process that was on the GPU was still alive; of two, the one that shares it is to blame.
        alive = self._census.at(event.at_s - _JUST_BEFORE_S).tasks
        held = [task for task in alive if task.gpu == event.gpu]
        names = {server.name for server in self._world.servers}
        culprit = next((task for task in held if task.server not in names), held[0] if held else None)
        who = f"pid={culprit.pid}, name={culprit.comm}" if culprit is not None else "pid='<unknown>', name=<unknown>"
        page = noise.bits(self._world.seed, event.gpu, int(event.at_s)) % (1 << 20) << 12
        pci = self._world.boards[event.gpu].bdf.rpartition(".")[0]
        said = _SAID.get(event.xid, _OTHER).format(page=page, gpu=event.gpu)
        return f"NVRM: Xid (PCI:{pci}): {event.xid}, {who}, {said}"
