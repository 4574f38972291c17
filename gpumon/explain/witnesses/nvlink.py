"""NVLinks that are down, or that count errors: all-reduces take longer.

From the number of active links and the error counters of all links of a GPU (read every 5 s). How many links there
should be nobody tells, so a GPU is judged against what it usually has. With links gone the rest carry more: at most
their share of the time was lost, were it all spent in all-reduces; where ranks tell of their collectives, only as much
as they were in them. Errors alone are weak evidence: a packet that is sent again costs microseconds, a link that is
trained anew more. GPUs without NVLink have no such series, and no signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.collectives import Joiner
from gpumon.explain.witnesses.gpus import GPUS_MAX, Gpu, Seen, States, found_on, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, ramp
from gpumon.model import Unit

CAUSE: Final = "nvlink"
_CRC: Final = frozenset({"crc_flit", "crc_data"})
"""Errors that are mended by sending again; a sound link has a few. The others stop a link for a while."""
_RESENT_S: Final = 1e-4
"""What sending again costs, at the most."""
_ERRORS_ALONE: Final = 0.5
"""Evidence at most, with all links there."""
_LONGEST_S: Final = 6.0
"""Of a stretch: links are read every 5 s."""
_TOLD_S: Final = 15.0
"""What ranks told of their collectives holds for so long."""


@dataclass(slots=True)
class _Gpu:
    states: States = field(default_factory=lambda: States(_LONGEST_S))
    active: Usual = field(default_factory=lambda: Usual(60, 2))
    errors: Usual = field(default_factory=lambda: Usual(60, 2))
    """Per second, of all kinds."""
    collective: float = 1.0
    """Share of the time that its rank was in collectives, where that is told."""
    told_s: float = -math.inf


class NvLink:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, errors_low: float = 1.0, errors_high: float = 10.0) -> None:
        """errors_low, errors_high: errors per second above the usual, from where on they may count, and count as far as
        errors do. Links in their specification have well below one."""
        self._errors = (errors_low, errors_high)
        self._gpus: Kept[str, _Gpu] = Kept(_Gpu, most=GPUS_MAX)
        self._joiner = Joiner()

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = found_on(incidents, "nvlink_degraded")
        rates: dict[Gpu, dict[str, float]] = {}
        for growth in scene.grown(catalogue.GPU_NVLINK_ERRORS):
            rates.setdefault(growth.labels[:2], {})[growth.labels[2]] = growth.rate
        shares = self._collectives(scene)
        for labels, active, read_s in scene.read(catalogue.GPU_NVLINKS):
            if labels[2] != "active":
                continue
            uuid = labels[1]
            state = self._gpus.look(uuid, scene.at_s)
            if uuid in shares:
                state.collective, state.told_s = shares[uuid], scene.at_s
            if state.states.is_new(read_s):
                seen = self._judge(state, active, rates.get(labels[:2], {}), is_found=uuid in found)
                busy = state.collective if scene.at_s - state.told_s <= _TOLD_S else 1.0
                yield from state.states.take(CAUSE, ("gpu", uuid), read_s, seen._replace(cap=seen.cap * busy))
        self._gpus.sweep(scene.at_s)

    def _collectives(self, scene: Scene) -> dict[str, float]:
        """Share of the time in collective operations, by UUID of the GPU of each rank."""
        spent: dict[tuple[int, str, str], tuple[float, float]] = {}
        for comm_id, operations in self._joiner.join(scene).items():
            for operation in operations:
                for record in operation.ranks.values() if operation.since_s is not None else ():
                    key = (record.pid, comm_id, operation.collective)
                    exec_s, since_s = spent.get(key, (0.0, 0.0))
                    spent[key] = (exec_s + record.exec_s, since_s + (operation.since_s or 0.0))
        shares: dict[str, float] = {}
        for (pid, _, _), (exec_s, since_s) in spent.items():
            held = scene.holders(str(pid))
            if len(held) == 1 and since_s > 0:
                shares[held[0].uuid] = ratio(shares.get(held[0].uuid, 0.0) + exec_s / since_s)
        return shares

    def _judge(self, state: _Gpu, active: float, rates: dict[str, float], *, is_found: bool) -> Seen:
        """A new reading."""
        usual = state.active.value
        lost = ratio(1.0 - active / usual) if usual else 0.0
        down = ramp(lost, 0.0, 0.05)
        state.active.feed(active, down)
        errors = sum(rates.values())
        usual_errors = state.errors.value
        noisy = 0.0 if usual_errors is None else ramp(errors - usual_errors, *self._errors)
        if rates:
            state.errors.feed(errors, noisy)
        evidence = confirmed(max(down, _ERRORS_ALONE * noisy), is_found=is_found)
        if down > 0:
            return Seen(evidence, lost, Fact("nvlinks_active", active, Unit.NONE, usual))
        is_mended = all(rate <= 0 for kind, rate in rates.items() if kind not in _CRC)
        cap = ratio(errors * _RESENT_S) if is_mended else 1.0
        return Seen(evidence, cap, Fact("nvlink_errors_per_second", errors, Unit.NONE, usual_errors))
