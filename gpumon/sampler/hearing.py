"""What the sampler says, brought to those who want to hear it: rows of the ring and messages, one after another.

Outlives the sampler's processes: totals go on, GPUs that were there once are told absent. Whatever a process said is
taken back when it ends, and when it loses the driver, since nothing stale may look live. Used by the link's thread
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from gpumon import catalogue
from gpumon.host.clock import Clock
from gpumon.model import Distribution, GpuProcess, GpuUuid, Miss, Reason, Sample
from gpumon.sampler.handover import Plan
from gpumon.sampler.ring import Row, RowSource
from gpumon.sampler.totals import Totals
from gpumon.sampler.wire import Batch, unpack_batch
from gpumon.sources.gpu_activity import GpuActivity

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who hears what the sampler says. Called from the link's thread."""

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None: ...

    def drop(self, owner: str) -> None: ...

    def passed(self, batch: Batch) -> None:
        """A pass of a source in the sampler is over; its samples have been put."""
        ...

    def gpu_identity(self, uuid: GpuUuid, gpu: str, pci_bus_id: str) -> None: ...

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None: ...

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None: ...

    def dropped_messages(self, count: int) -> None:
        """Rows or messages that were lost because this side was too slow."""
        ...

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        """NVML's state (catalogue.NVML_STATE) was said, changed or not."""
        ...


