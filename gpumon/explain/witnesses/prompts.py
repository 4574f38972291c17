"""More prompts than usual being computed: prefill_interference, where requests themselves cannot tell of it yet.

A request tells of its prompt when it has ended. While answers take a minute, those whose prompts were computed between
this one's tokens are still running, and nothing is known of them. The server's page is: prompt tokens per second
(``gpumon_server_tokens_total``, read every few seconds) against what is usual. It cannot tell in which gap they were
computed; attribution gives it only what the prompts that are known do not explain. Pages without the counter say
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import Usual, ramp
from gpumon.model import Unit

_OVER: Final = 4
"""Readings that are taken together: of a few prompts of all lengths in five seconds no two times are alike."""
_LEAST_PER_S: Final = 100.0
"""Prompt tokens per second that hold nothing up, on any GPU."""


class _Rate:
    """Of one server."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque(maxlen=_OVER)
        """Tokens and seconds of the newest readings."""
        self.usual = Usual(60, 6)

    def feed(self, amount: float, dt_s: float) -> float | None:
        """A reading; the rate over the last few, None while there are fewer."""
        self.recent.append((amount, dt_s))
        if len(self.recent) < _OVER:
            return None
        return sum([tokens for tokens, _ in self.recent]) / sum([seconds for _, seconds in self.recent])


class Prompts:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("prefill_interference",)

    def __init__(self, *, low: float = 1.6, high: float = 2.4) -> None:
        """low, high: times the usual rate, from where on it may count, and counts wholly."""
        self._ramp = (low, high)
        self._servers: Kept[Labels, _Rate] = Kept(_Rate, most=64)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        del incidents  # none of them tells of prompts
        for growth in scene.grown(catalogue.SERVER_TOKENS):
            server, model, _, kind = growth.labels
            if kind != "prompt":
                continue
            state = self._servers.look(growth.labels, scene.at_s)
            rate, usual = state.feed(growth.amount, growth.dt_s), state.usual.value
            if rate is None:
                continue
            evidence = ramp(rate / usual, *self._ramp) if usual and rate > _LEAST_PER_S else 0.0
            state.usual.feed(rate, evidence)
            if evidence > 0:
                key = ("server", model or f"{server}/")
                fact = Fact("prompt_tokens_per_second", rate, Unit.NONE, usual)
                yield Sign("prefill_interference", key, growth.at_s - growth.dt_s, growth.at_s, evidence, 1.0, fact)
        self._servers.sweep(scene.at_s)
