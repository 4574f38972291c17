"""Where the cgroup of a process is, whose container it is, and what its controllers count.

From /proc/<pid>/cgroup and the cgroup tree, version 1, version 2, or both at once (hybrid: version 2 mounted at
``unified`` beside the controllers of version 1). Needs the host's cgroup namespace: from a private one the path of
another process begins with ``/..`` and leads nowhere, which is told as no folder. Pure: nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpumon.sources.procfs import CgroupLine, parse_counters

PRESSURES = ("cpu", "memory", "io")
_HEX64 = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# Static pods have the 32 hex digits of their manifest's hash for a uid; systemd slices write _ for -.
_POD_UID = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)", re.ASCII
)


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


def locate(lines: Sequence[CgroupLine]) -> CgroupFolders:
    """Folders of the process with these lines in /proc/<pid>/cgroup."""
    unified = next((line for line in lines if line.hierarchy == 0 and not line.controllers), None)
    alone = unified is not None and len(lines) == 1
    v2 = _below("cgroup" if alone else "cgroup/unified", unified)
    cpu_line = next((line for line in lines if "cpu" in line.controllers), None)
    if cpu_line is None:
        return CgroupFolders(cpu=v2, pressure=v2)
    mounts = dict.fromkeys((",".join(cpu_line.controllers), "cpu"))  # cpu is usually a link to cpu,cpuacct
    v1 = tuple(folder for mount in mounts for folder in _below(f"cgroup/{mount}", cpu_line))
    return CgroupFolders(cpu=v1, pressure=v2)


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
    """The innermost container in a cgroup path of containerd, CRI-O, Docker, Podman or plain cgroupfs."""
    for part in reversed(path.split("/")):
        # conmon is the monitor of a container and not in it.
        found = None if "-conmon-" in part else _HEX64.findall(part)
        if found:
            return str(found[-1])
    return None


def pod_uid(path: str) -> str | None:
    """The innermost Kubernetes pod in a cgroup path."""
    found = _POD_UID.findall(path)
    return str(found[-1]).replace("_", "-") if found else None


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


def _below(mount: str, line: CgroupLine | None) -> tuple[str, ...]:
    if line is None or line.path.endswith(" (deleted)"):
        return ()
    parts = [part for part in line.path.split("/") if part]
    if ".." in parts:
        return ()
    return ("/".join([mount, *parts]),)
