"""What all connections of one proxy share: its settings, counters, budgets, kept connections, and the clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpumon.proxy.counters import Counters
from gpumon.proxy.injected import Injection
from gpumon.proxy.observed import ANSWERS_BYTES, Budget, Observed
from gpumon.proxy.settings import Settings
from gpumon.proxy.upstream import Pool, UpstreamConnection

if TYPE_CHECKING:
    from gpumon.proxy.client import ClientConnection

log = logging.getLogger(__name__)


class Shared:
    """One of them for each proxy; everything on one event loop."""

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        injection: Injection,
        loop: asyncio.AbstractEventLoop,
        *,
        now_ns: Callable[[], int],
        unix_ns: Callable[[int], int],
        random_bytes: Callable[[int], bytes],
        offer: Callable[[Observed], None],
    ) -> None:
        """now_ns: steady nanoseconds; unix_ns: of such a moment. offer: takes requests that have ended."""
        self.settings = settings
        self.limits = settings.limits
        self.counters = counters
        self.injection = injection
        self.loop = loop
        self.now_ns = now_ns
        self.unix_ns = unix_ns
        self.random_bytes = random_bytes
        self.offer = offer
        self.pool = Pool(settings.limits.idle_upstreams, round(settings.limits.upstream_keep_alive_s * 1e9))
        self.peeks = Budget(settings.limits.peeks_bytes)
        self.budget = Budget(ANSWERS_BYTES)
        self.upstream_ends: set[tuple[str, int]] = set()
        """Near ends of the connections to the server: a client at one of them is the proxy itself."""
        self.connections: set[ClientConnection] = set()
        self.stopping = False
        self._drained = asyncio.Event()
        self.upstream_address = ""
        """``address:port`` of the server, as the newest connection to it has it."""
        self._upstream_works = True

    def enter(self, connection: ClientConnection) -> bool:
        """A client has connected; whether there is room for it."""
        self.connections.add(connection)
        self.counters.connections = len(self.connections)
        if len(self.connections) <= self.limits.connections:
            return True
        self.counters.refused_connections += 1
        return False

    def leave(self, connection: ClientConnection) -> None:
        """A client's connection has ended."""
        self.connections.discard(connection)
        self.counters.connections = len(self.connections)

    def request_ended(self) -> None:
        """A request is no longer under way."""
        if self.stopping and self.counters.open_requests == 0:
            self._drained.set()

    async def drain(self) -> None:
        """Until no request is under way; for as long as they may take."""
        self.stopping = True
        self.request_ended()
        try:
            async with asyncio.timeout(self.limits.drain_s):
                await self._drained.wait()
        except TimeoutError:
            left = self.counters.open_requests
            log.warning("requests=cut count=%d detail='still under way after %g s'", left, self.limits.drain_s)

    def new_upstream(self) -> UpstreamConnection:
        """A connection to the server, to be made."""
        return UpstreamConnection(self.now_ns, self.limits.waiting_bytes, self.upstream_ends)

    def upstream_works(self) -> None:
        """The server has answered."""
        if not self._upstream_works:
            self._upstream_works = True
            log.info("upstream=ok")

    def complain(self, reason: str) -> None:
        """The server has not; said when it begins."""
        if self._upstream_works:
            self._upstream_works = False
            log.warning("upstream=failing reason=%s", reason)
