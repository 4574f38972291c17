"""What GPUs did, in tenths of a second, the last four minutes: the fast rows that correlation looks at.

Of the rows' columns (``sources.gpu_fast.Column``) those that tell what a GPU did and what held it back. A row is of the
tenth of a second before it, so it stands where the middle of that is. Of several rows in one the last one counts; a
tenth of a second without a row is not known (NaN). Throttled is 1 while there is any
reason but idleness and clocks set by configuration. Bounded: 64 GPUs, of which the one silent for longest gives way;
0.1 MB each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.latency_tracks import FAST_CELLS, FAST_S
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column

GPUS: Final = 64
_COLUMNS: Final = {
    "sm_active": Column.SM_ACTIVE,
    "dram_active": Column.DRAM_ACTIVE,
    "tensor_active": Column.TENSOR_ACTIVE,
    "gpu_utilization": Column.UTILIZATION,
    "sm_clock": Column.CLOCK_SM,
    "temperature": Column.TEMPERATURE,
    "power": Column.POWER_INSTANT,
    "throttled": Column.REASONS,
    "gpu_memory_used": Column.MEMORY_USED,
    "pcie_received": Column.PCIE_RX_RATE,
    "pcie_sent": Column.PCIE_TX_RATE,
    "nvlink_received": Column.NVLINK_RX_RATE,
    "nvlink_sent": Column.NVLINK_TX_RATE,
}
NAMES: Final = tuple(_COLUMNS)
"""Rows of ``FastSignals.series``: ratios, hertz, celsius, watts, bytes and bytes/s."""
_POSITIONS: Final = np.array(list(_COLUMNS.values()), dtype=np.intp)
_THROTTLED: Final = NAMES.index("throttled")
_NO_THROTTLING: Final = 0x1 | 0x2
"""Bits of NVML's clocks event reasons: idle, and clocks set by configuration."""
_CELL_NS: Final = round(FAST_S * 1e9)
_HALF_NS: Final = _CELL_NS // 2
_MOST_MASK: Final = float(1 << 53)
_MOST: Final = float(np.finfo(np.float32).max)


class _Cells:
    """Of one GPU."""

    def __init__(self) -> None:
        self.values = np.full((FAST_CELLS, len(NAMES)), np.nan, dtype=np.float32)
        self.newest = -1

    def add(self, rows: Sequence[Row]) -> None:
        numbers = (np.array([row.at_ns for row in rows], dtype=np.int64) - _HALF_NS) // _CELL_NS
        newest = int(numbers.max())
        if newest > self.newest:
            fresh = np.arange(max(self.newest + 1, newest - FAST_CELLS + 1), newest + 1) % FAST_CELLS
            self.values[fresh] = np.nan
            self.newest = newest
        kept = numbers > self.newest - FAST_CELLS
        self.values[numbers[kept] % FAST_CELLS] = _signals(rows)[kept]  # of equal numbers the last one stays


class FastSignals:
    """One thread adds, others read: one lock, held shortly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: dict[str, _Cells] = {}

    def add(self, uuid: str, rows: Sequence[Row]) -> None:
        """Rows of one GPU, oldest first."""
        if not rows:
            return
        with self._lock:
            cells = self._gpus.get(uuid)
            if cells is None:
                if len(self._gpus) >= GPUS:
                    del self._gpus[min(self._gpus, key=lambda known: self._gpus[known].newest)]
                cells = self._gpus[uuid] = _Cells()
            cells.add(rows)

    def series(self, uuids: Sequence[str], first: int, last: int) -> NDArray[np.float64]:
        """Mean over GPUs of the tenths from first to last: (NAMES, last - first + 1). NaN for what is not known.

        Number n is [n / 10, (n + 1) / 10) steady seconds.
        """
        numbers = np.arange(first, last + 1)
        sums = np.zeros((len(numbers), len(NAMES)))
        counts = np.zeros((len(numbers), len(NAMES)))
        with self._lock:
            for cells in [self._gpus[uuid] for uuid in uuids if uuid in self._gpus]:
                kept = (numbers <= cells.newest) & (numbers > cells.newest - FAST_CELLS) & (numbers >= 0)
                values = cells.values[numbers[kept] % FAST_CELLS].astype(np.float64)
                known = ~np.isnan(values)
                sums[kept] += np.where(known, values, 0.0)
                counts[kept] += known
        found = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=found, where=counts > 0)
        return np.ascontiguousarray(found.T)


def _signals(rows: Sequence[Row]) -> NDArray[np.float64]:
    """(rows, NAMES); what single precision cannot hold is no reading."""
    found = np.array([row.values for row in rows])[:, _POSITIONS]
    found[~(np.abs(found) <= _MOST)] = np.nan
    masks = found[:, _THROTTLED]
    is_mask = (masks >= 0) & (masks < _MOST_MASK)
    bits = np.where(is_mask, masks, 0.0).astype(np.int64) & ~_NO_THROTTLING
    found[:, _THROTTLED] = np.where(is_mask, bits != 0, np.nan)
    return found
