"""The sampler process: holds NVML so that nobody else has to, and outlives nothing.

The supervisor (the main thread) opens NVML, starts one thread per GPU and one for XID events, beats the heart in the
shared memory, names calls that hang, and ends a generation whose driver is gone. Everything it knows goes to the
main process: fast rows through the ring, the rest as messages. It keeps no state that a new process could not
rebuild, so the main process may kill it at any time.

Recovery: a lost GPU is its own thread's affair, and every now and then a new generation is tried for it; a dead
driver ends the generation, and NVML is opened again with a growing pause; a driver that was upgraded under us, and
NVML's UNKNOWN at the start (a container that lost its devices), end the process: only a new one can load another
library. When no GPU answers any more, that is found out soon, by trying a new generation.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.host.files import Files
from gpumon.host.nvml import DRIVER_GONE, UUID, Code, Device, Nvml, NvmlError, code_name
from gpumon.model import GpuUuid, Item, Miss, Reason, Sample
from gpumon.sampler.handover import Handover, Plan
from gpumon.sampler.ring import RowSink
from gpumon.sampler.wire import Messages, send_batch
from gpumon.sampler.worker import GpuWorker, add_calls, bug_text
from gpumon.sources.gpu_inventory import NodeInventory
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.xid_events import XidWatcher

EXIT_NEW_PROCESS = 75
"""Exit status: NVML can only be had again by a new process (EX_TEMPFAIL)."""

BEAT_S = 0.2
CALLS_S = 5.0
INVENTORY_MIN_S = 1.0
JOIN_S = 2.0
XID_WAIT_MS = 500

# What a person can do about a state, by code.
ADVICE = {
    Code.LIBRARY_NOT_FOUND: "install the NVIDIA driver, or give the container access to it (runtimeClassName nvidia, "
    "NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility), or name the library with --nvml-lib",
    Code.DRIVER_NOT_LOADED: "load the nvidia kernel module; gpumon goes on by itself when it is back",
    Code.LIB_RM_VERSION_MISMATCH: "the driver was upgraded: reload the kernel module or reboot; gpumon loads the new "
    "library by itself",
    Code.UNKNOWN: "in a container: its devices were taken away (systemctl daemon-reload does that); restart it",
    Code.NO_PERMISSION: "give gpumon access to /dev/nvidia* and /dev/nvidiactl",
    Code.GPU_IS_LOST: "a GPU fell off the bus; drain the node and reset or reboot it",
}


@dataclass(slots=True)
class Watch:
    """What is remembered from round to round of one generation."""

    began_s: float
    refresh_s: float
    """Pause before a new generation is tried for a GPU that is lost."""
    calls_s: float = -math.inf
    inventory_s: float = -math.inf
    answering: int = -1
    error: NvmlError | None = None


class Supervisor:
    """The life of NVML in this process."""

    def __init__(
        self,
        nvml: Nvml,
        ring: RowSink,
        channel: Messages,
        files: Files,
        plan: Plan,
        now_ns: Callable[[], int] = time.monotonic_ns,
        began: Callable[[GpuUuid | None, float], None] | None = None,
    ) -> None:
        """``now_ns``: CLOCK_MONOTONIC, or the stepped clock that stands for it.

        ``began``: is told, in the thread that makes it, that a GPU's tick begins, or without a GPU the inventory.
        """
        self._began = began
        self._nvml = nvml
        self._now_ns = now_ns
        self._ring = ring
        self._channel = channel
        self._files = files
        self._plan = plan
        self._workers: list[GpuWorker] = []
        self._states: dict[GpuUuid, GpuState] = {}
        self._slots: dict[GpuUuid, int] = {}
        self._stop = threading.Event()
        self._dead: queue.SimpleQueue[NvmlError] = queue.SimpleQueue()
        self._stuck: set[GpuUuid] = set()
        self._silent: set[int] = set()
        """Indexes that NVML counts and that do not even tell their uuid."""
        self._count = 0
        self._past_calls: dict[str, list[int]] = {}
        """Of the workers of past generations."""
        self._sent_calls: dict[str, list[int]] = {}
        self._watcher: threading.Thread | None = None
        self._watching = threading.Event()
        self._xid_since_s: float | None = None
        """When the XID thread last went into the driver; None while it is not there."""

    def stop(self) -> None:
        """Ask for an orderly end; from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Until stopped, until the main process is gone, or until only a new process can help; the exit status."""
        try:
            return self._run()
        except BrokenPipeError:
            if self._join():
                with contextlib.suppress(NvmlError):
                    self._nvml.close()
            return 1

    def _run(self) -> int:
        pause_s = self._plan.retry_min_s
        refresh_s = self._plan.refresh_s
        while not self._stop.is_set():
            self._ring.beat(time.monotonic_ns())
            error = self._open()
            if error is None:
                self._start_threads()
                began_s = time.monotonic()
                error, refresh_s = self._generation(refresh_s)
                if not self._close():
                    return EXIT_NEW_PROCESS  # a thread is inside the driver: NVML cannot be shut down around it
                if error is None:
                    continue
                if time.monotonic() - began_s >= self._plan.retry_max_s:
                    pause_s = self._plan.retry_min_s
            self._tell_unavailable(error)
            if error.code in (Code.LIB_RM_VERSION_MISMATCH, Code.UNKNOWN):
                return EXIT_NEW_PROCESS
            self._pause(pause_s)
            pause_s = min(pause_s * 2, self._plan.retry_max_s)
        return 0

    # --- a generation ---------------------------------------------------------------------------------------------

    def _open(self) -> NvmlError | None:
        try:
            self._nvml.open()
        except NvmlError as error:
            return error
        try:
            self._find_gpus()
        except NvmlError as error:
            self._shut_down()
            return error
        return None

    def _shut_down(self) -> None:
        try:
            self._nvml.close()
        except NvmlError as error:
            self._channel.send("log", f"call={error.function} result={code_name(error.code)}")

    def _find_gpus(self) -> None:
        """A worker for each GPU. One that does not answer keeps its place and is looked for again."""
        count = self._nvml.device_count()
        if count == 0:
            raise NvmlError(Code.NOT_FOUND, "nvmlDeviceGetCount_v2 (no GPU)")
        found: dict[GpuUuid, int] = {}
        self._silent = set()
        for index in range(count):
            self._ring.beat(time.monotonic_ns())  # the first call to a GPU may take seconds
            try:
                device = self._nvml.device(index)
                found[GpuUuid(self._nvml.text(device, UUID))] = index
            except NvmlError as error:
                if error.code in DRIVER_GONE:
                    raise
                self._silent.add(index)
                self._channel.send("gpu_silent", str(index), str(error))
        self._count = count
        for uuid in self._states:
            found.setdefault(uuid, -1)  # known from an earlier generation: lost until it answers
        self._stuck.clear()
        self._workers = [worker for uuid, index in found.items() if (worker := self._worker(uuid, index)) is not None]
        self._channel.send("gpus", [(w.slot, str(w.uuid), w.index) for w in self._workers])
        self._channel.send("state", "running", str(Reason.UNAVAILABLE), "", "")

    def _start_threads(self) -> None:
        for worker in self._workers:
            worker.start()
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch_xids, args=(self._watching,), name="xid", daemon=True)
        self._watcher.start()

    def _worker(self, uuid: GpuUuid, index: int) -> GpuWorker | None:
        slot = self._slots.setdefault(uuid, len(self._slots))
        if slot >= self._ring.slots:
            self._channel.send("log", f"gpu={index} uuid={uuid} state=ignored detail='more than {slot} GPUs'")
            return None
        return GpuWorker(
            nvml=self._nvml,
            uuid=uuid,
            index=index,
            slot=slot,
            ring=self._ring,
            channel=self._channel,
            files=self._files,
            plan=self._plan,
            state=self._states.setdefault(uuid, GpuState()),
            driver_gone=self._dead.put,
            now_ns=self._now_ns,
            began=self._began,
            lost=index < 0,
        )

    def _generation(self, refresh_s: float) -> tuple[NvmlError | None, float]:
        """Watch until the generation ends: the error that ended it (None: wanted), and the next refresh pause."""
        watch = Watch(time.monotonic(), refresh_s)
        while not self._stop.wait(BEAT_S):
            if self._round(watch, time.monotonic()):
                return watch.error, watch.refresh_s
        return None, watch.refresh_s

    def _round(self, watch: Watch, now_s: float) -> bool:
        """Look once after everything; True when the generation is over, with ``watch.error`` if it was one."""
        plan = self._plan
        self._ring.beat(self._now_ns())
        self._look_for_hangs(now_s)
        if not self._dead.empty():
            watch.error = self._dead.get()
            while not self._dead.empty():
                self._dead.get()
            return True
        if now_s - watch.calls_s >= CALLS_S:
            watch.calls_s = now_s
            self._send_calls()
        if self._lost() == 0:
            watch.refresh_s = plan.refresh_s
        # The first try is made soon when no GPU answers at all: there is nobody whom it would disturb.
        elif now_s - watch.began_s >= (
            watch.refresh_s if self._answering() or watch.refresh_s > plan.refresh_s else plan.lost_retry_s
        ):
            watch.refresh_s = min(watch.refresh_s * 2, 15 * plan.refresh_s)
            return True
        changed = watch.answering != self._answering() and now_s - watch.inventory_s >= INVENTORY_MIN_S
        if changed or now_s - watch.inventory_s >= plan.inventory_s:
            watch.inventory_s, watch.answering = now_s, self._answering()
            try:
                # NVML lists the GPUs when it is opened: another number of them wants a new generation.
                return self._take_inventory(now_s) != self._count
            except NvmlError as error:
                watch.error = error
                return True
        return False

    def _lost(self) -> int:
        """GPUs that NVML counts and that do not answer, and those that answered once and are gone."""
        silent = self._silent - {worker.index for worker in self._workers}
        # One that does not even tell its uuid may be one that is known from before: counted once.
        unknown = max(0, len(silent) - sum(worker.index < 0 for worker in self._workers))
        return unknown + sum(worker.lost for worker in self._workers)

    def _answering(self) -> int:
        return sum(not worker.lost and worker.uuid not in self._stuck for worker in self._workers)

    def _take_inventory(self, at_s: float) -> int:
        """The node's own facts; how many GPUs NVML counts. Raises NvmlError when the driver is gone."""
        if self._began is not None:
            self._began(None, at_s)
        inventory = NodeInventory(self._nvml, self._files, self._lost)
        count = self._count
        items: list[Item] = []
        for item in inventory.read(at_s):
            if isinstance(item, Sample) and item.metric is catalogue.GPU_COUNT and item.labels == ("present",):
                # NVML goes on counting a GPU that fell off the bus. Present is what answers.
                count = int(item.value) if isinstance(item.value, float) else count
                items.append(item._replace(value=float(self._answering())))
            else:
                items.append(item)
        took_s = self._now_ns() / 1e9 - at_s
        send_batch(self._channel, inventory.name, inventory.name, at_s, self._plan.inventory_s, took_s, items)
        return count

    def _join(self) -> bool:
        """Wait for every thread; False when one would not leave the driver."""
        self._watching.set()
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + JOIN_S
        left = [worker for worker in self._workers if not worker.join(max(0.0, deadline - time.monotonic()))]
        if self._watcher is not None:
            self._watcher.join(max(0.1, deadline - time.monotonic()))
        return not left and (self._watcher is None or not self._watcher.is_alive())

    def _close(self) -> bool:
        """End the generation; False when a thread would not leave the driver."""
        joined = self._join()
        self._send_calls()
        if not joined:
            return False
        self._shut_down()
        for worker in self._workers:
            worker.add_calls(self._past_calls)
        self._workers = []
        return True

    # --- watching -------------------------------------------------------------------------------------------------

    def _look_for_hangs(self, now_s: float) -> None:
        for worker in self._workers:
            name = worker.hangs_in(now_s, self._plan.stuck_after_s)
            if name is not None and worker.uuid not in self._stuck:
                self._stuck.add(worker.uuid)
                self._channel.send("gpu_stuck", str(worker.uuid), str(worker.index), name)
            elif name is None and worker.uuid in self._stuck:
                self._stuck.discard(worker.uuid)
                if not worker.lost:
                    self._channel.send("gpu_back", str(worker.uuid), str(worker.index))
                    worker.read_all_again()  # all that it told was dropped when it hung
        if self._xid_since_s is not None and now_s - self._xid_since_s > self._plan.stuck_after_s + XID_WAIT_MS / 1e3:
            self._xid_since_s = None  # said once
            miss = Miss("xid events", Reason.TIMEOUT, "a call is still under way")
            send_batch(self._channel, "xid_events", "xid_events", now_s, self._plan.slow_s, None, [miss])

    def _send_calls(self) -> None:
        """Durations of all calls of this process so far, as differences to what was sent before."""
        totals = {name: row.copy() for name, row in self._past_calls.items()}
        add_calls(totals, self._nvml.calls.durations)
        for worker in self._workers:
            worker.add_calls(totals)
        changes = []
        for name, total in totals.items():
            sent = self._sent_calls.get(name, [0] * len(total))
            change = [new - old for new, old in zip(total, sent, strict=True)]
            if any(change):
                changes.append((name, change))
        if changes and self._channel.send("calls", changes):
            self._sent_calls = totals

    def _watch_xids(self, done: threading.Event) -> None:
        """The XID thread: waits in the driver for half a second at a time, shares nothing with the others."""
        try:
            self._watch_xids_until(done)
        except BrokenPipeError:
            return  # the main process is gone
        except Exception as error:  # noqa: BLE001 - the top of this thread: a bug here must be heard of
            self._channel.send("bug", "xid_events", "xid_events", "xid events", bug_text(error))

    def _watch_xids_until(self, done: threading.Event) -> None:
        devices: dict[int, GpuWorker] = {}
        handles: list[Device] = []
        self._xid_since_s = time.monotonic()
        for worker in self._workers:
            if done.is_set():
                return
            try:
                handles.append(self._nvml.device_by_uuid(str(worker.uuid)))
            except NvmlError:
                continue  # lost: the generation that finds it again registers it
            devices[id(handles[-1])] = worker
        watcher = XidWatcher(self._nvml, handles, lambda device: devices[id(device)].lost)
        told_s = -math.inf
        try:
            while not done.is_set():
                began_s = self._xid_since_s = time.monotonic()
                for event in watcher.poll(began_s, XID_WAIT_MS):
                    self._channel.send("xid", event.uuid or "", event.data, time.monotonic())
                self._xid_since_s = None
                if (problems := watcher.take()) or began_s - told_s >= self._plan.slow_s:
                    told_s = began_s
                    send_batch(self._channel, "xid_events", "xid_events", began_s, self._plan.slow_s, None, problems)
                done.wait(max(0.0, watcher.resume_at_s - time.monotonic()))
        except NvmlError as error:
            self._dead.put(error)
        finally:
            watcher.close()
            self._xid_since_s = None

    def _tell_unavailable(self, error: NvmlError) -> None:
        advice = ADVICE.get(error.code, "")  # type: ignore[call-overload]
        reason = Reason.DENIED if error.code == Code.NO_PERMISSION else Reason.UNAVAILABLE
        self._channel.send("state", "unavailable", str(reason), str(error), advice)

    def _pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self._stop.wait(min(left_s, BEAT_S)):
            self._ring.beat(time.monotonic_ns())


def serve(
    nvml: Nvml, files: Files, handover: Handover, began: Callable[[GpuUuid | None, float], None] | None = None
) -> int:
    """Run the supervisor until SIGTERM, until the main process is gone, or until a new process is needed.

    ``began``: see Supervisor.
    """
    channel = handover.channel()
    supervisor = Supervisor(nvml, handover.ring(), channel, files, handover.plan, began=began)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is the main process's to handle

    def until_parent_is_gone() -> None:
        while channel.receive() is not None:
            continue
        supervisor.stop()
        time.sleep(JOIN_S + 1.0)
        os._exit(1)  # orphaned and stuck in the driver: nothing would ever end us

    threading.Thread(target=until_parent_is_gone, name="parent", daemon=True).start()
    return supervisor.run()
