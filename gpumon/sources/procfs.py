"""Parsers of the files below /proc: pure, bytes to values, nothing is read here.

Formats: proc(5), Documentation/filesystems/proc.rst, Documentation/accounting/psi.rst, Documentation/mm/numa.
Values come in base units (bytes, seconds) except clock ticks and pages, which the caller knows the size of, and are
integers in [0, 2^64) or finite and not negative. What cannot be read raises SourceError(MALFORMED), and nothing else.
A key that is missing is left out or None: kernels differ, and absent is not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpumon.model import Reason, SourceError

TICKS_PER_SECOND = 100
"""USER_HZ: the unit of times in /proc/<pid>/stat, 100 on every architecture that gpumon runs on."""
MAX_CPUS = 65_536
_MAX_COUNT = (1 << 64) - 1


class Stat(NamedTuple):
    """What gpumon uses of /proc/<pid>/stat. Faults and times are of the whole thread group."""

    comm: str
    state: str
    minor_faults: int
    major_faults: int
    cpu_ticks: int
    """User and system time, clock ticks."""
    threads: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""


class Status(NamedTuple):
    """What gpumon uses of /proc/<pid>/status."""

    ns_pids: tuple[int, ...]
    """Pid in the namespace of this /proc, then in each namespace nested below; empty if the kernel tells none."""
    cpus_allowed: frozenset[int]
    """CPUs the main thread may run on; empty if the kernel tells none."""
    resident_bytes: int | None
    """None for kernel threads and zombies."""
    hugetlb_bytes: int | None
    """Memory in hugetlbfs pages, which the resident size does not count."""


class SchedStat(NamedTuple):
    """/proc/<pid>/task/<tid>/schedstat of one thread, nanoseconds."""

    run_ns: int
    wait_ns: int


class Pressure(NamedTuple):
    """Stall totals of a PSI file, seconds; None for a line that the kernel does not write."""

    some_s: float | None
    full_s: float | None


class CgroupLine(NamedTuple):
    """One line of /proc/<pid>/cgroup. Version 2 has no controllers and hierarchy 0."""

    hierarchy: int
    controllers: tuple[str, ...]
    path: str


class Vma(NamedTuple):
    """One mapping of /proc/<pid>/maps."""

    start: int
    end: int
    permissions: str
    path: str


def malformed(what: str, data: bytes) -> SourceError:
    """The one error of every parser; shows the beginning of what was not understood."""
    return SourceError(Reason.MALFORMED, f"{what}: {data[:48]!r}")


def parse_uint(field: bytes, what: str) -> int:
    """A decimal number of at most 64 bits."""
    # isdigit() first: int() alone would take signs, spaces and underscores. 20 digits hold 2^64.
    if not field.isdigit() or len(field) > 20:
        raise malformed(what, field)
    value = int(field)
    if value > _MAX_COUNT:
        raise malformed(what, field)
    return value


def parse_stat(data: bytes) -> Stat:
    """/proc/<pid>/stat. The name may hold spaces, newlines and brackets: it ends at the last ``)``."""
    head, bracket, tail = data.rpartition(b")")
    opening = head.find(b"(")
    rest = tail.split()
    if not bracket or opening < 0 or len(rest) < 20 or len(rest[0]) != 1:
        raise malformed("stat", data)
    return Stat(
        comm=_printable(head[opening + 1 :]),
        state=rest[0].decode("ascii", "replace"),
        minor_faults=parse_uint(rest[7], "stat minflt"),
        major_faults=parse_uint(rest[9], "stat majflt"),
        cpu_ticks=parse_uint(rest[11], "stat utime") + parse_uint(rest[12], "stat stime"),
        threads=parse_uint(rest[17], "stat num_threads"),
        start_ticks=parse_uint(rest[19], "stat starttime"),
    )


def parse_family(data: bytes) -> tuple[int, int]:
    """/proc/<pid>/stat: parent and process group, by their numbers in the namespace of this /proc; 0 outside of it."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 3:
        raise malformed("stat", data)
    return parse_uint(fields[1], "stat ppid"), parse_uint(fields[2], "stat pgrp")


def parse_statm(data: bytes) -> int:
    """/proc/<pid>/statm: resident pages. There are no fault counters in this file."""
    fields = data.split()
    if len(fields) < 2:
        raise malformed("statm", data)
    return parse_uint(fields[1], "statm resident")


def parse_status(data: bytes) -> Status:
    """/proc/<pid>/status. The kernel escapes newlines in the name, so no name can pass for another line."""
    values: dict[bytes, bytes] = {}
    for line in data.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon:
            values.setdefault(key, value.strip())
    if b"Name" not in values:
        raise malformed("status", data)
    return Status(
        ns_pids=tuple(parse_uint(pid, "status NSpid") for pid in values.get(b"NSpid", b"").split()),
        cpus_allowed=parse_cpulist(values.get(b"Cpus_allowed_list", b"")),
        resident_bytes=_kibibytes(values.get(b"VmRSS"), "status VmRSS"),
        hugetlb_bytes=_kibibytes(values.get(b"HugetlbPages"), "status HugetlbPages"),
    )


