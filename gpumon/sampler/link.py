"""The main process's end of the sampler: starts it, drains its ring, hands on its messages, replaces it when it dies.

The sampler may hang, crash or be killed at any moment; this side never waits for it. Counters that the sampler sums
up itself go on where they were when a new process begins again from nothing; counters that the hardware keeps are
absolute and need no help.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import gpumon
from gpumon import catalogue
from gpumon.host.clock import Clock
from gpumon.model import Distribution, GpuProcess, GpuUuid, Miss, Reason, Sample
from gpumon.sampler.child import EXIT_NEW_PROCESS
from gpumon.sampler.handover import Handover, Plan
from gpumon.sampler.ring import Ring
from gpumon.sampler.wire import Batch, Channel, pair, unpack_batch
from gpumon.sources.gpu_activity import GpuActivity
from gpumon.sources.gpu_fast import Column

log = logging.getLogger(__name__)

SLOTS = 32
RING_SECONDS = 15.0
STOP_S = 5.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 60.0
STABLE_S = 60.0
"""A sampler that lived this long is replaced at once the next time."""

_SUMMED_IN_SAMPLER = frozenset(
    {
        catalogue.GPU_BUSY_SECONDS,
        catalogue.GPU_UTILIZATION_SAMPLES,
        catalogue.MIG_SM_ACTIVE_SECONDS,
        catalogue.MIG_DRAM_ACTIVE_SECONDS,
    }
)


class Listener(Protocol):
    """Who hears what the sampler says. Called from the link's threads."""

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None: ...

    def drop(self, owner: str) -> None: ...

    def passed(self, batch: Batch) -> None:
        """A pass of a source in the sampler is over; its samples have been put."""
        ...

    def gpu_identity(self, uuid: GpuUuid, gpu: str, pci_bus_id: str, numa_node: int | None) -> None: ...

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None: ...

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None: ...

    def dropped_messages(self, count: int) -> None:
        """Rows or messages that were lost because this side was too slow."""
        ...

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        """NVML's state (catalogue.NVML_STATE) was said, changed or not."""
        ...


