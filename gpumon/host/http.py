"""The port to the metrics pages of inference servers: one GET of one page, whole, within a deadline and a size.

The address is what the configuration says, ``http://`` or ``https://``; nothing it answers makes gpumon ask elsewhere
(redirects are not followed). Used by one thread.
"""

from __future__ import annotations

from typing import Protocol

from gpumon.model import Reason

SCRAPE_HEADER = "x-gpumon-scrape"
"""On every request of these: a gpumon proxy, which passes on all others, does not give away the page of the server
behind it, or that server would be read twice."""
PROXY_HEADER = "x-gpumon-proxy-error"
"""Of answers that are such a proxy's own."""


class HttpError(Exception):
    """A page could not be had.

    reason: UNAVAILABLE (no connection, no such page, an answer other than 200), DENIED (401, 403), TIMEOUT (the
    deadline passed, wherever it stood), MALFORMED (no HTTP, cut short, no text, larger than the limit, or an address
    that cannot be one).
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        """A few words for a log: nothing of the page, no credentials of the address."""


class Http(Protocol):
    """What sources may ask of a server."""

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        """Body of the page, at most ``limit`` bytes, decoded from its transfer encoding.

        timeout_s: for all of it, from connecting to the last byte. Raises HttpError, nothing else.
        """
        ...
