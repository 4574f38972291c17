"""Another process that computes on a server's GPU: whose kernels wait for its, in turn.

From the SM shares of the processes of a GPU (read every 5 s), and who of them is the server's own: as
``detect.contention`` tells, without its patience. A share that others always have, as a display server has, is no sign.
The cap is their part of all SM time, for time slices are given out like that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.contention import GpuContention
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import GPUS_MAX, Seen, States, found_on, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, ramp
from gpumon.model import Unit

CAUSE: Final = "gpu_contention"
_MATTERS: Final = (0.02, 0.05)
"""SM share of others from where on it may count, and counts wholly, however idle the server is; ratio."""
_LONGEST_S: Final = 6.0
"""Of a stretch: processes are read every 5 s."""


@dataclass(slots=True)
class _Gpu:
    states: States = field(default_factory=lambda: States(_LONGEST_S))
    usual: Usual = field(default_factory=lambda: Usual(60, 3))
    """Others' part of the SM time."""


class Contention:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, part_low: float = 0.03, part_high: float = 0.1) -> None:
        """part_low, part_high: others' part of the SM time above the usual, from where on it may count, and counts
        wholly. A display or an idle notebook has 1 to 3 %."""
        self._part = (part_low, part_high)
        self._sharing = GpuContention(sm=_MATTERS[0], on_s=0.0, off_s=0.0)
        self._gpus: Kept[str, _Gpu] = Kept(_Gpu, most=GPUS_MAX)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = found_on(incidents, CAUSE)
        shared = {finding.entity.uuid: finding.evidence for finding in self._sharing.step(scene)}
        for uuid, read_s in _read(scene).items():
            gpu = self._gpus.look(uuid, scene.at_s)
            if not gpu.states.is_new(read_s):
                continue
            figures = {each.name: each.observed for each in shared.get(uuid, ())}
            others = ratio(figures.get("others_sm", 0.0))
            part = others / (others + ratio(figures["server_sm"])) if others > 0 else 0.0
            usual = gpu.usual.value
            evidence = ramp(part - (usual or 0.0), *self._part) * ramp(others, *_MATTERS)
            evidence = confirmed(evidence, is_found=uuid in found)
            if usual is None:
                evidence = 0.0  # what has been so from the beginning
            gpu.usual.feed(part, evidence)
            seen = Seen(evidence, part, Fact("others_sm", others, Unit.RATIO))
            yield from gpu.states.take(CAUSE, ("gpu", uuid), read_s, seen)
        self._gpus.sweep(scene.at_s)


def _read(scene: Scene) -> dict[str, float]:
    """When the processes of each GPU were read, by UUID."""
    return {labels[1]: at_s for labels, _, at_s in scene.read(catalogue.PROCESS_GPU_SM)}
