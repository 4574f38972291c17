"""What GPUs, processes, servers and the host did while a request ran, on the clock of its tokens.

GPU lanes are the fast rows in tenths of a second (``explain.fast_signals``, four minutes); engine lanes the dimensions
of its group in seconds (``explain.dimensions``, ten minutes). What is older is gone, and its lanes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpumon.catalogue import TITLES
from gpumon.detect.incident import Incident
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.fast_signals import NAMES
from gpumon.explain.group import Group
from gpumon.explain.latency_tracks import FAST_CELLS, FAST_S
from gpumon.web.past import numbers
from gpumon.web.said import Said

POINTS_MAX: Final = 1200
"""Of a lane."""
GPUS_MAX: Final = 16
REQUESTS_MAX: Final = 16
INCIDENTS_MAX: Final = 64
_GPU_LANES: Final = {
    "sm_active": ("SM activity", "ratio"),
    "dram_active": ("DRAM activity", "ratio"),
    "tensor_active": ("tensor pipe activity", "ratio"),
    "gpu_utilization": ("GPU utilization", "ratio"),
    "sm_clock": ("SM clock", "hertz"),
    "throttled": ("held down", "ratio"),
    "power": ("power", "watts"),
    "temperature": ("temperature", "celsius"),
    "pcie_received": ("PCIe to GPU", "bytes/s"),
    "pcie_sent": ("PCIe from GPU", "bytes/s"),
}
_WORST_UNITS: Final = ("faults/s", "s/s")
"""Of these the highest of a step counts, not the mean: a burst is short."""


class Lane(Said):
    """One signal over the time."""

    name: str = Field(description="Snake case.")
    title: str
    unit: str = Field(description="As people write it: ratio, hertz, faults/s, …")
    scope: Literal["gpu", "engine"] = Field(
        description="gpu: of one GPU; engine: of all GPUs, processes, pages and the host of the requests' server."
    )
    gpu: str | None = Field(description="Index of the GPU.")
    uuid: str | None
    start: float = Field(description="Of the first value, in unix seconds.")
    step_seconds: float
    values: list[float | None] = Field(description="Value n is of the step from start + n times step_seconds on.")
    bound: float | None = Field(description="Where it begins to be unhealthy; null where that depends.")
    high_is_bad: bool


class RanRequest(Said):
    """A request of the trace."""

    request_id: str
    span_id: str | None
    server: str
    model: str
    start: float = Field(description="Unix seconds.")
    first_token: float | None = Field(description="When it came; null where that is not told.")
    end: float = Field(description="Unix seconds.")


class DuringIncident(Said):
    """An incident that held meanwhile."""

    id: str
    kind: str
    title: str = Field(description="Of that kind, as people call it.")
    severity: str
    entity: str
    summary: str
    since: float = Field(description="Unix seconds.")
    until: float | None = Field(description="Unix seconds; null while it is open.")


class Timeline(Said):
    """Of one trace."""

    trace_id: str
    start: float = Field(description="Unix seconds.")
    end: float = Field(description="Unix seconds.")
    requests: list[RanRequest]
    lanes: list[Lane] = Field(description="Those of which anything is known.")
    incidents: list[DuringIncident] = Field(description="Of its GPUs, its server or the host, by their beginning.")


class Ran(NamedTuple):
    """When and where a request ran. Steady seconds."""

    request_id: str
    span_id: str
    group: Group
    start_s: float
    first_token_s: float | None
    """When it came."""
    end_s: float


class Signals(Protocol):
    """What is remembered of the last minutes."""

    @property
    def now_s(self) -> float:
        """Steady seconds."""
        ...

    def fast(self, uuid: str, first: int, last: int) -> NDArray[np.float64]:
        """As ``FastSignals.series`` of one GPU."""
        ...

    def dimensions(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """As ``Dimensions.series``."""
        ...


def timeline(
    trace_id: str,
    ran: Sequence[Ran],
    margin_s: float,
    signals: Signals,
    incidents: Iterable[Incident],
    gpus: Mapping[str, str],
    to_unix: Callable[[float], float],
) -> Timeline:
    """ran: at least one. margin_s: told before and after. incidents: all that are kept. gpus: index by UUID."""
    shown = sorted(ran, key=lambda each: each.start_s)[:REQUESTS_MAX]
    start_s = shown[0].start_s - margin_s
    end_s = max(each.end_s for each in shown) + margin_s
    groups = list(dict.fromkeys(each.group for each in shown))
    found = dict.fromkeys(uuid for group in groups for uuid in group.gpus)
    uuids = sorted(found, key=lambda uuid: (uuid not in gpus, len(gpus.get(uuid, "")), gpus.get(uuid, ""), uuid))[
        :GPUS_MAX
    ]
    lanes = [lane for uuid in uuids for lane in _gpu_lanes(uuid, gpus.get(uuid), start_s, end_s, signals, to_unix)]
    for group in groups:
        lanes += _engine_lanes(group, start_s, end_s, signals, to_unix)
    return Timeline(
        trace_id=trace_id,
        start=to_unix(start_s),
        end=to_unix(end_s),
        requests=[_request(each, to_unix) for each in shown],
        lanes=lanes,
        incidents=_during(incidents, groups, trace_id, start_s, end_s, to_unix),
    )


def _request(ran: Ran, to_unix: Callable[[float], float]) -> RanRequest:
    return RanRequest(
        request_id=ran.request_id,
        span_id=ran.span_id or None,
        server=ran.group.server,
        model=ran.group.model,
        start=to_unix(ran.start_s),
        first_token=to_unix(ran.first_token_s) if ran.first_token_s is not None else None,
        end=to_unix(ran.end_s),
    )


def _gpu_lanes(
    uuid: str, gpu: str | None, start_s: float, end_s: float, signals: Signals, to_unix: Callable[[float], float]
) -> list[Lane]:
    # Not more than is kept: a request may have lasted for days.
    first = math.floor(max(start_s, signals.now_s - FAST_CELLS * FAST_S) / FAST_S)
    last = math.ceil(min(end_s, signals.now_s) / FAST_S) - 1
    if last < first:
        return []
    rows = signals.fast(uuid, first, last)
    found = []
    for name, (title, unit) in _GPU_LANES.items():
        values = rows[NAMES.index(name)]
        if not np.isnan(values).all():
            width, thinned = _thinned(values, worst=name == "throttled")
            found.append(
                Lane(
                    name=name,
                    title=title,
                    unit=unit,
                    scope="gpu",
                    gpu=gpu,
                    uuid=uuid,
                    start=to_unix(first * FAST_S),
                    step_seconds=round(width * FAST_S, 3),
                    values=numbers(thinned),
                    bound=None,
                    high_is_bad=name in ("throttled", "temperature"),
                )
            )
    return found


def _engine_lanes(
    group: Group, start_s: float, end_s: float, signals: Signals, to_unix: Callable[[float], float]
) -> list[Lane]:
    seconds, rows = signals.dimensions(group)
    kept = (seconds >= math.floor(start_s)) & (seconds < math.ceil(end_s))
    if not kept.any():
        return []
    first = int(seconds[kept][0])
    found = []
    for dimension, row in zip(DIMENSIONS, rows[:, kept].astype(np.float64), strict=True):
        if not np.isnan(row).all():
            width, thinned = _thinned(row, worst=dimension.unit in _WORST_UNITS)
            found.append(
                Lane(
                    name=dimension.name,
                    title=dimension.title,
                    unit=dimension.unit,
                    scope="engine",
                    gpu=None,
                    uuid=None,
                    start=to_unix(float(first)),
                    step_seconds=float(width),
                    values=numbers(thinned),
                    bound=dimension.bound,
                    high_is_bad=dimension.high_is_bad,
                )
            )
    return found


def _thinned(values: NDArray[np.float64], *, worst: bool) -> tuple[int, NDArray[np.float64]]:
    """How many values are joined to one, and those: the highest of each, or the mean of what is known."""
    width = max(1, math.ceil(len(values) / POINTS_MAX))
    if width == 1:
        return width, values
    padded = np.full(math.ceil(len(values) / width) * width, np.nan)
    padded[: len(values)] = values
    parts = padded.reshape(-1, width)
    known = ~np.isnan(parts)
    counts = known.sum(axis=1)
    joined = np.full(len(parts), np.nan)
    there = counts > 0
    if worst:
        joined[there] = np.where(known, parts, -np.inf).max(axis=1)[there]
    else:
        joined[there] = np.where(known, parts, 0.0).sum(axis=1)[there] / counts[there]
    return width, joined


def _during(
    incidents: Iterable[Incident],
    groups: Sequence[Group],
    trace_id: str,
    start_s: float,
    end_s: float,
    to_unix: Callable[[float], float],
) -> list[DuringIncident]:
    uuids = {uuid for group in groups for uuid in group.gpus}
    models = {group.model for group in groups}
    found = []
    for incident in incidents:
        entity = incident.entity
        concerned = (
            entity.uuid in uuids
            or entity.scope == "host"
            or trace_id in incident.traces
            or (entity.scope == "server" and entity.name.partition(" at ")[0].partition("/")[2] in models)
        )
        until_s = incident.seen_s if not incident.is_open else math.inf
        if concerned and incident.since_s <= end_s and until_s >= start_s:
            found.append((incident, until_s))
    found.sort(key=lambda each: each[0].since_s)
    return [
        DuringIncident(
            id=incident.id,
            kind=incident.kind,
            title=TITLES[incident.kind],
            severity=incident.severity.value,
            entity=incident.entity.name,
            summary=incident.summary,
            since=to_unix(incident.since_s),
            until=to_unix(until_s) if math.isfinite(until_s) else None,
        )
        for incident, until_s in found[-INCIDENTS_MAX:]
    ]
