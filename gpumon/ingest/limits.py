"""Every bound of the receivers, in one place: bytes, requests, connections and seconds.

The defaults hold a node's worth of inference servers; each is an argument so that a test can run into it.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the OTLP receivers. All positive."""

    body_bytes: int = 64 * MIB
    """Largest request, as sent and after decompression: what the OTLP specification recommends."""
    queue_bytes: int = 128 * MIB
    """Bytes of all requests being read or waiting, as sent. At least ``body_bytes``."""
    queue_requests: int = 2048
    """Requests waiting for an answer."""
    gather_bytes: int = 4 * MIB
    """Work of one turn, after decompression; a single larger request is a turn of its own. 4 MiB are 70,000 token
    events, decoded in about 25 ms."""
    gather_s: float = 0.05
    """Longest that a request waits for others to be decoded with."""
    quiet_s: float = 0.001
    """... which ends early once nothing has arrived for this long: nobody else is going to come."""
    answer_within_s: float = 5.0
    """A request that cannot be answered in this time is refused: exporters give up after 10 s, retries included."""
    body_timeout_s: float = 15.0
    """Time for the whole body of an HTTP request."""
    head_timeout_s: float = 10.0
    """Time from the first byte (or the connection's beginning) to the end of an HTTP request's headers; for gRPC, of
    the handshake."""
    keep_alive_s: float = 75.0
    """An HTTP connection without requests is closed after this; longer than the 60 s of metric exporters."""
    connections: int = 512
    """Open connections of each of the two servers."""

    def __post_init__(self) -> None:
        if self.queue_bytes < self.body_bytes:
            raise ValueError(f"queue_bytes = {self.queue_bytes} is below body_bytes = {self.body_bytes}")
