"""Identifiers in a recording replaced by others of the same form, the same one by the same one (``--mask``).

Found by their shape wherever they stand: UUIDs (of GPUs, MIG instances, pods), hex numbers of 64 digits and more
(containers), IP addresses, also as /proc/<pid>/net writes them, and the node's own names. Found by the name of the
OTLP attribute or metric label that holds them: other host names, names and uids in Kubernetes, instances, tenants.
Kept: pids, PCI addresses, command names, models, service names, trace ids; loopback, unspecified and link-local
addresses; the first number of an IPv4 address and the first 16 bits of an IPv6 address, by which networks are told
apart; ports.

Each digit or letter is shifted by a keyed hash of those before it. So what begins alike still does (a container's id
and its first 12 digits, a host's name with and without its domain, addresses of one network), lengths and separators
stay, and two identifiers never become one. The key is random, for one recording, and in no file.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import blake2b
from string import ascii_lowercase
from urllib.parse import urlsplit

from gpumon.record.entries import to_bytes

DEFAULT_TENANTS = ("tenant.id", "x-tenant-id")
_UUID = r"[0-9a-fA-F]{8}(?P<dash>[-_])(?:[0-9a-fA-F]{4}(?P=dash)){3}[0-9a-fA-F]{12}"
_HEX = r"(?<![0-9a-fA-F])[0-9a-fA-F]{64,}|(?<=pod)[0-9a-f]{32}(?![0-9a-f])"  # the second: pods of the kubelet's own
_IPV4 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)"
_IPV6 = r"(?<![\w:.])(?=[0-9a-fA-F]*:[0-9a-fA-F]*:)[0-9a-fA-F:]{2,39}(?![\w:.])"
_SHAPES = re.compile(f"(?P<uuid>{_UUID})|(?P<hex>{_HEX})|(?P<ip>{_IPV4}|{_IPV6})", re.ASCII)
_HEX_ID = re.compile(r"[0-9a-fA-F]{12,}", re.ASCII)
_PORT = re.compile(r":\d{1,5}\Z", re.ASCII)
_PROC_NET = re.compile(r"proc/[^/]+/net/(\w+)")
_SOCKET = re.compile(rb"(?<= )([0-9A-F]{8}|[0-9A-F]{32})(?=:[0-9A-F]{4} )")
_IF_INET6 = re.compile(rb"^[0-9a-f]{32}(?= )", re.MULTILINE)
_LABEL = re.compile(rb'(?<=[{,])((?:k8s_)?(?:pod|namespace|node|instance|host|hostname)(?:_name|_uid)?=")([^"\\]*)')
_GENERIC = re.compile(r"(?:localhost|proc|sys|cgroup|nvidia|driver|(?:node|cpu|gpu)\d*)", re.IGNORECASE)
"""Names a node may have that say nothing, and that other things in /proc and /sys have too."""
_IDENTIFYING = frozenset({"service.instance.id", "prompt_hash", "gen_ai.prompt_hash"})
_IDENTIFYING_PREFIXES = (
    *("k8s.", "host.", "container.", "client.", "server.", "source.", "destination.", "net."),
    *("network.peer.", "network.local.", "user.", "enduser.", "session."),
)
_CACHED = 16_384
_LARGE = 16_384


class Mask:
    """Replaces identifiers. Used by one thread at a time."""

    def __init__(
        self, names: Iterable[str] = (), tenants: Collection[str] = DEFAULT_TENANTS, key: bytes | None = None
    ) -> None:
        """names: those the node itself goes by. tenants: attributes that name one. key: of another process's mask."""
        self.key = key or os.urandom(32)
        self.names = tuple(names)
        self._identifying = _IDENTIFYING | frozenset(tenants)
        known = {part for name in self.names for part in (name, name.partition(".")[0])}
        words = sorted((re.escape(w) for w in known if len(w) > 2 and not _GENERIC.fullmatch(w)), key=len, reverse=True)
        self._own = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(words)})(?![A-Za-z0-9])", re.I) if words else None
        self._shifted = lru_cache(_CACHED)(self._shift)
        self._line = lru_cache(_CACHED)(self._masked)

    # --- text -------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Any text: what is an identifier by its shape, and the node's names."""
        text = _SHAPES.sub(self._shape, text)
        return text if self._own is None else self._own.sub(lambda found: self.name(found[0]), text)

    def identifier(self, text: str) -> str:
        """A text that is an identifier as a whole, whatever its shape."""
        scheme, found, rest = text.rpartition("://")
        if found:
            return scheme + found + self.identifier(rest)
        if _HEX_ID.fullmatch(text):
            return self._shifted("hex", text)
        port = _PORT.search(text)
        end = port.start() if port is not None and text.count(":") == 1 else len(text)
        parts, at = [], 0
        for shape in _SHAPES.finditer(text, 0, end):
            parts += [self.name(text[at : shape.start()]), self._shape(shape)]
            at = shape.end()
        return "".join((*parts, self.name(text[at:end]), text[end:]))

    def name(self, text: str) -> str:
        """A name: letters become letters, digits digits."""
        return self._shifted("name", text)

    def attribute(self, key: str, value: str) -> str:
        """Text of an OTLP attribute."""
        if key in self._identifying or key.startswith(_IDENTIFYING_PREFIXES):
            return self.identifier(value)
        return self.text(value)

    def url(self, url: str) -> str:
        """A url without credentials."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if host != "localhost":
            host = self._address(host) or self.identifier(host)
        where = f"[{host}]" if ":" in host else host
        return parts._replace(netloc=where if port is None else f"{where}:{port}", path=self.text(parts.path)).geturl()

    def about(self, value: object, name: str = "") -> object:
        """What a header says: texts in lists and dicts; ``node_names`` and ``server_urls`` for what they are."""
        if isinstance(value, str):
            kinds = {"node_names": self.identifier, "server_urls": self.url}
            return kinds.get(name, self.text)(value)
        if isinstance(value, dict):
            return {key: self.about(item, str(key)) for key, item in value.items()}
        return [self.about(item, name) for item in value] if isinstance(value, list | tuple) else value

    # --- files and pages --------------------------------------------------------------------------------------------

    def file(self, path: str, data: bytes) -> bytes:
        """Content of a file of the host."""
        table = _PROC_NET.fullmatch(path)
        if table is not None and table[1] in ("tcp", "tcp6"):
            return _SOCKET.sub(lambda found: self._words(found[0]), data)
        if table is not None and table[1] == "if_inet6":
            return _IF_INET6.sub(lambda found: self._packed(bytes.fromhex(found[0].decode())).hex().encode(), data)
        return self.data(data)

    def page(self, data: bytes) -> bytes:
        """A metrics page."""
        parts, at = [], 0
        for label in _LABEL.finditer(data):
            value = self.identifier(label[2].decode("latin-1")).encode("latin-1")
            parts += [self.data(data[at : label.start(2)]), value]
            at = label.end()
        return b"".join((*parts, self.data(data[at:])))

    def data(self, data: bytes) -> bytes:
        """Any bytes, as ``text``."""
        if len(data) > _LARGE:  # line by line: most were there before, and the interpreter's lock is let go between
            return b"\n".join(map(self._line, data.split(b"\n")))
        return self.text(data.decode("latin-1")).encode(
            "latin-1"
        )  # every byte is a character, and comes back as it was

    def _masked(self, data: bytes) -> bytes:
        return self.text(data.decode("latin-1")).encode("latin-1")  # each byte is a character, and comes back as it was

    # --- shapes -----------------------------------------------------------------------------------------------------

    def _shape(self, found: re.Match[str]) -> str:
        if found["ip"]:
            return self._address(found["ip"]) or found["ip"]
        return self._shifted("hex", found[0])

    def _address(self, text: str) -> str | None:
        """The address masked, or None for what is no address."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return None
        masked = ipaddress.ip_address(self._packed(address.packed))
        return text if masked == address else str(masked)  # as it was written: ``0::`` begins a line of a cgroup file

    def _packed(self, packed: bytes) -> bytes:
        """An address of 4 or 16 bytes."""
        address = ipaddress.ip_address(packed)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if mapped is not None:
            return packed[:12] + self._packed(mapped.packed)
        if address.is_loopback or address.is_unspecified or (len(packed) == 4 and packed[0] in (0, 255)):
            return packed
        if len(packed) == 4 and address.is_link_local:
            return packed
        kept = 2 if len(packed) == 4 else 4  # hex digits
        return bytes.fromhex(self._shifted("ip", packed.hex(), kept))

    def _words(self, digits: bytes) -> bytes:
        """An address as /proc/<pid>/net/tcp has it: 32-bit words, each from its last byte on."""
        packed = bytes.fromhex(digits.decode())
        turned = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
        masked = self._packed(turned)
        return b"".join(masked[at : at + 4][::-1] for at in range(0, len(masked), 4)).hex().upper().encode()

    def _shift(self, domain: str, text: str, kept: int = 0) -> str:
        """Each digit and letter shifted among its like, by what stands before it; the first ``kept`` stay.

        domain: ``name``, else hex digits and separators.
        """
        state = blake2b(key=self.key, digest_size=8, person=domain.encode())
        upper = text.isupper()
        shifted = []
        for at, char in enumerate(text):
            low = char.lower()
            alphabet = "0123456789abcdef" if domain != "name" else "0123456789" if char.isdigit() else ascii_lowercase
            if at >= kept and char.isalnum():
                by = int.from_bytes(state.copy().digest(), "big")
                new = alphabet[(alphabet.find(low) + by) % len(alphabet)]
                shifted.append(new.upper() if char.isupper() or (upper and domain != "name") else new)
            else:
                shifted.append(char)
            if char.isalnum():  # a pod's uid is written with - and with _
                state.update(to_bytes(low))
        return "".join(shifted)
