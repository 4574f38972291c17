"""Evidence of queueing: requests that wait, and a scheduler that holds steps back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.queue import Queueing
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage
from tests.explain.witnesses.looks import Looks, incident

SERVER = ("vllm", "m", "127.0.0.1:8000")
KEY = ("server", "m")


class Page:
    """Read at every step."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.witness = Queueing()
        self.looks = Looks(self.witness)

    def run(self, seconds: int, waiting: float, *, running: float = 40.0, usage: float | None = 0.3) -> None:
        self.stage.put({(catalogue.SERVER_WAITING, SERVER): waiting, (catalogue.SERVER_RUNNING, SERVER): running})
        if usage is not None:
            self.stage.put({(catalogue.SERVER_KV_USAGE, SERVER): usage})
        self.stage.run(self.looks, float(seconds))

    def now(self) -> tuple[float, float]:
        return self.looks.at(self.stage.at_s - 0.5)


def test_who_waits_is_told_of_and_those_that_run_lose_nothing() -> None:
    page = Page()
    page.run(20, 0.0)
    assert page.looks.signs == []
    page.run(10, 15.0)
    assert page.looks.keys() == [KEY]
    assert page.now() == (1.0, 0.0)
    page.run(1, 0.0)
    assert page.now() == (1.0, 0.0)  # somewhere between the two readings it ended
    last = page.looks.signs[-1].fact
    assert last is not None
    assert last.observed == 15.0  # and not 0, of which nobody would understand that requests waited
    page.looks.take()
    page.run(20, 0.0)
    assert page.looks.signs == []


def test_one_that_waits_for_a_step_is_no_queue() -> None:
    page = Page()
    page.run(20, 0.0)
    page.run(10, 1.0)
    assert page.now()[0] == 0.0
    page.run(10, 1.0, running=6.0)
    assert page.now()[0] < 0.5


def test_a_queue_that_always_stands_is_none() -> None:
    page = Page()
    page.run(60, 20.0)
    assert page.looks.signs == []


@pytest.mark.parametrize(("usage", "low", "high"), [(None, 1.0, 1.0), (0.5, 1.0, 1.0), (0.8, 0.4, 0.6), (0.95, 0, 0)])
def test_who_waits_for_blocks_of_the_cache_is_not_of_this(usage: float | None, low: float, high: float) -> None:
    page = Page()
    page.run(20, 0.0, usage=usage)
    page.run(10, 15.0, usage=usage)
    assert low <= page.now()[0] <= high


def test_an_incident_confirms() -> None:
    page = Page()
    page.run(20, 0.0)
    page.looks.incidents = [incident("queue_buildup", "server", "vllm/m at 127.0.0.1:8000")]
    page.run(5, 0.0)
    assert page.looks.signs == []
    page.run(5, 2.0)
    assert page.now()[0] == 0.8


