"""The last minutes of each server: what its pages said, and latencies and token rates by the second.

Latencies are of requests that ended, so the newest seconds fill late (``explain.latency_tracks``); without explanation
there are none. Of several replicas the token rates add up and the worst latency counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.explain.latency_tracks import SIGNALS
from gpumon.model import Metric
from gpumon.store import View
from gpumon.web.past import Points, series
from gpumon.web.said import Series

Track = tuple[NDArray[np.int64], NDArray[np.float64]]
"""As ``LatencyTracks.series`` gives it."""
_NAMES: Final = {
    "time_to_first_token_p95": "time_to_first_token_p95_seconds",
    "inter_token_p95": "inter_token_p95_seconds",
    "tokens_per_second": "tokens_per_second",
}


def server_history(
    view: View,
    pair: tuple[str, str],
    pages: Sequence[tuple[str, ...]],
    tracks: Sequence[Track],
    seconds: float,
    to_unix: Callable[[float], float],
) -> Series:
    """Of one server. pages: labels (server, model, endpoint) of its pages. tracks: of each of its groups."""
    since_s = view.at_s - seconds
    signals: dict[str, Points] = {
        "requests_open": _by_second([view.window(catalogue.REQUESTS_OPEN, pair, since_s)], np.add),
        "running": _of_pages(view, catalogue.SERVER_RUNNING, pages, since_s, np.add),
        "waiting": _of_pages(view, catalogue.SERVER_WAITING, pages, since_s, np.add),
        "kv_usage": _of_pages(view, catalogue.SERVER_KV_USAGE, pages, since_s, np.maximum),
    }
    for row, name in enumerate(SIGNALS):
        of = [(numbers.astype(np.float64), values[row]) for numbers, values in tracks]
        known = [(at_s[use], told[use]) for at_s, told in of if (use := ~np.isnan(told) & (at_s >= since_s)).any()]
        signals[_NAMES[name]] = _by_second(known, np.add if name == "tokens_per_second" else np.maximum)
    return series(signals, to_unix, 1.0)


def _of_pages(view: View, metric: Metric, pages: Sequence[tuple[str, ...]], since_s: float, over: np.ufunc) -> Points:
    return _by_second([view.window(metric, labels, since_s) for labels in pages], over)


def _by_second(parts: Sequence[Points], over: np.ufunc) -> Points:
    """Points of several series by whole seconds, joined; of one series in a second the newest counts."""
    there = [(np.floor(times), values) for times, values in parts if len(times)]
    if not there:
        return np.empty(0), np.empty(0)
    at_s = np.unique(np.concatenate([times for times, _ in there]))
    joined = np.full(len(at_s), np.nan)
    for times, values in there:
        mine = np.full(len(at_s), np.nan)
        mine[np.searchsorted(at_s, times)] = values
        joined = np.where(np.isnan(joined), mine, np.where(np.isnan(mine), joined, over(joined, mine)))
    return at_s, joined
