"""Which processes gpumon watches: those that hold a GPU, and those the configuration names as servers.

GPU processes come from NVML, by pid; named ones from a walk over /proc, by their comm and never by their command
line. Each is told apart from a later process of the same number by its start time, and labelled with its
container (from its cgroup path) and, where a lookup is given, the names of its pod and container. Needs the host's pid
namespace (hostPID in a pod): a pid that /proc does not show is a miss that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpumon.host.files import Files, ReadError
from gpumon.model import GpuProcess, GpuUuid, Miss, Pid, Reason, SourceError
from gpumon.sources.cgroup import Identity, identify
from gpumon.sources.procfs import TICKS_PER_SECOND, Stat, parse_cgroup, parse_stat, parse_status

NOBODY = Identity(None, None)
"""Of a process whose cgroup tells nothing."""
ENDED = frozenset("ZXx")
"""States of a process that ended and is still listed."""
_HOST_PID = "not in /proc: hostPID needed, hidden (hidepid), or ended at once"


def ended(reason: Reason) -> Reason:
    """What a failed reading of a process that was found before means: one that is not there any more has ended."""
    return Reason.ENDED if reason is Reason.UNAVAILABLE else reason


@dataclass(frozen=True, slots=True)
class Workload:
    """What a process belongs to in Kubernetes; empty where unknown."""

    namespace: str = ""
    pod: str = ""
    container: str = ""


class Occupant(NamedTuple):
    """A process that is asked about."""

    pid: Pid
    identity: Identity
    gpus: tuple[GpuUuid, ...]
    """What it holds."""


WorkloadLookup = Callable[[Sequence[Occupant]], Sequence[Workload | None]]
"""From all processes that are watched to their pods, in the same order; None for those that are not known."""


def no_lookup(occupants: Sequence[Occupant]) -> Sequence[Workload | None]:
    """The lookup of a node without Kubernetes."""
    return [None] * len(occupants)


def started_s(pid: Pid) -> float:
    """Steady second by which the process had begun. A node that was suspended takes it for later than it was."""
    return (pid.start_ticks + 1) / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Target:
    """A process to watch."""

    pid: Pid
    process: str
    """Its comm when it was found."""
    workload: Workload = Workload()
    held: tuple[GpuProcess, ...] = ()
    """What it holds, one entry per GPU; empty for a named process without a GPU."""
    identity: Identity = NOBODY
    """Its container and pod, as its cgroup path tells."""

    @property
    def labels(self) -> tuple[str, str, str, str, str]:
        """Values of catalogue.WORKLOAD."""
        at = self.workload
        return (str(self.pid.number), self.process, at.namespace, at.pod, at.container)

    @property
    def gpu_bytes(self) -> float:
        """Device memory it is known to hold, over all GPUs."""
        return sum(gpu.used_bytes or 0.0 for gpu in self.held)


def newest_start_s(targets: Sequence[Target]) -> float | None:
    """Steady second by which the newest process had begun that holds a GPU in a pod; None without one."""
    return max(
        (started_s(each.pid) for each in targets if each.held and each.identity.pod_uid is not None), default=None
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Processes found, by pid, and those that could not be."""

    targets: tuple[Target, ...]
    misses: tuple[Miss, ...]


def select_targets(
    gpu_processes: Sequence[GpuProcess],
    files: Files,
    servers: Sequence[re.Pattern[str]] = (),
    lookup: WorkloadLookup = no_lookup,
    seen: Collection[int] = (),
) -> Selection:
    """Find the processes to watch.

    seen: pids that were found before. NVML's list is seconds old, so one of these that is gone has ended.

    servers: patterns of whole comms (the kernel keeps 15 bytes of one). Without them /proc is not walked.
    """
    misses: list[Miss] = []
    stats: dict[int, Stat] = {}
    held: dict[int, list[GpuProcess]] = {}
    for process in gpu_processes:
        held.setdefault(process.pid, []).append(process)
    if held and not _shares_pid_namespace(files):
        misses.append(Miss("gpu processes", Reason.UNAVAILABLE, "/proc is of another pid namespace: hostPID needed"))
        held = {}
    strange = 0
    for number in held:
        try:
            stats[number] = parse_stat(files.read(f"proc/{number}/stat", keep=True))
        except ReadError as err:
            if err.reason is not Reason.UNAVAILABLE:
                misses.append(Miss(f"pid {number}", err.reason, err.detail))
            elif number not in seen:
                strange += 1
        except SourceError as err:
            misses.append(Miss(f"pid {number}", err.reason, err.detail))
    if strange:
        misses.append(Miss("gpu processes", Reason.UNAVAILABLE, f"{strange} {_HOST_PID}"))
    if servers:
        try:
            stats.update(_named(files, servers))
        except ReadError as err:
            misses.append(Miss("list of processes", err.reason, err.detail))
    found: list[tuple[Occupant, Stat]] = []
    for number, stat in sorted(stats.items()):
        if stat.state in ENDED:
            continue
        try:
            identity = identify(parse_cgroup(files.read(f"proc/{number}/cgroup")))
        except (ReadError, SourceError) as err:
            misses.append(Miss(f"pid {number} cgroup", err.reason, err.detail))
            identity = NOBODY
        gpus = tuple(process.uuid for process in held.get(number, ()))
        found.append((Occupant(Pid(number, stat.start_ticks), identity, gpus), stat))
    workloads = lookup([occupant for occupant, _ in found])
    targets = []
    for (each, stat), workload in zip(found, workloads, strict=True):
        holds = tuple(held.get(each.pid.number, ()))
        targets.append(Target(each.pid, stat.comm, _shown(workload, each.identity), holds, each.identity))
    return Selection(tuple(targets), tuple(misses))


def _shown(workload: Workload | None, identity: Identity) -> Workload:
    """A container without a name is shown by the beginning of its id."""
    known = workload if workload is not None else Workload()
    return known if known.container else replace(known, container=(identity.container_id or "")[:12])


def _named(files: Files, servers: Sequence[re.Pattern[str]]) -> dict[int, Stat]:
    found = {}
    for entry in files.list("proc"):
        if not (entry.isascii() and entry.isdigit()):
            continue
        try:
            stat = parse_stat(files.read(f"proc/{entry}/stat"))
        except (ReadError, SourceError):
            continue  # it ended under the walk, or is hidden: nobody asked for this one
        if any(pattern.fullmatch(stat.comm) for pattern in servers):
            found[int(entry)] = stat
    return found


def _shares_pid_namespace(files: Files) -> bool:
    """Whether pids in this /proc are the pids that the kernel gives us.

    NSpid of our own process has one number per namespace from that of /proc down to ours. Where it cannot be read
    (a copy of a /proc), there is nothing to say against it.
    """
    try:
        return len(parse_status(files.read("proc/self/status")).ns_pids) <= 1
    except (ReadError, SourceError):
        return True
