"""Where the cgroup of a process is, whose container it is, and what its controllers count.

From /proc/<pid>/cgroup and the cgroup tree, version 1, version 2, or both at once (hybrid: version 2 mounted at
``unified`` beside the controllers of version 1). From a cgroup namespace of one's own the path of another process
begins with ``/..`` and counts from one's own folder, which ``sources.own_cgroup`` finds; where it is not known, such a
path leads nowhere, which is told as no folder. Pure: nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpumon.sources.procfs import CgroupLine, parse_counters

PRESSURES = ("cpu", "memory", "io")
# The id of a container, and not that of one of Podman's pods around it.
_HEX64 = re.compile(r"(?<![0-9a-f])(?<!libpod_pod_)(?<!libpod_parent/)[0-9a-f]{64}(?![0-9a-f])")
# Static pods have the 32 hex digits of their manifest's hash for a uid; systemd slices write _ for -.
_POD_UID = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)", re.ASCII
)


Base = tuple[str, ...]
"""Folders from the top of a mounted tree down to the one that paths count from; none: they count from the top."""
FindBase = Callable[[tuple[str, ...], CgroupLine], Base | None]
"""The base of the hierarchy of this line, which is mounted at one of these places; None: not known."""


class CgroupFolders(NamedTuple):
    """Folders of one process below ``cgroup/``, best first; empty where there is none to be found."""

    cpu: tuple[str, ...]
    """Where ``cpu.stat`` is."""
    pressure: tuple[str, ...]
    """Where ``cpu.pressure`` and its like are; version 1 has none."""


class Identity(NamedTuple):
    """Whose process it is, as far as its cgroup path tells."""

    container_id: str | None
    """64 hex digits."""
    pod_uid: str | None
    """As the API server spells it."""


def from_the_top(mounts: tuple[str, ...], line: CgroupLine) -> Base | None:  # noqa: ARG001 - as FindBase has them
    """As in the host's cgroup namespace."""
    return ()


def locate(lines: Sequence[CgroupLine], find_base: FindBase = from_the_top) -> CgroupFolders:
    """Folders of the process with these lines in /proc/<pid>/cgroup."""
    unified = next((line for line in lines if line.hierarchy == 0 and not line.controllers), None)
    alone = unified is not None and len(lines) == 1
    v2 = _folders(("cgroup" if alone else "cgroup/unified",), unified, find_base)
    cpu_line = next((line for line in lines if "cpu" in line.controllers), None)
    if cpu_line is None:
        return CgroupFolders(cpu=v2, pressure=v2)
    mounts = dict.fromkeys((",".join(cpu_line.controllers), "cpu"))  # cpu is usually a link to cpu,cpuacct
    v1 = _folders(tuple(f"cgroup/{mount}" for mount in mounts), cpu_line, find_base)
    return CgroupFolders(cpu=v1, pressure=v2)


def leads_up(path: str) -> int:
    """How many folders a path leads up before it leads down."""
    parts = _parts(path)
    return next((number for number, part in enumerate(parts) if part != ".."), len(parts))


def below(base: Base, path: str) -> Base | None:
    """The folder of a path that counts from ``base``; None where it is above the top of the tree, or no plain path."""
    up = leads_up(path)
    down = _parts(path)[up:]
    # The kernel leads up only at the beginning; whatever else says so is not its word.
    if up > len(base) or not {".", ".."}.isdisjoint(down):
        return None
    return (*base[: len(base) - up], *down)


def identify(lines: Sequence[CgroupLine]) -> Identity:
    """Container and pod of the process with these lines in /proc/<pid>/cgroup."""
    # In a hybrid tree only some hierarchies hold the container's path: memory always, then cpu, systemd's own.
    order = ("memory", "cpu", "name=systemd")
    ranked = sorted(
        lines, key=lambda line: next((i for i, name in enumerate(order) if name in line.controllers), len(order))
    )
    identities = [Identity(container_id(line.path), pod_uid(line.path)) for line in ranked]
    return next((i for i in identities if i != Identity(None, None)), Identity(None, None))


def container_id(path: str) -> str | None:
    """The container in a cgroup path of containerd, CRI-O, Docker, Podman or plain cgroupfs: the pod's, else the
    outermost one. What is further in is made by what runs in it, which may give it any name."""
    pod = _pod(path)
    for found in _HEX64.finditer(path, pod.end() if pod is not None else 0):
        # conmon is the monitor of a container and not in it.
        if "-conmon-" not in path[path.rfind("/", 0, found.start()) + 1 : found.start()]:
            return found.group()
    return None


def pod_uid(path: str) -> str | None:
    """The outermost Kubernetes pod in a cgroup path. One further in is that pod's own business, be it a cluster's node
    in a pod or a process that would be taken for another's."""
    found = _pod(path)
    return found.group(1).replace("_", "-") if found is not None else None


def _pod(path: str) -> re.Match[str] | None:
    # Whoever has a session on the host makes folders of any name below its own slice.
    return _POD_UID.search(path) if _parts(path)[leads_up(path) :][:1] != ("user.slice",) else None


def parse_cpu_throttled(data: bytes) -> float | None:
    """Seconds that ``cpu.stat`` counts as throttled; None where the controller is off and counts nothing.

    Version 2 counts throttled_usec, version 1 throttled_time in nanoseconds. Raises SourceError(MALFORMED).
    """
    counted = parse_counters(data, ("throttled_usec", "throttled_time"), "cpu.stat")
    if "throttled_usec" in counted:
        return counted["throttled_usec"] / 1e6
    if "throttled_time" in counted:
        return counted["throttled_time"] / 1e9
    return None


def _folders(mounts: tuple[str, ...], line: CgroupLine | None, find_base: FindBase) -> tuple[str, ...]:
    if line is None or line.path.endswith(" (deleted)"):
        return ()
    base = find_base(mounts, line)
    folder = below(base, line.path) if base is not None else None
    return tuple("/".join((mount, *folder)) for mount in mounts) if folder is not None else ()


def _parts(path: str) -> Base:
    return tuple(part for part in path.split("/") if part)
