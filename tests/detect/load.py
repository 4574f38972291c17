"""A small inference server for tests of detectors: continuous batching in steps, so that its latencies are real ones.

A step decodes one token of every running request and prefills a chunk of the oldest waiting prompt; it takes a fixed
time, a little per running request and per token of context, and the chunk's. Arrivals are random. Requests are told of
when they have ended, a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpumon.detect.detector import Detector, Finding
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage

CHUNK = 2048
OF_TIME = Callable[[float], float]


def always(value: float) -> OF_TIME:
    return lambda at_s: value


@dataclass
class _Running:
    start_s: float
    prompt: int
    left: int
    tenant: str
    to_prefill: int
    first_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    last_s: float = 0.0


@dataclass
class Server:
    """Of time since the stage began."""

    per_s: OF_TIME = field(default_factory=lambda: always(2.0))
    """Arrivals."""
    slower: OF_TIME = field(default_factory=lambda: always(1.0))
    """Times the length of a step."""
    prompts: Callable[[float, float], int] = lambda at_s, luck: 1024 if luck < 0.6 else 2048 if luck < 0.9 else 4096
    """Length of a prompt, by the time and a number from 0 to 1."""
    tenants: Callable[[float, float], str] = lambda at_s, luck: ""
    tokens: float = 120.0
    batch: int = 32
    step_s: float = 0.010
    per_running_s: float = 0.0002
    per_context_s: float = 2e-8
    prefill_s: float = 0.045
    """Of a chunk of 2,048 tokens."""
    model: str = "m"
    gpus: tuple[str, ...] = ()
    seed: int = 1
    delay_s: float = 0.3

    def requests(self, for_s: float) -> Iterator[tuple[float, RequestRecord]]:
        """Every request, and when it is told of, in that order."""
        random = np.random.default_rng(self.seed)
        now_s, next_s = 0.0, 0.0
        waiting: deque[_Running] = deque()
        running: list[_Running] = []
        while now_s < for_s:
            while next_s <= now_s:
                luck, other = random.random(2)
                prompt = int(self.prompts(next_s, luck) * random.uniform(1.0, 1.2))
                left = 1 + int(random.gamma(4.0, self.tokens / 4.0))
                waiting.append(_Running(next_s, prompt, left, self.tenants(next_s, other), prompt))
                next_s += random.exponential(1 / max(self.per_s(next_s), 1e-6))
            if not waiting and not running:
                now_s = next_s
                continue
            took_s = self.step_s + self.per_running_s * len(running)
            took_s += self.per_context_s * sum(each.prompt for each in running)
            prefilled = waiting[0] if waiting and len(running) < self.batch else None
            if prefilled is not None:
                chunk = min(CHUNK, prefilled.to_prefill)
                prefilled.to_prefill -= chunk
                took_s += self.prefill_s * chunk / CHUNK
            now_s += took_s * self.slower(now_s) * random.lognormal(0.0, 0.03)
            for each in running:
                each.gaps_s.append(now_s - each.last_s)
                each.last_s = now_s
                each.left -= 1
            for each in [each for each in running if each.left <= 0]:
                running.remove(each)
                yield now_s + self.delay_s, self._record(each)
            if prefilled is not None and prefilled.to_prefill <= 0:
                prefilled.first_s = prefilled.last_s = now_s
                running.append(waiting.popleft())

    def _record(self, each: _Running) -> RequestRecord:
        assert each.first_s is not None
        return request(
            BEGIN_S + each.start_s,
            first_s=each.first_s - each.start_s,
            gap_s=each.gaps_s,
            prompt_tokens=each.prompt,
            tenant=each.tenant,
            model=self.model,
            gpus=self.gpus,
        )


def play(
    detector: Detector, *servers: Server, for_s: float, step_s: float = 1.0, stage: Stage | None = None
) -> list[tuple[float, Finding]]:
    """Findings, each with the seconds since the stage began."""
    stage = stage or Stage()
    told = sorted((pair for server in servers for pair in server.requests(for_s)), key=lambda pair: pair[0])
    found: list[tuple[float, Finding]] = []
    position = 0
    for step in range(1, round(for_s / step_s) + 1):
        at_s = step * step_s
        ended = []
        while position < len(told) and told[position][0] <= at_s:
            ended.append(told[position][1])
            position += 1
        scene = stage.step(step_s, ended)
        found += [(at_s, finding) for finding in detector.step(scene)]
    return found
