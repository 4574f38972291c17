"""Where the memory and the CPUs of the watched processes are, against where their GPU is.

Per process: resident bytes per NUMA node, the share of its pages on the node of each GPU it holds, and the share of
its allowed CPUs that are local to that GPU. From /proc/<pid>/{maps,statm,status}, move_pages(2) on a sample of
pages (estimator and error: ``sources.placement``), and /sys/bus/pci/devices/<bdf>/{numa_node,local_cpulist}. CPUs are
those of the main thread (sched_setaffinity of other threads is not seen).

Needs ptrace-read access (same user or CAP_SYS_PTRACE) for pages and maps: else DENIED misses, and the CPUs still
come. On a host with one node nothing is sampled: everything is there. A GPU whose node the firmware does not tell
(-1, usual in virtual machines) has no locality.

/proc/<pid>/numa_maps would be exact and stalls the process for about 9 ms per GiB of small pages, so it is read only
with ``exact`` and refused above ``exact_limit_bytes`` of resident memory. What of that is in huge pages, which cost
nothing, only smaps would tell, at the same price: all of it counts as small. hugetlbfs pages are known and left out.
"""

from __future__ import annotations

import mmap
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.host.files import Files, ReadError
from gpumon.host.pages import Pages
from gpumon.model import GpuUuid, Item, Miss, Pid, Reason, Sample, SourceError
from gpumon.sources.host import online_nodes
from gpumon.sources.placement import PageNumbers, estimate_placement
from gpumon.sources.procfs import (
    parse_cpulist,
    parse_maps,
    parse_numa_maps,
    parse_stat,
    parse_statm,
    parse_status,
)
from gpumon.sources.targets import Target, ended

MAPS_LIMIT = 4 << 20
"""Bytes of maps or numa_maps, about 40,000 mappings: more is refused, it would take too long to read."""
_LEAST_FOUND = 64
_LEAST_COVERAGE = 0.5
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(slots=True)
class _Placed:
    """What is remembered of a process: its mappings, and the last placement."""

    rng: random.Random
    placed_at_s: float = float("-inf")
    mapped_at_s: float = float("-inf")
    numbered: PageNumbers | None = None
    node_bytes: dict[int, float] | None = None
    cpus_allowed: frozenset[int] = frozenset()


