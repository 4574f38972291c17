"""What the API reads, for its tests: a store that is filled by hand, on a clock that stands still, and explanation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.explain.engine import Explanation
from gpumon.host.clock import ManualClock
from gpumon.model import Metric, Sample
from gpumon.requests.statistics import RequestStatistics
from gpumon.store import Store
from gpumon.web.activity import Activity
from gpumon.web.api import make_api
from gpumon.web.incidents import Telling
from gpumon.web.knowledge import Knowledge
from gpumon.web.live import Live
from gpumon.web.node_state import Facts
from gpumon.web.routes import hour_routes, now_routes, request_routes, stream_routes
from gpumon.web.stream import Stream
from tests.web.asking import Reply, ask

START_S = 100_020.0
"""Steady seconds at which the clock begins: the beginning of a minute."""
OFFSET_S = 1_800_000_000.0
GPU = ("3", "GPU-0003")


class Known:
    """See the module. ``get`` asks the API for an address below /api/v1."""

    def __init__(self, *, explained: bool = True) -> None:
        self.clock = ManualClock(START_S, START_S + OFFSET_S)
        self.store = Store()
        self.found: list[Incident] = []
        self.statistics = RequestStatistics()
        self.explanation = Explanation([]) if explained else None
        self.activity = Activity()
        self.knowledge = Knowledge(
            self.store.view,
            self.clock.now_s,
            self.clock.to_unix,
            Facts(
                "node-1",
                is_demo=False,
                started_s=START_S - 10.0,
                publish_s=1.0,
                off=(("traces", "otlp.enabled is off"),),
            ),
            incidents=lambda: self.found,
            activity=self.activity,
            statistics=self.statistics,
            explanation=self.explanation,
        )
        telling = Telling(lambda: self.found, self.clock.now_s, self.clock.to_unix)
        self.live = Live(self.knowledge.snapshot, telling, self.clock.now_s)
        self.stream = Stream(self.live.news)
        self.app = self._app()

    def _app(self) -> FastAPI:
        routes = [now_routes(self.knowledge), hour_routes(self.knowledge), stream_routes(self.stream)]
        if self.explanation is not None:
            routes.append(request_routes(self.knowledge, self.explanation))
        return make_api(*routes)

    def put(self, owner: str, *samples: Sample, ttl_s: float = 5.0) -> None:
        """All that an owner says now."""
        self.store.put(owner, self.clock.now_s(), samples, ttl_s)

    def run(self, owner: str, seconds: int, samples: Any) -> None:
        """A batch a second, ``samples(n)``, the last one now; the activity looks at each."""
        for number in range(seconds):
            self.clock.step(1.0)
            self.put(owner, *samples(number + 1))
            self.activity.take(self.store.view(self.clock.now_s()))

    def ask(self, path: str, query: str = "") -> Reply:
        return ask(self.app, f"/api/v1/{path}", query)

    def get(self, path: str, query: str = "") -> Any:
        """What a good question is answered."""
        reply = self.ask(path, query)
        assert reply.status == 200, reply.body
        return reply.json


def gpu_sample(metric: Metric, value: float, *labels: str, gpu: tuple[str, str] = GPU) -> Sample:
    """Of the GPU."""
    return Sample(metric, (*gpu, *labels), value)


def present(*gpus: tuple[str, str]) -> list[Sample]:
    """GPUs that are there."""
    return [gpu_sample(catalogue.GPU_PRESENT, 1.0, gpu=gpu) for gpu in gpus or (GPU,)]


def bound_seconds(seconds: Iterable[float], gpu: tuple[str, str] = GPU) -> list[Sample]:
    """Counters by state, in the order of the catalogue."""
    states: Sequence[str] = catalogue.BOUND_STATES
    return [
        gpu_sample(catalogue.GPU_BOUND_SECONDS, value, state, gpu=gpu)
        for state, value in zip(states, seconds, strict=True)
    ]
