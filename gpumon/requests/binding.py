"""Binds what sends spans to the process, container, pod and GPUs it runs on.

By the configuration where it names the server's GPUs; else by what the resource says of itself (``gpumon.gpu.uuid``,
``container.id``, ``k8s.pod.uid``, ``process.pid`` or ``vllm.process_id``); else by the connection the spans came on:
the pod that has its address or, for an address of the host itself, the process that holds its socket. From the process
found, the GPUs are those of the engine it belongs to (``process_tree``). What cannot be bound says why.

A proxy (``gpumon proxy``) is not the server: its resource says where it passes requests on to (``gpumon.upstream``,
``address:port``), and the process that listens there is the one, in the network namespace that the address is of.

A pid in a resource is the sender's own number of itself, which in a container is another one than here: it only
chooses among the processes of its container, or counts as a number of this node where the sender shares the node's
pid namespace. Who holds a socket, /proc/<pid>/fd tells: of other users' processes that needs CAP_DAC_READ_SEARCH and
CAP_SYS_PTRACE, else a DENIED miss; all of it needs hostPID in a pod.

``bind`` only looks into a table; what is not there is ``pending`` until the next ``read``, which does the looking, in
its own thread. The table is bounded: who was not asked for longest is forgotten.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpumon.host.files import Files
from gpumon.model import Binding, GpuProcess, GpuUuid, Item, Miss, Reason
from gpumon.requests.process_tree import Process, Processes
from gpumon.requests.sockets import Address, Peer, find_inode, find_listener, parse_peer

SIZE: Final = 1024
BOUND_S: Final = 60.0
"""How long a binding counts before it is looked at again."""
UNBOUND_S: Final = 10.0
"""How long it is left at that when nothing was found."""
LINK_BUDGET: Final = 8192
_PER_READ = 64  # entries looked at in one pass: a flood of connections cannot make it long
_TEXT_MAX = 256
_GPUS_MAX = 64
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-zA-Z/-]{1,120}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
_POD_UID = re.compile(r"[0-9a-fA-F-]{32,36}", re.ASCII)
_PENDING = Binding(unbound="pending")
_DENIED = (
    "/proc/<pid>/fd of other users: CAP_DAC_READ_SEARCH to list it and CAP_SYS_PTRACE to read its links; without them "
    "servers have to say where they run (docs/TOKENS.md)"
)


@dataclass(frozen=True, slots=True)
class ServerGpus:
    """Configured: servers whose ``service.name`` or pod name matches whole run on these GPUs."""

    servers: re.Pattern[str]
    gpus: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class _Told:
    """What a resource says of where it runs."""

    names: tuple[str, ...]
    gpus: tuple[GpuUuid, ...]
    pid: int | None
    container_id: str | None
    pod_uid: str | None
    node: str | None
    host: str | None
    upstream: Peer | None
    """Where the sender passes requests on to: it is a proxy, and not what ran them."""

    @property
    def placed(self) -> bool:
        """Whether the connection adds nothing."""
        return bool(self.gpus or self.container_id or self.pod_uid)


@dataclass(slots=True)
class _Entry:
    told: _Told
    peer: Peer | None
    binding: Binding = _PENDING
    process: Process | None = None
    """Found by its socket: counts on when the connection is gone."""
    bound: Process | None = None
    """That the binding names."""
    due_s: float = 0.0


class Binder:
    """``bind`` may be called from any thread, ``read`` from one."""

    name = "binding"
    """As a source of the runner."""

    def __init__(
        self,
        files: Files,
        holders: Callable[[], Sequence[GpuProcess]],
        *,
        gpus: Callable[[], Collection[GpuUuid]],
        node_names: Sequence[str],
        configured: Sequence[ServerGpus] = (),
        size: int = SIZE,
        bound_s: float = BOUND_S,
        unbound_s: float = UNBOUND_S,
    ) -> None:
        """holders: processes that hold GPUs now; gpus: UUIDs of this node's GPUs and MIG instances, empty while
        unknown; node_names: names this node goes by (host name, Kubernetes node name)."""
        self._files = files
        self._holders = holders
        self._gpus = gpus
        self._node_names = frozenset(name.lower() for name in node_names if name)
        self._configured = tuple(configured)
        self._size = size
        self._bound_s = bound_s
        self._unbound_s = unbound_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[int, Address | Peer | None], _Entry] = OrderedDict()
        self._host_addresses: frozenset[Address] = frozenset()

    def __len__(self) -> int:
        return len(self._entries)

    def bind(self, attributes: Mapping[str, object], key: int, peer: str) -> Binding:
        """Where requests of a resource run, as far as known now; a microsecond once it is known.

        key: equal for equal attributes; peer: ``address:port`` of the connection, or "".
        """
        found = parse_peer(peer) if peer else None
        with self._lock:
            place = self._place(found)
            # What a resource says of itself does not depend on its connection, which may be a new one each time.
            for known in ((key, None), (key, place)):
                entry = self._entries.get(known)
                if entry is not None:
                    self._entries.move_to_end(known)
                    return entry.binding
            told = _told(attributes)
            entry = _Entry(told, None if told.placed else found)
            # A pid of this very host is the same over whichever connection it comes.
            anywhere = told.placed or (told.pid is not None and told.host in self._node_names and place is found)
            self._entries[key, None if anywhere else place] = entry
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
            return entry.binding

    def read(self, at_s: float) -> Iterator[Item]:
        """As a source: look for what is pending or due again. Has no samples: who counts requests counts these."""
        denied = False
        with self._lock:
            due = [entry for entry in reversed(self._entries.values()) if entry.due_s <= at_s][:_PER_READ]
        if due:
            holders = self._holders()
            processes = Processes(self._files, holders, LINK_BUDGET)
            self._host_addresses = processes.addresses(1)
            known = frozenset(self._gpus())
            for entry in due:
                binding, process = self._resolve(entry, processes, known)
                if binding.how == "none" and not holders and _lives(entry, processes):
                    # The driver tells of no process at all: this one still has the GPUs that it had.
                    binding, process = entry.binding, entry.process
                with self._lock:
                    entry.binding, entry.process = binding, process
                    entry.bound = processes.get(binding.pid) if binding.pid is not None else None
                    entry.due_s = at_s + (self._unbound_s if binding.how == "none" else self._bound_s)
                denied |= binding.unbound == "denied"
        if denied:
            yield Miss("owners of connections", Reason.DENIED, _DENIED)

    def _place(self, peer: Peer | None) -> Address | Peer | None:
        """What of a peer tells senders apart: an address that many processes share needs its port."""
        return None if peer is None else peer if self._shared(peer) else peer.address

    def _shared(self, peer: Peer) -> bool:
        return peer.address.is_loopback or peer.address in self._host_addresses

    def _resolve(
        self, entry: _Entry, processes: Processes, known: frozenset[GpuUuid]
    ) -> tuple[Binding, Process | None]:
        told, peer = entry.told, entry.peer
        configured = self._configured_gpus(told)
        if told.node is not None and told.node not in self._node_names:
            return Binding(unbound="other_node"), None
        shared = peer is None or self._shared(peer)
        how, process = "resource", None
        if told.upstream is not None:
            found = self._behind(told.upstream, told, peer, processes)
        else:
            found = self._by_resource(told, processes, shared=shared)
        if not found and peer is not None and not (shared and told.upstream is not None):
            how = "peer"
            if shared:
                process = self._owner(peer, processes) or _still(entry.process, processes)
                found = [] if process is None else [_Found(process, tuple(processes.engine_of(process)))]
            else:
                found = _narrowed(processes.with_address(peer.address), told.pid, processes)
        if configured:
            return _binding("config", configured, found), process
        if told.gpus:
            here = tuple(uuid for uuid in told.gpus if uuid in known) if known else told.gpus
            return (_binding("resource", here, found) if here else Binding(unbound="other_node")), process
        gpus = processes.gpus_of([holder for one in found for holder in one.engine])
        if gpus:
            return _binding(how, gpus, found), process
        return _binding("none", (), found, "no_gpu" if found else self._why(told, peer, processes)), process

    def _configured_gpus(self, told: _Told) -> tuple[GpuUuid, ...]:
        for one in self._configured:
            if any(one.servers.fullmatch(name) for name in told.names):
                return one.gpus
        return ()

    def _why(self, told: _Told, peer: Peer | None, processes: Processes) -> str:
        if told.container_id or told.pod_uid or told.pid is not None or told.upstream is not None or peer is not None:
            if told.host is not None and told.host not in self._node_names and not told.placed:
                return "other_node"
            return "denied" if processes.denied else "no_process"
        return "no_identity"

    def _by_resource(self, told: _Told, processes: Processes, *, shared: bool) -> list[_Found]:
        within = processes.in_container(told.container_id) or processes.in_pod(told.pod_uid)
        if not within and not told.placed and told.host is not None and _CONTAINER.fullmatch(told.host):
            within = processes.in_container(told.host)  # Docker names a host by the beginning of its container's id
        if within:
            return _narrowed(within, told.pid, processes)
        elsewhere = told.host is not None and told.host not in self._node_names
        if told.placed or told.pid is None or elsewhere or not shared:
            return []
        process = processes.get(told.pid)
        if process is None or processes.own_pid(process.pid) not in (process.pid, None):
            return []  # the number is another's: the sender counts in a namespace of its own
        return [_Found(process, tuple(processes.engine_of(process)))]

    def _behind(self, upstream: Peer, told: _Told, peer: Peer | None, processes: Processes) -> list[_Found]:
        """What listens where a proxy passes requests on to."""
        if not upstream.address.is_loopback:
            near = processes.with_address(upstream.address)
            root = "1" if upstream.address in self._host_addresses else None
        elif peer is None or self._shared(peer):
            near = processes.in_container(told.container_id) or processes.in_pod(told.pod_uid)
            root = None if told.placed else "self" if peer is None or peer.address.is_loopback else "1"
        else:  # the loopback of the pod that both are in
            near, root = processes.with_address(peer.address), None
        for place in dict.fromkeys([*([root] if root is not None else []), *(str(holder.pid) for holder in near)]):
            tables = [processes.sockets_table(f"proc/{place}/net/{name}") for name in ("tcp", "tcp6")]
            inode = find_listener(tables, upstream)
            process = processes.owner_of(inode) if inode is not None else None
            if process is not None:
                return [_Found(process, tuple(processes.engine_of(process)))]
        return []

    def _owner(self, peer: Peer, processes: Processes) -> Process | None:
        # Loopback is that of our own network namespace; the host's other addresses are in that of pid 1.
        root = "self" if peer.address.is_loopback else "1"
        for name in ("tcp", "tcp6"):
            inode = find_inode(processes.sockets_table(f"proc/{root}/net/{name}"), peer)
            if inode is not None:
                return processes.owner_of(inode)
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A process that sends, or one that stands for its container, and the processes whose GPUs it works with."""

    process: Process
    engine: tuple[Process, ...]
    exact: bool = True
    """Whether it is the sender itself."""


