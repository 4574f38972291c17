"""The sampler on a stepped clock: in this process, in this thread, for simulation and replay.

The same workers, passes and generations as in the sampler process; only the waiting, the threads and the way to the
main process are left out. What it says reaches ``Hearing`` at once.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from gpumon.host.clock import Clock
from gpumon.host.files import Files
from gpumon.host.nvml import Device, Nvml, NvmlError
from gpumon.sampler.child import Supervisor, Watch
from gpumon.sampler.handover import SLOTS, Plan
from gpumon.sampler.hearing import Hearing
from gpumon.sampler.ring import Row
from gpumon.sampler.wire import send_batch
from gpumon.sampler.worker import GpuWorker
from gpumon.sources.xid_events import XidWatcher


class DirectRows:
    """Rows from the workers to who drains them, without shared memory. Bounded like the ring."""

    def __init__(self, depth: int) -> None:
        self.slots = SLOTS
        self._rows: dict[int, deque[Row]] = {}
        self._depth = depth
        self._lost: dict[int, int] = {}

    def write(self, slot: int, at_ns: int, values: list[float | None]) -> None:
        rows = self._rows.setdefault(slot, deque(maxlen=self._depth))
        if len(rows) == self._depth:
            self._lost[slot] = self._lost.get(slot, 0) + 1
        rows.append(Row(at_ns, tuple([math.nan if value is None else value for value in values])))

    def beat(self, at_ns: int) -> None:
        """Nobody watches a heart here."""

    def read(self, slot: int) -> tuple[list[Row], int]:
        rows = self._rows.pop(slot, None)
        return list(rows) if rows is not None else [], self._lost.pop(slot, 0)


class DirectMessages:
    """Messages straight to who hears them."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    def send(self, kind: str, *body: Any) -> bool:  # noqa: ANN401 - as wire.Messages has it
        self._hearing.hear(kind, 0, body)
        return True


class SteppedSampler(Supervisor):
    """One sampler. ``tick`` at the fast cadence, ``look`` about once a second."""

    def __init__(self, nvml: Nvml, files: Files, plan: Plan, hearing: Hearing, clock: Clock) -> None:
        self.rows = DirectRows(max(16, int(15.0 / plan.fast_s)))
        super().__init__(nvml, self.rows, DirectMessages(hearing), files, plan, now_ns=lambda: int(clock.now_s() * 1e9))
        self._watch: Watch | None = None
        self._open_at_s = -math.inf
        self._pause_s = plan.retry_min_s
        self._refresh_s = plan.refresh_s
        self._xids: XidWatcher | None = None
        self._xid_devices: dict[int, GpuWorker] = {}
        self._told_xids_s = -math.inf

    def workers(self) -> list[GpuWorker]:
        """Of this generation."""
        return list(self._workers)

    def tick(self, at_s: float, uuid: str | None = None) -> None:
        """A row of every GPU, or of one, and what else is due; opens NVML first where that is due."""
        if self._watch is None and not self._begin(at_s):
            return
        for worker in self._workers:
            if uuid is None or worker.uuid == uuid:
                worker.guarded_tick(at_s)

    def open_now(self, at_s: float) -> None:
        """Open NVML without regard to the pause that failures have earned: a replay knows when it was opened.

        If it is open, the process that had opened it is no more.
        """
        self.close_now(at_s)
        self._open_at_s = at_s
        self._begin(at_s)

    def close_now(self, at_s: float) -> None:
        """End the generation if there is one, whether or not this side knows a reason to."""
        watch = self._watch
        if watch is not None:
            while not self._dead.empty():
                watch.error = self._dead.get()
            self._end(watch, at_s)

    def look(self, at_s: float) -> None:
        """XIDs, inventory, and whether the driver is still there."""
        watch = self._watch
        if watch is None:
            return
        try:
            self._poll_xids(at_s)
        except NvmlError as error:
            self._dead.put(error)
        if self._round(watch, at_s):
            self._end(watch, at_s)

    def _begin(self, at_s: float) -> bool:
        if at_s < self._open_at_s:
            return False
        error = self._open()
        if error is not None:
            self._put_off(error, at_s)
            return False
        self._watch = Watch(at_s, self._refresh_s)
        self._xid_devices = {}
        handles: list[Device] = []
        for worker in self._workers:
            try:
                handles.append(self._nvml.device_by_uuid(str(worker.uuid)))
            except NvmlError:
                continue  # lost: the generation that finds it again registers it
            self._xid_devices[id(handles[-1])] = worker
        self._xids = XidWatcher(self._nvml, handles, lambda device: self._xid_devices[id(device)].lost)
        return True

    def _end(self, watch: Watch, at_s: float) -> None:
        if self._xids is not None:
            self._xids.close()
        for worker in self._workers:
            worker.stop()
            worker.let_go()
        self._close()
        self._watch = self._xids = None
        self._refresh_s = watch.refresh_s
        if at_s - watch.began_s >= self._plan.retry_max_s:
            self._pause_s = self._plan.retry_min_s
        if watch.error is not None:
            self._put_off(watch.error, at_s)

    def _put_off(self, error: NvmlError, at_s: float) -> None:
        self._tell_unavailable(error)
        self._open_at_s = at_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._plan.retry_max_s)

    def _poll_xids(self, at_s: float) -> None:
        if self._xids is None or at_s < self._xids.resume_at_s:
            return
        for event in self._xids.poll(at_s, 0):
            self._channel.send("xid", event.uuid or "", event.data, at_s)
        if (problems := self._xids.take()) or at_s - self._told_xids_s >= self._plan.slow_s:
            self._told_xids_s = at_s
            send_batch(self._channel, "xid_events", "xid_events", at_s, self._plan.slow_s, None, problems)
