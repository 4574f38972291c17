"""The machine's own /proc, /sys and cgroup tree behind the ``host.files`` port.

Reads whole files with ``pread``. A kept descriptor costs a third of open, read and close; kept ones live in a
bounded LRU, half of RLIMIT_NOFILE at most, and are dropped when the process or cgroup behind them ends, so that
the next read opens anew and a reborn pid is seen. What nobody reads any more, as of a process that was watched and
ended, is closed after a minute. Never blocks and never follows a link out of the roots: the last
part of a path may not be a link, ``..`` and /proc's own links into other file systems are refused.

Needs no privilege for most files; where one is missing (hidepid, ptrace rights) the answer is DENIED.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import threading
import time
from collections import OrderedDict

from gpumon.host.errnos import reason_of
from gpumon.host.files import ReadError
from gpumon.model import Reason

MAX_NAMES = 65_536
IDLE_S = 60.0
"""A kept descriptor that was not read for so long is closed."""
_CHUNK = 16_384
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_FD_LINK = re.compile(r"proc/[0-9]+/fd/[0-9]+", re.ASCII)
_LEADS_OUT = frozenset({"root", "cwd", "fd"})  # /proc/<pid>/… links to folders anywhere


class HostFiles:
    """``host.files.Files`` over real files. Safe to use from several threads at once.

    procfs, sysfs, cgroupfs: folders that stand for ``proc/``, ``sys/`` and ``cgroup/``.
    max_kept: most descriptors kept open. idle_s: how long one is kept that nobody reads.
    """

    def __init__(
        self,
        procfs: str = "/proc",
        sysfs: str = "/sys",
        cgroupfs: str = "/sys/fs/cgroup",
        max_kept: int = 4096,
        idle_s: float = IDLE_S,
    ) -> None:
        self._roots = {"proc": procfs, "sys": sysfs, "cgroup": cgroupfs}
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_kept = max_kept if soft_limit == resource.RLIM_INFINITY else min(max_kept, soft_limit // 2)
        self._idle_s = idle_s
        self._lock = threading.Lock()
        # A descriptor is taken out while it is read, so no other thread can close or evict it under the reader.
        # With each goes the steady second of its last reading: the order of the entries is the order of these.
        self._kept: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @property
    def kept(self) -> int:
        """Descriptors kept open now."""
        return len(self._kept)

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        fd: int | None = None
        if keep:
            with self._lock:
                fd, _ = self._kept.pop(path, (None, 0.0))
        if fd is None:
            fd = self._open(path)
        try:
            data = _read_whole(fd, path, limit)
        except OSError as err:
            os.close(fd)
            raise ReadError(path, reason_of(err), os.strerror(err.errno or 0)) from err
        except ReadError:
            os.close(fd)
            raise
        if keep:
            self._keep(path, fd)
        else:
            os.close(fd)
        return data

    def list(self, path: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(self._absolute(path)) as entries:
                for entry in entries:
                    if len(names) == MAX_NAMES:
                        raise ReadError(path, Reason.MALFORMED, f"more than {MAX_NAMES} names")
                    names.append(entry.name)
        except OSError as err:
            raise ReadError(path, reason_of(err), os.strerror(err.errno or 0)) from err
        return sorted(names)

    def link(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        # The links in /proc/<pid>/fd lead out, and reading one leads nowhere.
        absolute = f"{self._absolute(folder)}/{name}" if _FD_LINK.fullmatch(path) else self._absolute(path)
        try:
            return os.readlink(absolute)
        except OSError as err:
            raise ReadError(path, reason_of(err), os.strerror(err.errno or 0)) from err

    def close(self) -> None:
        """Close every kept descriptor; a later read opens anew."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
        for fd, _ in kept.values():
            os.close(fd)

    def _absolute(self, path: str) -> str:
        parts = path.split("/")
        root = self._roots.get(parts[0])
        if root is None or "\0" in path or any(part in {"", ".", ".."} for part in parts):
            raise ReadError(path, Reason.UNAVAILABLE, "not a path below proc/, sys/ or cgroup/")
        if parts[0] == "proc" and not _LEADS_OUT.isdisjoint(parts[:-1]):
            raise ReadError(path, Reason.UNAVAILABLE, "leads out of proc/")
        return "/".join([root, *parts[1:]])

    def _open(self, path: str) -> int:
        absolute = self._absolute(path)
        try:
            try:
                fd = os.open(absolute, _FLAGS)
            except OSError as err:
                if err.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                self.close()  # the process is out of descriptors: give back the ones that are only for speed
                fd = os.open(absolute, _FLAGS)
        except OSError as err:
            raise ReadError(path, reason_of(err), os.strerror(err.errno or 0)) from err
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ReadError(path, Reason.MALFORMED, "not a regular file")
        return fd

    def _keep(self, path: str, fd: int) -> None:
        surplus = []
        with self._lock:
            now_s = time.monotonic()
            if path in self._kept:  # another thread read the same file meanwhile and was first
                surplus.append(fd)
            else:
                self._kept[path] = (fd, now_s)
            while len(self._kept) > self._max_kept or self._oldest_s() < now_s - self._idle_s:
                surplus.append(self._kept.popitem(last=False)[1][0])
        for spare in surplus:
            os.close(spare)

    def _oldest_s(self) -> float:
        """Last reading of the descriptor that was not read for longest."""
        return next(iter(self._kept.values()))[1]


def _read_whole(fd: int, path: str, limit: int) -> bytes:
    data = os.pread(fd, _CHUNK, 0)
    end = len(data)
    if end == 0:
        return data
    # A short read is no end of file in /proc: a seq_file hands out about a page at a time. Only nothing is the end.
    parts = [data]
    while end <= limit:
        part = os.pread(fd, _CHUNK, end)
        if not part:
            return data if len(parts) == 1 else b"".join(parts)
        parts.append(part)
        end += len(part)
    raise ReadError(path, Reason.MALFORMED, f"larger than {limit} bytes")
