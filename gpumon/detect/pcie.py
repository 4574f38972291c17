"""PCIe links that run narrower or slower than they can, and links that are full.

From the link's width and generation, read every 5 s, and the byte counters. A GPU that idles lowers the generation of
its link, on some boards the width too, and trains it up again within milliseconds of work: so a link is judged only
while the GPU works. Where the highest width or generation is not told, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.scene import Growth, Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

LANE_BYTES_S: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of a lane in one direction, by generation: the transfer rate of the PCI Express base specification
(2.5, 5, 8, 16, 32, 64 GT/s) less line coding (8b/10b; 128b/130b from 3 on; 242 of the 256 bytes of a flit of 6)."""
_WORK_STATE: Final = 2
"""P-states up to this one are for work; in higher ones the link may be slow by wish."""


class _Link(NamedTuple):
    """One GPU's link, as last read; what is not known is None."""

    gpu: Gpu
    at_s: float
    width: float | None
    width_max: float | None
    generation: float | None
    generation_max: float | None

    @property
    def below(self) -> bool:
        """Narrower or slower than it can be."""
        return _less(self.width, self.width_max) or _less(self.generation, self.generation_max)

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that it carries in each direction now."""
        return _bandwidth(self.width, self.generation)


@dataclass(slots=True)
class _Watched:
    """What is known of one GPU's link over several readings of it."""

    at_s: float
    """Of the newest one."""
    looks: int = 0
    utilization: float = 0.0
    """Sum over the looks since that one."""
    bad: int = 0
    """Readings running under load that are below the highest."""
    since_s: float = 0.0


