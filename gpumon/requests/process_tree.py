"""Processes as they are related: who holds which GPU, who is whose parent, who is in which container.

The process that serves requests is seldom the one that holds the GPUs (vLLM: an API server, an engine, a worker per
GPU). One object is one look at /proc, each file of it read at most once and only when asked for. Needs the host's
pid namespace; what cannot be read is not there, and ``denied`` says whether a privilege was missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumon.host.files import Files, ReadError
from gpumon.model import GpuProcess, GpuUuid, Reason, SourceError
from gpumon.requests.sockets import Address, parse_fib_trie, parse_if_inet6
from gpumon.sources.cgroup import Identity, identify
from gpumon.sources.procfs import parse_cgroup, parse_family, parse_stat, parse_status
from gpumon.sources.targets import ENDED

MAX_DEPTH = 32
_LAUNCHERS = frozenset(
    {
        *("bash", "sh", "dash", "zsh", "fish", "tmux: server", "screen", "sshd", "login", "sudo", "su"),
        *("systemd", "init", "tini", "dumb-init", "supervisord", "s6-svscan", "runsvdir"),
        *("containerd-shim", "conmon", "slurmstepd", "slurmd", "srun"),
    }
)
"""Names of processes whose children have nothing to do with each other."""
_TABLE_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc tells of one process."""

    pid: int
    start_ticks: int
    comm: str
    parent: int
    group: int
    identity: Identity