def _narrowed(within: Sequence[Process], own_pid: int | None, processes: Processes) -> list[_Found]:
    """The sender among processes of its container or pod or, if it cannot be told, all of them."""
    sender = processes.with_own_pid(own_pid, within) if own_pid is not None else None
    if sender is not None:
        return [_Found(sender, tuple(processes.engine_of(sender)))]
    return [_Found(holder, (holder,), exact=False) for holder in within]


def _still(process: Process | None, processes: Processes) -> Process | None:
    """The process, if it lives on."""
    now = processes.get(process.pid) if process is not None else None
    return now if now is not None and process is not None and now.start_ticks == process.start_ticks else None


def _lives(entry: _Entry, processes: Processes) -> bool:
    """Whether the process lives that the entry was last bound to, with its GPUs."""
    return bool(entry.binding.gpus) and _still(entry.bound, processes) is not None


def _binding(how: str, gpus: tuple[GpuUuid, ...], found: Sequence[_Found], unbound: str = "") -> Binding:
    containers = {one.process.identity.container_id for one in found}
    pods = {one.process.identity.pod_uid for one in found}
    return Binding(
        how=how,
        pid=found[0].process.pid if len(found) == 1 and found[0].exact else None,
        container_id=containers.pop() if len(containers) == 1 else None,
        pod_uid=pods.pop() if len(pods) == 1 else None,
        gpus=gpus,
        unbound=unbound,
    )


