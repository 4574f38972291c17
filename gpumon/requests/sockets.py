"""Whose connection it is: parsers of /proc/<pid>/net for addresses, sockets and their inodes.

Formats: proc(5), Documentation/networking/proc_net_tcp.rst; addresses are 32-bit words in the host's byte order,
which is little-endian on every architecture that gpumon runs on. Pure: nothing is read here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOCAL_IPV4 = re.compile(rb"\|-- (\d{1,3}(?:\.\d{1,3}){3})\n[^|+]*?/32 host LOCAL", re.ASCII)
_LISTENING_LINE = re.compile(
    rb"^ *\d+: ([0-9A-F]{32}|[0-9A-F]{8}):([0-9A-F]{4}) [0-9A-F:]+ 0A \S+ \S+ \S+ +\d+ +\d+ (\d{1,20}) ",
    re.ASCII | re.M,
)
_ESTABLISHED = b"01"
_TCP_FIELDS = 10


class Peer(NamedTuple):
    """The other end of a connection."""

    address: Address
    port: int


class Listening(NamedTuple):
    """A socket that waits for connections."""

    address: Address
    """Its own; the unspecified one for every address."""
    port: int
    inode: int


def parse_peer(text: str) -> Peer | None:
    """``address:port``, IPv6 in brackets; None for what is no address, such as a unix socket's."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF or len(text) > 64:
        return None
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Peer(mapped or address, int(port))


def find_inode(table: bytes, peer: Peer) -> int | None:
    """Inode of the connection whose own end is ``peer``, in the text of a /proc/<pid>/net/tcp or tcp6."""
    # Searched for, not parsed: a busy node has ten thousand lines.
    needles = [f" {_words(peer.address)}:{peer.port:04X} ".encode()]
    if isinstance(peer.address, ipaddress.IPv4Address):
        needles.append(f" {'0' * 16}FFFF0000{_words(peer.address)}:{peer.port:04X} ".encode())
    for needle in needles:
        at = table.find(needle)
        while at >= 0:
            start = table.rfind(b"\n", 0, at) + 1
            end = table.find(b"\n", at)
            fields = table[start : end if end >= 0 else None].split()
            if len(fields) >= _TCP_FIELDS and fields[1] == needle.strip() and fields[3] == _ESTABLISHED:
                inode = fields[9]
                if inode.isdigit() and len(inode) <= 20 and int(inode):
                    return int(inode)
            at = table.find(needle, at + 1)
    return None


def parse_listening(table: bytes) -> list[Listening]:
    """Sockets that listen, in the text of a /proc/<pid>/net/tcp or tcp6; lines in another format are left out."""
    return [
        Listening(_address(words.decode()), int(port, 16), int(inode))
        for words, port, inode in _LISTENING_LINE.findall(table)
        if int(port, 16) and int(inode)
    ]


def find_listener(tables: Sequence[bytes], at: Peer) -> int | None:
    """Inode of the socket that takes connections to this address, in such texts; else of one for every address."""
    listening = [one for table in tables for one in parse_listening(table) if one.port == at.port]
    exact = [one.inode for one in listening if one.address == at.address]
    return next(iter(exact + [one.inode for one in listening if one.address.is_unspecified]), None)


def parse_fib_trie(data: bytes) -> frozenset[Address]:
    """Own IPv4 addresses of a network namespace, by its /proc/<pid>/net/fib_trie; loopback ones left out."""
    found = set()
    for text in _LOCAL_IPV4.findall(data):
        try:
            address = ipaddress.IPv4Address(text.decode())
        except ValueError:
            continue
        if not address.is_loopback:
            found.add(address)
    return frozenset(found)


def parse_if_inet6(data: bytes) -> frozenset[Address]:
    """Own IPv6 addresses of a network namespace, by its /proc/<pid>/net/if_inet6; loopback and link-local left out."""
    found: set[Address] = set()
    for line in data.splitlines():
        text = line.partition(b" ")[0]
        if len(text) == 32 and re.fullmatch(rb"[0-9a-fA-F]{32}", text):
            address = ipaddress.IPv6Address(int(text, 16))
            if not address.is_loopback and not address.is_link_local:
                found.add(address)
    return frozenset(found)


def _address(words: str) -> Address:
    """The inverse of ``_words``; one of IPv4 in IPv6 as what it is."""
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _words(address: Address) -> str:
    packed = address.packed
    return "".join(packed[i : i + 4][::-1].hex().upper() for i in range(0, len(packed), 4))