def parse_schedstat(data: bytes) -> SchedStat:
    """/proc/<pid>/task/<tid>/schedstat: time on a CPU, time waiting for one, time slices."""
    fields = data.split()
    if len(fields) < 2:
        raise malformed("schedstat", data)
    return SchedStat(parse_uint(fields[0], "schedstat run"), parse_uint(fields[1], "schedstat wait"))


def parse_counters(data: bytes, keys: Sequence[str], what: str) -> dict[str, int]:
    """Values of ``key value`` lines (vmstat, numastat, cpu.stat) for the keys that are there."""
    # Searching is ten times cheaper than a dict of all 180 lines of vmstat.
    text = b"\n" + data
    found = {}
    for key in keys:
        at = text.find(b"\n" + key.encode() + b" ")
        if at >= 0:
            end = text.find(b"\n", at + 1)
            value = text[at + len(key) + 2 : end if end >= 0 else None]
            found[key] = parse_uint(value.strip(), f"{what} {key}")
    return found


def parse_pressure(data: bytes) -> Pressure:
    """A PSI file of the host or of a cgroup: the ``total`` of its lines, microseconds there."""
    totals: dict[bytes, float] = {}
    for line in data.splitlines():
        fields = line.split()
        if fields and fields[0] in {b"some", b"full"}:
            name, _, value = fields[-1].partition(b"=")
            if name != b"total":
                raise malformed("pressure", line)
            totals[fields[0]] = parse_uint(value, "pressure total") / 1e6
    if not totals:
        raise malformed("pressure", data)
    return Pressure(totals.get(b"some"), totals.get(b"full"))


def parse_cgroup(data: bytes) -> list[CgroupLine]:
    """/proc/<pid>/cgroup, lines ``N:controllers:/path``; a path may itself hold colons."""
    lines = []
    for line in data.splitlines():
        parts = line.split(b":", 2)
        if len(parts) != 3 or not parts[2].startswith(b"/"):
            raise malformed("cgroup", line)
        controllers = tuple(parts[1].decode("utf-8", "replace").split(",")) if parts[1] else ()
        # surrogateescape: the path is for opening, and its bytes are whatever someone named a folder.
        path = parts[2].decode("utf-8", "surrogateescape")
        lines.append(CgroupLine(parse_uint(parts[0], "cgroup hierarchy"), controllers, path))
    return lines


def parse_cpulist(data: bytes) -> frozenset[int]:
    """A kernel list of CPUs or nodes, ``0-3,8,10-11``; empty for none."""
    text = data.strip()
    numbers: set[int] = set()
    for part in text.split(b",") if text else ():
        first, dash, last = part.partition(b"-")
        low = parse_uint(first, "cpulist")
        high = parse_uint(last, "cpulist") if dash else low
        if not low <= high < MAX_CPUS:
            raise malformed("cpulist", data)
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


_MEMINFO_LINE = re.compile(rb"^(?:Node \d+ )?(\w+): +(\d{1,15}) kB", re.MULTILINE)


def parse_meminfo(data: bytes) -> dict[str, int]:
    """Sizes of /proc/meminfo or of a node's meminfo, bytes."""
    sizes = {key.decode(): int(value) * 1024 for key, value in _MEMINFO_LINE.findall(data)}
    if not sizes:
        raise malformed("meminfo", data)
    return sizes


def parse_maps(data: bytes) -> list[Vma]:
    """/proc/<pid>/maps."""
    mappings = []
    for line in data.split(b"\n"):
        if not line:
            continue
        fields = line.split(None, 5)
        low, dash, high = fields[0].partition(b"-") if fields else (b"", b"", b"")
        try:
            start, end = int(low, 16), int(high, 16)
        except ValueError as err:
            raise malformed("maps", line) from err
        if not dash or len(fields) < 5 or len(fields[1]) != 4 or not 0 <= start < end <= _MAX_COUNT:
            raise malformed("maps", line)
        path = fields[5].decode("utf-8", "replace") if len(fields) == 6 else ""
        mappings.append(Vma(start, end, fields[1].decode("ascii", "replace"), path))
    return mappings


_NUMA_TOKEN = re.compile(rb" (?:N(\d{1,5})=(\d{1,15})|kernelpagesize_kB=(\d{1,9}))(?= |$)")


def parse_numa_maps(data: bytes) -> dict[int, int]:
    """/proc/<pid>/numa_maps: resident bytes per node. Reading that file stalls the process; see sources.numa."""
    resident: dict[int, int] = {}
    for line in data.split(b"\n"):
        tokens = list(_numa_tokens(line))
        page_bytes = next((size for node, size in tokens if node is None), None)
        for node, pages in tokens:
            if node is None:
                continue
            if page_bytes is None:
                raise malformed("numa_maps", line)
            resident[node] = resident.get(node, 0) + pages * page_bytes
    return resident


def _numa_tokens(line: bytes) -> Iterator[tuple[int | None, int]]:
    # Paths cannot add tokens: numa_maps escapes the spaces in them.
    for node, pages, size_kib in _NUMA_TOKEN.findall(line):
        yield (None, int(size_kib) * 1024) if size_kib else (int(node), int(pages))


def _kibibytes(value: bytes | None, what: str) -> int | None:
    if value is None:
        return None
    number, _, unit = value.partition(b" ")
    if unit != b"kB":
        raise malformed(what, value)
    return parse_uint(number, what) * 1024


def _printable(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
