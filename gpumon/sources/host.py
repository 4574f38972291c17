"""The host as a whole: page faults, swap, OOM kills, pressure stalls, memory and allocations per NUMA node.

From /proc/vmstat, /proc/pressure/* (kernel with PSI) and /sys/devices/system/node/node<N>/{numastat,meminfo}. A key
that this kernel does not have is no sample; a file that it does not have is an UNSUPPORTED miss. A kernel built
without NUMA has one memory and says so by having no node folder beside cpu: /proc/meminfo is then node 0. No
privilege needed; about 60 us for two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpumon import catalogue
from gpumon.host.files import Files, ReadError
from gpumon.model import Item, Metric, Miss, Reason, Rejection, Sample, SourceError
from gpumon.sources.procfs import parse_counters, parse_cpulist, parse_meminfo, parse_pressure

_VMSTAT_KEYS = ("pgfault", "pgmajfault", "pswpin", "pswpout", "oom_kill")
_VMSTAT_SERIES: tuple[tuple[str, Metric, tuple[str, ...]], ...] = (
    ("pgmajfault", catalogue.HOST_PAGE_FAULTS, ("major",)),
    ("pswpin", catalogue.HOST_SWAP_PAGES, ("in",)),
    ("pswpout", catalogue.HOST_SWAP_PAGES, ("out",)),
    ("oom_kill", catalogue.HOST_OOM_KILLS, ()),
)
_NUMASTAT_EVENTS = {
    "numa_hit": "hit",
    "numa_miss": "miss",
    "numa_foreign": "foreign",
    "interleave_hit": "interleave_hit",
    "local_node": "local",
    "other_node": "other",
}
_NODES = "sys/devices/system/node"


class HostSource:
    """Source ``host``. Counters are the kernel's own totals since boot."""

    name = "host"

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, at_s: float) -> Iterator[Item]:  # noqa: ARG002 (nothing here depends on the time)
        misses: list[Miss] = []
        anything = False
        for part in (self._vmstat, self._pressure, self._nodes):
            for item in part():
                anything = anything or isinstance(item, Sample)
                if isinstance(item, Miss):
                    misses.append(item)
                yield item
        if not anything:
            reason = misses[0].reason if misses else Reason.UNAVAILABLE
            raise SourceError(reason, "nothing about the host can be read: " + "; ".join(m.what for m in misses[:3]))

    def _vmstat(self) -> Iterator[Item]:
        try:
            counts = parse_counters(self._files.read("proc/vmstat", keep=True), _VMSTAT_KEYS, "vmstat")
        except (ReadError, SourceError) as err:
            yield Miss("vmstat", err.reason, err.detail)
            return
        for key, metric, labels in _VMSTAT_SERIES:
            if key in counts:
                yield Sample(metric, labels, float(counts[key]))
        if "pgfault" in counts and "pgmajfault" in counts:
            minor = counts["pgfault"] - counts["pgmajfault"]  # pgfault counts both kinds
            if minor < 0:
                yield Rejection("vmstat_pgfault", Reason.OUT_OF_RANGE)
            else:
                yield Sample(catalogue.HOST_PAGE_FAULTS, ("minor",), float(minor))

    def _pressure(self) -> Iterator[Item]:
        for resource in ("cpu", "memory", "io"):
            try:
                pressure = parse_pressure(self._files.read(f"proc/pressure/{resource}", keep=True))
            except ReadError as err:
                missing = err.reason is Reason.UNAVAILABLE
                reason = Reason.UNSUPPORTED if missing else err.reason
                yield Miss(f"pressure {resource}", reason, "kernel without PSI (psi=1)" if missing else err.detail)
                continue
            except SourceError as err:
                yield Miss(f"pressure {resource}", err.reason, err.detail)
                continue
            if pressure.some_s is not None:
                yield Sample(catalogue.HOST_PRESSURE, (resource, "some"), pressure.some_s)
            # Of the whole host, cpu full has no meaning; the kernel writes a constant 0 (accounting/psi.rst).
            if pressure.full_s is not None and resource != "cpu":
                yield Sample(catalogue.HOST_PRESSURE, (resource, "full"), pressure.full_s)

    def _nodes(self) -> Iterator[Item]:
        try:
            nodes = online_nodes(self._files)
        except (ReadError, SourceError) as err:
            if err.reason is Reason.UNAVAILABLE and self._built_without_numa():
                yield from self._single_memory()
            else:
                yield Miss("numa nodes", err.reason, err.detail)
            return
        for node in sorted(nodes):
            yield from self._numastat(node)
            yield from self._node_memory(node)

    def _numastat(self, node: int) -> Iterator[Item]:
        try:
            data = self._files.read(f"{_NODES}/node{node}/numastat", keep=True)
            counts = parse_counters(data, tuple(_NUMASTAT_EVENTS), "numastat")
        except (ReadError, SourceError) as err:
            yield Miss(f"node {node} numastat", err.reason, err.detail)
            return
        for key, count in counts.items():
            yield Sample(catalogue.HOST_NUMA_PAGES, (str(node), _NUMASTAT_EVENTS[key]), float(count))

    def _node_memory(self, node: int) -> Iterator[Item]:
        try:
            sizes = parse_meminfo(self._files.read(f"{_NODES}/node{node}/meminfo", keep=True))
        except (ReadError, SourceError) as err:
            yield Miss(f"node {node} meminfo", err.reason, err.detail)
            return
        yield from _memory(node, sizes.get("MemTotal"), sizes.get("MemFree"), sizes.get("FilePages"))

    def _built_without_numa(self) -> bool:
        try:
            names = self._files.list("sys/devices/system")
        except ReadError:
            return False  # sysfs is hidden: the machine may have any number of nodes
        return "cpu" in names and "node" not in names

    def _single_memory(self) -> Iterator[Item]:
        try:
            sizes = parse_meminfo(self._files.read("proc/meminfo", keep=True))
        except (ReadError, SourceError) as err:
            yield Miss("meminfo", err.reason, err.detail)
            return
        # The kernel splits what a node calls FilePages over these three.
        parts = [sizes.get(key) for key in ("Cached", "Buffers", "SwapCached")]
        file_bytes = sum(part for part in parts if part is not None) if parts[0] is not None else None
        yield from _memory(0, sizes.get("MemTotal"), sizes.get("MemFree"), file_bytes)


def online_nodes(files: Files) -> frozenset[int]:
    """Numbers of the NUMA nodes that are online, holes and all. Raises ReadError, SourceError(MALFORMED)."""
    return parse_cpulist(files.read(f"{_NODES}/online", keep=True))


def _memory(node: int, total: int | None, free: int | None, file: int | None) -> Iterator[Item]:
    if total is None or free is None or file is None:
        yield Miss(f"node {node} memory", Reason.UNSUPPORTED, "MemTotal, MemFree or the file pages are not told")
        return
    if total == 0:  # a node of CPUs or devices only
        return
    used = total - free - file
    if used < 0:
        yield Rejection("host_memory", Reason.OUT_OF_RANGE)
        return
    for state, size in (("used", used), ("file", file), ("free", free)):
        yield Sample(catalogue.HOST_MEMORY, (str(node), state), float(size))
