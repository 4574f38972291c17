"""The forwarder's account of itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from gpumon.catalogue import (
    FORWARD_DROPPED,
    FORWARD_QUEUE_BYTES,
    FORWARD_QUEUE_ITEMS,
    FORWARD_RETRIES,
    FORWARD_SENT,
    FORWARD_SENT_BYTES,
    FORWARD_SPOOL_DAMAGED,
    FORWARD_SPOOL_OK,
    FORWARD_UP,
)
from gpumon.export.forward_queue import Backlog
from gpumon.ingest.request import Signal
from gpumon.model import Sample


class Counts:
    """What became of everything. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.retries = 0

    def add_sent(self, signal: Signal, items: int, size: int) -> None:
        """The downstream took these."""
        with self._lock:
            self.sent[signal] += items
            self.sent_bytes[signal] += size

    def add_dropped(self, signal: str, items: int, reason: str) -> None:
        """These go nowhere; reason: one of FORWARD_DROPPED's values."""
        if items > 0:
            with self._lock:
                self.dropped[str(signal), reason] += items

    def add_retry(self) -> None:
        """A try failed and is to be repeated."""
        with self._lock:
            self.retries += 1


def samples(
    counts: Counts,
    *,
    up: bool,
    memory_bytes: int,
    memory_items: int,
    backlogs: Sequence[Backlog],
) -> list[Sample]:
    """gpumon_forward_*: every counter from its zero on; those of the spool only where there is one."""
    out = [
        Sample(FORWARD_UP, (), float(up)),
        Sample(FORWARD_QUEUE_BYTES, ("memory",), float(memory_bytes)),
        Sample(FORWARD_QUEUE_ITEMS, ("memory",), float(memory_items)),
        Sample(FORWARD_RETRIES, (), float(counts.retries)),
    ]
    spools = [backlog.spool for backlog in backlogs if backlog.spool is not None]
    if spools:
        out.append(Sample(FORWARD_QUEUE_BYTES, ("spool",), float(sum(spool.size for spool in spools))))
        out.append(Sample(FORWARD_QUEUE_ITEMS, ("spool",), float(sum(spool.items for spool in spools))))
        out.append(Sample(FORWARD_SPOOL_OK, (), float(all(backlog.spool_ok for backlog in backlogs))))
        for kind in FORWARD_SPOOL_DAMAGED.values:
            found = sum(getattr(spool.damage, kind) for spool in spools)
            out.append(Sample(FORWARD_SPOOL_DAMAGED, (kind,), float(found)))
    for signal in Signal:
        out.append(Sample(FORWARD_SENT, (signal,), float(counts.sent[signal])))
        out.append(Sample(FORWARD_SENT_BYTES, (signal,), float(counts.sent_bytes[signal])))
        out += [
            Sample(FORWARD_DROPPED, (signal, reason), float(counts.dropped[signal, reason]))
            for reason in FORWARD_DROPPED.values
        ]
    return out
