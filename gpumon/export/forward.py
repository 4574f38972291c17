"""Forwards what arrives to an OTLP endpoint, changed in nothing but added attributes; never holds up who offers.

The way of a request: ``offer`` puts it in a bounded inbox. One thread takes it from there, converts JSON to protobuf,
stores it (on disk where a spool is configured), and once it has settled (so that the GPU samples of its last second
are known) applies the tail policy, adds the attributes and stores the result. Another thread sends batches and tries
again for as long as the downstream asks for it. Everything that is not sent is counted by reason:

``queue_full``  memory is full, the new one is refused; with a spool only while the disk fails
``spool_full``  the spool's bound is reached, the oldest go
``spool_corrupt``  read back from the spool and damaged
``refused``, ``partial``  the downstream did not take all, or part of it (partial success)
``gave_up``  the downstream asked to try again for longer than configured
``malformed``  a request that cannot be read, counted as one
``invalid_id``  spans without valid ids; their sender was told
``tail_policy``, ``undecided``  left out on purpose; no request of the trace was known in time
``stopped``  not sent when gpumon ended, without a spool

With a spool, an acknowledged request survives kill -9 once ``wait_stored`` has returned; what was decided on shortly
before may then be sent twice, as OTLP allows.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from gpumon.export.forward_edit import Annotate, Keep
from gpumon.export.forward_prepare import Limits, Offered, Preparer
from gpumon.export.forward_queue import OVERHEAD_BYTES, Backlog, Budget, Parcel, Taken
from gpumon.export.forward_samples import Counts, samples
from gpumon.export.forward_send import Answer, Backoff, Outcome, Sender
from gpumon.export.forward_tail import SlowTail
from gpumon.export.spool import Spool
from gpumon.host.clock import Clock
from gpumon.ingest.request import Signal
from gpumon.model import RequestRecord, Sample

__all__ = ["Disk", "Forwarder", "Limits"]

log = logging.getLogger(__name__)

_IDLE_S = 0.5
"""Longest sleep of a thread; its events wake it before."""


_DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Disk:
    """Where requests wait on disk."""

    folder: Path
    max_bytes: int = 1 << 30
    """Of all files together; the oldest are removed to stay below."""
    fsync_s: float | None = 1.0
    """Longest time that something is safe from a kill but not from a crash of the machine; None: the kernel decides."""


@dataclass(slots=True)
class _Batch:
    signal: Signal
    data: bytes
    items: int
    taken: Taken
    since_s: float


class Forwarder:
    """``start``, ``offer`` and ``judge`` from any thread, ``stop``. Tests call ``prepare`` and ``deliver`` instead."""

    def __init__(
        self,
        sender: Sender,
        clock: Clock,
        *,
        limits: Limits = _DEFAULTS,
        annotate: Annotate | None = None,
        keep: Keep | None = None,
        tail: SlowTail | None = None,
        backoff: Backoff | None = None,
        disk: Disk | None = None,
    ) -> None:
        """keep: a tail policy that judges by the trace id alone; tail: one that waits for ``judge``; neither: all."""
        self._sender = sender
        self._clock = clock
        self._limits = limits
        self._tail = tail
        self._backoff = backoff or Backoff()
        self._counts = Counts()
        self._budget = Budget(limits.max_bytes, limits.max_requests)
        arrived = ready = None
        if disk is not None:
            arrived = self._spool(disk, "arrived", disk.max_bytes // 4)
            ready = self._spool(disk, "ready", disk.max_bytes - disk.max_bytes // 4)
        self._waits = (annotate is not None and limits.settle_s > 0) or tail is not None
        self._arrived = Backlog(self._budget, self._refuse, arrived, store=self._waits)
        self._ready = Backlog(self._budget, self._refuse, ready)
        self._preparer = Preparer(
            self._arrived, self._ready, limits, annotate=annotate, keep=keep, tail=tail, dropped=self._dropped
        )
        self._inbox: deque[Offered] = deque()
        self._inbox_event = threading.Event()
        self._stored = threading.Condition()
        self._offered_number = self._stored_number = 0
        self._batch: _Batch | None = None
        self._not_before_s = 0.0
        self._sending_ok = True
        self._stopping = threading.Event()
        self._prepared = threading.Event()
        self._drain_until_s = 0.0
        self._threads: list[threading.Thread] = []

    # --- what others call ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work, in two threads."""
        for name, work in (("forward-prepare", self._run_prepare), ("forward-send", self._run_deliver)):
            self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self, drain_s: float = 2.0) -> None:
        """Send what can be sent in this time. The rest stays on disk where there is a spool, or is dropped."""
        self._drain_until_s = self._clock.now_s() + drain_s
        self._stopping.set()
        self._inbox_event.set()
        self._ready.ready.set()
        for thread in self._threads:
            thread.join(max(0.0, self._drain_until_s - self._clock.now_s()) + 1.0)
        if not any(thread.is_alive() for thread in self._threads):  # else one hangs and still uses these
            self.close()

    def close(self) -> None:
        """Let go of files and connections; no thread works any more. What is in memory alone is dropped."""
        if self._batch is not None and self._batch.taken.position is None:
            self._dropped(self._batch.signal, self._batch.items, "stopped")
        for request in self._inbox:
            self._dropped(request.signal, request.items(), "stopped")
        for parcel in (*self._arrived.drain_memory(), *self._ready.drain_memory()):
            self._dropped(parcel.signal, parcel.items, "stopped")
        self._arrived.close()
        self._ready.close()
        self._sender.close()

    def offer(self, signal: Signal, body: bytes, *, is_json: bool, at_s: float, own: bool = False) -> None:
        """Something was acknowledged and is to be forwarded. Takes a reference and returns; never waits, never raises.

        at_s: steady seconds of its arrival. own: gpumon made it: no tail policy leaves it out, nothing is added to it.
        """
        request = Offered(signal, body, is_json, at_s, own)
        if not self._budget.charge(len(body) + OVERHEAD_BYTES):
            self._dropped(signal, request.items(), "queue_full")
            return
        with self._stored:
            self._inbox.append(request)
            self._offered_number += 1
        self._inbox_event.set()

    def wait_stored(self, timeout_s: float) -> bool:
        """Wait until all that was offered is in the spool, or in memory while that fails; False if it takes longer.

        For an intake that acknowledges only what survives a kill. Without a spool there is nothing to wait for.
        """
        if self._ready.spool is None:
            return True
        with self._stored:
            number = self._offered_number
            return self._stored.wait_for(lambda: self._stored_number >= number, timeout_s)

    def judge(self, record: RequestRecord) -> None:
        """A request is known: the tail policy can decide on its trace."""
        if self._tail is not None:
            self._tail.judge(record)

    def samples(self) -> list[Sample]:
        """gpumon_forward_*."""
        batch, tail = self._batch, self._tail
        items = self._arrived.memory_items + self._ready.memory_items
        items += (batch.items if batch is not None else 0) + (tail.items if tail is not None else 0)
        return samples(
            self._counts,
            up=self._sending_ok and all(thread.is_alive() for thread in self._threads),
            memory_bytes=self._budget.used_bytes + (tail.size if tail is not None else 0),
            memory_items=items,
            backlogs=(self._arrived, self._ready),
        )

    # --- work, in a thread each ---------------------------------------------------------------------------------

    def prepare(self) -> float | None:
        """One pass over what arrived. Returns the steady time at which there is more to do; None: when more comes."""
        now_s = self._clock.now_s()
        self._arrived.open(now_s)
        self._ready.open(now_s)
        requests = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for request in requests:
            self._budget.release(len(request.body) + OVERHEAD_BYTES)
        self._preparer.store(requests, now_s)
        if self._waits:
            self._announce_stored(len(requests))
        # At the end, what is on disk waits there for the next life; what is in memory has only this one.
        due_s = self._preparer.work(now_s, final=self._stopping.is_set() and self._arrived.spool is None)
        if not self._waits:
            self._announce_stored(len(requests))
        self._arrived.sync(now_s)
        self._ready.sync(now_s)
        return due_s

    def _announce_stored(self, number: int) -> None:
        with self._stored:
            self._stored_number += number
            self._stored.notify_all()

    def deliver(self) -> float | None:
        """Send one batch if it is time. Returns the steady time of the next try; None: when something is ready."""
        now_s = self._clock.now_s()
        batch = self._batch
        if batch is None:
            taken = self._ready.take(self._limits.batch_bytes, self._limits.batch_items)
            if taken is None:
                return None
            data = b"".join([parcel.data for parcel in taken.parcels])
            items = sum(parcel.items for parcel in taken.parcels)
            batch = self._batch = _Batch(taken.parcels[0].signal, data, items, taken, now_s)
        if now_s < self._not_before_s:
            return self._not_before_s
        outcome = self._sender.send(batch.signal, batch.data)
        now_s = self._clock.now_s()
        if outcome.answer is Answer.RETRY and now_s - batch.since_s < self._limits.give_up_s:
            self._counts.add_retry()
            self._report(outcome)
            self._not_before_s = now_s + self._backoff.next_s(outcome.retry_after_s)
            return self._not_before_s
        self._backoff.reset()
        self._report(outcome)
        if outcome.answer is Answer.ACCEPTED:
            rejected = min(outcome.rejected, batch.items)
            self._counts.add_sent(batch.signal, batch.items - rejected, len(batch.data))
            self._dropped(batch.signal, rejected, "partial")
        else:
            self._dropped(batch.signal, batch.items, "refused" if outcome.answer is Answer.REFUSED else "gave_up")
        self._batch = None
        self._ready.commit(batch.taken)
        return now_s

    def _report(self, outcome: Outcome) -> None:
        ok = outcome.answer is Answer.ACCEPTED
        if ok and not self._sending_ok:
            log.info("forward state=ok")
        elif not ok and self._sending_ok:
            log.warning("forward state=failing answer=%s detail=%r", outcome.answer, outcome.detail)
        self._sending_ok = ok

    # --- threads and accounts -----------------------------------------------------------------------------------

    def _run_prepare(self) -> None:
        while not self._stopping.is_set():
            self._inbox_event.clear()
            self._sleep(self._inbox_event, self.prepare())
        self.prepare()
        self._prepared.set()
        self._ready.ready.set()

    def _run_deliver(self) -> None:
        while True:
            self._ready.ready.clear()
            all_ready = self._prepared.is_set()
            due_s = self.deliver()
            if self._stopping.is_set():
                end_s = self._drain_until_s
                if (
                    self._clock.now_s() >= end_s
                    or (due_s is None and all_ready)
                    or (due_s is not None and due_s > end_s)
                ):
                    return
            self._sleep(self._ready.ready, due_s)

    def _sleep(self, event: threading.Event, due_s: float | None) -> None:
        wait_s = _IDLE_S if due_s is None else min(_IDLE_S, due_s - self._clock.now_s())
        if wait_s > 0:
            event.wait(wait_s)

    def _refuse(self, parcel: Parcel) -> None:
        self._dropped(parcel.signal, parcel.items, "queue_full")

    def _dropped(self, signal: str, items: int, reason: str) -> None:
        self._counts.add_dropped(signal, items, reason)

    def _spool(self, disk: Disk, name: str, max_bytes: int) -> Spool:
        return Spool(disk.folder / name, max_bytes=max_bytes, fsync_s=disk.fsync_s, dropped=self._dropped)
