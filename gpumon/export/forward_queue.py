"""Where what is to be forwarded waits: on disk while there is a spool that works, in memory otherwise; bounded.

A ``Budget`` bounds all memory of one forwarder together; what does not fit is refused and its items are counted by
whoever offered it. On disk the spool's own bound holds, and the oldest goes first. ``take`` hands parcels over and
``commit`` says that they are done with; what was taken from disk and never committed is there again after a restart.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.export.spool import Position, Spool, SpoolError
from gpumon.ingest.request import Signal

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Seconds until a spool that failed is tried again."""
OVERHEAD_BYTES = 512
"""Charged for every parcel beside its data, so that a million of empty ones are not free."""


@dataclass(slots=True)
class Parcel:
    """A protobuf export request on its way."""

    signal: Signal
    data: bytes
    items: int
    """Spans, log records or metrics in it."""
    at_s: float = 0.0
    """Steady seconds at which the newest of it came."""

    @property
    def cost(self) -> int:
        """Bytes of memory it is charged."""
        return len(self.data) + OVERHEAD_BYTES


class Taken(NamedTuple):
    """Parcels handed over, and what to say when they are done with."""

    parcels: list[Parcel]
    position: Position | None = None
    """Where on disk they end; None: from memory."""
    charged: int = 0
    """Bytes of the budget that they hold until they are committed."""


class Budget:
    """Bytes of memory that several queues share."""

    def __init__(self, max_bytes: int, max_parcels: int) -> None:
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._max_parcels = max_parcels
        self.used_bytes = 0
        self.parcels = 0

    def charge(self, size: int) -> bool:
        """Reserve for one parcel; False when that would be too much."""
        with self._lock:
            if self.used_bytes + size > self._max_bytes or self.parcels >= self._max_parcels:
                return False
            self.used_bytes += size
            self.parcels += 1
            return True

    def release(self, size: int, parcels: int = 1) -> None:
        """Give back what was reserved."""
        with self._lock:
            self.used_bytes -= size
            self.parcels -= parcels


@dataclass(slots=True, eq=False)
class Backlog:
    """A queue from one thread to another, first in, first out. Any thread may read its sizes."""

    budget: Budget
    refused: Callable[[Parcel], None]
    """Told of each parcel for which there is no room."""
    spool: Spool | None = None
    store: bool = True
    """Whether to put into the spool; what a former life left there is handed over anyway."""
    ready: threading.Event = field(default_factory=threading.Event)
    """Set with every parcel put in."""
    memory_items: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _memory: deque[Parcel] = field(default_factory=deque)
    _spool_retry_s: float = 0.0
    _write_ok: bool = True
    _read_ok: bool = True

    @property
    def spool_ok(self) -> bool:
        """False while the disk does not do what it should."""
        return self._write_ok and self._read_ok

    def open(self, now_s: float) -> None:
        """Make what a former life left on disk available; a disk that failed is tried again after a while."""
        if self.spool is None or self.spool.is_open or now_s < self._spool_retry_s:
            return
        try:
            with self._lock:
                self.spool.open()
        except SpoolError as error:
            self._failed(error, now_s)
            return
        self._worked()
        self.ready.set()
        damage = self.spool.damage
        if damage.corrupt or damage.foreign:
            log.warning(
                "forward spool=%s corrupt=%d foreign=%d; these files are in its folder aside",
                self.spool.folder,
                damage.corrupt,
                damage.foreign,
            )

    def put(self, parcel: Parcel, now_s: float) -> None:
        """Add it; to memory when there is no spool, or none that works."""
        if self.spool is not None and self.store and (self._write_ok or now_s >= self._spool_retry_s):
            try:
                with self._lock:
                    self.spool.open()
                    self.spool.append(parcel.signal, parcel.data, parcel.items, parcel.at_s)
            except SpoolError as error:
                self._failed(error, now_s)
            else:
                self._worked()
                self.ready.set()
                return
        if not self.budget.charge(parcel.cost):
            self.refused(parcel)
            return
        with self._lock:
            self._memory.append(parcel)
            self.memory_items += parcel.items
        self.ready.set()

    def take(self, max_bytes: int, max_items: int, *, until_s: float = float("inf")) -> Taken | None:
        """The oldest parcels of one signal, one at least; None when there is none that came before ``until_s``.

        max_bytes, max_items: not passed, unless by a single parcel.
        """
        with self._lock:
            if (from_disk := self._take_from_disk(max_bytes, max_items, until_s)) is not None:
                return from_disk
            memory = self._memory
            if not memory or memory[0].at_s > until_s:
                return None
            first = memory.popleft()
            parcels, size, items = [first], len(first.data), first.items
            while memory and memory[0].signal is first.signal and memory[0].at_s <= until_s:
                size += len(memory[0].data)
                items += memory[0].items
                if size > max_bytes or items > max_items:
                    break
                parcels.append(memory.popleft())
            self.memory_items -= sum(parcel.items for parcel in parcels)
            return Taken(parcels, None, sum(parcel.cost for parcel in parcels))

    def commit(self, taken: Taken) -> None:
        """These, and what was taken from disk before them, are done with."""
        if taken.position is None:
            self.budget.release(taken.charged, len(taken.parcels))
        elif self.spool is not None:
            with self._lock:
                self.spool.commit(taken.position)

    def next_at_s(self) -> float | None:
        """When the oldest parcel came; None when there is none."""
        with self._lock:
            try:
                if self.spool is not None and (at_s := self.spool.next_at_s()) is not None:
                    return at_s
            except SpoolError:
                pass  # take() has said so
            return self._memory[0].at_s if self._memory else None

    def drain_memory(self) -> list[Parcel]:
        """Remove what is in memory."""
        with self._lock:
            parcels = list(self._memory)
            self._memory.clear()
            self.memory_items = 0
        self.budget.release(sum(parcel.cost for parcel in parcels), len(parcels))
        return parcels

    def sync(self, now_s: float) -> None:
        """Bring to the medium what is due; only the thread that puts may call this."""
        if self.spool is not None:
            try:
                self.spool.sync(now_s)
            except SpoolError as error:
                self._failed(error, now_s)

    def close(self) -> None:
        """What is on disk stays there."""
        if self.spool is not None:
            with self._lock:
                self.spool.close()

    def _take_from_disk(self, max_bytes: int, max_items: int, until_s: float) -> Taken | None:
        if self.spool is None:
            return None
        try:
            records, position = self.spool.take(max_bytes, max_items, until_s)
        except SpoolError as error:
            if self._read_ok:
                log.warning("forward spool=%s state=unreadable detail=%r", self.spool.folder, str(error))
            self._read_ok = False
            return None
        self._read_ok = True
        if not records:
            return None
        return Taken([Parcel(Signal(each.signal), each.data, each.items, each.at_s) for each in records], position)

    def _worked(self) -> None:
        if not self._write_ok and self.spool is not None:
            self._write_ok = True
            log.info("forward spool=%s state=ok", self.spool.folder)

    def _failed(self, error: SpoolError, now_s: float) -> None:
        self._spool_retry_s = now_s + RETRY_S
        if self._write_ok and self.spool is not None:
            self._write_ok = False
            log.warning(
                "forward spool=%s state=failed detail=%r; what is to be forwarded waits in memory meanwhile",
                self.spool.folder,
                str(error),
            )
