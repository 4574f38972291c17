"""Posts the simulated servers' spans to an OTLP/HTTP receiver on loopback, as an SDK's exporter would.

One kept connection. What the receiver puts off (429, 502, 503, 504, no connection, no answer) waits and goes again,
with a growing pause or the one that ``Retry-After`` asks for; what it refuses otherwise is given up. What waits is
bounded: the oldest goes first, and is counted.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections import Counter, deque
from typing import Protocol
from urllib.parse import urlsplit

from gpumon.host.clock import Clock

log = logging.getLogger(__name__)

BACKLOG = 256
"""Bodies that wait at most: a minute of a busy node."""
PAUSE_S = 0.5
"""After the first failure; doubles with each further one."""
PAUSE_MAX_S = 10.0
TIMEOUT_S = 10.0
"""Of one read or write: what the SDK's exporters give a whole try."""
OUTCOMES = ("sent", "retried", "refused", "dropped")

_RETRYABLE = frozenset({429, 502, 503, 504})
_HEADERS = {"Content-Type": "application/x-protobuf"}


class Maker(Protocol):
    """Where bodies come from."""

    def bodies(self, until_s: float) -> list[bytes]:
        """ExportTraceServiceRequests of what ended since the last call and up to a steady second."""
        ...


class Sender:
    """``send_once`` makes and posts; ``start`` does so in a thread of its own until ``stop``."""

    def __init__(self, maker: Maker, clock: Clock, url: str, every_s: float = 0.25, *, backlog: int = BACKLOG) -> None:
        """url: of the receiver's traces, ``http://127.0.0.1:4318/v1/traces``. backlog: bodies that wait at most."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"expected an http URL, got {url!r}")
        self._path = parts.path or "/"
        self._maker = maker
        self._clock = clock
        self._every_s = every_s
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)
        self._waiting: deque[bytes] = deque()
        self._backlog = backlog
        self._pause_s = 0.0
        self._resume_at_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Bodies by what became of them; ``retried`` counts tries."""

    def start(self) -> None:
        """Send until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="simulated-senders", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = TIMEOUT_S) -> None:
        """Let the body under way finish and close the connection; what waits is lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def send_once(self) -> None:
        """Make what is due and post what waits, until one is put off."""
        at_s = self._clock.now_s()
        self._waiting.extend(self._maker.bodies(at_s))
        while len(self._waiting) > self._backlog:
            self._waiting.popleft()
            self.counts["dropped"] += 1
        if at_s < self._resume_at_s:
            return
        while self._waiting and not self._stop.is_set():
            try:
                status, after_s = self._post(self._waiting[0])
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                self._put_off(at_s, None, type(error).__name__)
                return
            if status in _RETRYABLE:
                self._put_off(at_s, after_s, f"HTTP {status}")
                return
            self._waiting.popleft()
            self._pause_s = 0.0
            accepted = 200 <= status < 300
            self.counts["sent" if accepted else "refused"] += 1
            if not accepted:
                log.warning("simulated spans refused status=%d", status)

    def close(self) -> None:
        """Close the connection; another ``send_once`` opens one."""
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self.send_once()
        finally:
            self.close()

    def _post(self, body: bytes) -> tuple[int, float | None]:
        """Status, and the pause that was asked for in seconds, if any."""
        try:
            return self._try(body)
        except (ConnectionError, http.client.BadStatusLine):
            # A kept connection may have been closed by the receiver meanwhile: once more on a new one.
            self._connection.close()
            return self._try(body)

    def _try(self, body: bytes) -> tuple[int, float | None]:
        self._connection.request("POST", self._path, body, _HEADERS)
        answer = self._connection.getresponse()
        answer.read()
        after = answer.getheader("Retry-After", "").strip()
        return answer.status, float(after[:9]) if after.isascii() and after.isdigit() else None

    def _put_off(self, at_s: float, after_s: float | None, why: str) -> None:
        if not self._pause_s:
            log.info("receiver of simulated spans puts off reason=%s", why)
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S), PAUSE_MAX_S)
        self._resume_at_s = at_s + (self._pause_s if after_s is None else after_s)
        self.counts["retried"] += 1
