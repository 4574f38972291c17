"""What limited each GPU over time, and SM against DRAM activity, as the JSON API says it. Reads ``activity``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpumon.catalogue import BOUND_STATES
from gpumon.requests.windows import WIDTH_S
from gpumon.web.activity import POINTS, STEP_S, Activity, Past
from gpumon.web.past import Points, numbers
from gpumon.web.said import Said

POINTS_MAX: Final = 240
"""Of a GPU in an answer."""


class GpuBound(Said):
    """Of one GPU: lists along ``at``."""

    gpu: str
    uuid: str
    at: list[float] = Field(description="Starts of the steps in which something was sampled, in unix seconds.")
    shares: dict[str, list[float]] = Field(description="By state, of the time sampled; they add up to 1.")


class Bound(Said):
    """What limited each GPU. Those without GPM are left out."""

    start: float = Field(description="Unix seconds.")
    end: float = Field(description="Unix seconds.")
    step_seconds: float
    states: list[str]
    gpus: list[GpuBound]


class GpuScatter(Said):
    """Of one GPU: lists along ``at``."""

    gpu: str
    uuid: str
    at: list[float] = Field(description="Starts of the steps in which something was sampled, in unix seconds.")
    sm_active: list[float]
    dram_active: list[float]
    inter_token_p95_seconds: list[float | None] = Field(
        description="Of the servers on the GPU at that time: by the second up to ten minutes back, else by the minute."
    )


class Scatter(Said):
    """SM against DRAM activity, means over a step. GPUs without GPM are left out."""

    start: float = Field(description="Unix seconds.")
    end: float = Field(description="Unix seconds.")
    step_seconds: float
    gpus: list[GpuScatter]


class Latencies(NamedTuple):
    """P95 between tokens of the servers on a GPU; steady seconds."""

    by_minute: Sequence[Points] = ()
    """Starts of minutes."""
    by_second: Sequence[Points] = ()


class Steps(NamedTuple):
    """Bundles of ``activity`` steps, the last of which is over."""

    first: int
    last: int
    width: int

    @property
    def starts_s(self) -> NDArray[np.float64]:
        """Of each bundle, steady seconds."""
        return np.arange(self.first, self.last + 1, self.width, dtype=np.float64) * STEP_S

    @property
    def step_s(self) -> float:
        return self.width * STEP_S


def steps(at_s: float, minutes: float) -> Steps:
    """The last minutes. Bundles begin at multiples of their width, so the same ones are told until one is over."""
    wanted = min(max(1, round(minutes * 60.0 / STEP_S)), POINTS)
    width = math.ceil(wanted / POINTS_MAX)
    bundles = math.ceil(wanted / width)
    end = int(at_s // STEP_S) // width * width
    return Steps(end - bundles * width, end - 1, width)


def bound(
    activity: Activity, at_s: float, minutes: float, to_unix: Callable[[float], float], uuid: str | None
) -> Bound:
    """uuid: of one GPU; None: all."""
    of = steps(at_s, minutes)
    at = _moments(of, to_unix)
    return Bound(
        start=at[0],
        end=round(at[-1] + of.step_s, 1),
        step_seconds=of.step_s,
        states=[*BOUND_STATES],
        gpus=[_bound(past, at) for past in activity.past(of.first, of.last, of.width, uuid)],
    )


def scatter(
    activity: Activity,
    at_s: float,
    minutes: float,
    to_unix: Callable[[float], float],
    uuid: str | None,
    latencies: Callable[[str], Latencies],
) -> Scatter:
    """latencies: of a GPU, by its UUID."""
    of = steps(at_s, minutes)
    at = _moments(of, to_unix)
    return Scatter(
        start=at[0],
        end=round(at[-1] + of.step_s, 1),
        step_seconds=of.step_s,
        gpus=[
            _scatter(past, at, joined(of, latencies(past.uuid)))
            for past in activity.past(of.first, of.last, of.width, uuid)
        ],
    )


def _moments(of: Steps, to_unix: Callable[[float], float]) -> list[float]:
    offset_s = to_unix(0.0)
    return [round(each, 1) for each in (of.starts_s + offset_s).tolist()]


def _bound(past: Past, at: Sequence[float]) -> GpuBound:
    there = ~np.isnan(past.sm_active)
    return GpuBound(
        gpu=past.gpu,
        uuid=past.uuid,
        at=_chosen(at, there),
        shares={state: np.round(past.shares[there, column], 4).tolist() for column, state in enumerate(BOUND_STATES)},
    )


def _scatter(past: Past, at: Sequence[float], latency_s: NDArray[np.float64]) -> GpuScatter:
    there = ~np.isnan(past.sm_active)
    return GpuScatter(
        gpu=past.gpu,
        uuid=past.uuid,
        at=_chosen(at, there),
        sm_active=np.round(past.sm_active[there], 4).tolist(),
        dram_active=np.round(past.dram_active[there], 4).tolist(),
        inter_token_p95_seconds=numbers(latency_s[there]),
    )


def _chosen(at: Iterable[float], there: NDArray[np.bool_]) -> list[float]:
    return [moment for moment, use in zip(at, there.tolist(), strict=True) if use]


def joined(of: Steps, latencies: Latencies) -> NDArray[np.float64]:
    """Of each bundle the mean of its known seconds; where none is known, the worst of the minute in which it begins."""
    starts_s = of.starts_s
    found = np.full(len(starts_s), np.nan)
    for times, values in latencies.by_minute:
        place = np.searchsorted(times, starts_s, "right") - 1
        good = (place >= 0) & (starts_s - times[np.maximum(place, 0)] < WIDTH_S) if len(times) else place >= 0
        found[good] = np.fmax(found[good], values[place[good]])
    sums, counts = np.zeros(len(starts_s)), np.zeros(len(starts_s))
    for times, values in latencies.by_second:
        cells = np.floor((times - starts_s[0]) / of.step_s).astype(np.intp)
        good = (cells >= 0) & (cells < len(starts_s)) & ~np.isnan(values)
        np.add.at(sums, cells[good], values[good])
        np.add.at(counts, cells[good], 1.0)
    np.divide(sums, counts, out=found, where=counts > 0.0)
    return found
