"""Uneven experts: the rank with the hot ones holds up the others.

From the balance that a server's page tells (SGLang: mean over maximum of the tokens per rank), read every 2 s, against
its own usual: no mixture of experts is quite even. The part of a step that is in the experts takes as much longer as
the balance fell, so the cap is that fall. Of a server that runs nothing the balance is an old one and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import Seen, States, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, found_servers, ramp, server_key, server_name
from gpumon.model import Unit

CAUSE: Final = "moe_imbalance"
_SERVERS: Final = 64
_LONGEST_S: Final = 6.0
"""Of a stretch: a page is read every 2 s."""


@dataclass(slots=True)
class _Experts:
    states: States = field(default_factory=lambda: States(_LONGEST_S))
    balance: Usual = field(default_factory=lambda: Usual(120, 5))


class UnevenExperts:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, fall_low: float = 0.15, fall_high: float = 0.35) -> None:
        """fall_low, fall_high: share of the usual balance that is gone, from where on it may count, and counts wholly.
        A few prompts alike move it by a tenth."""
        self._fall = (fall_low, fall_high)
        self._servers: Kept[Labels, _Experts] = Kept(_Experts, most=_SERVERS)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = found_servers(incidents, CAUSE)
        running = scene.values(catalogue.SERVER_RUNNING)
        for labels, balance, read_s in scene.read(catalogue.SERVER_EXPERT_BALANCE):
            experts = self._servers.look(labels, scene.at_s)
            if not 0 < balance <= 1 or running.get(labels, 1.0) <= 0 or not experts.states.is_new(read_s):
                continue
            usual = experts.balance.value
            fall = ratio(1.0 - balance / usual) if usual else 0.0
            evidence = confirmed(ramp(fall, *self._fall), is_found=server_name(labels) in found)
            experts.balance.feed(balance, evidence)
            seen = Seen(evidence, fall, Fact("expert_balance", balance, Unit.RATIO, usual))
            yield from experts.states.take(CAUSE, server_key(labels), read_s, seen)
        self._servers.sweep(scene.at_s)
