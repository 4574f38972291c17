"""The JSON API and its docs page, over the same view that a scrape sees. FastAPI; imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from gpumon import __version__, catalogue
from gpumon.model import Distribution, Metric
from gpumon.store import View

_GPU_FAMILIES: tuple[Metric, ...] = tuple(
    metric
    for metric in catalogue.METRICS
    if metric.labels[:2] == catalogue.GPU and "pid" not in metric.labels and metric.kind.value in ("gauge", "counter")
)


class Reading(BaseModel):
    """One series of a GPU."""

    metric: str = Field(description="Name as on /metrics.")
    labels: dict[str, str] = Field(description="Labels other than gpu and uuid.")
    value: float


class Gpu(BaseModel):
    """A GPU and what is known of it now."""

    gpu: str = Field(description="NVML's index.")
    uuid: str
    present: bool = Field(description="False once it is lost or a call to it hangs.")
    info: dict[str, str] = Field(description="Labels of gpumon_gpu_info; empty until the first inventory.")
    readings: list[Reading]


class SourceHealth(BaseModel):
    """How a source fares."""

    source: str
    up: bool
    last_success: float | None = Field(description="Unix time.")
    duration_seconds: float | None
    errors: dict[str, float]


def make_api(view: Callable[[], View], *more: APIRouter) -> FastAPI:
    """The application. ``view``: what is true now. ``more``: its other parts, such as ``incidents.incident_routes``."""
    api = FastAPI(title="gpumon", version=__version__, docs_url="/docs", redoc_url=None)

    @api.get("/", response_class=HTMLResponse, include_in_schema=False)
    def index() -> str:
        return _index(set(api.openapi()["paths"]))

    @api.get("/api/v1/gpus")
    def gpus(uuid: Annotated[str | None, Query(max_length=96)] = None) -> list[Gpu]:
        """Every GPU, or the one with this uuid, with all its readings."""
        return [gpu for gpu in _gpus(view()) if uuid is None or gpu.uuid == uuid]

    @api.get("/api/v1/sources")
    def sources() -> list[SourceHealth]:
        """Where the numbers come from, and whether they come."""
        return _sources(view())

    for router in more:
        api.include_router(router)
    return api


def _gpus(view: View) -> list[Gpu]:
    found: dict[str, Gpu] = {}
    for sample in view.family(catalogue.GPU_PRESENT):
        gpu, uuid = sample.labels
        found[uuid] = Gpu(gpu=gpu, uuid=uuid, present=sample.value == 1.0, info={}, readings=[])
    for sample in view.family(catalogue.GPU_INFO):
        if (known := found.get(sample.labels[1])) is not None:
            known.info = dict(zip(catalogue.GPU_INFO.labels[2:], sample.labels[2:], strict=True))
    for metric in _GPU_FAMILIES:
        for sample in view.family(metric):
            known = found.get(sample.labels[1])
            if known is not None and not isinstance(sample.value, Distribution):
                labels = dict(zip(metric.labels[2:], sample.labels[2:], strict=True))
                known.readings.append(Reading(metric=metric.name, labels=labels, value=sample.value))
    return sorted(found.values(), key=lambda gpu: (len(gpu.gpu), gpu.gpu, gpu.uuid))


def _sources(view: View) -> list[SourceHealth]:
    found: dict[str, SourceHealth] = {}
    for sample in view.family(catalogue.SOURCE_UP):
        name = sample.labels[0]
        found[name] = SourceHealth(
            source=name, up=sample.value == 1.0, last_success=None, duration_seconds=None, errors={}
        )
    for sample in view.family(catalogue.SOURCE_LAST_SUCCESS):
        found[sample.labels[0]].last_success = _number(sample.value)
    for sample in view.family(catalogue.SOURCE_DURATION):
        found[sample.labels[0]].duration_seconds = _number(sample.value)
    for sample in view.family(catalogue.SOURCE_ERRORS):
        found[sample.labels[0]].errors[sample.labels[1]] = _number(sample.value)
    return list(found.values())


def _number(value: float | Distribution) -> float:
    assert not isinstance(value, Distribution)
    return value


_PAGES: Final = (
    ("/metrics", "everything, for Prometheus"),
    ("/metrics?names=dcgm", "under dcgm-exporter's names"),
    ("/api/v1/gpus", "every GPU as JSON"),
    ("/api/v1/incidents", "what was found, and what to do"),
    ("/api/v1/diagnose", "why tokens were slow in the last half hour; /api/v1/surface has one latency of it"),
    ("/api/v1/explained", "the newest slow requests; /api/v1/explain?trace_id= tells all of one"),
    ("/api/v1/correlation", "which signals go with latency"),
    ("/api/v1/sources", "whether the sources are well"),
    ("/docs", "the JSON API"),
)


def _index(served: set[str]) -> str:
    """Links to what this gpumon serves. served: paths of the API's own routes."""
    items = "".join(
        f'<li><a href="{path}">{path}</a>: {text}</li>\n'
        for path, text in _PAGES
        if not path.startswith("/api/") or path in served
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gpumon</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}}</style></head>
<body><h1>gpumon</h1><ul>
{items}</ul></body></html>
"""