class PcieDegraded:
    """A link below its highest width or generation while the GPU works."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "pcie_degraded",
            "Width or generation of the PCIe link below the highest that GPU and slot can do, in `readings` readings "
            "running (one each 5 s) between which the GPU's mean utilization was above `busy`, in a P-state for work.",
            (Severity.WARNING,),
            "Drain the node and reseat the board or its riser; look for AER errors in the kernel log and for a changed "
            "BIOS setting of the slot. A reset of the GPU trains the link anew and may hide a bad contact for a while.",
            hold_s=20.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "busy": "Mean utilization since the reading before; ratio. Idle GPUs have slow links.",
        "readings": "Readings running; a number. One may have been taken while the link was training.",
    }

    def __init__(self, *, busy: float = 0.2, readings: int = 2) -> None:
        self._busy = busy
        self._readings = readings
        self._gpus: dict[Gpu, _Watched] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        utilizations = scene.values(catalogue.GPU_UTILIZATION)
        links = _links(scene)
        for link in links:
            watched = self._gpus.get(link.gpu)
            if watched is None:
                watched = self._gpus[link.gpu] = _Watched(link.at_s)
            utilization = utilizations.get(link.gpu)
            if utilization is not None:
                watched.looks += 1
                watched.utilization += utilization
            if link.at_s > watched.at_s:
                self._judge(link, watched, scene.value(catalogue.GPU_PERFORMANCE_STATE, link.gpu))
            if watched.bad >= self._readings:
                yield _degraded(link, watched.since_s)
        for gone in self._gpus.keys() - {link.gpu for link in links}:
            del self._gpus[gone]

    def _judge(self, link: _Link, watched: _Watched, state: float | None) -> None:
        """A new reading."""
        busy = watched.looks > 0 and watched.utilization / watched.looks > self._busy
        watched.at_s, watched.looks, watched.utilization = link.at_s, 0, 0.0
        if not link.below:
            watched.bad = 0
        elif busy and (state is None or state <= _WORK_STATE):
            watched.since_s = link.at_s if watched.bad == 0 else watched.since_s
            watched.bad += 1
        elif watched.bad < self._readings:
            watched.bad = 0  # of one that was found degraded, an idle GPU's slow link says nothing new


def _degraded(link: _Link, since_s: float) -> Finding:
    evidence = []
    parts = []
    if link.width is not None:
        evidence.append(Evidence("pcie_link_width", link.width, Unit.NONE, link.width_max))
        if _less(link.width, link.width_max):
            parts.append(f"{link.width:.0f} of {link.width_max:.0f} lanes")
    if link.generation is not None:
        evidence.append(Evidence("pcie_link_generation", link.generation, Unit.NONE, link.generation_max))
        if _less(link.generation, link.generation_max):
            parts.append(f"generation {link.generation:.0f} instead of {link.generation_max:.0f}")
    best = _bandwidth(link.width_max, link.generation_max)
    if link.bandwidth is not None:
        evidence.append(Evidence("pcie_capacity_bytes_per_second", link.bandwidth, Unit.BYTES, best))
    text = f"PCIe link at {' and '.join(parts) or 'less than it can'} under load"
    return Finding("pcie_degraded", gpu_entity(link.gpu), Severity.WARNING, since_s, text, tuple(evidence))


def _links(scene: Scene) -> list[_Link]:
    """Links with a reading of their width or generation now."""
    widths, generations = scene.values(catalogue.GPU_PCIE_WIDTH), scene.values(catalogue.GPU_PCIE_GENERATION)
    times: dict[Gpu, float] = {}
    for metric in (catalogue.GPU_PCIE_WIDTH, catalogue.GPU_PCIE_GENERATION):
        for labels, _, at_s in scene.read(metric):
            if labels[2] == "current":
                times[labels[:2]] = at_s
    return [
        _Link(
            gpu,
            at_s,
            widths.get((*gpu, "current")),
            widths.get((*gpu, "max")),
            generations.get((*gpu, "current")),
            generations.get((*gpu, "max")),
        )
        for gpu, at_s in times.items()
    ]


def _less(value: float | None, most: float | None) -> bool:
    return value is not None and most is not None and value < most


def _bandwidth(width: float | None, generation: float | None) -> float | None:
    lane = LANE_BYTES_S.get(int(generation)) if generation is not None else None
    return None if width is None or lane is None else width * lane


class PcieSaturated:
    """A link that carries nearly all it can, in one direction."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "pcie_saturated",
            "Bytes over PCIe in one direction above `share` of what the link's width and generation can carry, for "
            "`on_s`.",
            (Severity.WARNING,),
            "Find out what moves: KV cache or weights swapped to the host, a model being loaded, tensor parallelism "
            "without NVLink. Keep the KV cache on the GPU, pin host memory, or place ranks on GPUs with NVLink.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Of the link's raw bandwidth per direction; ratio. Headers of packets take about a tenth, so nothing "
        "gets much above 0.9.",
        "on_s": "True for this long; seconds. Loading one layer of weights takes less.",
        "off_s": "Untrue for this long, it is over; seconds.",
    }

    def __init__(self, *, share: float = 0.85, on_s: float = 3.0, off_s: float = 3.0) -> None:
        self._share = share
        self._held: Held[Gpu] = Held(on_s=on_s, off_s=off_s)
        self._full_s: dict[Gpu, float] = {}
        """Since when the flow has been near what the link could carry when it was last read."""

    def step(self, scene: Scene) -> Iterator[Finding]:
        flows: dict[Gpu, Growth] = {}
        for growth in scene.grown(catalogue.GPU_PCIE_BYTES):
            gpu = growth.labels[:2]
            if gpu not in flows or growth.amount > flows[gpu].amount:
                flows[gpu] = growth
        links = {link.gpu: link for link in _links(scene)} if flows else {}
        for gpu, flow in flows.items():
            link = links.get(gpu)
            capacity = None if link is None else link.bandwidth
            if link is None or capacity is None:
                continue
            is_full = flow.rate > self._share * capacity
            if is_full:
                # A slow link may have been read while the GPU idled: it counts when it was read during the flow.
                full_s = self._full_s.setdefault(gpu, flow.at_s - flow.dt_s)
                is_full = not link.below or link.at_s > full_s
            else:
                self._full_s.pop(gpu, None)
            since_s = self._held.feed(gpu, is_full, flow.at_s, self._full_s.get(gpu))
            if is_full and since_s is not None:
                yield _saturated(flow, capacity, since_s)
        there = {labels[:2] for labels in scene.values(catalogue.GPU_PCIE_BYTES)}
        self._held.keep(there)
        for gone in self._full_s.keys() - there:
            del self._full_s[gone]


def _saturated(flow: Growth, capacity: float, since_s: float) -> Finding:
    return Finding(
        "pcie_saturated",
        gpu_entity(flow.labels),
        Severity.WARNING,
        since_s,
        f"PCIe {flow.labels[2]} {flow.rate / 1e9:.1f} of {capacity / 1e9:.1f} GB/s",
        (
            Evidence("pcie_bytes_per_second", flow.rate, Unit.BYTES),
            Evidence("pcie_capacity_bytes_per_second", capacity, Unit.BYTES),
            Evidence("pcie_used", flow.rate / capacity, Unit.RATIO),
        ),
    )