class SamplerLink:
    """One sampler process after another."""

    def __init__(
        self,
        command: Sequence[str],
        options: dict[str, str],
        plan: Plan,
        clock: Clock,
        listener: Listener,
        *,
        publish_s: float = 1.0,
        restart_after_s: float = 30.0,
        requests_open: Callable[[GpuUuid], bool] | None = None,
    ) -> None:
        """``command``: interpreter and module. ``restart_after_s``: a sampler silent for longer is killed."""
        self._command = tuple(command)
        self._options = options
        self._plan = plan
        self._clock = clock
        self._listener = listener
        self._publish_s = publish_s
        self._restart_after_s = restart_after_s
        self._requests_open = requests_open
        self._lock = threading.Lock()  # over the fields below: link thread, receiver thread, release and acquire
        self._process: subprocess.Popen[bytes] | None = None
        self._ring: Ring | None = None
        self._channel: Channel | None = None
        self._started_at_s = 0.0
        self._next_start_at_s = 0.0
        self._pause_s = PAUSE_MIN_S
        self._wanted = True
        self._state = "starting"
        self._restarts = dict.fromkeys(catalogue.SAMPLER_RESTARTS.values, 0)
        self._slots: dict[int, GpuUuid] = {}
        self._gpus: dict[GpuUuid, str] = {}
        self._absent: dict[GpuUuid, str] = {}
        """GPUs that do not answer, and why."""
        self._activity: dict[GpuUuid, GpuActivity] = {}
        self._owners: set[str] = set()
        self._bugs = 0
        self._calls: dict[str, list[int]] = {}
        self._carried: dict[tuple[str, tuple[str, ...]], float | Distribution] = {}
        self._newest: dict[tuple[str, tuple[str, ...]], float | Distribution] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sampler and the thread that tends it."""
        self._thread = threading.Thread(target=self._run, name="sampler-link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampler in order, or after STOP_S by force."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self._end_process("stopped")

    def release(self) -> None:
        """Let go of NVML (a GPU reset, a MIG change, a driver unload need that) until ``acquire``."""
        with self._lock:
            self._wanted = False
        self._end_process("released")

    def acquire(self) -> None:
        """Take NVML again after ``release``."""
        with self._lock:
            self._wanted = True
            self._pause_s = PAUSE_MIN_S
            self._next_start_at_s = 0.0

    def reconfigure(self, plan: Plan, publish_s: float, restart_after_s: float) -> None:
        """Go on with another plan: a new sampler process, the same totals."""
        with self._lock:
            unchanged = plan == self._plan
            self._plan = plan
            self._publish_s = publish_s
            self._restart_after_s = restart_after_s
        if not unchanged and self._process is not None:
            self._end_process("reconfigured")

    @property
    def pid(self) -> int | None:
        """Process id of the sampler, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def state(self) -> str:
        """One of catalogue.NVML_STATE's values."""
        return self._state

    def _run(self) -> None:
        while not self._stop.wait(self._publish_s if self._process is not None else min(self._publish_s, 0.05)):
            self.tend(self._clock.now_s())

    def tend(self, at_s: float) -> None:
        """One round: start or replace the sampler, drain the ring, publish."""
        with self._lock:
            wanted, process = self._wanted, self._process
        if process is None:
            if wanted and at_s >= self._next_start_at_s:
                self._begin_process(at_s)
        elif (status := process.poll()) is not None:
            self._replace("driver" if status == EXIT_NEW_PROCESS else "exited", at_s, f"exit status {status}")
        elif self._silent_s(at_s) > self._restart_after_s:
            process.kill()
            self._replace("stuck", at_s, f"no sign of life for {self._silent_s(at_s):.0f} s")
        self._drain(at_s)
        self._listener.put("sampler", at_s, self._own_samples(), 10 * self._publish_s + 5.0)

    # --- the process ----------------------------------------------------------------------------------------------

    def _begin_process(self, at_s: float) -> None:
        ours, theirs = pair()
        ring = Ring.create(SLOTS, max(16, int(RING_SECONDS / self._plan.fast_s)), len(Column))
        handover = Handover(ring.fd, theirs.fileno(), self._plan, self._options)
        try:
            process = subprocess.Popen(
                [*self._command, handover.to_argument()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(ring.fd, theirs.fileno()),
                env=os.environ | {"PYTHONPATH": _search_path()},
                start_new_session=True,  # a terminal's ^C goes to the main process alone
            )
        finally:
            theirs.close()
        channel = Channel(ours)
        with self._lock:
            self._process, self._ring, self._channel = process, ring, channel
            self._started_at_s = at_s
            if self._state in ("released", "stuck"):
                self._state = "starting"
        threading.Thread(target=self._receive, args=(channel,), name="sampler-messages", daemon=True).start()
        log.info("sampler=started pid=%d", process.pid)

    def _silent_s(self, at_s: float) -> float:
        beat_s = self._ring.heartbeat_ns / 1e9 if self._ring is not None else 0.0
        return at_s - max(beat_s, self._started_at_s)

    def _replace(self, reason: str, at_s: float, detail: str) -> None:
        self._restarts[reason] += 1
        if at_s - self._started_at_s >= STABLE_S:
            self._pause_s = PAUSE_MIN_S
        self._next_start_at_s = at_s + self._pause_s
        log.warning("sampler=ended reason=%s detail=%r restart_in_s=%.1f", reason, detail, self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        if reason == "stuck":
            self._state = "stuck"
        elif self._state == "running":
            self._state = "starting"
        if self._state != "unavailable":  # then the reason has been told already
            why = Reason.TIMEOUT if reason == "stuck" else Reason.UNAVAILABLE
            self._listener.nvml_state(self._state, at_s, why, f"the sampler ended: {detail}")
        self._forget_process()

    def _end_process(self, state: str) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                # It hangs in the driver. The signal is delivered when the call returns; nobody waits for it here.
                process.send_signal(signal.SIGKILL)
                log.warning("sampler=killed pid=%d detail='did not end in %.0f s'", process.pid, STOP_S)
        if state == "released":
            self._state = state
            self._listener.nvml_state(state, self._clock.now_s(), Reason.UNAVAILABLE, "released")
        self._forget_process()

    def _forget_process(self) -> None:
        """Drop what the old process said: nothing stale may look live."""
        with self._lock:
            ring, channel, owners = self._ring, self._channel, self._owners
            self._process = self._ring = self._channel = None
            self._owners = set()
            self._slots = {}
            self._carried = dict(self._newest)
        if channel is not None:
            channel.close()
        for owner in owners:
            self._listener.drop(owner)
        if ring is not None:
            ring.close()

    # --- what it says -----------------------------------------------------------------------------------------------

    def _drain(self, at_s: float) -> None:
        with self._lock:
            ring, slots = self._ring, dict(self._slots)
        if ring is None:
            return
        for slot, uuid in slots.items():
            rows, lost = ring.read(slot)
            if lost:
                self._listener.dropped_messages(lost)
            if not rows:
                continue
            activity = self._activity[uuid]
            for row in rows:
                activity.add(row.at_ns, row.values)
            owner = f"gpu_fast/{slot:02d}/{uuid}"
            self._put(owner, at_s, activity.samples(self._clock.to_unix), self._fast_ttl_s)
            self._listener.passed(Batch("gpu_fast", owner, at_s, self._fast_ttl_s, 0.0, [], [], []))

    @property
    def _fast_ttl_s(self) -> float:
        return 3 * max(self._publish_s, self._plan.fast_s)

    def _put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        self._owners.add(owner)
        self._listener.put(owner, at_s, samples, ttl_s)

    def _receive(self, channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            kind, dropped, body = message
            if dropped:
                self._listener.dropped_messages(dropped)
            with self._lock:
                if channel is not self._channel:
                    return  # last words of a process that has been replaced
            getattr(self, f"_hear_{kind}")(*body)

    def _hear_batch(self, *body: Any) -> None:  # noqa: ANN401 - a message, checked by unpack_batch
        batch = unpack_batch(body)
        samples = [self._carry_on(sample) for sample in batch.samples]
        if samples:
            self._put(batch.owner, batch.at_s, samples, batch.ttl_s)
        self._listener.passed(batch)

    def _hear_gpus(self, gpus: list[tuple[int, str, int]]) -> None:
        with self._lock:
            for slot, uuid_, index in gpus:
                uuid = GpuUuid(uuid_)
                if index >= 0:
                    self._gpus[uuid] = str(index)
                gpu = self._gpus.get(uuid, "")
                activity = self._activity.get(uuid)
                if activity is None:
                    self._activity[uuid] = GpuActivity(
                        gpu, uuid, longest_gap_s=10 * self._plan.fast_s, requests_open=self._requests_open
                    )
                else:
                    activity.rename(gpu)
                self._slots[slot] = uuid
                self._absent.pop(uuid, None)
            self._pause_s = PAUSE_MIN_S

    def _hear_identity(self, uuid: str, gpu: str, pci_bus_id: str, numa_node: int | None) -> None:
        self._listener.gpu_identity(GpuUuid(uuid), gpu, pci_bus_id, numa_node)

    def _hear_processes(self, uuid: str, processes: list[tuple[Any, ...]]) -> None:
        self._listener.gpu_processes(GpuUuid(uuid), [GpuProcess(*process) for process in processes])

    def _hear_xid(self, uuid: str, xid: int, at_s: float) -> None:
        self._listener.xid(GpuUuid(uuid) if uuid else None, xid, at_s)

    def _hear_calls(self, changes: list[tuple[str, list[int]]]) -> None:
        with self._lock:
            for name, change in changes:
                total = self._calls.get(name, [0] * len(change))
                self._calls[name] = [old + new for old, new in zip(total, change, strict=True)]

    def _hear_state(self, state: str, reason: str, detail: str, advice: str) -> None:
        if state == "stopped":
            return
        self._listener.nvml_state(state, self._clock.now_s(), Reason(reason), detail)
        changed = state != self._state
        self._state = state
        if state == "running":
            if changed:
                log.info("nvml=running gpus=%d", len(self._slots))
        elif changed:
            log.warning("nvml=%s detail=%r advice=%r", state, detail, advice)

    def _hear_gpu_lost(self, uuid: str, gpu: str, detail: str) -> None:
        self._gpu_gone(GpuUuid(uuid), gpu, "lost", detail)

    def _hear_gpu_stuck(self, uuid: str, gpu: str, function: str) -> None:
        self._gpu_gone(GpuUuid(uuid), gpu, "stuck", f"{function} has not returned for {self._plan.stuck_after_s:g} s")

    def _gpu_gone(self, uuid: GpuUuid, gpu: str, how: str, detail: str) -> None:
        log.warning("gpu=%s uuid=%s state=%s detail=%r", gpu, uuid, how, detail)
        with self._lock:
            self._absent[uuid] = how
            owners = [owner for owner in self._owners if owner.endswith(f"/{uuid}")]
            self._owners.difference_update(owners)
        for owner in owners:
            self._listener.drop(owner)
        self._listener.gpu_processes(uuid, [])

    def _hear_gpu_back(self, uuid: str) -> None:
        log.info("gpu=%s uuid=%s state=back", self._gpus.get(GpuUuid(uuid), ""), uuid)
        with self._lock:
            self._absent.pop(GpuUuid(uuid), None)

    def _hear_gpu_silent(self, index: str, detail: str) -> None:
        log.warning("gpu=%s state=silent detail=%r", index, detail)

    def _hear_gpu_bug(self, uuid: str, gpu: str, text: str) -> None:
        if self._bugs == 0:
            log.error("gpu=%s uuid=%s state=bug detail='said once, counted always'\n%s", gpu, uuid, text)
        self._bugs += 1
        miss = Miss(f"gpu {gpu}", Reason.BUG, text.rstrip().rsplit("\n", 1)[-1])
        self._listener.passed(Batch("gpu_bug", f"gpu_bug/{uuid}", self._clock.now_s(), 0.0, 0.0, [], [miss], []))

    def _hear_log(self, text: str) -> None:
        log.warning("%s", text)

    # --- samples of its own -----------------------------------------------------------------------------------------

    def _carry_on(self, sample: Sample) -> Sample:
        if sample.metric not in _SUMMED_IN_SAMPLER:
            return sample
        key = (sample.metric.name, sample.labels)
        before = self._carried.get(key)
        value = sample.value
        if isinstance(before, Distribution) and isinstance(value, Distribution):
            counts = tuple(old + new for old, new in zip(before.counts, value.counts, strict=True))
            value = Distribution(counts, before.total + value.total)
        elif isinstance(before, float) and not isinstance(value, Distribution):
            value = before + value
        self._newest[key] = value
        return sample._replace(value=value)

    def _own_samples(self) -> Iterator[Sample]:
        with self._lock:
            state, restarts = self._state, dict(self._restarts)
            calls = list(self._calls.items())
            gpus, absent = dict(self._gpus), dict(self._absent)
        for name in catalogue.NVML_STATE.values:
            yield Sample(catalogue.NVML_STATE, (name,), float(name == state))
        for reason, count in restarts.items():
            yield Sample(catalogue.SAMPLER_RESTARTS, (reason,), count)
        for uuid, gpu in gpus.items():
            present = state == "running" and uuid not in absent
            yield Sample(catalogue.GPU_PRESENT, (gpu, str(uuid)), float(present))
        for function, row in calls:
            *counts, total_ns = row
            yield Sample(catalogue.NVML_CALL, (function,), Distribution(tuple(counts), total_ns / 1e9))


def command(module: str) -> list[str]:
    """Command line of a sampler process: this interpreter, without the caller's directory on its path."""
    return [sys.executable, "-P", "-m", module]


def _search_path() -> str:
    """This very gpumon first: from a source tree it is nowhere on the path of a new interpreter."""
    root = str(Path(gpumon.__file__).parents[1])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
