"""The last minutes of each GPU, from the store: a point for each batch that was published, mostly a second apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gpumon import catalogue
from gpumon.model import Metric
from gpumon.store import View
from gpumon.web.past import Points, rates, series
from gpumon.web.said import Series

_GAUGES: Final[dict[str, tuple[Metric, tuple[str, ...]]]] = {
    "utilization": (catalogue.GPU_UTILIZATION, ()),
    "sm_active": (catalogue.GPU_SM_ACTIVE, ()),
    "tensor_active": (catalogue.GPU_TENSOR_ACTIVE, ()),
    "dram_active": (catalogue.GPU_DRAM_ACTIVE, ()),
    "power_watts": (catalogue.GPU_POWER, ("instant",)),
    "sm_clock_hertz": (catalogue.GPU_CLOCK, ("sm",)),
    "temperature_celsius": (catalogue.GPU_TEMPERATURE, ("gpu",)),
    "memory_used_bytes": (catalogue.GPU_MEMORY, ("used",)),
}
_HARMLESS: Final = "low_utilization"
"""A reason for low clocks that costs nothing: nothing is asked of the GPU."""


def gpu_history(
    view: View, of: tuple[str, str], seconds: float, to_unix: Callable[[float], float], step_s: float
) -> Series:
    """Of one GPU. of: its labels gpu and uuid. step_s: how often its readings are published."""
    since_s = view.at_s - seconds
    signals = {name: view.window(metric, (*of, *tail), since_s) for name, (metric, tail) in _GAUGES.items()}
    if not len(signals["power_watts"][0]):
        signals["power_watts"] = view.window(catalogue.GPU_POWER, (*of, "average"), since_s)
    signals["throttled"] = _throttled(view, of, since_s)
    return series(signals, to_unix, step_s)


def _throttled(view: View, of: tuple[str, str], since_s: float) -> Points:
    """Share of each interval in which the reason that held longest held the clocks down."""
    windows = [
        view.window(catalogue.GPU_THROTTLED_SECONDS, (*of, reason), since_s)
        for reason in catalogue.THROTTLE_REASONS
        if reason != _HARMLESS
    ]
    known = [rates(points) for points in windows if len(points[0]) > 1]
    known = [points for points in known if len(points[0])]
    if not known:
        return np.empty(0), np.empty(0)
    if all(len(times) == len(known[0][0]) and (times == known[0][0]).all() for times, _ in known):
        return known[0][0], np.minimum(np.max([shares for _, shares in known], axis=0), 1.0)
    at_s = np.unique(np.concatenate([times for times, _ in known]))
    most = np.zeros(len(at_s))
    for times, shares in known:
        np.maximum.at(most, np.searchsorted(at_s, times), np.minimum(shares, 1.0))
    return at_s, most
