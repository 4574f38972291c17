"""Fast rows of a flight recording as signals, so that they are compared before, during and after like all others.

Of the columns, those that tell what a GPU did and what held it back; at the full cadence, so that the least and most of
a short incident are in them. Throttling is the share of readings with any reason but idleness and configured clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.model import Kind, Unit
from gpumon.record.flight_reader import Flight, IncidentRecord, Series

PREFIX: Final = "fast "
_COLUMNS: Mapping[str, tuple[str, Unit]] = {
    "clock_sm": ("sm_clock", Unit.HERTZ),
    "power_instant": ("power", Unit.WATTS),
    "sm_active": ("sm_active", Unit.RATIO),
    "dram_active": ("dram_active", Unit.RATIO),
    "temperature": ("temperature", Unit.CELSIUS),
    "reasons": ("throttled", Unit.RATIO),
}
"""From the name of a column to that of its signal, and its unit."""
_NO_THROTTLING = 0x1 | 0x2
"""Bits of NVML's clocks event reasons: idle, and clocks set by configuration."""
_MOST_MASK = float(1 << 53)


def fast_series(flight: Flight, incident: IncidentRecord) -> list[Series]:
    """Signals of the incident's GPU, or of all GPUs where it has none; those that had a reading."""
    found: list[Series] = []
    for uuid, rows in flight.fast.items():
        if incident.uuid not in ("", uuid):
            continue
        labels = (("gpu", incident.gpu if incident.uuid else ""), ("uuid", uuid))
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        for number, column in enumerate(flight.columns, 1):
            if column in _COLUMNS:
                name, unit = _COLUMNS[column]
                values = _throttled(rows[:, number]) if column == "reasons" else rows[:, number]
                known = np.isfinite(values) & np.isfinite(rows[:, 0])
                if known.any():
                    times, values = rows[:, 0][known], values[known]
                    found.append(Series(PREFIX + name, Kind.GAUGE.value, unit.value, labels, times, values))
    return found


def _throttled(masks: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where there is a reason, 0 where there is none, NaN where there was no mask."""
    is_mask = (masks >= 0.0) & (masks < _MOST_MASK)
    bits = np.where(is_mask, masks, 0.0).astype(np.int64) & ~_NO_THROTTLING
    return np.where(is_mask, (bits != 0).astype(np.float64), np.nan)
