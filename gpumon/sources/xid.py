"""The ledger of XID errors: NVML's events and the kernel log's lines, each error counted once.

The same error usually arrives by both ways. An event is taken for the other way's account of an error already counted
when that way told the same XID of the same GPU within ``SAME_S`` and no other event was matched with it yet; so three
errors told by both count three, and three told by one count three as well. Counts are since gpumon started; XIDs in
catalogue.XID_PRECREATED are there at 0 for every known GPU. An XID that cannot be is rejected, and so is one of a GPU
that is not known. A GPU has at most ``DISTINCT_MAX`` XIDs of its own, what is past them is ``other``.

Unlike other sources it is told, from the event thread and the kernel log's, hence the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from gpumon import catalogue
from gpumon.model import GpuUuid, Item, Reason, Rejection, Sample
from gpumon.sources.kernel_log import KernelXid
from gpumon.sources.xid_events import XID_MAX

SAME_S = 5.0
DISTINCT_MAX = 47
"""With ``other``, the 48 series a GPU has in the catalogue's budget."""
GPUS_MAX = 64
"""GPUs remembered over the life of gpumon: those that were lost keep their counts."""
_UNMATCHED_MAX = 4096
_REJECTIONS_MAX = 256
OTHER = "other"


class KnownGpu(NamedTuple):
    """A GPU by the names that events use."""

    gpu: str
    """Index, for display."""
    uuid: GpuUuid
    pci_bus_id: str


class _Origin(Enum):
    NVML = "nvml"
    KERNEL = "kernel"


class _Account:
    """What is known of one XID on one GPU."""

    __slots__ = ("count", "last_at_s", "unmatched")

    def __init__(self) -> None:
        self.count = 0
        self.last_at_s: float | None = None
        self.unmatched: dict[_Origin, deque[float]] = {origin: deque(maxlen=_UNMATCHED_MAX) for origin in _Origin}

    def add(self, origin: _Origin, at_s: float) -> None:
        other = self.unmatched[_Origin.KERNEL if origin is _Origin.NVML else _Origin.NVML]
        while other and other[0] < at_s - SAME_S:
            other.popleft()
        if other and other[0] <= at_s + SAME_S:
            other.popleft()
            return
        self.count += 1
        self.last_at_s = at_s if self.last_at_s is None else max(at_s, self.last_at_s)
        mine = self.unmatched[origin]
        while mine and mine[0] < at_s - SAME_S:
            mine.popleft()
        mine.append(at_s)


class XidLedger:
    """Source ``xid``, and the two sinks that fill it. Safe to use from several threads at once.

    gpus: GPUs known now. to_unix: unix time of a steady second (host.clock).
    """

    name = "xid"

    def __init__(self, gpus: Callable[[], Sequence[KnownGpu]], to_unix: Callable[[float], float]) -> None:
        self._gpus = gpus
        self._to_unix = to_unix
        self._lock = threading.Lock()
        self._known: dict[GpuUuid, KnownGpu] = {}
        self._accounts: dict[GpuUuid, dict[str, _Account]] = {}
        self._rejections: list[Rejection] = []

    def nvml_event(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None:
        """An XID that NVML told; ``uuid`` is None when it named no GPU that is known."""
        with self._lock:
            self._refresh()
            self._add(uuid, xid, _Origin.NVML, at_s)

    def kernel_event(self, event: KernelXid, at_s: float) -> None:
        """An XID that the kernel log told."""
        with self._lock:
            self._refresh()
            # Of two GPUs remembered at one address (one was replaced) the later known is the one there now.
            uuids = [gpu.uuid for gpu in self._known.values() if gpu.pci_bus_id == event.pci_bus_id]
            self._add(uuids[-1] if uuids else None, event.xid, _Origin.KERNEL, at_s)

    def samples(self) -> list[Sample]:
        """Counters and last times of every GPU that was ever known."""
        with self._lock:
            self._refresh()
            return [sample for uuid, gpu in self._known.items() for sample in self._of_gpu(gpu, self._accounts[uuid])]

    def take_rejections(self) -> list[Rejection]:
        """Events refused since the last taking, at most 256 of them."""
        with self._lock:
            rejections, self._rejections = self._rejections, []
        return rejections

    def read(self, at_s: float) -> Iterator[Item]:  # noqa: ARG002 (events carry their own time)
        yield from self.samples()
        yield from self.take_rejections()

    def _refresh(self) -> None:
        for gpu in self._gpus():
            if gpu.uuid not in self._known:
                if len(self._known) >= GPUS_MAX:
                    continue
                self._accounts[gpu.uuid] = {str(xid): _Account() for xid in catalogue.XID_PRECREATED}
            self._known[gpu.uuid] = gpu

    def _add(self, uuid: GpuUuid | None, xid: int, origin: _Origin, at_s: float) -> None:
        if not 0 < xid <= XID_MAX:
            self._reject(Rejection("xid", Reason.OUT_OF_RANGE))
            return
        accounts = self._accounts.get(uuid) if uuid is not None else None
        if accounts is None:
            self._reject(Rejection("xid_gpu", Reason.UNAVAILABLE))
            return
        name = str(xid)
        if name not in accounts and len(accounts) - (OTHER in accounts) >= DISTINCT_MAX:
            name = OTHER
        accounts.setdefault(name, _Account()).add(origin, at_s)

    def _reject(self, rejection: Rejection) -> None:
        if len(self._rejections) < _REJECTIONS_MAX:
            self._rejections.append(rejection)

    def _of_gpu(self, gpu: KnownGpu, accounts: dict[str, _Account]) -> Iterator[Sample]:
        for xid, account in accounts.items():
            labels = (gpu.gpu, gpu.uuid, xid)
            yield Sample(catalogue.GPU_XID_ERRORS, labels, float(account.count))
            if account.last_at_s is not None:
                yield Sample(catalogue.GPU_XID_LAST, labels, self._to_unix(account.last_at_s))
