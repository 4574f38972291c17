"""Sends the traces of requests that have ended to gpumon, over OTLP/HTTP, from a thread of its own.

Whoever offers a trace never waits: where the queue is full it is dropped and counted. What cannot be delivered for the
moment is tried again with growing pauses, in its order; what the receiver refuses is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from gpumon.export.forward_send import Answer, Backoff, Sender
from gpumon.ingest.request import Signal
from gpumon.proxy.observed import Observed
from gpumon.proxy.spans import build_request

log = logging.getLogger(__name__)

QUEUE_TRACES: Final = 4096
QUEUE_TOKENS: Final = 4 << 20
"""Token times waiting, 8 bytes each."""
BATCH_TRACES: Final = 256
BATCH_TOKENS: Final = 1 << 17
EVERY_S: Final = 0.5
"""How long a trace waits for others to go with."""
DROPPED: Final = ("queue_full", "refused", "stopped")
"""Label values of ``gpumon_proxy_traces_dropped_total``."""


class TraceExporter:
    """``offer`` from the event loop; ``start`` and ``stop`` once."""

    def __init__(
        self, sender: Sender, resource: Callable[[], Mapping[str, str]], backoff: Backoff | None = None
    ) -> None:
        """resource: of the proxy, as it is when a batch is sent."""
        self._sender = sender
        self._resource = resource
        self._backoff = backoff or Backoff(first_s=0.5, most_s=15.0)
        self._queue: deque[Observed] = deque()
        self._tokens = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._batch: list[Observed] = []
        """The first ones of the queue, on their way."""
        self._body = b""
        self._ok = True
        self.sent = 0
        self.dropped = dict.fromkeys(DROPPED, 0)
        self._thread = threading.Thread(target=self._run, name="proxy-traces", daemon=True)

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, ended: Observed) -> None:
        """A request that has ended. Never waits for the receiver."""
        tokens = len(ended.times_ns)
        with self._lock:
            if len(self._queue) >= QUEUE_TRACES or self._tokens + tokens > QUEUE_TOKENS:
                self.dropped["queue_full"] += 1
                return
            self._queue.append(ended)
            self._tokens += tokens

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Send what is there, once, for at most this long; what is left is dropped and counted."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        with self._lock:
            self.dropped["stopped"] += len(self._queue)
            self._queue.clear()

    def send_batch(self) -> float:
        """Send what waits, as far as it fits into one request; seconds to pause before the next."""
        if not self._batch:
            self._batch = self._next_batch()
            if not self._batch:
                return EVERY_S
            self._body = build_request(self._batch, self._resource()).SerializeToString()
        batch = self._batch
        outcome = self._sender.send(Signal.TRACES, self._body)
        self._log(outcome.answer is not Answer.RETRY, outcome.detail)
        if outcome.answer is Answer.RETRY:
            return self._backoff.next_s(outcome.retry_after_s)
        self._backoff.reset()
        self._batch, self._body = [], b""
        refused = len(batch) if outcome.answer is Answer.REFUSED else min(outcome.rejected, len(batch))
        with self._lock:
            if not self._queue:  # it was stopped meanwhile, and they are counted
                return EVERY_S
            for ended in batch:
                self._queue.popleft()
                self._tokens -= len(ended.times_ns)
            self.dropped["refused"] += refused
            self.sent += len(batch) - refused
        return 0.0 if self._queue else EVERY_S

    def _next_batch(self) -> list[Observed]:
        batch: list[Observed] = []
        tokens = 0
        with self._lock:
            for ended in self._queue:
                tokens += len(ended.times_ns)
                if batch and (len(batch) >= BATCH_TRACES or tokens > BATCH_TOKENS):
                    break
                batch.append(ended)
        return batch

    def _run(self) -> None:
        while not self._stopping.wait(self.send_batch()):
            pass
        while self._queue and self.send_batch() == 0.0:
            pass
        self._sender.close()

    def _log(self, ok: bool, detail: str) -> None:
        if ok != self._ok:
            self._ok = ok
            log.log(logging.INFO if ok else logging.WARNING, "traces=%s detail=%s", "ok" if ok else "failing", detail)