class Hearing:
    """Knows what was said by the present process, and what is to be remembered of all of them."""

    def __init__(
        self,
        listener: Listener,
        clock: Clock,
        requests_open: Callable[[GpuUuid], bool] | None,
        rows: Callable[[GpuUuid, Sequence[Row]], None] | None = None,
    ) -> None:
        """``rows``: is given every row of every GPU, as drained; it must not wait, raise, or keep the list."""
        self.state = "starting"
        """One of catalogue.NVML_STATE's values. Read by any thread."""
        self.spoke = False
        """Whether the present process has said anything of NVML yet."""
        self.news = False
        """Whether ``samples`` has something else to say than the last time it was asked."""
        self._listener = listener
        self._clock = clock
        self._requests_open = requests_open
        self._rows = rows
        self._plan = Plan()
        self._slots: dict[int, GpuUuid] = {}
        self._gpus: dict[GpuUuid, str] = {}
        self._absent: dict[GpuUuid, str] = {}
        """GPUs that do not answer, and why."""
        self._activity: dict[GpuUuid, GpuActivity] = {}
        self._owners: set[str] = set()
        self._told_bug = ""
        self._error = ""
        """NVML's name of why it cannot be used; empty while it can."""
        self._calls: dict[str, list[int]] = {}
        self._totals = Totals()

    def begin(self, plan: Plan) -> None:
        """A new process has been started, with this plan."""
        self._plan = plan
        self.spoke = False
        self._totals.new_process()
        if self.state in ("released", "stuck", "running"):
            self.state = "starting"

    def end(self) -> None:
        """The process is no more: take back what it said."""
        self._slots = {}
        self._take_back()

    def _take_back(self) -> None:
        owners, self._owners = self._owners, set()
        for owner in owners:
            self._listener.drop(owner)
        for uuid in self._gpus:
            self._listener.gpu_processes(uuid, [])

    def tell_state(self, state: str, reason: Reason, detail: str) -> None:
        """The state as the link found it out."""
        self.state = state
        self.news = True
        self._listener.nvml_state(state, self._clock.now_s(), reason, detail)

    # --- rows -------------------------------------------------------------------------------------------------------

    def drain(self, ring: RowSource, at_s: float, ttl_s: float) -> None:
        """Take the rows since the last time and publish what they add up to."""
        for slot, uuid in self._slots.items():
            rows, lost = ring.read(slot)
            if lost:
                self._listener.dropped_messages(lost)
            activity = self._activity[uuid]
            for row in rows:
                activity.add(row.at_ns, row.values)
            if rows and self._rows is not None:
                self._rows(uuid, rows)
            if not rows or uuid in self._absent or self.state != "running":
                continue
            owner = f"gpu_fast/{slot:02d}/{uuid}"
            self._put(owner, at_s, activity.samples(self._clock.to_unix), ttl_s)
            self._listener.passed(Batch("gpu_fast", owner, at_s, ttl_s, None, [], [], []))

    def _put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        self._owners.add(owner)
        self._listener.put(owner, at_s, samples, ttl_s)

    # --- messages ---------------------------------------------------------------------------------------------------

    def hear(self, kind: str, dropped: int, body: tuple[Any, ...]) -> None:
        """Take a message; ``dropped``: how many before it were lost."""
        if dropped:
            self._listener.dropped_messages(dropped)
        getattr(self, f"_hear_{kind}")(*body)

    def _hear_batch(self, *body: Any) -> None:  # noqa: ANN401 - a message, checked by unpack_batch
        batch = unpack_batch(body)
        if batch.samples:
            self._put(batch.owner, batch.at_s, [self._totals.carry(sample) for sample in batch.samples], batch.ttl_s)
        elif batch.owner in self._owners:
            self._owners.discard(batch.owner)  # it has nothing to say any more
            self._listener.drop(batch.owner)
        self._listener.passed(batch)

    def _hear_gpus(self, gpus: list[tuple[int, str, int]]) -> None:
        self._slots = {slot: GpuUuid(uuid) for slot, uuid, _ in gpus}
        answering = {GpuUuid(uuid): str(index) for _, uuid, index in gpus if index >= 0}
        self._gpus |= answering
        for uuid in self._slots.values():
            gpu, gap_s = self._gpus.get(uuid, ""), 10 * self._plan.fast_s
            activity = self._activity.get(uuid)
            if activity is None:
                self._activity[uuid] = GpuActivity(gpu, uuid, longest_gap_s=gap_s, requests_open=self._requests_open)
            else:
                activity.rename(gpu)
                activity.longest_gap_s = gap_s
        for uuid in self._gpus.keys() - answering.keys():
            self._gone(uuid, "lost")
        for uuid in answering:
            self._absent.pop(uuid, None)

    def _hear_identity(self, uuid: str, gpu: str, pci_bus_id: str) -> None:
        self._listener.gpu_identity(GpuUuid(uuid), gpu, pci_bus_id)

    def _hear_processes(self, uuid: str, processes: list[tuple[Any, ...]]) -> None:
        self._listener.gpu_processes(GpuUuid(uuid), [GpuProcess(*process) for process in processes])

    def _hear_xid(self, uuid: str, xid: int, at_s: float) -> None:
        self._listener.xid(GpuUuid(uuid) if uuid else None, xid, at_s)

    def _hear_calls(self, changes: list[tuple[str, list[int]]]) -> None:
        for name, change in changes:
            total = self._calls.get(name, [0] * len(change))
            self._calls[name] = [old + new for old, new in zip(total, change, strict=True)]

    def _hear_state(self, state: str, reason: str, detail: str, advice: str) -> None:
        changed = state != self.state
        self.spoke = True
        self._error = detail.rpartition(": ")[2] if state == "unavailable" else ""
        self.tell_state(state, Reason(reason), detail)
        if state == "running":
            if changed:
                log.info("nvml=running gpus=%d", len(self._slots))
            return
        self._take_back()
        if changed:
            log.warning("nvml=%s detail=%r advice=%r", state, detail, advice)

    def _hear_gpu_lost(self, uuid: str, gpu: str, detail: str) -> None:
        log.warning("gpu=%s uuid=%s state=lost detail=%r", gpu, uuid, detail)
        self._gone(GpuUuid(uuid), "lost")

    def _hear_gpu_stuck(self, uuid: str, gpu: str, function: str) -> None:
        after_s = self._plan.stuck_after_s
        log.warning("gpu=%s uuid=%s state=stuck detail='%s is under way for %g s'", gpu, uuid, function, after_s)
        self._gone(GpuUuid(uuid), "stuck")

    def _gone(self, uuid: GpuUuid, how: str) -> None:
        self._absent[uuid] = how
        self.news = True
        owners = [owner for owner in self._owners if owner.endswith(f"/{uuid}")]
        self._owners.difference_update(owners)
        for owner in owners:
            self._listener.drop(owner)
        self._listener.gpu_processes(uuid, [])

    def _hear_gpu_back(self, uuid: str, gpu: str) -> None:
        log.info("gpu=%s uuid=%s state=back", gpu, uuid)
        known = GpuUuid(uuid)
        self._absent.pop(known, None)
        self.news = True
        self._gpus[known] = gpu
        if known in self._activity:
            self._activity[known].rename(gpu)

    def _hear_gpu_silent(self, index: str, detail: str) -> None:
        log.warning("gpu=%s state=silent detail=%r", index, detail)

    def _hear_bug(self, source: str, owner: str, what: str, text: str) -> None:
        summary = text.rstrip().rsplit("\n", 1)[-1]
        if summary != self._told_bug:  # the same one may come ten times a second
            self._told_bug = summary
            log.error("source=%s what=%r state=bug detail='said once, counted always'\n%s", source, what, text)
        miss = Miss(what, Reason.BUG, summary)
        now_s = self._clock.now_s()
        self._listener.passed(Batch(source, owner, now_s, 0.0, None, [], [miss], []))

    def _hear_log(self, text: str) -> None:
        log.warning("%s", text)

    # --- samples of its own -----------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """The state, the GPUs that are present, and what the driver's calls took."""
        self.news = False
        for name in catalogue.NVML_STATE.values:
            yield Sample(catalogue.NVML_STATE, (name,), float(name == self.state))
        if self.state == "unavailable" and self._error:
            yield Sample(catalogue.NVML_ERROR, (self._error,), 1.0)
        for uuid, gpu in self._gpus.items():
            present = self.state == "running" and uuid not in self._absent
            yield Sample(catalogue.GPU_PRESENT, (gpu, str(uuid)), float(present))
        for function, row in self._calls.items():
            *counts, total_ns = row
            yield Sample(catalogue.NVML_CALL, (function,), Distribution(tuple(counts), total_ns / 1e9))