class Batch:
    """A server of one request a second, ten seconds each, 20 ms a step. Some steps are held back, for all alike."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.witness = Queueing()
        self.looks = Looks(self.witness)
        self._random = np.random.default_rng(7)
        self._steps_s = [BEGIN_S]
        self._prompts: list[tuple[float, float]] = []

    def run(
        self,
        seconds: int,
        *,
        held_back: float = 0.0,
        prompts: bool = False,
        step_s: float = 0.02,
        concurrency: int = 8,
        waiting: float = 0.0,
        each: int = 1,
    ) -> None:
        """held_back: share of steps with a pause of four steps. prompts: one is computed in each such step."""
        self.stage.put({(catalogue.SERVER_WAITING, SERVER): waiting})
        for _ in range(seconds):
            until_s = self.stage.at_s + 1.0
            ended: list[RequestRecord] = []
            while self._steps_s[-1] < until_s:
                begin_s = self._steps_s[-1]
                paused = self._random.random() < held_back
                end_s = begin_s + step_s * float(self._random.normal(1.0, 0.02)) + (4 * step_s if paused else 0.0)
                if paused and prompts:
                    ended.append(request(begin_s, first_s=end_s - begin_s, concurrency=concurrency))
                self._steps_s.append(end_s)
            ended += [self._ended(until_s, concurrency) for _ in range(each)]
            self.looks.step(self.stage.step(1.0, ended))

    def _ended(self, until_s: float, concurrency: int) -> RequestRecord:
        times = np.array([at_s for at_s in self._steps_s if until_s - 10.0 < at_s <= until_s])
        return request(
            float(times[0]) - 0.5, first_s=0.5, gap_s=np.diff(times).tolist(), tokens=1, concurrency=concurrency
        )

    def said(self, since_s: float) -> list[float]:
        return [sign.evidence for sign in self.looks.signs if sign.start_s >= since_s]


def test_steps_that_are_held_back_are_found_at_their_time() -> None:
    server = Batch()
    server.run(90, held_back=0.003)
    assert server.looks.signs == []
    began_s = server.stage.at_s
    server.run(40, held_back=0.08)
    ended_s = server.stage.at_s
    server.run(40, held_back=0.003)
    assert server.looks.keys() == [KEY]
    inside = [server.looks.at(began_s + 4.0 + part)[0] for part in range(32)]
    assert min(inside) >= 0.5
    assert max(inside) <= 0.7  # a detector is surer
    assert server.looks.at(began_s - 7.0) == (0.0, 0.0)
    assert server.looks.at(ended_s + 7.0) == (0.0, 0.0)
    fact = server.looks.signs[-1].fact
    assert fact is not None
    assert fact.name == "step_pauses"


def test_a_detector_confirms_pauses() -> None:
    server = Batch()
    server.run(90, held_back=0.003)
    server.looks.incidents = [incident("batch_jitter", "server", "vllm/m")]
    server.run(20, held_back=0.003)
    assert max(server.said(0.0), default=0.0) == 0.0
    server.run(30, held_back=0.08)
    assert max(server.said(0.0)) == 0.8


def test_prompts_explain_pauses() -> None:
    server = Batch()
    server.run(90, held_back=0.003)
    server.run(40, held_back=0.08, prompts=True)
    assert max(server.said(0.0), default=0.0) < 0.2


def test_a_server_that_always_does_is_none() -> None:
    server = Batch()
    server.run(150, held_back=0.08)
    assert server.looks.signs == []


@pytest.mark.parametrize(
    "change", [{"waiting": 9.0}, {"step_s": 0.05}, {"concurrency": 20}], ids=["waiting", "slow", "loaded"]
)
def test_under_another_load_nothing_is_said_of_pauses(change: dict[str, float]) -> None:
    server = Batch()
    server.run(90, held_back=0.003)
    since_s = server.stage.at_s
    server.run(40, held_back=0.08, **change)  # type: ignore[arg-type]
    # Requests that wait are a sign of their own; of the time of others they take nothing.
    pauses = [s for s in server.looks.signs if s.cap > 0 and s.start_s > since_s + 12.0]
    assert max((sign.evidence for sign in pauses), default=0.0) < 0.2


def odd(kind: str, at_s: float) -> Sequence[RequestRecord]:
    """Requests as they should not be."""
    good = request(at_s - 2.0, tokens=60, concurrency=3)
    assert good.token_ns is not None
    match kind:
        case "future":
            return [request(at_s + 1e6, tokens=60)]
        case "long ago":
            return [request(1.0, tokens=60)]
        case "backwards":
            return [request(at_s - 2.0, gap_s=[0.02, -0.01] * 20, tokens=1)]
        case "at once":
            return [request(at_s - 2.0, gap_s=[0.0] * 40, tokens=1)]
        case "no start":
            return [request(0.0, tokens=60, start_ns=0)]
        case "few":
            return [request(at_s - 2.0, tokens=3)]
        case "no model":
            return [request(at_s - 2.0, tokens=60, model="")]
        case "failed":
            return [request(at_s - 2.0, tokens=60, outcome="error")]
        case _:
            return [request(at_s - 2.0, first_s=None, end_s=at_s - 1.0)]


@pytest.mark.parametrize(
    "kind", ["future", "long ago", "backwards", "at once", "no start", "few", "no model", "failed", "no tokens"]
)
def test_odd_requests_do_no_harm(kind: str) -> None:
    stage, looks = Stage(), Looks(Queueing())
    for _ in range(60):
        looks.step(stage.step(1.0, odd(kind, stage.at_s)))
    assert looks.signs == []


def test_many_models_and_many_requests_are_bounded() -> None:
    stage, witness = Stage(), Queueing()
    looks = Looks(witness)
    for step in range(30):
        ended = [request(stage.at_s - 2.0, tokens=60, model=f"m{n}") for n in range(10 * step, 10 * step + 20)] * 3
        looks.step(stage.step(1.0, ended))
    models = [model for _, model in witness._pauses._models.items()]
    assert len(models) <= 64
    assert all(len(model.prompts) <= 512 and len(model.waiting) <= 64 for model in models)


def test_nothing_is_known() -> None:
    looks = Looks(Queueing())
    Stage().run(looks, 30.0)
    assert looks.signs == []
