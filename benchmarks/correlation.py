"""The claim about correlation: 40 x 10 pairs with 61 lags over 600 samples in at most 10 ms, missing values or not.

Against ``np.corrcoef`` for every pair and lag in the same run, which is what the result must equal. Once with complete
series, once where 5 % of the samples are missing, of each series others; and where whole moments are missing, as when a
source did not answer. Beside it what the signals cost: a step of ``Dimensions`` for the groups of ``busy_node`` (8
GPUs, 4 servers, 30 processes), after the detectors have read the same scene and without them; what a token costs
``LatencyTracks``; and the matrices of a group. CPU time of one thread, as the daemon keeps it. One JSON line.
Usage: python -m benchmarks.correlation [--seconds N]
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the daemon does; read when numpy is loaded

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.busy_node import GPUS, WARM_UP_S, config, scenario
from benchmarks.common import percentiles, report
from gpumon import catalogue
from gpumon.detect.scene import Scene, SceneMaker
from gpumon.explain.correlation import correlate, lagged
from gpumon.explain.correlations import EVERY_S, Correlations
from gpumon.explain.dimensions import Dimensions
from gpumon.explain.group import Group, group_of
from gpumon.explain.latency_tracks import LatencyTracks
from gpumon.model import Kind, RequestRecord
from gpumon.simulated import SimulatedNode

X, Y, SAMPLES, MAX_LAG = 40, 10, 600, 30
MISSING = 0.05
BAR_MS = 10.0
FEED_BAR_MS = 5.0
ROUNDS = 25

Floats = NDArray[np.float64]


def _cases() -> dict[str, tuple[Floats, Floats]]:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(X, SAMPLES)), random.normal(size=(Y, SAMPLES))
    holes = [np.where(random.random(rows.shape) < MISSING, np.nan, rows) for rows in (x, y)]
    moments = [np.where(random.random(SAMPLES) < MISSING, np.nan, rows) for rows in (x, y)]
    return {"complete": (x, y), "missing": (holes[0], holes[1]), "missing_moments": (moments[0], moments[1])}


def _one_by_one(x: Floats, y: Floats) -> Floats:
    """r by lag and pair, as ``lagged`` has them."""
    lags = [0, *(sign * step for step in range(1, MAX_LAG + 1) for sign in (1, -1))]
    found = np.empty((len(lags), len(x), len(y)))
    for position, lag in enumerate(lags):
        early, late = slice(0, SAMPLES - abs(lag)), slice(abs(lag), SAMPLES)
        here, there = (early, late) if lag >= 0 else (late, early)
        for i, a in enumerate(x[:, here]):
            for j, b in enumerate(y[:, there]):
                known = ~(np.isnan(a) | np.isnan(b))
                found[position, i, j] = np.corrcoef(a[known], b[known])[0, 1]
    return found


def _cpu_ms(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - began)


def _read_all(scene: Scene) -> None:
    """As the detectors do before."""
    for metric in catalogue.METRICS:
        scene.values(metric)
        scene.read(metric)
        if metric.kind is Kind.COUNTER:
            scene.grown(metric)


class _Costs(NamedTuple):
    """Of the signals on the busy node, milliseconds of CPU by step."""

    groups: int
    after_detectors_ms: list[float]
    alone_ms: list[float]
    matrices_ms: list[float]
    """By group."""
    us_per_token: float


def _signals(seconds: int) -> _Costs:
    waiting: list[RequestRecord] = []
    simulated = SimulatedNode(scenario(), 1, config(), on_requests=waiting.extend)
    to_unix_s = simulated.clock.to_unix(0.0)
    scenes, others = (SceneMaker(lambda ns: ns / 1e9 - to_unix_s) for _ in range(2))
    dimensions, alone, latencies = Dimensions(), Dimensions(), LatencyTracks()
    correlations = Correlations(dimensions, latencies)
    after_ms, alone_ms, matrices_ms = [], [], []
    add_ms, tokens = 0.0, 0
    for second in range(round(WARM_UP_S) + seconds):
        simulated.advance(second + 1.0)
        by_group: dict[Group, list[RequestRecord]] = {}
        for record in waiting:
            if record.binding.gpus:
                by_group.setdefault(group_of(record), []).append(record)
        view = simulated.node.store.view(simulated.clock.now_s())
        scene, other = scenes.make(view, waiting), others.make(view, waiting)
        _read_all(scene)
        after_ms.append(_cpu_ms(partial(dimensions.feed, scene, by_group)))
        alone_ms.append(_cpu_ms(partial(alone.feed, other, by_group)))
        for group, records in by_group.items():
            add_ms += _cpu_ms(partial(latencies.add, group, records, scene))
            tokens += sum(record.completion_tokens or 0 for record in records)
        took_ms = _cpu_ms(partial(correlations.step, scene.at_s))
        made = [matrix for matrix in correlations.matrices() if matrix.at_s == scene.at_s]
        if made:
            matrices_ms.append(took_ms / len(made))
        waiting.clear()
    first = round(WARM_UP_S)
    groups = len(dimensions.groups())
    return _Costs(groups, after_ms[first:], alone_ms[first:], matrices_ms, 1e3 * add_ms / tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=120, help="simulated, after the warm-up")
    seconds = parser.parse_args().seconds
    took_ms, one_by_one_s, off = {}, {}, {}
    for name, (x, y) in _cases().items():
        correlate(x, y, MAX_LAG)
        took_ms[name] = percentiles([_cpu_ms(partial(correlate, x, y, MAX_LAG)) for _ in range(ROUNDS)])
        began = time.thread_time()
        exact = _one_by_one(x, y)
        one_by_one_s[name] = time.thread_time() - began
        off[name] = float(np.abs(lagged(x, y, MAX_LAG)[1] - exact).max())
    costs = _signals(seconds)
    worst_ms = max(each["p50"] for each in took_ms.values())
    feed_ms = percentiles(costs.alone_ms)
    report(
        "correlation",
        pairs=X * Y,
        lags=2 * MAX_LAG + 1,
        samples=SAMPLES,
        ms=took_ms,
        bar_ms=BAR_MS,
        corrcoef_s={name: round(spent, 2) for name, spent in one_by_one_s.items()},
        times_faster={name: round(1e3 * spent / took_ms[name]["p50"]) for name, spent in one_by_one_s.items()},
        most_off=max(off.values()),
        gpus=GPUS,
        groups=costs.groups,
        feed_ms_after_detectors=percentiles(costs.after_detectors_ms),
        feed_ms_alone=feed_ms,
        feed_bar_ms=FEED_BAR_MS,
        latencies_us_per_token=round(costs.us_per_token, 3),
        ms_per_matrix=percentiles(costs.matrices_ms),
        matrix_every_s=EVERY_S,
        ok=worst_ms <= BAR_MS and feed_ms["p50"] <= FEED_BAR_MS and max(off.values()) < 1e-9,
    )


if __name__ == "__main__":
    main()
