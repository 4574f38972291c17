"""The last minutes of every GPU at the fast cadence, in rings of fixed size.

Rows come from the sampler link as they are drained (``Hearing``'s ``rows``). Counters and the mask of throttle reasons
are kept as doubles, gauges in single precision: seven digits, more than any sensor tells. NaN stands for "no reading"
in here, as it does in the rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.model import GpuUuid
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column

MOST_GPUS = 64
"""Rings; of more GPUs, the one that has been silent longest is forgotten."""
_EXACT = (
    Column.REASONS,
    Column.ENERGY,
    *(column for column in Column if column.name.startswith("THROTTLED_")),
    *(Column.PCIE_TX, Column.PCIE_RX, Column.NVLINK_TX, Column.NVLINK_RX),
)
_ROUNDED = tuple(column for column in Column if column not in _EXACT)
ROW_BYTES = 8 + 8 * len(_EXACT) + 4 * len(_ROUNDED)
DIGITS = np.array(
    [
        3
        if column.name in ("TEMPERATURE", "MEMORY_TEMPERATURE", "ENERGY", "POWER_AVERAGE", "POWER_INSTANT")
        else 6
        if column.name.startswith("THROTTLED_") or column is Column.GPM_INTERVAL
        else 5
        if column.name.endswith("_ACTIVE") or column in (Column.UTILIZATION, Column.MEMORY_BUSY, Column.SM_OCCUPANCY)
        else 0
        for column in Column
    ],
    np.intp,
)
"""Decimal digits that ``packing`` is to keep of each column, in the order of ``Column``."""


class FastRows(NamedTuple):
    """Rows of one GPU, oldest first."""

    uuid: GpuUuid
    rows: NDArray[np.float64]
    """Shape (rows, 1 + columns): steady seconds, then the columns in ``Column``'s order; NaN: no reading."""


class _Ring:
    """Rows of one GPU."""

    __slots__ = ("at_s", "exact", "filled", "next", "rounded")

    def __init__(self, depth: int) -> None:
        self.at_s = np.empty(depth)
        self.exact = np.empty((depth, len(_EXACT)))
        self.rounded = np.empty((depth, len(_ROUNDED)), np.float32)
        self.next = 0
        self.filled = 0

    @property
    def newest_s(self) -> float:
        return float(self.at_s[self.next - 1]) if self.filled else -math.inf

    def add(self, rows: Sequence[Row]) -> None:
        depth, newest_s = len(self.at_s), self.newest_s
        rows = [row for row in rows if row.at_ns / 1e9 > newest_s][-depth:]
        if not rows:
            return
        values = np.array([row.values for row in rows])
        places = (self.next + np.arange(len(rows))) % depth
        self.at_s[places] = [row.at_ns / 1e9 for row in rows]
        self.exact[places] = values[:, _EXACT]
        with np.errstate(over="ignore"):  # what is too large for single precision becomes infinite, and no reading
            self.rounded[places] = values[:, _ROUNDED]
        self.next = (self.next + len(rows)) % depth
        self.filled = min(self.filled + len(rows), depth)

    def after(self, at_s: float) -> NDArray[np.float64]:
        places = np.arange(self.next - self.filled, self.next) % len(self.at_s)
        places = places[self.at_s[places] > at_s]
        rows = np.empty((len(places), 1 + len(Column)))
        rows[:, 0] = self.at_s[places]
        rows[:, 1 + np.array(_EXACT)] = self.exact[places]
        rows[:, 1 + np.array(_ROUNDED)] = self.rounded[places]
        rows[np.isinf(rows)] = np.nan
        return rows


class FastPast:
    """One ring per GPU. One thread adds, others may read: one lock, held shortly.

    Memory: ``ring_bytes`` per GPU, reserved with its first row, and for MOST_GPUS at most.
    """

    def __init__(self, *, seconds: float, fast_s: float) -> None:
        """seconds: how far back. fast_s: the cadence; rows that come faster reach less far back."""
        self._lock = threading.Lock()
        self._depth = max(1, math.ceil(seconds / fast_s))
        self._rings: dict[GpuUuid, _Ring] = {}

    @property
    def ring_bytes(self) -> int:
        """Memory per GPU."""
        return self._depth * ROW_BYTES

    @property
    def size_bytes(self) -> int:
        """Memory of all rings there are."""
        return len(self._rings) * self.ring_bytes

    def add(self, uuid: GpuUuid, rows: Sequence[Row]) -> None:
        """Take rows of one GPU, oldest first; those not newer than what is there are left out."""
        with self._lock:
            ring = self._rings.get(uuid)
            if ring is None:
                if len(self._rings) >= MOST_GPUS:
                    del self._rings[min(self._rings, key=lambda known: self._rings[known].newest_s)]
                ring = self._rings[uuid] = _Ring(self._depth)
            ring.add(rows)

    def after(self, since_s: Mapping[GpuUuid, float]) -> list[FastRows]:
        """Copies of the rows newer than that of each GPU (all of one that is not named), in order of UUIDs."""
        with self._lock:
            found = [
                FastRows(uuid, ring.after(since_s.get(uuid, -math.inf))) for uuid, ring in sorted(self._rings.items())
            ]
        return [gpu for gpu in found if len(gpu.rows)]