def _told(attributes: Mapping[str, object]) -> _Told:
    names = (_text(attributes, "service.name"), _text(attributes, "k8s.pod.name"))
    host, node = _text(attributes, "host.name"), _text(attributes, "k8s.node.name")
    container = _text(attributes, "container.id").rpartition("://")[2]
    pod = _text(attributes, "k8s.pod.uid")
    return _Told(
        names=tuple(name for name in names if name),
        gpus=_gpus_told(attributes.get("gpumon.gpu.uuid")),
        pid=_pid(attributes.get("process.pid")) or _pid(attributes.get("vllm.process_id")),
        container_id=container if _CONTAINER.fullmatch(container) else None,
        pod_uid=pod.lower() if _POD_UID.fullmatch(pod) else None,
        node=node.lower() or None,
        host=host.lower() or None,
        upstream=parse_peer(_text(attributes, "gpumon.upstream")),
    )


def _text(attributes: Mapping[str, object], name: str) -> str:
    value = attributes.get(name)
    return value if isinstance(value, str) and len(value) <= _TEXT_MAX else ""


def _pid(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    return value if type(value) is int and 0 < value < 1 << 22 else None


def _gpus_told(value: object) -> tuple[GpuUuid, ...]:
    told = value.split(",") if isinstance(value, str) else value if isinstance(value, (tuple, list)) else ()
    words = [word.strip() for word in told[:_GPUS_MAX] if isinstance(word, str)]
    return tuple(dict.fromkeys(GpuUuid(word) for word in words if _UUID.fullmatch(word)))