class NumaSource:
    """Source ``numa``.

    targets: the processes to watch now; gpu_pci: PCI address of each GPU, and of each MIG
    instance that of its GPU, as the kernel spells it.
    sample_pages: present pages to find per process. seed: of the choice of pages, together with the process.
    limit: most processes placed in one pass; with more, those placed longest ago come first and the others repeat
    what was last found. maps_s: how long mappings are reused, seconds.
    """

    name = "numa"

    def __init__(
        self,
        files: Files,
        pages: Pages,
        targets: Callable[[], Sequence[Target]],
        gpu_pci: Callable[[], Mapping[GpuUuid, str]],
        *,
        sample_pages: int = 1024,
        seed: int = 0,
        limit: int = 16,
        maps_s: float = 30.0,
        exact: bool = False,
        exact_limit_bytes: int = 1 << 30,
        page_bytes: int = mmap.PAGESIZE,
    ) -> None:
        self._files = files
        self._pages = pages
        self._targets = targets
        self._gpu_pci = gpu_pci
        self._sample_pages = sample_pages
        self._seed = seed
        self._limit = limit
        self._maps_s = maps_s
        self._exact = exact
        self._exact_limit_bytes = exact_limit_bytes
        self._page_bytes = page_bytes
        self._placed: dict[Pid, _Placed] = {}

    def read(self, at_s: float) -> Iterator[Item]:
        try:
            nodes = online_nodes(self._files)
        except (ReadError, SourceError) as err:
            raise SourceError(err.reason, f"NUMA nodes: {err.detail}") from err
        targets = self._targets()
        before = self._placed
        self._placed = {t.pid: before.get(t.pid) or _Placed(self._random(t.pid)) for t in targets}
        turn = sorted(targets, key=lambda target: self._placed[target.pid].placed_at_s)[: self._limit]
        for target in turn:
            yield from self._place(target.pid, nodes, at_s)
        gpu_pci = self._gpu_pci()
        for target in targets:
            node_bytes = self._placed[target.pid].node_bytes
            if node_bytes is not None:
                for node, size in sorted(node_bytes.items()):
                    yield Sample(catalogue.PROCESS_NUMA_RESIDENT, (*target.labels, str(node)), size)
            yield from self._locality(target, gpu_pci)

    def _random(self, pid: Pid) -> random.Random:
        return random.Random(f"{self._seed}:{pid.number}:{pid.start_ticks}")  # noqa: S311 (which pages to look at)

    def _place(self, pid: Pid, nodes: frozenset[int], at_s: float) -> Iterator[Miss]:
        placed = self._placed[pid]
        placed.placed_at_s = at_s
        placed.node_bytes = None
        placed.cpus_allowed = frozenset()
        try:
            if parse_stat(self._files.read(f"proc/{pid.number}/stat", keep=True)).start_ticks != pid.start_ticks:
                yield Miss(f"pid {pid.number}", Reason.ENDED, "the pid belongs to another process now")
                return
            status = parse_status(self._files.read(f"proc/{pid.number}/status"))
            placed.cpus_allowed = self._online(status.cpus_allowed)
            small_pages = parse_statm(self._files.read(f"proc/{pid.number}/statm", keep=True))
            resident_pages = small_pages + (status.hugetlb_bytes or 0) // self._page_bytes
            resident_bytes = resident_pages * self._page_bytes
            if len(nodes) == 1:
                placed.node_bytes = {node: float(resident_bytes) for node in nodes}
            elif self._exact and small_pages * self._page_bytes <= self._exact_limit_bytes:
                exact = parse_numa_maps(self._files.read(f"proc/{pid.number}/numa_maps", limit=MAPS_LIMIT))
                placed.node_bytes = {node: float(size) for node, size in exact.items()}
            else:
                if self._exact:
                    detail = f"{small_pages * self._page_bytes} bytes resident, over the limit: sampled instead"
                    yield Miss(f"pid {pid.number} numa_maps", Reason.UNSUPPORTED, detail)
                yield from self._sample(pid, placed, resident_pages, at_s)
        except ReadError as err:
            yield Miss(f"pid {pid.number} placement", ended(err.reason), _detail(err))
        except SourceError as err:
            yield Miss(f"pid {pid.number} placement", err.reason, err.detail)

    def _sample(self, pid: Pid, placed: _Placed, resident_pages: int, at_s: float) -> Iterator[Miss]:
        if placed.numbered is None or at_s - placed.mapped_at_s >= self._maps_s:
            vmas = parse_maps(self._files.read(f"proc/{pid.number}/maps", limit=MAPS_LIMIT))
            placed.numbered = PageNumbers(vmas, self._page_bytes)
            placed.mapped_at_s = at_s
        found = estimate_placement(
            self._pages, pid.number, placed.numbered, resident_pages, self._sample_pages, placed.rng
        )
        if found.found < min(_LEAST_FOUND, self._sample_pages) or found.coverage < _LEAST_COVERAGE:
            detail = f"{found.found} of {found.asked} sampled pages present, {found.coverage:.0%} of the resident size"
            yield Miss(f"pid {pid.number} placement", Reason.UNAVAILABLE, detail)
            return
        resident_bytes = resident_pages * self._page_bytes
        placed.node_bytes = {node: share * resident_bytes for node, share in found.shares.items()}

    def _locality(self, target: Target, gpu_pci: Mapping[GpuUuid, str]) -> Iterator[Item]:
        placed = self._placed[target.pid]
        total = sum(placed.node_bytes.values()) if placed.node_bytes else 0.0
        for held in target.held:
            bus_id = gpu_pci.get(held.uuid)
            if bus_id is None:
                continue
            try:
                near = self._gpu_node(bus_id)
            except (ReadError, SourceError) as err:
                yield Miss(f"gpu {held.gpu} numa node", err.reason, err.detail)
                continue
            if near is None:
                continue
            node, local_cpus = near
            labels = (held.gpu, held.uuid, *target.labels)
            if placed.node_bytes and total:
                yield Sample(catalogue.PROCESS_NUMA_LOCAL, labels, placed.node_bytes.get(node, 0.0) / total)
            if placed.cpus_allowed:
                near_cpus = placed.cpus_allowed & local_cpus
                yield Sample(catalogue.PROCESS_CPUS_LOCAL, labels, len(near_cpus) / len(placed.cpus_allowed))

    def _gpu_node(self, bus_id: str) -> tuple[int, frozenset[int]] | None:
        """Node and CPUs beside the GPU; None when the firmware does not tell."""
        if not _BUS_ID.fullmatch(bus_id):
            raise SourceError(Reason.MALFORMED, f"PCI address {bus_id!r}")
        folder = f"sys/bus/pci/devices/{bus_id}"
        text = self._files.read(f"{folder}/numa_node", keep=True).strip()
        if text == b"-1":
            return None
        nodes = parse_cpulist(text)
        if len(nodes) != 1:
            raise SourceError(Reason.MALFORMED, f"numa_node {text[:16]!r}")
        return min(nodes), parse_cpulist(self._files.read(f"{folder}/local_cpulist", keep=True))

    def _online(self, cpus: frozenset[int]) -> frozenset[int]:
        """Those of the CPUs that exist: an unrestricted process is allowed every CPU that could be plugged in."""
        try:
            return cpus & parse_cpulist(self._files.read("sys/devices/system/cpu/online", keep=True))
        except (ReadError, SourceError):
            return cpus


def _detail(err: ReadError) -> str:
    """With what was denied, and what would help."""
    if err.reason is not Reason.DENIED:
        return err.detail
    # maps is read first: who may read that, and may not call, is held back by seccomp or by a pid namespace.
    needs = "CAP_SYS_PTRACE" if err.path.startswith("proc/") else "a seccomp profile that allows it, and hostPID"
    return f"{err.path}: {err.detail} ({needs})"
