"""A cgroup of its own for one process, as a container has, and a CPU quota on it for a while.

Of version 2 where the root has the cpu controller switched on for its children, of version 1 where that is what there
is; beside version 1 also one in the hybrid tree, so that pressure is that of the process and not of the whole host.
Needs a writable cgroup tree: root, outside of most containers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.waiting import eventually

TREE = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
WEIGHTS = {"cpu.weight": 1000, "cpu.shares": 10_240}
"""Ten times the usual one, by the file of version 2 and 1: as for a pod that requests its CPUs, so that what else runs
on this machine takes little from it."""


class ForbiddenError(Exception):
    """The kernel does not let this user do it: the one reason not to try a fault. Says what is missing."""


class Cgroup:
    """Ends with ``with``; its processes go back to where they came from."""

    def __init__(self) -> None:
        """Raises ForbiddenError."""
        self._folders: list[Path] = []
        name = f"gpumon-live-{os.getpid()}"
        try:
            if "cpu" in _words(TREE / "cgroup.subtree_control"):
                self._make(TREE / name)
            elif (TREE / "cpu/cgroup.procs").exists():
                self._make(TREE / "cpu" / name)
                if (TREE / "unified/cgroup.procs").exists():
                    self._make(TREE / "unified" / name)
            else:
                raise ForbiddenError(f"no cpu controller for a new cgroup below {TREE}")
        except OSError as error:
            self._remove()
            raise ForbiddenError(f"no new cgroup below {TREE}: {error}") from error
        self._cpu = self._folders[0]
        for file, weight in WEIGHTS.items():
            if (self._cpu / file).exists():
                (self._cpu / file).write_text(str(weight))

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            for pid in _words(folder / "cgroup.procs"):
                _put(folder.parent / "cgroup.procs", pid)
        self._remove()

    def add(self, pid: int) -> None:
        """Put a process into it. Raises ForbiddenError."""
        try:
            for folder in self._folders:
                (folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise ForbiddenError(f"process {pid} cannot be put into {folder}: {error}") from error

    @property
    def throttled_s(self) -> float:
        """Seconds that its threads were held back by the quota, summed over CPUs."""
        lines = dict(line.split() for line in (self._cpu / "cpu.stat").read_text().splitlines())
        return int(lines["throttled_usec"]) / 1e6 if "throttled_usec" in lines else int(lines["throttled_time"]) / 1e9

    @contextmanager
    def limited(self, cpus: float) -> Iterator[None]:
        """No more than so many CPUs for a while."""
        quota_us = round(cpus * PERIOD_US)
        is_v2 = (self._cpu / "cpu.max").exists()
        file, limit, none = (
            ("cpu.max", f"{quota_us} {PERIOD_US}", "max") if is_v2 else ("cpu.cfs_quota_us", str(quota_us), "-1")
        )
        if not is_v2:
            (self._cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._cpu / file).write_text(limit)
        try:
            yield
        finally:
            (self._cpu / file).write_text(none)

    def _make(self, folder: Path) -> None:
        folder.mkdir()
        self._folders.append(folder)

    def _remove(self) -> None:
        for folder in self._folders:
            # A process that has just ended is still in it for a moment.
            eventually(lambda folder=folder: _rmdir(folder), f"{folder} to be empty")  # type: ignore[misc]
        self._folders.clear()


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _put(file: Path, pid: str) -> None:
    try:
        file.write_text(pid)
    except ProcessLookupError:
        pass  # it ended


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
