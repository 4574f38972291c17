"""``gpumon proxy``: takes the configuration apart, starts a proxy on uvloop, and ends it in order at a signal.

The only place of the proxy that reads clocks, files and the system's randomness. SIGTERM and SIGINT let requests under
way end (``proxy.drain_s``), a second one ends at once. What cannot be set up raises OSError, RuleError, UpstreamError
or WebConfigError before anything listens.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uvloop

from gpumon.config_proxy import ProxyConfig
from gpumon.config_types import Address, parse_listen
from gpumon.export.forward_send import Endpoint, Tls, make_sender
from gpumon.ingest.request import Transport
from gpumon.ingest.web_config import WebConfig, load_web_config, ssl_context
from gpumon.proxy.exporter import TraceExporter
from gpumon.proxy.inject_rules import Rule, RuleError, parse_rule
from gpumon.proxy.loops import leads_back
from gpumon.proxy.service import Proxy
from gpumon.proxy.settings import Limits, Settings, UpstreamError, parse_upstream

log = logging.getLogger(__name__)

OPEN_FILES: Final = 65_536
SALT_BYTES: Final = (16, 4096)
_SWITCH_S: Final = 0.0005
"""Longest that the thread that sends traces may keep the event loop waiting; Python's default is 5 ms."""


def run(config: ProxyConfig) -> int:
    """Until SIGTERM or SIGINT; the exit status."""
    settings = make_settings(config)
    rules = [_rule(text, place) for place, text in enumerate(config.inject)]
    web = load_web_config(config.web_config) if config.web_config is not None else WebConfig()
    tls = ssl_context(web.tls) if web.tls is not None else None
    seed = config.inject_seed if config.inject_seed is not None else secrets.randbits(63)
    listener = _listen(parse_listen(config.listen), "proxy.listen")
    admin = _listen(parse_listen(config.admin), "proxy.admin") if config.admin is not None else None
    _raise_open_files()
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # what is there now stays: not to be gone through again while streams wait
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, settings, rules, seed, listener, admin, web, tls))
    log.info("proxy=stopped")
    return 0


def make_settings(config: ProxyConfig) -> Settings:
    """Raises UpstreamError, OSError."""
    if config.upstream is None:
        raise UpstreamError("proxy.upstream is missing: expected --upstream http(s)://HOST:PORT")
    try:
        upstream = parse_upstream(config.upstream, _client_tls(config.upstream_ca))
    except UpstreamError as error:
        raise UpstreamError(f"proxy.upstream: {error}") from error
    for key, listen in (("proxy.listen", config.listen), ("proxy.admin", config.admin)):
        if listen is not None and leads_back(upstream.host, upstream.port, parse_listen(listen)):
            raise UpstreamError(f"proxy.upstream: {key} is there itself: expected the server behind")
    return Settings(
        upstream=upstream,
        limits=Limits(
            connections=config.connections,
            peek_bytes=config.peek_bytes,
            connect_timeout_s=config.connect_timeout_s,
            idle_timeout_s=config.idle_timeout_s,
            upstream_keep_alive_s=config.upstream_keep_alive_s,
            drain_s=config.drain_s,
        ),
        tenant_header=config.tenant_header.lower().encode(),
        inference_header=config.inference_header.lower().encode(),
        salt=_salt(config.prompt_salt_file),
        ask_for_usage=config.ask_for_usage,
    )


async def _serve(
    config: ProxyConfig,
    settings: Settings,
    rules: list[Rule],
    seed: int,
    listener: socket.socket,
    admin: socket.socket | None,
    web: WebConfig,
    tls: ssl.SSLContext | None,
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if ended.is_set():
            os._exit(1)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    exporter: TraceExporter | None = None
    proxy: Proxy | None = None

    def told() -> Mapping[str, str]:
        address = proxy.shared.upstream_address if proxy is not None else ""
        return {"service.name": config.service_name, **({"gpumon.upstream": address} if address else {})}

    if config.otlp is not None:
        endpoint = Endpoint(
            config.otlp, Transport.HTTP, headers=dict(config.otlp_headers), tls=Tls(ca=config.otlp_ca), timeout_s=5.0
        )
        exporter = TraceExporter(make_sender(endpoint, time.monotonic, time.time), told)
    proxy = Proxy(
        settings,
        rules,
        seed,
        exporter,
        now_ns=time.monotonic_ns,
        unix_ns=lambda at_ns: time.time_ns() - time.monotonic_ns() + at_ns,
        random_bytes=os.urandom,
        web=web,
    )
    if exporter is not None:
        exporter.start()
    await proxy.start(listener, admin, tls)
    scheme = "https" if tls is not None else "http"
    log.info(
        "proxy=listening url=%s://%s upstream=%s traces=%s",
        scheme,
        _shown(listener),
        config.upstream,
        config.otlp or "off",
    )
    if admin is not None:
        log.info("proxy=admin url=%s://%s/metrics", scheme, _shown(admin))
    if rules:
        log.warning("injection=seed seed=%d", seed)
    await ended.wait()
    log.info("proxy=ending detail='requests under way may end for %g s'", settings.limits.drain_s)
    await proxy.stop()
    if exporter is not None:
        await asyncio.to_thread(exporter.stop)


def _rule(text: str, place: int) -> Rule:
    try:
        return parse_rule(text)
    except RuleError as error:
        raise RuleError(f"proxy.inject[{place}]: {error}") from error


def _client_tls(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise OSError(f"{ca}: not certificates: {error.reason}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _salt(path: Path | None) -> bytes:
    if path is None:
        return secrets.token_bytes(32)
    least, most = SALT_BYTES
    with path.open("rb") as file:
        salt = file.read(most + 1).strip()
    if not least <= len(salt) <= most:
        raise OSError(f"{path}: expected {least} to {most} bytes")
    return salt[:64]  # all that BLAKE2b takes of a key


def _listen(address: Address, key: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        raise OSError(f"{key}: cannot listen on {address.host}:{address.port}: {reason}") from error


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _raise_open_files() -> None:
    """Two for each stream; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
