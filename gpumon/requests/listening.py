"""Which sockets listen for the processes on this node's GPUs, and under which address each is reached from here.

Reads /proc/<pid>/net/tcp and tcp6 of each network namespace that a process on a GPU is in, looks there for sockets on
the wanted ports, and for the process that has each of them open. It counts where that process works with a GPU, or
did: by its tree, its process group or its container (``process_tree``), for an API server is the parent or a sibling
of what computes. gpumon's own sockets do not count. What one process has on one port is one door, and so is what
several have at one address, where the kernel says who answers (``SO_REUSEPORT``).

A socket in gpumon's own network namespace is reached over loopback; one in another, a pod's, at the pod's address, by
/proc/<pid>/net/fib_trie and if_inet6. One that listens on loopback there cannot be reached, nor can one whose address
is in several namespaces: who would answer could not be told.

Needs hostPID in a pod, and for processes of other users CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (/proc/<pid>/ns/net and
/proc/<pid>/fd): what cannot be read without them is a DENIED miss. The kernel walks its whole table of connections for
each net/tcp, milliseconds of CPU however few sockets there are: so how often to look is for ``server_discovery`` to
say, and who owns a socket is remembered.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpumon.host.files import Files, ReadError
from gpumon.model import GpuProcess, Miss, Pid, Reason
from gpumon.requests.process_tree import Process, Processes
from gpumon.requests.sockets import Address, Listening, parse_fib_trie, parse_if_inet6, parse_listening
from gpumon.sources.server_discovery import Door, Look

LINK_BUDGET = 32_768
"""Descriptors looked at in one look, about 2 us each; only a new socket needs any."""
HELD = 256
"""Processes on GPUs that are remembered."""
NAMESPACES = 64
SOCKETS = 1024
"""Sockets on wanted ports looked at in one namespace."""
LOOKS_MAX = 64
"""Longest wait, in looks, before the owner of a socket is looked for again."""
_LOOPBACKS: dict[int, Address] = {4: ipaddress.IPv4Address("127.0.0.1"), 6: ipaddress.IPv6Address("::1")}
_LOOPBACK = "listens on loopback of a network namespace of its own: let it listen on the pod's address"
_NOWHERE = "its network namespace has no address"
_AMBIGUOUS = "its address is in several network namespaces of this node"


@dataclass(slots=True)
class _Owner:
    """Of a socket, as it was found; without a process it is looked for again after ``wait`` looks."""

    process: Process | None
    wait: int = 1
    left: int = 1


@dataclass(frozen=True, slots=True)
class _Namespace:
    """A network namespace, by one process in it."""

    link: str
    pid: int
    own: bool
    """Whether gpumon is in it."""


class ListeningServers:
    """``server_discovery.Doors`` of this node. Remembers who owns which socket; used by one thread."""

    def __init__(
        self,
        files: Files,
        holders: Callable[[], Sequence[GpuProcess]],
        wanted: Sequence[range],
        excluded: Sequence[range] = (),
    ) -> None:
        """holders: processes that hold GPUs now. wanted: ports, those to be asked first first."""
        self._files = files
        self._holders = holders
        self._wanted = tuple(wanted)
        self._excluded = tuple(excluded)
        self._owners: dict[int, _Owner] = {}
        self._held: dict[int, tuple[GpuProcess, int]] = {}
        """Processes that hold a GPU or held one, each with its start."""

    def stamp(self) -> frozenset[int]:
        """Processes on GPUs, by number."""
        return frozenset(holder.pid for holder in self._holders())

    def look(self) -> Look:
        """Sockets as they are now."""
        processes = self._processes()
        own_link = self._link("proc/self/ns/net")
        if not processes.holders or own_link is None:
            self._owners = {}
            return Look()
        misses: list[Miss] = []
        namespaces = self._namespaces(processes, own_link, misses)
        found = [(each, socket) for each in namespaces for socket in self._sockets(processes, each)]
        self._own(processes, [socket for _, socket in found])
        doors = self._doors(processes, namespaces, found)
        unknown = sum(self._owners[socket.inode].process is None for _, socket in found)
        if unknown and processes.denied:
            misses.append(
                Miss(
                    "owners of listening sockets",
                    Reason.DENIED,
                    f"{unknown}: /proc/<pid>/fd of other users needs CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE",
                )
            )
        ordered = sorted(doors, key=lambda door: (self._rank(door.port) or 0, door.port, door.host, door.pid))
        return Look(list(_each_once(ordered)), misses)

    def _processes(self) -> Processes:
        """With those that hold a GPU and those that held one and live on: where the driver hangs, it tells of none."""
        told = {holder.pid: holder for holder in self._holders()}
        earlier = {pid: holder for pid, (holder, _) in self._held.items() if pid not in told}
        processes = Processes(self._files, [*told.values(), *earlier.values()], LINK_BUDGET)
        starts = {process.pid: process.start_ticks for process in processes.holders}
        others = [pid for pid in earlier if starts.get(pid) not in (None, self._held[pid][1])]
        if others:  # the number is another process's now
            earlier = {pid: holder for pid, holder in earlier.items() if pid not in others}
            processes = Processes(self._files, [*told.values(), *earlier.values()], LINK_BUDGET)
        held = {**earlier, **told}
        self._held = {pid: (held[pid], start) for pid, start in starts.items() if pid in held}
        while len(self._held) > HELD:
            del self._held[next(iter(self._held))]
        return processes

    def _namespaces(self, processes: Processes, own_link: str, misses: list[Miss]) -> list[_Namespace]:
        found: dict[str, _Namespace] = {}
        denied = 0
        for holder in processes.holders:
            try:
                link = self._files.link(f"proc/{holder.pid}/ns/net")
            except ReadError as error:
                denied += error.reason is Reason.DENIED  # else it ended
                continue
            found.setdefault(link, _Namespace(link, holder.pid, link == own_link))
        if denied:
            detail = f"of {denied} processes: /proc/<pid>/ns/net of other users needs CAP_SYS_PTRACE"
            misses.append(Miss("network namespaces", Reason.DENIED, detail))
        if len(found) > NAMESPACES:
            misses.append(Miss("network namespaces", Reason.OUT_OF_RANGE, f"{len(found)}, only {NAMESPACES} looked at"))
        return list(found.values())[:NAMESPACES]

    def _sockets(self, processes: Processes, namespace: _Namespace) -> list[Listening]:
        tables = [processes.sockets_table(f"proc/{namespace.pid}/net/{name}") for name in ("tcp", "tcp6")]
        wanted = [each for table in tables for each in parse_listening(table) if self._rank(each.port) is not None]
        return wanted[:SOCKETS]

    def _rank(self, port: int) -> int | None:
        """Place of a port in the order of asking; None for one that is not wanted."""
        if any(port in ports for ports in self._excluded):
            return None
        return next((place for place, ports in enumerate(self._wanted) if port in ports), None)

    def _own(self, processes: Processes, sockets: Sequence[Listening]) -> None:
        """See to it that the owners of these are known, as far as they can be."""
        owners = {socket.inode: self._owners.get(socket.inode) for socket in sockets}
        self._owners = {}
        for inode, owner in owners.items():
            if owner is None:
                owner = _Owner(processes.owner_of(inode))
            elif owner.process is not None:
                now = processes.get(owner.process.pid)
                if now is None or now.start_ticks != owner.process.start_ticks:
                    owner = _Owner(processes.owner_of(inode))
                else:
                    owner.process = now  # whose child it is may have changed
            else:
                owner.left -= 1
                if owner.left <= 0:
                    owner.wait = owner.left = min(LOOKS_MAX, 2 * owner.wait)
                    owner.process = processes.owner_of(inode)
            self._owners[inode] = owner

    def _doors(
        self, processes: Processes, namespaces: Sequence[_Namespace], found: Sequence[tuple[_Namespace, Listening]]
    ) -> Iterator[Door]:
        own_pid = self._link("proc/self")
        together: dict[tuple[str, int, int], tuple[_Namespace, Process, list[Listening]]] = {}
        for namespace, socket in found:
            process = self._owners[socket.inode].process
            if process is None or str(process.pid) == own_pid:
                continue
            if not (processes.engine_of(process) or processes.beside(process)):
                continue
            key = (namespace.link, socket.port, process.pid)
            together.setdefault(key, (namespace, process, []))[2].append(socket)
        shared = _shared(processes, namespaces) if together else frozenset()
        for (_, port, _), (namespace, process, sockets) in together.items():
            pid = Pid(process.pid, process.start_ticks)
            addresses = [each for each in processes.addresses(namespace.pid) if not each.is_link_local]
            ways = [way for each in sockets for way in _ways(each.address, addresses, own=namespace.own)]
            open_ways = [way for way in ways if namespace.own or way not in shared]
            inode = min(each.inode for each in sockets)
            names = _names(sockets, ways, addresses)
            if open_ways:
                host = _spelled(min(open_ways, key=_preference))
                yield Door(pid, port, inode, host, names=names)
            else:
                on_loopback = all(each.address.is_loopback for each in sockets)
                why = _AMBIGUOUS if ways else _LOOPBACK if on_loopback else _NOWHERE
                yield Door(pid, port, inode, "", why, names)

    def _link(self, path: str) -> str | None:
        try:
            return self._files.link(path)
        except ReadError:
            return None


def _each_once(doors: Sequence[Door]) -> Iterator[Door]:
    """Of those with the same address the first, whichever process answers there."""
    met = set()
    for door in doors:
        place = (door.host, door.port)
        if place not in met:
            yield door
        if door.host:
            met.add(place)


def _shared(processes: Processes, namespaces: Sequence[_Namespace]) -> frozenset[Address]:
    """Addresses that are in several of these namespaces, gpumon's own among them."""
    others = [processes.addresses(each.pid) for each in namespaces if not each.own]
    if not others:
        return frozenset()
    own = _addresses_of_self(processes)
    counted = Counter(address for addresses in (own, *others) for address in addresses)
    return frozenset(address for address, count in counted.items() if count > 1)


