"""Where gpumon's own cgroup is in the host's tree, from which the paths of other processes count in a container.

A container has a cgroup namespace of its own, as a rule where the node has version 2: /proc/<pid>/cgroup then says
``/../../kubepods-burstable.slice/…``, up from the container's folder and down to the process's. Nothing in the
container names that folder, but the host's tree, mounted whole, has it, and its ``cgroup.procs`` has our pid. The tree
is walked until that is found: what is kube's first, level by level, and a folder that holds processes is opened only
when the others are done; ``MAX_FOLDERS`` at most. What was found holds for the life of the process: a namespace keeps
its root. What was not is looked for again after ``retry_s``.

Needs sight of the host's processes (hostPID) and its cgroup tree; without a namespace of one's own nothing is walked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpumon.host.files import Files, ReadError
from gpumon.model import Reason, SourceError
from gpumon.sources.cgroup import Base, CgroupFolders, below, leads_up, locate
from gpumon.sources.procfs import CgroupLine, parse_cgroup, parse_status

MAX_FOLDERS = 4096
"""A node of 250 pods with three containers each has half of it."""
MAX_DEPTH = 16
# Names of the kernel's own files, up to the first dot. systemd has no folder of such a name; one would not be walked.
_KERNEL = frozenset(
    (
        *("blkio", "cgroup", "cpu", "cpuacct", "cpuset", "debug", "devices", "dmem", "freezer", "hugetlb", "io", "irq"),
        *("memory", "misc", "net_cls", "net_prio", "perf_event", "pids", "rdma"),
    )
)
_KERNEL_PLAIN = frozenset({"notify_on_release", "release_agent", "tasks"})
_Hierarchy = tuple[int, tuple[str, ...]]


class OwnCgroup:
    """Finds the folders of processes, whatever the cgroup namespace. Used by one thread at a time.

    max_folders: most folders looked into in one walk. retry_s: how long a hierarchy without success is left alone.
    """

    def __init__(self, files: Files, *, max_folders: int = MAX_FOLDERS, retry_s: float = 600.0) -> None:
        self._files = files
        self._max_folders = max_folders
        self._retry_s = retry_s
        self._found: dict[_Hierarchy, Base] = {}
        self._due_s: dict[_Hierarchy, float] = {}

    def locate(self, lines: Sequence[CgroupLine], at_s: float) -> CgroupFolders:
        """Folders of the process with these lines in /proc/<pid>/cgroup."""
        return locate(lines, lambda mounts, line: self._base(mounts, line, at_s))

    def _base(self, mounts: tuple[str, ...], line: CgroupLine, at_s: float) -> Base | None:
        hierarchy = (line.hierarchy, line.controllers)
        if hierarchy in self._found:
            return self._found[hierarchy]
        # Where not even pid 1's path leads up, there is no namespace of our own, or nothing outside of it in sight.
        if not leads_up(line.path) and not leads_up(self._path("1", hierarchy) or ""):
            return ()
        if at_s < self._due_s.get(hierarchy, at_s):
            return None
        base = self._find(mounts, hierarchy)
        if base is None:
            self._due_s[hierarchy] = at_s + self._retry_s
        else:
            self._found[hierarchy] = base
        return base

    def _path(self, process: str, hierarchy: _Hierarchy) -> str | None:
        try:
            lines = parse_cgroup(self._files.read(f"proc/{process}/cgroup"))
        except (ReadError, SourceError):
            return None
        return next((line.path for line in lines if (line.hierarchy, line.controllers) == hierarchy), None)

    def _find(self, mounts: tuple[str, ...], hierarchy: _Hierarchy) -> Base | None:
        path = self._path("self", hierarchy)
        own = below((), path) if path is not None else None
        pid = self._pid()
        if own is None or pid is None:  # a process that was moved out of its namespace knows no way back
            return None
        for mount in mounts:
            if _holds(self._processes(mount, own), pid):
                return ()  # the tree is that of our namespace: nothing above it is in sight
            folder = self._walk(mount, pid)
            if folder is not None:
                cut = len(folder) - len(own)
                return folder[:cut] if cut >= 0 and folder[cut:] == own else None
        return None

    def _pid(self) -> bytes | None:
        """Our number in ``cgroup.procs``: that of our own pid namespace, whichever /proc is read."""
        try:
            numbers = parse_status(self._files.read("proc/self/status")).ns_pids
        except (ReadError, SourceError):
            return None
        return b"%d" % numbers[-1] if numbers else None

    def _processes(self, mount: str, folder: Base) -> bytes | None:
        """Numbers of the processes in a folder; empty where they cannot be told; None where there is no such folder."""
        try:
            return self._files.read("/".join((mount, *folder, "cgroup.procs")))
        except ReadError as err:
            return None if err.reason is Reason.UNAVAILABLE else b""

    def _walk(self, mount: str, pid: bytes) -> Base | None:
        """The folder with this process, if it is met."""
        of_kube: deque[Base] = deque()
        others: deque[Base] = deque([()])
        populated: deque[Base] = deque()
        asked = 0
        while waiting := of_kube or others or populated:
            folder = waiting.popleft()
            if waiting is not populated:
                processes = self._processes(mount, folder)
                if _holds(processes, pid):
                    return folder
                if processes is None:
                    continue
                if processes and folder:  # in version 2 such a folder has hardly anything below it
                    populated.append(folder)
                    continue
            if len(folder) == MAX_DEPTH:
                continue
            for name in self._folders(mount, folder)[: self._max_folders - asked]:
                asked += 1
                found = (*folder, name)
                (of_kube if any("kube" in part for part in found) else others).append(found)
        return None

    def _folders(self, mount: str, folder: Base) -> list[str]:
        """Names in a folder that are not the kernel's files."""
        try:
            names = self._files.list("/".join((mount, *folder)))
        except ReadError:
            return []
        return [name for name in names if not _is_file(name)]


def _is_file(name: str) -> bool:
    first, dot, _ = name.partition(".")
    return (first in _KERNEL and bool(dot)) or name in _KERNEL_PLAIN


def _holds(processes: bytes | None, pid: bytes) -> bool:
    return processes is not None and pid in processes.split()
