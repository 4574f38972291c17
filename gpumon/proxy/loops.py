"""Whether ``proxy.upstream`` leads back to the proxy itself, where each request would become endless ones.

Before anything listens it is seen by the addresses that both names stand for now; only where the ports are equal, so
that nobody else waits for a name server. A name that cannot be resolved is nobody's yet. While requests run it is seen
by where they come from (``end_of``): nothing has to be written into them.
"""

from __future__ import annotations

import ipaddress
import socket

from gpumon.config_types import Address

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def leads_back(host: str, port: int, listen: Address) -> bool:
    """Whether a connection to there would reach whoever listens so."""
    if port != listen.port:
        return False
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    own = _addresses(listen.host, family)
    return any(_reaches(address, each) for address in _addresses(host, socket.AF_UNSPEC) for each in own)


def end_of(name: object) -> tuple[str, int] | None:
    """One end of a connection, as its socket tells it; alike for IPv4 in either family."""
    if not isinstance(name, tuple):
        return None
    return str(_plain(name[0])), int(name[1])


def _addresses(host: str, family: socket.AddressFamily) -> set[_Ip]:
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {_plain(str(entry[4][0])) for entry in found}


def _plain(text: str) -> _Ip:
    address = ipaddress.ip_address(text.partition("%")[0])
    return (address.ipv4_mapped or address) if address.version == 6 else address


def _reaches(address: _Ip, listens: _Ip) -> bool:
    if address.version != listens.version:
        return False
    if address.is_unspecified:  # Linux connects to itself then
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return address == listens or (listens.is_unspecified and _is_own(address))


def _is_own(address: _Ip) -> bool:
    """Whether it is one of this machine's."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
