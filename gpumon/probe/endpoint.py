"""Whom to probe: the address of an OpenAI-compatible server, the interface, and the key, taken apart and checked.

The address is ``http://`` or ``https://``, with or without ``/v1``. The key comes from the environment alone, so that
it is in no list of processes; it is in no text that leaves this module but the header. What cannot be an endpoint
raises EndpointError, with one line.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

KEY: Final = "GPUMON_PROBE_API_KEY"
_EXAMPLE: Final = "such as http://127.0.0.1:8000"


class EndpointError(ValueError):
    """This is no endpoint. One line."""


class Interface(StrEnum):
    """What is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    base: str
    """Path of the interfaces, ``/v1`` mostly, without a slash at its end."""
    key: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, by its address alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def target(self, path: str) -> str:
        """Of a request line."""
        return f"{self.base}/{path}"


def parse_endpoint(url: str, environ: Mapping[str, str]) -> Endpoint:
    """Raises EndpointError. environ: where the key is, if there is one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"{url[:80]!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EndpointError(f"{url[:80]!r}: expected an address {_EXAMPLE}")
    if parts.username is not None:
        raise EndpointError(f"credentials in the address would be seen by others: expected a key in {KEY}")
    if parts.query or parts.fragment or not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise EndpointError(f"{url[:80]!r}: expected an address alone, {_EXAMPLE}")
    key = environ.get(KEY, "")
    if not key.isascii() or (key and not key.isprintable()) or " " in key:
        raise EndpointError(f"{KEY}: expected printable ASCII without spaces")
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions"):
        path = path.removesuffix(ending)
    base = path if path.endswith("/v1") else f"{path}/v1"
    return Endpoint(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), base, key)
