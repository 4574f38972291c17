"""PCIe: a link that trained down, or that is full, so that copies to and from the host take longer.

From width and generation (read every 5 s) and the bytes over the link (every second). Judged against what is usual for
the GPU: a slot that always was narrow is no sign. The cap is worked out from the bytes: that long the link was busy
with the server's copies, and that much of it is due to its speed, or to what else went over it. Where nobody tells what
the link can do, or what goes over it, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.pcie import LANE_BYTES_S, PcieDegraded
from gpumon.detect.scene import Growth, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import GPUS_MAX, Gpu, found_on, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, ramp
from gpumon.model import Unit

CAUSE: Final = "pcie"
_PAYLOAD: Final = 0.85
"""Of the link's raw bandwidth, what copies reach: headers of packets take the rest."""
_FULL: Final = 0.98
"""Part of the link that others take, at most: something always gets through."""
_LANES_MAX: Final = 32
_EVERY_S: Final = 6.0
"""Longest stretch before the first reading of a slower link: links are read every 5 s."""


@dataclass(slots=True)
class _Gpu:
    speed: Usual = field(default_factory=lambda: Usual(120, 5))
    """What the link can carry, over the most that GPU and slot can."""
    used: dict[str, Usual] = field(default_factory=dict)
    """Part of the link that is used, by direction."""
    healthy_s: float | None = None
    """When its link was last read at its usual speed."""


class Pcie:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, used_low: float = 0.6, used_high: float = 0.85) -> None:
        """used_low, used_high: part of the link used in one direction, from where on it may count as full, and does."""
        self._used = (used_low, used_high)
        self._slower = PcieDegraded(readings=1)
        self._gpus: Kept[Gpu, _Gpu] = Kept(_Gpu, most=GPUS_MAX)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        slower = {
            finding.entity.uuid: figure.observed
            for finding in self._slower.step(scene)
            for figure in finding.evidence
            if figure.name == "pcie_capacity_bytes_per_second" and figure.observed > 0
        }
        degraded, saturated = found_on(incidents, "pcie_degraded"), found_on(incidents, "pcie_saturated")
        read_s = {labels[:2]: at_s for labels, _, at_s in scene.read(catalogue.GPU_PCIE_WIDTH)}
        links = _links(scene)
        for gpu, flows in _flows(scene).items():
            now, most = links.get(gpu, (None, None))
            if most is None:
                continue
            state = self._gpus.look(gpu, scene.at_s)
            capacity = slower.get(gpu[1], most)
            usual = state.speed.value
            speed = ratio(capacity / most)
            evidence = 0.0 if not usual else ramp(1.0 - speed / usual, 0.1, 0.3)
            evidence = confirmed(evidence, is_found=gpu[1] in degraded)
            if gpu[1] in slower or now == most:  # else it may be slow because the GPU idled
                state.speed.feed(speed, evidence)
            yield from self._full(gpu, state, flows, capacity, is_found=gpu[1] in saturated)
            newest = max(flows, key=lambda flow: flow.at_s)
            since_s = newest.at_s - newest.dt_s
            if evidence <= 0:
                state.healthy_s = read_s.get(gpu, state.healthy_s)
                continue
            if state.healthy_s is not None:
                since_s, state.healthy_s = min(since_s, max(state.healthy_s, scene.at_s - _EVERY_S)), None
            moved = sum([flow.rate for flow in flows])
            cap = ratio(moved / (_PAYLOAD * capacity)) * ratio(1.0 - speed / (usual or 1.0))
            fact = Fact("pcie_capacity_bytes_per_second", capacity, Unit.BYTES, most * (usual or 1.0))
            yield Sign(CAUSE, ("gpu", gpu[1]), since_s, newest.at_s, evidence, cap, fact)
        self._gpus.sweep(scene.at_s)

    def _full(
        self, gpu: Gpu, state: _Gpu, flows: Sequence[Growth], capacity: float, *, is_found: bool
    ) -> Iterator[Sign]:
        """Whether the link is full."""
        for flow in flows:
            direction = flow.labels[2]
            before = state.used.setdefault(direction, Usual(120, 5))
            used, usual = flow.rate / capacity, before.value
            evidence = 0.0
            if usual is not None:
                evidence = confirmed(ramp(used, *self._used) * ramp(used - usual, 0.1, 0.3), is_found=is_found)
            before.feed(used, evidence)
            if evidence > 0 and usual is not None:
                # The server's own copies, this way as usual and the other way as now, in what the others leave.
                taken = min(_FULL, max(0.0, used - usual))
                others = sum([other.rate for other in flows if other is not flow])
                own = min(1.0, (usual + others / capacity) / _PAYLOAD)
                slower = own * (1.0 / (1.0 - taken) - 1.0)
                fact = Fact("pcie_used", ratio(used), Unit.RATIO, usual)
                start_s, cap = flow.at_s - flow.dt_s, ratio(slower / (1.0 + slower))
                yield Sign(CAUSE, ("gpu", gpu[1]), start_s, flow.at_s, evidence, cap, fact)


def _flows(scene: Scene) -> dict[Gpu, list[Growth]]:
    """Bytes by GPU, of each direction."""
    flows: dict[Gpu, list[Growth]] = {}
    for growth in scene.grown(catalogue.GPU_PCIE_BYTES):
        flows.setdefault(growth.labels[:2], []).append(growth)
    return flows


def _links(scene: Scene) -> dict[Gpu, tuple[float | None, float | None]]:
    """Bytes per second that the link of each GPU carries in one direction, now and at its best, where it is told."""
    widths, generations = scene.values(catalogue.GPU_PCIE_WIDTH), scene.values(catalogue.GPU_PCIE_GENERATION)

    def capacity(gpu: Gpu, kind: str) -> float | None:
        width, generation = widths.get((*gpu, kind), 0.0), generations.get((*gpu, kind), 0.0)
        lane = LANE_BYTES_S.get(int(generation))
        return width * lane if lane is not None and 0 < width <= _LANES_MAX else None

    return {gpu: (capacity(gpu, "current"), capacity(gpu, "max")) for gpu in {labels[:2] for labels in widths}}
