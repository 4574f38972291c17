"""Checks of the host side: which files of /proc, /sys and cgroups can be read, and what stands in the way.

Pure but for the port to the host's files. What each file needs, as measured: most need nothing, maps and move_pages(2)
of other users' processes need CAP_SYS_PTRACE, fd needs CAP_DAC_READ_SEARCH too, the kernel log CAP_SYSLOG where
kernel.dmesg_restrict is 1. Processes and cgroups other than the reader's own need the host's namespaces.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.config import Config
from gpumon.doctor.report import Check, Status, checker
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import Files, ReadError
from gpumon.host.podresources import Answer
from gpumon.model import Reason, SourceError
from gpumon.sources.cgroup import leads_up
from gpumon.sources.host import online_nodes
from gpumon.sources.own_cgroup import OwnCgroup
from gpumon.sources.procfs import (
    CgroupLine,
    parse_cgroup,
    parse_counters,
    parse_pressure,
    parse_schedstat,
    parse_stat,
)

CAPABILITIES = (  # include/uapi/linux/capability.h, by bit
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_INITIAL_CGROUP_NAMESPACE = "cgroup:[4026531835]"
_HOST_PID = "hostPID: true (docker: --pid=host), with the host's /proc"
_MOUNT_CGROUPS = "mount the host's whole /sys/fs/cgroup, read-only (--cgroupfs)"
_CONTAINER_CAPABILITY = "add the capability {0} (systemd: AmbientCapabilities=CAP_{0}; in a pod only uid 0 gets it)"
_PROCESS_METRICS = (
    catalogue.PROCESS_PAGE_FAULTS,
    catalogue.PROCESS_CPU_SECONDS,
    catalogue.PROCESS_STOPPED_SECONDS,
    catalogue.PROCESS_RUNQUEUE_SECONDS,
    catalogue.PROCESS_THREADS,
    catalogue.PROCESS_RESIDENT,
)
_POD_METRICS = tuple(metric for metric in catalogue.GROUPS["pods"] if metric is not catalogue.POD_LABEL)
_MOUNT_KUBELET = "mount the folder /var/lib/kubelet/pod-resources, not the socket, and set kubernetes.pod_resources"
_NUMA_METRICS = (catalogue.PROCESS_NUMA_RESIDENT, catalogue.PROCESS_NUMA_LOCAL, catalogue.PROCESS_CPUS_LOCAL)


@dataclass(frozen=True, slots=True)
class Self:
    """What /proc/self/status says of this process; empty and None where it cannot be read."""

    capabilities: tuple[str, ...] = ()
    """Effective ones, in the kernel's order."""
    seccomp: bool = False
    ns_pids: int | None = None
    """Pid namespaces from that of /proc down to ours; 1 where they are the same."""

    @classmethod
    def read(cls, files: Files) -> Self:
        """From the port; no status, no knowledge."""
        try:
            return cls.parse(files.read("proc/self/status"))
        except ReadError:
            return cls()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Lines CapEff, Seccomp and NSpid of a status file; any of them may be missing or unreadable."""
        lines = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
        mask_text = lines.get(b"CapEff", b"").strip()
        mask = int(mask_text, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,16}", mask_text) else 0
        names = tuple(name for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1)
        ns_pids = len(lines.get(b"NSpid", b"").split()) or None
        return cls(names, lines.get(b"Seccomp", b"").strip() in (b"1", b"2"), ns_pids)


def host_checks(config: Config, files: Files, own: Self, around: Surroundings) -> list[Check]:
    """All checks of the section ``host``."""
    return [
        _vmstat(files),
        _pressure(files),
        _numa(files),
        _pid_namespace(files, own),
        _hidden_processes(files),
        _cgroups(files),
        _schedstat(files),
        _page_placement(config, own, around),
        _senders(config, own),
        _kernel_log(config, own, around),
        *_pods(config, around),
    ]


def is_contained(files: Files, around: Surroundings) -> bool:
    """Whether this is a container, as far as marks and the pid namespace tell."""
    if around.marked_container or "KUBERNETES_SERVICE_HOST" in around.environ:
        return True
    return _link(files, "proc/self/ns/pid") not in (None, _INITIAL_PID_NAMESPACE)


def _vmstat(files: Files) -> Check:
    gives = (catalogue.HOST_PAGE_FAULTS, catalogue.HOST_SWAP_PAGES, catalogue.HOST_OOM_KILLS)
    check = checker("vmstat", "host", "Page faults of the host", gives)
    try:
        counts = parse_counters(files.read("proc/vmstat"), ("pgfault", "pgmajfault"), "vmstat")
    except (ReadError, SourceError) as error:
        fix = "mount the host's /proc (--procfs), without subset=pid"
        return check(Status.MISSING, f"/proc/vmstat: {error.reason}", fix)
    if len(counts) < 2:
        return check(Status.UNSUPPORTED, "the kernel counts none (CONFIG_VM_EVENT_COUNTERS)")
    return check(Status.OK, "/proc/vmstat")


def _pressure(files: Files) -> Check:
    check = checker("pressure", "host", "Pressure stalls", (catalogue.HOST_PRESSURE, catalogue.PROCESS_PRESSURE))
    boot = "boot the kernel with psi=1"
    try:
        parse_pressure(files.read("proc/pressure/memory"))
    except ReadError as error:
        if error.reason in (Reason.UNAVAILABLE, Reason.UNSUPPORTED):
            return check(Status.MISSING, "the kernel does not account for them", f"{boot} (it needs CONFIG_PSI)")
        return check(Status.MISSING, f"/proc/pressure/memory: {error.reason}", "mount the host's /proc (--procfs)")
    except SourceError:
        return check(Status.MISSING, "/proc/pressure/memory cannot be understood", boot)
    return check(Status.OK, "/proc/pressure")


def _numa(files: Files) -> Check:
    check = checker("numa", "host", "NUMA nodes", (catalogue.HOST_NUMA_PAGES, catalogue.HOST_MEMORY))
    try:
        nodes = online_nodes(files)
    except (ReadError, SourceError) as error:
        if error.reason is Reason.UNAVAILABLE and _names(files, "sys/devices/system") & {"cpu"}:
            return check(Status.UNSUPPORTED, "kernel without NUMA: the memory counts as one node")
        fix = "mount the host's /sys (--sysfs)"
        return check(Status.MISSING, f"/sys/devices/system/node: {error.reason}", fix)
    return check(Status.OK, f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}")


def _pid_namespace(files: Files, own: Self) -> Check:
    check = checker("pid_namespace", "host", "Processes of the host", _PROCESS_METRICS)
    if own.ns_pids is not None and own.ns_pids > 1:
        return check(Status.MISSING, "/proc is the host's, but this process is in another pid namespace", _HOST_PID)
    namespace = _link(files, "proc/self/ns/pid")
    if namespace == _INITIAL_PID_NAMESPACE or _comm(files, 2) == "kthreadd":
        return check(Status.OK, "this is the host's pid namespace")
    if namespace is not None:
        detail = "a pid namespace of its own: processes outside this container are not seen"
        return check(Status.MISSING, detail, _HOST_PID)
    if _comm(files, 1) in ("systemd", "init"):
        return check(Status.OK, "pid 1 is an init: taken for the host's pid namespace")
    return check(Status.DEGRADED, "cannot tell whose pid namespace this is", _HOST_PID)


def _hidden_processes(files: Files) -> Check:
    check = checker("hidepid", "host", "/proc of other users", _PROCESS_METRICS)
    option = _hidepid(files)
    if _comm(files, 1) is not None:
        return check(Status.OK, f"readable (mounted with {option})" if option else "readable")
    if option:
        fix = f"{_CONTAINER_CAPABILITY.format('SYS_PTRACE')}, or remount /proc with hidepid=0 or with gid= of a group"
        return check(Status.MISSING, f"hidden: /proc is mounted with {option}", fix)
    return check(Status.MISSING, "pid 1 cannot be read", "mount the host's /proc (--procfs), with hidepid=0")


def _cgroups(files: Files) -> Check:
    check = checker("cgroups", "host", "Cgroups", (catalogue.PROCESS_CPU_THROTTLED, catalogue.PROCESS_PRESSURE))
    roots = _names(files, "cgroup")
    if "cgroup.controllers" in roots:
        version = "version 2"
    elif {"cpu", "cpu,cpuacct"} & roots:
        version = "version 1 and 2" if "unified" in roots else "version 1"
    else:
        return check(Status.MISSING, "no cgroup tree", _MOUNT_CGROUPS)
    try:
        lines = parse_cgroup(files.read("proc/1/cgroup"))
    except (ReadError, SourceError) as error:
        return check(Status.DEGRADED, f"{version}; that of pid 1: {error.reason}", _HOST_PID)
    private = _link(files, "proc/self/ns/cgroup") not in (None, _INITIAL_CGROUP_NAMESPACE)
    if any(leads_up(line.path) for line in lines):
        if _in_sight(files, lines):
            return check(Status.OK, f"{version}, from its own namespace")
        what = f"{version}, in a cgroup namespace of its own: other processes' paths lead nowhere"
        fix = f"{_MOUNT_CGROUPS}; containers are told apart without it"
        return check(Status.MISSING, what, fix)
    if private and all(line.path == "/" for line in lines):
        return check(Status.MISSING, f"{version}, of this container alone", f"{_HOST_PID}, and {_MOUNT_CGROUPS}")
    if not _in_sight(files, lines):
        return check(Status.MISSING, f"{version}, but not the host's: that of pid 1 is not in it", _MOUNT_CGROUPS)
    return check(Status.OK, version)


def _in_sight(files: Files, lines: Sequence[CgroupLine]) -> bool:
    return any(_names(files, folder) for folder in OwnCgroup(files).locate(lines, 0.0).cpu)


def _schedstat(files: Files) -> Check:
    check = checker("schedstat", "host", "Waits for a CPU", (catalogue.PROCESS_RUNQUEUE_SECONDS,))
    try:
        stat = parse_schedstat(files.read("proc/self/schedstat"))
    except ReadError:
        return check(Status.UNSUPPORTED, "kernel without CONFIG_SCHED_INFO")
    except SourceError:
        return check(Status.UNSUPPORTED, "/proc/self/schedstat cannot be understood")
    if stat.run_ns == 0:  # a process that reads this has run
        return check(Status.MISSING, "the kernel counts none", "boot the kernel with delayacct")
    return check(Status.OK, "/proc/<pid>/schedstat")


def _page_placement(config: Config, own: Self, around: Surroundings) -> Check:
    check = checker("page_placement", "host", "Placement of pages", _NUMA_METRICS)
    if not config.numa.enabled:
        return check(Status.UNSUPPORTED, "off: numa.enabled is false")
    error = around.page_placement
    if error is not None and error.reason is Reason.UNSUPPORTED:
        return check(Status.UNSUPPORTED, "kernel without move_pages(2)")
    if error is not None and own.seccomp and error.reason is Reason.DENIED:
        fix = "a seccomp profile that allows move_pages, or numa.exact: true, which holds up the watched process"
        return check(Status.MISSING, f"move_pages(2) is refused ({error.detail or os.strerror(errno.EPERM)})", fix)
    if error is not None:
        return check(Status.MISSING, f"{error.path}: {error.detail or error.reason}", _HOST_PID)
    if "SYS_PTRACE" not in own.capabilities:
        what = "only for processes of the same user, without more capabilities than this one"
        return check(Status.DEGRADED, what, _CONTAINER_CAPABILITY.format("SYS_PTRACE"))
    return check(Status.OK, "move_pages(2), of every process")


def _senders(config: Config, own: Self) -> Check:
    check = checker("senders", "host", "Senders of traces", (catalogue.SLOW_TOKEN_SECONDS,))
    if not config.otlp.enabled:
        return check(Status.UNSUPPORTED, "off: otlp.enabled is false")
    missing = [name for name in ("SYS_PTRACE", "DAC_READ_SEARCH") if name not in own.capabilities]
    if not missing:
        return check(Status.OK, "/proc/<pid>/fd, of every process")
    return check(
        Status.DEGRADED,
        "of those that share the host's network and do not say where they run, only this user's are found: "
        "/proc/<pid>/fd of the others",
        ", and ".join(map(_CONTAINER_CAPABILITY.format, missing)),
    )


def _kernel_log(config: Config, own: Self, around: Surroundings) -> Check:
    check = checker("kernel_log", "host", "Kernel log", (catalogue.GPU_XID_ERRORS, catalogue.GPU_XID_LAST))
    path, error = config.host.kernel_log, around.kernel_log
    if path is None:
        return check(Status.UNSUPPORTED, "off: host.kernel_log is null")
    if error is None:
        return check(Status.OK, str(path))
    if error.reason is Reason.DENIED and "SYSLOG" not in own.capabilities:
        fix = f"{_CONTAINER_CAPABILITY.format('SYSLOG')}, or sysctl kernel.dmesg_restrict=0"
        return check(Status.MISSING, f"{path}: {error.detail or error.reason}", fix)
    if error.reason is Reason.DENIED:
        fix = "add the capability DAC_READ_SEARCH, or allow the device (docker: --device; systemd: DeviceAllow)"
        return check(Status.MISSING, f"{path}: {error.detail or error.reason}", fix)
    fix = f"give the container the device {path}, or set host.kernel_log: null (NVML's XID events remain)"
    return check(Status.MISSING, f"{path}: {error.detail or error.reason}", fix)


# --- what files say ---------------------------------------------------------------------------------------------------


def _hidepid(files: Files) -> str:
    """Mount options of /proc that hide processes; empty for none."""
    try:
        mounts = files.read("proc/self/mounts").decode("utf-8", "replace")
    except ReadError:
        return ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[2] == "proc":
            hiding = [o for o in fields[3].split(",") if o.startswith(("hidepid=", "subset="))]
            hiding = [o for o in hiding if o not in ("hidepid=0", "hidepid=off")]
            if hiding:
                return ",".join(hiding)
    return ""


def _comm(files: Files, pid: int) -> str | None:
    try:
        return parse_stat(files.read(f"proc/{pid}/stat")).comm
    except (ReadError, SourceError):
        return None


def _link(files: Files, path: str) -> str | None:
    try:
        return files.link(path)
    except ReadError:
        return None


def _names(files: Files, folder: str) -> set[str]:
    try:
        return set(files.list(folder))
    except ReadError:
        return set()


def _pods(config: Config, around: Surroundings) -> Iterator[Check]:
    """Nothing on a machine without Kubernetes."""
    check = checker("pods", "host", "Pods on GPUs", _POD_METRICS)
    found = around.kubelet
    if isinstance(found, Answer):
        detail = f"pod-resources {found.version}: {found.told} pods, {len(found.pods)} with devices"
        yield check(Status.OK, detail)
    elif found is not None and found.reason is Reason.DENIED:
        yield check(Status.MISSING, found.detail, "run as uid 0: the kubelet's socket is root's")
    elif found is not None and found.reason is not Reason.UNAVAILABLE:
        yield check(Status.MISSING, found.detail, "look into the kubelet's log")
    elif found is not None or "KUBERNETES_SERVICE_HOST" in around.environ:
        path = config.kubernetes.pod_resources
        detail = (
            found.detail if found is not None else f"{path}: not there" if path else "kubernetes.pod_resources is off"
        )
        yield check(Status.MISSING, detail, _MOUNT_KUBELET)
