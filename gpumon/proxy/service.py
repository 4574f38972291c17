"""One proxy at work: its sockets, its sweep, its samples, and its end. On a running event loop.

Whoever starts it hands in sockets that listen, and the clocks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpumon import catalogue
from gpumon.export.prometheus import Exposition
from gpumon.export.scrape import ScrapeCache
from gpumon.ingest.auth import authenticated
from gpumon.ingest.http_listener import HttpListener
from gpumon.ingest.limits import Limits as ListenerLimits
from gpumon.ingest.web_config import WebConfig
from gpumon.model import Sample
from gpumon.proxy.admin import admin_app
from gpumon.proxy.client import ClientConnection
from gpumon.proxy.counters import Counters
from gpumon.proxy.exporter import TraceExporter
from gpumon.proxy.inject_rules import Rule
from gpumon.proxy.injected import Injection
from gpumon.proxy.observed import Observed
from gpumon.proxy.settings import Settings
from gpumon.proxy.shared import Shared
from gpumon.store import Store

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
LOUD_S: Final = 60.0
"""How often the log says that latency is injected."""
_BACKLOG: Final = 2048
_TTL_S: Final = 5.0


class Proxy:
    """``start``, ``stop``."""

    def __init__(
        self,
        settings: Settings,
        rules: Sequence[Rule],
        seed: int,
        exporter: TraceExporter | None,
        *,
        now_ns: Callable[[], int],
        unix_ns: Callable[[int], int],
        random_bytes: Callable[[int], bytes],
        web: WebConfig | None = None,
    ) -> None:
        """exporter: started and stopped by the caller; None: no traces. web: credentials of the admin port."""
        self._counters = Counters()
        self._exporter = exporter
        self._web = web or WebConfig()
        self._now_ns = now_ns
        self.injection = Injection(rules, seed, now_ns(), self._counters)
        self.shared = Shared(
            settings,
            self._counters,
            self.injection,
            asyncio.get_running_loop(),
            now_ns=now_ns,
            unix_ns=unix_ns,
            random_bytes=random_bytes,
            offer=exporter.offer if exporter is not None else _forget,
        )
        self._store = Store(max_series=1000, history_points=2)
        self._server: asyncio.Server | None = None
        self._admin: HttpListener | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(
        self, listener: socket.socket, admin: socket.socket | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve on these sockets. tls: for both."""
        self._server = await self.shared.loop.create_server(
            lambda: ClientConnection(self.shared),
            sock=listener,
            backlog=_BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=self.shared.limits.head_timeout_s if tls is not None else None,
        )
        if admin is not None:
            cache = ScrapeCache(self._store.view, Exposition().render, min_interval_s=0.2)
            app = authenticated(admin_app(cache, self._refresh), self._web, ("/-/healthy",))
            self._admin = HttpListener(app, ListenerLimits(connections=64), tls)
            self._admin.start(admin)
        self._sweeping = asyncio.create_task(self._sweep(), name="proxy-sweep")

    async def stop(self) -> None:
        """Take no more connections; let requests under way end, as long as they may; then close."""
        shared = self.shared
        if self._server is not None:
            self._server.close()
        for connection in list(shared.connections):
            connection.close_idle()
        await shared.drain()
        for connection in list(shared.connections):
            connection.close()
        shared.pool.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        if self._admin is not None:
            await self._admin.stop()

    def samples(self) -> Iterator[Sample]:
        """gpumon_proxy_*."""
        yield from self._counters.samples()
        yield Sample(catalogue.PROXY_INJECTION_RULES, (), float(len(self.injection.rules)))
        exporter = self._exporter
        if exporter is not None:
            yield Sample(catalogue.PROXY_TRACES, (), float(exporter.sent))
            yield Sample(catalogue.PROXY_TRACES_WAITING, (), float(len(exporter)))
            for reason, count in exporter.dropped.items():
                yield Sample(catalogue.PROXY_TRACES_DROPPED, (reason,), float(count))

    def _refresh(self) -> float:
        at_s = self._now_ns() / 1e9
        self._store.put("proxy", at_s, self.samples(), _TTL_S)
        return at_s

    async def _sweep(self) -> None:
        loud_ns = self._now_ns()
        self._be_loud()
        while True:
            await asyncio.sleep(SWEEP_S)
            at_ns = self._now_ns()
            for connection in list(self.shared.connections):
                connection.sweep(at_ns)
            self.shared.pool.sweep(at_ns)
            if at_ns - loud_ns >= LOUD_S * 1e9:
                loud_ns = at_ns
                self._be_loud()

    def _be_loud(self) -> None:
        if self.injection.rules:
            log.warning(
                "injection=on rules=%r delays=%d detail='latencies are not the server's own'",
                " ".join(rule.text for rule in self.injection.rules),
                self._counters.injected_total,
            )


def _forget(_: Observed) -> None:
    """Traces are off."""
