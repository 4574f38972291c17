"""Which gpumon this is, what it can see and what it cannot, as the JSON API says it. Reads a view of the store, and
what does not change while it runs (``Facts``)."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import Field

from gpumon import __version__, catalogue
from gpumon.model import Distribution, Metric
from gpumon.store import View
from gpumon.web.said import Said


class Facts(NamedTuple):
    """Of this gpumon."""

    name: str
    """The node's."""
    is_demo: bool
    started_s: float
    """Steady seconds."""
    publish_s: float
    """How often what GPUs do is published."""
    off: tuple[tuple[str, str], ...] = ()
    """Parts that are switched off, and why."""


class SourceHealth(Said):
    """How a source fares."""

    source: str
    up: bool
    last_success: float | None = Field(description="Unix seconds.")
    duration_seconds: float | None
    errors: dict[str, float] = Field(description="Since gpumon started, by reason.")


class Nvml(Said):
    """gpumon's hold on the NVIDIA driver."""

    state: str = Field(description="starting, running, unavailable, released or stuck; off where it is switched off.")
    error: str | None = Field(description="NVML's name of the return code for which it is unavailable.")
    driver_version: str | None
    nvml_version: str | None
    cuda_version: str | None


class GpuCount(Said):
    """GPUs of the node."""

    expected: int | None
    present: int | None
    lost: int | None


class Unsupported(Said):
    """What some GPUs do not have."""

    field: str
    gpus: list[str] = Field(description="Indices of those that do not have it.")


class Off(Said):
    """A part that is switched off."""

    part: str
    why: str = Field(description="Names the key of the configuration.")


class Node(Said):
    """This gpumon and its node."""

    name: str
    version: str
    python: str
    demo: bool = Field(description="The node is simulated.")
    at: float = Field(description="Now, in unix seconds.")
    started: float = Field(description="Unix seconds.")
    uptime_seconds: float
    clock_offset_seconds: float = Field(description="Unix time less the node's steady clock, CLOCK_MONOTONIC.")
    nvml: Nvml
    gpus: GpuCount
    unsupported: list[Unsupported]
    off: list[Off]
    healthy: bool = Field(description="Every source is up.")
    sources: list[SourceHealth]


def node(view: View, facts: Facts, to_unix: Callable[[float], float]) -> Node:
    """All of it. to_unix: unix time of steady seconds."""
    found = sources(view)
    return Node(
        name=facts.name,
        version=__version__,
        python=platform.python_version(),
        demo=facts.is_demo,
        at=to_unix(view.at_s),
        started=to_unix(facts.started_s),
        uptime_seconds=view.at_s - facts.started_s,
        clock_offset_seconds=to_unix(0.0),
        nvml=nvml(view),
        gpus=GpuCount(expected=_count(view, "expected"), present=_count(view, "present"), lost=_count(view, "lost")),
        unsupported=_unsupported(view),
        off=[Off(part=part, why=why) for part, why in facts.off],
        healthy=all(source.up for source in found),
        sources=found,
    )


def nvml(view: View) -> Nvml:
    """The driver."""
    states = [sample.labels[0] for sample in view.family(catalogue.NVML_STATE) if sample.value == 1.0]
    errors = [sample.labels[0] for sample in view.family(catalogue.NVML_ERROR)]
    drivers = [dict(zip(s.metric.labels, s.labels, strict=True)) for s in view.family(catalogue.DRIVER_INFO)]
    driver = drivers[0] if drivers else {}
    return Nvml(
        state=states[0] if states else "off",
        error=errors[0] if errors else None,
        driver_version=driver.get("driver_version"),
        nvml_version=driver.get("nvml_version"),
        cuda_version=driver.get("cuda_version"),
    )


def sources(view: View) -> list[SourceHealth]:
    """Where the numbers come from, and whether they come."""
    found: dict[str, SourceHealth] = {}
    for sample in view.family(catalogue.SOURCE_UP):
        name = sample.labels[0]
        found[name] = SourceHealth(
            source=name, up=sample.value == 1.0, last_success=None, duration_seconds=None, errors={}
        )
    for labels, value in _of_sources(view, catalogue.SOURCE_LAST_SUCCESS, found):
        found[labels[0]].last_success = value
    for labels, value in _of_sources(view, catalogue.SOURCE_DURATION, found):
        found[labels[0]].duration_seconds = value
    for labels, value in _of_sources(view, catalogue.SOURCE_ERRORS, found):
        found[labels[0]].errors[labels[1]] = value
    return list(found.values())


def _of_sources(view: View, metric: Metric, there: dict[str, SourceHealth]) -> Sequence[tuple[tuple[str, ...], float]]:
    return [
        (sample.labels, sample.value)
        for sample in view.family(metric)
        if sample.labels[0] in there and not isinstance(sample.value, Distribution)
    ]


def _count(view: View, state: str) -> int | None:
    value = view.value(catalogue.GPU_COUNT, (state,))
    return int(value) if value is not None and not isinstance(value, Distribution) else None


def _unsupported(view: View) -> list[Unsupported]:
    gpus: dict[str, list[str]] = {}
    for sample in view.family(catalogue.GPU_FIELD_SUPPORTED):
        if sample.value == 0.0:
            gpus.setdefault(sample.labels[2], []).append(sample.labels[0])
    return [
        Unsupported(field=field, gpus=sorted(found, key=lambda gpu: (len(gpu), gpu)))
        for field, found in sorted(gpus.items())
    ]
