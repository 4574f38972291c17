"""Whether the probe itself is slow: how late its event loop comes round, which is how late a time may be taken."""

from __future__ import annotations

import asyncio
from array import array
from typing import Final

import numpy as np

from gpumon.probe.exchange import NowNs
from gpumon.shown import shown_seconds

EVERY_S: Final = 0.02
TOLD_S: Final = 0.002
_KEPT: Final = 1 << 16


class Lag:
    """``tick`` until it is cancelled."""

    def __init__(self, now_ns: NowNs) -> None:
        self._now_ns = now_ns
        self._late_ns = array("q")

    async def tick(self) -> None:
        """Look every 20 ms, for so long as there is room: twenty minutes."""
        while len(self._late_ns) < _KEPT:
            due_ns = self._now_ns() + round(EVERY_S * 1e9)
            await asyncio.sleep(EVERY_S)
            self.add(self._now_ns() - due_ns)

    def add(self, late_ns: int) -> None:
        """A look that came so late."""
        self._late_ns.append(late_ns)

    def note(self) -> str:
        """What a reader of the times must know; empty where it is nothing."""
        if not len(self._late_ns):
            return ""
        p99_s = float(np.quantile(np.array(self._late_ns), 0.99)) / 1e9
        if p99_s < TOLD_S:
            return ""
        return f"this machine is busy: the probe itself came {shown_seconds(p99_s)} late (P99), which times may hold"