class Processes:
    """One look at the processes that hold GPUs and at their relatives."""

    def __init__(self, files: Files, holders: Sequence[GpuProcess], link_budget: int) -> None:
        """link_budget: most descriptors looked at to find a socket's owner, about 2 us each."""
        self._files = files
        self._links_left = link_budget
        self._known: dict[int, Process | None] = {}
        self._own_pids: dict[int, int | None] = {}
        self._addresses: dict[int, frozenset[Address]] = {}
        self._tables: dict[str, bytes] = {}
        self._sockets: dict[int, frozenset[int]] = {}
        self.denied = False
        """Whether something could not be read for want of a privilege."""
        self._gpus: dict[int, tuple[GpuUuid, ...]] = {}
        for holder in holders:
            self._gpus[holder.pid] = (*self._gpus.get(holder.pid, ()), holder.uuid)

    @property
    def holders(self) -> list[Process]:
        """Those that hold a GPU and are in /proc, by pid."""
        return [process for pid in sorted(self._gpus) if (process := self.get(pid)) is not None]

    def gpus_of(self, processes: Sequence[Process]) -> tuple[GpuUuid, ...]:
        """GPUs that these hold, each once, in order."""
        return tuple(sorted({uuid for process in processes for uuid in self._gpus.get(process.pid, ())}))

    def get(self, pid: int) -> Process | None:
        """The process; None when it ended or cannot be seen."""
        if pid not in self._known:
            self._known[pid] = self._read(pid)
        return self._known[pid]

    def ancestors(self, process: Process) -> Iterator[Process]:
        """Parent, its parent, and so on; without pid 1."""
        for _ in range(MAX_DEPTH):
            parent = self.get(process.parent) if process.parent > 1 else None
            if parent is None:
                return
            yield parent
            process = parent

    def engine_of(self, process: Process) -> list[Process]:
        """The processes that hold the GPUs with which this one works; empty where none can be told.

        First of these that finds any: itself, its descendants and its ancestors, together with siblings of its own
        below a parent that is no mere launcher; its process group; its container.
        """
        above = [process.pid, *(parent.pid for parent in self.ancestors(process))]
        siblings = process.parent if self._ties(process.parent) and process.pid in self._gpus else None
        related = [
            holder
            for holder in self.holders
            if holder.pid in above
            or process.pid in [parent.pid for parent in self.ancestors(holder)]
            or (siblings is not None and holder.parent == siblings and holder.comm == process.comm)
        ]
        if related:
            return related
        leader = self.get(process.group)
        if leader is None or leader.comm not in _LAUNCHERS:
            group = [holder for holder in self.holders if holder.group == process.group > 1]
            if group:
                return group
        return self.in_container(process.identity.container_id)

    def beside(self, process: Process) -> list[Process]:
        """Holders below the same parent, where that is no mere launcher: a router beside its shards."""
        if not self._ties(process.parent):
            return []
        return [h for h in self.holders if process.parent in [parent.pid for parent in self.ancestors(h)]]

    def in_container(self, container_id: str | None) -> list[Process]:
        """Holders in a container, by the beginning of its id, 12 digits at least."""
        if not container_id or len(container_id) < 12:
            return []
        return [h for h in self.holders if (h.identity.container_id or "").startswith(container_id)]

    def in_pod(self, pod_uid: str | None) -> list[Process]:
        """Holders in a pod."""
        return [holder for holder in self.holders if pod_uid and holder.identity.pod_uid == pod_uid]

    def with_address(self, address: Address) -> list[Process]:
        """Holders in whose network namespace the address is."""
        return [holder for holder in self.holders if address in self.addresses(holder.pid)]

    def with_own_pid(self, own_pid: int, within: Sequence[Process]) -> Process | None:
        """The process with this pid in its own namespace, among these and their ancestors in the same container."""
        for holder in within:
            for process in (holder, *self.ancestors(holder)):
                if process.identity == holder.identity and self.own_pid(process.pid) == own_pid:
                    return process
        return None

    def own_pid(self, pid: int) -> int | None:
        """The number that the process sees for itself."""
        if pid not in self._own_pids:
            data = self._data(f"proc/{pid}/status")
            try:
                numbers = parse_status(data).ns_pids if data is not None else ()
            except SourceError:
                numbers = ()
            self._own_pids[pid] = numbers[-1] if numbers else None
        return self._own_pids[pid]

    def addresses(self, pid: int) -> frozenset[Address]:
        """Addresses of the process's network namespace, loopback apart."""
        if pid not in self._addresses:
            trie = self._data(f"proc/{pid}/net/fib_trie")
            inet6 = self._data(f"proc/{pid}/net/if_inet6")
            self._addresses[pid] = parse_fib_trie(trie or b"") | parse_if_inet6(inet6 or b"")
        return self._addresses[pid]

    def sockets_table(self, path: str) -> bytes:
        """A table of sockets, once; empty when it cannot be read."""
        if path not in self._tables:
            self._tables[path] = self._data(path) or b""
        return self._tables[path]

    def owner_of(self, inode: int) -> Process | None:
        """The process that has the socket open: holders and their ancestors first, then the others of the node."""
        near = dict.fromkeys(process.pid for holder in self.holders for process in (holder, *self.ancestors(holder)))
        for pid in near:
            if inode in self._sockets_of(pid):
                return self.get(pid)
        for pid in self._all():
            if pid not in near and inode in self._sockets_of(pid):
                return self.get(pid)
        return None

    def _ties(self, parent: int) -> bool:
        process = self.get(parent) if parent > 1 else None
        return process is not None and process.comm not in _LAUNCHERS

    def _all(self) -> list[int]:
        try:
            return [int(name) for name in self._files.list("proc") if name.isascii() and name.isdigit()]
        except ReadError as error:
            self._note(error)
            return []

    def _sockets_of(self, pid: int) -> frozenset[int]:
        known = self._sockets.get(pid)
        if known is not None:
            return known
        try:
            names = self._files.list(f"proc/{pid}/fd")
        except ReadError as error:
            self._note(error)
            names = []
        found = set()
        for name in names[: self._links_left]:
            try:
                target = self._files.link(f"proc/{pid}/fd/{name}")
            except ReadError as error:  # closed meanwhile, or not for this process to see
                self._note(error)
                continue
            if target.startswith("socket:[") and target[8:-1].isdigit():
                found.add(int(target[8:-1]))
        self._links_left -= min(len(names), self._links_left)
        self._sockets[pid] = frozenset(found)
        return self._sockets[pid]

    def _read(self, pid: int) -> Process | None:
        data = self._data(f"proc/{pid}/stat")
        if data is None:
            return None
        try:
            stat = parse_stat(data)
            parent, group = parse_family(data)
        except SourceError:
            return None
        if stat.state in ENDED:
            return None
        cgroup = self._data(f"proc/{pid}/cgroup")
        try:
            identity = identify(parse_cgroup(cgroup)) if cgroup is not None else Identity(None, None)
        except SourceError:
            identity = Identity(None, None)
        return Process(pid, stat.start_ticks, stat.comm, parent, group, identity)

    def _data(self, path: str) -> bytes | None:
        try:
            return self._files.read(path, limit=_TABLE_LIMIT)
        except ReadError as error:
            self._note(error)
            return None

    def _note(self, error: ReadError) -> None:
        self.denied |= error.reason is Reason.DENIED
