"""How one proxy is set up: where the server is, what is looked at, and every bound of it."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit


class UpstreamError(Exception):
    """A URL that cannot be the server behind. ``str()``: what was expected."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server behind."""

    host: str
    port: int
    prefix: bytes = b""
    """Put before every path."""
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> bytes:
        """For a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == (443 if self.tls is not None else 80) else f"{host}:{self.port}").encode()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in connections, bytes and seconds."""

    connections: int = 4096
    idle_upstreams: int = 256
    """Connections to the server that are kept for the next request."""
    peek_bytes: int = 1 << 20
    """Largest request body that is looked at."""
    peeks_bytes: int = 64 << 20
    """The same of all requests together."""
    waiting_bytes: int = 64 << 10
    """Of a body that waits for the server's connection, before no more is read from the client; and of what a side
    may have unread before the other is no longer read."""
    head_timeout_s: float = 10.0
    """For a request's head, from its first byte or the connection's beginning."""
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0
    """Nothing moves in a request under way. A long prompt computes for minutes before its first token."""
    keep_alive_s: float = 75.0
    """A client's connection between requests."""
    upstream_keep_alive_s: float = 4.0
    """Likewise a connection to the server: below the 5 s after which uvicorn, so vLLM and SGLang, closes one."""
    linger_s: float = 2.0
    """For a client that still sends when its answer is complete: closing at once would take the answer from it."""
    drain_s: float = 30.0
    """For requests under way when the proxy is asked to end."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One proxy."""

    upstream: Upstream
    limits: Limits = Limits()
    tenant_header: bytes = b"x-tenant-id"
    inference_header: bytes = b"x-inference-id"
    salt: bytes = field(default=b"", repr=False)
    """Key of prompt hashes, 16 to 64 bytes."""
    ask_for_usage: bool = False


def parse_upstream(url: str, tls: ssl.SSLContext | None) -> Upstream:
    """``http(s)://HOST[:PORT][/PREFIX]``. tls: for https. Raises UpstreamError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UpstreamError("expected http(s)://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UpstreamError("expected http(s)://HOST:PORT, and perhaps a path")
    if "@" in parts.netloc:
        raise UpstreamError("a URL has no credentials: clients send their own, which are passed on")
    prefix = parts.path.rstrip("/")
    if not all("!" <= character <= "~" for character in prefix + parts.hostname):
        raise UpstreamError("expected printable ASCII characters")
    secure = parts.scheme == "https"
    if port == 0:
        raise UpstreamError("port 0 is no server's")
    return Upstream(parts.hostname, port or (443 if secure else 80), prefix.encode(), tls if secure else None)


def shown_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets; what a socket says of its peer."""
    try:
        bare = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return f"{host}:{port}"
    return f"[{bare}]:{port}" if bare.version == 6 else f"{bare}:{port}"
