"""One GPU's thread in the sampler process: the fast row every tick, slower passes when they are due.

A thread per GPU, because a call that hangs or crawls in the driver must stall that GPU's data and nothing else.
Whatever the GPU answers, the thread goes on: a lost GPU is looked for again with a growing pause, a dead driver is
reported to the supervisor, which ends the generation. ``tick`` holds all decisions and takes the time; ``run`` only
waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpumon import catalogue
from gpumon.host.files import Files
from gpumon.host.nvml import DEVICE_GONE, DRIVER_GONE, Code, Device, Nvml, NvmlError, code_name
from gpumon.model import GpuUuid, Item, Sample
from gpumon.sampler.handover import Plan
from gpumon.sampler.ring import RowSink
from gpumon.sampler.wire import Messages, send_batch
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import BLANK, Column, GpuFast
from gpumon.sources.gpu_inventory import GpuInventory
from gpumon.sources.gpu_processes import GpuProcesses
from gpumon.sources.gpu_ring import RING
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.mig import Mig

STAGGER_S = 0.0004
"""Between the ticks of two GPUs: about what a row takes."""
BLANKS_MEAN_LOST = 20
"""Rows in a row without a single reading after which the GPU counts as lost."""


class _Pass(Protocol):
    name: str

    def read(self, at_s: float) -> Iterable[Item]: ...


@dataclass(slots=True)
class _Due:
    """A slower pass and when it is next due."""

    source: _Pass
    every_s: float
    at_s: float = 0.0


@dataclass(slots=True, eq=False)
class GpuWorker:
    """Reads one GPU of one generation, found by its uuid."""

    nvml: Nvml
    uuid: GpuUuid
    index: int
    slot: int
    ring: RowSink
    channel: Messages
    files: Files
    plan: Plan
    state: GpuState
    driver_gone: Callable[[NvmlError], None]
    """Tells the supervisor that the generation is dead."""
    now_ns: Callable[[], int] = time.monotonic_ns
    """CLOCK_MONOTONIC, or the stepped clock that stands for it."""
    began: Callable[[GpuUuid, float], None] | None = None
    """Is told that a tick begins, in this thread."""
    lost: bool = False
    """No device at the moment; from the start for one that is known from an earlier generation only."""
    device: Device | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _fast: GpuFast | None = None
    _processes: GpuProcesses | None = None
    _inventory: GpuInventory | None = None
    _mig: Mig | None = None
    _capabilities: Capabilities | None = None
    _dues: list[_Due] = field(default_factory=list)
    _find_at_s: float = 0.0
    _find_pause_s: float = 0.0
    _finding_ns: int = 0
    """CLOCK_MONOTONIC since when the GPU is being looked for; 0 while it is not."""
    _previous_s: float | None = None
    _processes_at_s: float = 0.0
    _blanks: int = 0
    _all_again: bool = False
    _quiet_until_s: dict[str, float] = field(default_factory=dict)
    """By owner, when an empty batch is next worth a message."""
    _under_way: str = GpuFast.name
    _past_calls: dict[str, list[int]] = field(default_factory=dict)
    """Durations of the calls to earlier devices: one that comes back is a new one."""

    def start(self) -> None:
        """Run in a thread of its own until ``stop``."""
        self._thread = threading.Thread(target=self.run, name=f"gpu-{self.index}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the call under way."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; False if it is still inside a call."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def read_all_again(self) -> None:
        """Let every pass be due at the next tick: what was told before is forgotten. From any thread."""
        self._all_again = True

    def hangs_in(self, now_s: float, after_s: float) -> str | None:
        """Function that has been under way for longer than ``after_s``. From any thread."""
        finding_ns, device = self._finding_ns, self.device
        if finding_ns:
            return "nvmlDeviceGetHandleByUUID" if now_s - finding_ns / 1e9 > after_s else None
        if device is None:
            return None
        name, started_ns = device.calls.name, device.calls.started_ns
        return name if name is not None and now_s - started_ns / 1e9 > after_s else None

    def add_calls(self, totals: dict[str, list[int]]) -> None:
        """Add the durations of this GPU's calls so far. From any thread."""
        device = self.device
        add_calls(totals, self._past_calls)
        if device is not None:
            add_calls(totals, device.calls.durations)

    def run(self) -> None:
        """Tick on the grid of the fast cadence; ticks missed by a slow call are left out, not made up for.

        The grid is the node's, each GPU a little after the one before: threads that wake at the same instant hand the
        interpreter's lock round at every call, which costs twice as much (docs/BENCHMARKS.md).
        """
        step = self.plan.fast_s
        due = (time.monotonic() // step + 1) * step + self.slot * STAGGER_S % step
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                self.guarded_tick(time.monotonic())
                now = time.monotonic()
                due += step * max(1, int((now - due) / step) + 1) if now > due + step else step
        except BrokenPipeError:
            return  # the main process is gone
        finally:
            self.let_go()

    def guarded_tick(self, at_s: float) -> None:
        """``tick``, and whatever it raises is told and forgotten but for the main process's end."""
        if self.began is not None:
            self.began(self.uuid, at_s)
        try:
            self.tick(at_s)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - this loop: a bug on one GPU must not end its data
            owner = self._owner(self._under_way)
            self.channel.send("bug", self._under_way, owner, f"gpu {self.index}", bug_text(error))

    def tick(self, at_s: float) -> None:
        """One tick: find the GPU if it is lost, else its row and whatever is due."""
        self._under_way = GpuFast.name
        if self.device is None and not self._find(at_s):
            return
        if self._all_again:
            self._all_again = False
            self._quiet_until_s.clear()
            self._processes_at_s = at_s
            for due in self._dues:
                due.at_s = at_s
        try:
            self._read_row(at_s)
            for due in self._dues:
                if self._stop.is_set():
                    return
                if at_s >= due.at_s:
                    due.at_s = at_s + due.every_s
                    self._pass(due.source, due.every_s, at_s)
            if at_s >= self._processes_at_s:
                self._processes_at_s = at_s + self.plan.slow_s
                self._read_processes(at_s)
        except NvmlError as error:
            self._gone(error, at_s)

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_row(self, at_s: float) -> None:
        assert self._fast is not None
        row = self._fast.row(at_s)
        if row == BLANK:
            # Nothing at all is answered, as when a container has lost its devices: no row, and soon no GPU.
            self._blanks += 1
            if self._blanks >= BLANKS_MEAN_LOST:
                raise NvmlError(Code.UNKNOWN, "no reading is answered")
            return
        self._blanks = 0
        self._find_pause_s = 0.0  # it answers: not for being found alone
        self.ring.write(self.slot, self.now_ns(), row)
        # Without the driver's ring of samples, busy time is summed here (sources/gpu_ring.py).
        utilization = row[Column.UTILIZATION]
        if utilization is not None and self._previous_s is not None:
            dt_s = at_s - self._previous_s
            if dt_s <= 10 * self.plan.fast_s and self._ring_is_absent():
                self.state.busy_s += utilization * dt_s
        self._previous_s = at_s

    def _ring_is_absent(self) -> bool:
        return self._capabilities is not None and self._capabilities.supported(RING) is False

    def _owner(self, source: str) -> str:
        return f"{source}/{self.slot:02d}/{self.uuid}"

    def _pass(self, source: _Pass, every_s: float, at_s: float) -> None:
        self._under_way = source.name
        began_ns = self.now_ns()
        items = list(source.read(at_s))
        if source.name == GpuSlow.name:
            items += self._extras()
        elif source is self._inventory:
            self._tell_identity()
        took_s = (self.now_ns() - began_ns) / 1e9
        owner = self._owner(source.name)
        # A GPU without MIG has nothing to say of it every second: that is said at the slow cadence.
        if items or at_s >= self._quiet_until_s.get(owner, 0.0):
            send_batch(self.channel, source.name, owner, at_s, every_s, took_s, items)
            self._quiet_until_s[owner] = 0.0 if items else at_s + self.plan.slow_s

    def _tell_identity(self) -> None:
        assert self._inventory is not None
        assert self._fast is not None
        who = self._inventory.identity
        self.channel.send("identity", str(who.uuid), who.index, who.pci_bus_id)
        self._fast.reconsider()

    def _extras(self) -> list[Item]:
        assert self._fast is not None
        items: list[Item] = list(self._fast.take_rejections())
        if self._ring_is_absent():
            labels = (str(self.index), str(self.uuid))
            items.append(Sample(catalogue.GPU_BUSY_SECONDS, labels, self.state.busy_s))
        return items

    def _read_processes(self, at_s: float) -> None:
        assert self._processes is not None
        self._under_way = name = "gpu_processes"
        began_ns = self.now_ns()
        processes, problems = self._processes.read_processes(at_s)
        self.channel.send("processes", str(self.uuid), [tuple(process) for process in processes])
        took_s = (self.now_ns() - began_ns) / 1e9
        send_batch(self.channel, name, self._owner(name), at_s, self.plan.slow_s, took_s, problems)

    # --- coming and going -----------------------------------------------------------------------------------------

    def _find(self, at_s: float) -> bool:
        if at_s < self._find_at_s:
            return False
        self._finding_ns = time.monotonic_ns()
        try:
            device = self.nvml.device_by_uuid(str(self.uuid))
        except NvmlError as error:
            self._gone(error, at_s)
            return False
        finally:
            self._finding_ns = 0
        self._build(device)
        if self.lost:
            self.lost = False
            self.channel.send("gpu_back", str(self.uuid), str(self.index))
        return True

    def _build(self, device: Device) -> None:
        self.index = device.index
        labels = (str(self.index), str(self.uuid))
        capabilities = Capabilities(f"gpu {self.index}")
        fast = GpuFast(self.nvml, device, capabilities)
        self._mig = Mig(self.nvml, device, labels, capabilities, self.state)
        self._processes = GpuProcesses(self.nvml, device, labels, capabilities, self._mig.instances)
        self._inventory = GpuInventory(self.nvml, device, labels, capabilities, self.files)
        self._dues = [
            _Due(self._inventory, self.plan.inventory_s),
            _Due(GpuSlow(self.nvml, device, labels, capabilities, self.state), self.plan.slow_s),
            _Due(self._mig, self.plan.mig_s),
        ]
        self._processes_at_s = 0.0
        self._previous_s = None
        self._blanks = 0
        self._capabilities, self._fast, self.device = capabilities, fast, device

    def _gone(self, error: NvmlError, at_s: float) -> None:
        """The GPU or the driver does not answer any more."""
        if error.code in DRIVER_GONE:
            self._stop.set()
            self.driver_gone(error)
            return
        self.let_go()
        least_s = self.plan.lost_retry_s
        self._find_pause_s = min(max(self._find_pause_s * 2, least_s), 12 * least_s)
        self._find_at_s = at_s + self._find_pause_s
        if not self.lost:
            self.lost = True
            reason = "lost" if error.code in DEVICE_GONE else code_name(error.code)
            self.channel.send("gpu_lost", str(self.uuid), str(self.index), f"{reason}: {error}")

    def let_go(self) -> None:
        """Free what NVML holds for this GPU: by its own thread, or when it has none.

        A GPU that is gone may refuse, and then nothing is left to free.
        """
        for part in (self._fast, self._mig):
            if part is not None:
                try:
                    part.close()
                except NvmlError:
                    continue
        device, self.device = self.device, None
        self._fast = self._mig = None
        if device is not None:
            add_calls(self._past_calls, device.calls.durations)


def add_calls(totals: dict[str, list[int]], durations: Mapping[str, list[int]]) -> None:
    """Add durations by function; another thread may be writing them."""
    for name, row in list(durations.items()):
        total = totals.setdefault(name, [0] * len(row))
        for i, count in enumerate(row):
            total[i] += count


def bug_text(error: Exception) -> str:
    """The traceback, its end if it is long."""
    import traceback  # a millisecond of every start, for what should never happen

    return "".join(traceback.format_exception(error))[-4000:]