def _addresses_of_self(processes: Processes) -> frozenset[Address]:
    trie, inet6 = (processes.sockets_table(f"proc/self/net/{name}") for name in ("fib_trie", "if_inet6"))
    return parse_fib_trie(trie) | parse_if_inet6(inet6)


def _ways(listens_on: Address, addresses: Sequence[Address], *, own: bool) -> list[Address]:
    """Addresses under which a socket is reached from here."""
    if not listens_on.is_unspecified:
        return [listens_on] if own or not listens_on.is_loopback else []
    ours = [address for address in addresses if address.version == listens_on.version]
    if own:
        return [_LOOPBACKS[listens_on.version], *ours]
    return ours or list(addresses)  # most sockets of IPv6 take IPv4 too


def _names(sockets: Sequence[Listening], ways: Sequence[Address], addresses: Sequence[Address]) -> frozenset[str]:
    """How a configuration may spell where these sockets answer."""
    names = {str(way) for way in ways}
    if any(each.address.is_unspecified and each.address.version == 6 for each in sockets):
        names |= {str(address) for address in addresses}
        names |= {str(_LOOPBACKS[4])} if str(_LOOPBACKS[6]) in names else set()
    return frozenset(names | {"localhost"} if any(way.is_loopback for way in ways) else names)


def _preference(address: Address) -> tuple[bool, int, int]:
    return not address.is_loopback, address.version, int(address)


def _spelled(address: Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
