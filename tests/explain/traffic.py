"""Requests of a server that takes as long as the test says, a witness that says what the test says, and what
explanation makes of them, stepped once a second over a ``Stage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES, EXPLAINED_REQUESTS, PHASES, SLOW_TOKEN_SECONDS, TOKEN_EXCESS
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain.engine import Explanation
from gpumon.explain.explained import Explained
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign, Witness
from gpumon.model import Binding, GpuUuid, Metric, RequestRecord, Sample
from tests.detect.requests import request
from tests.detect.scenes import Stage

GPU: Key = ("gpu", "GPU-0000")
GAP_S = 0.02
FIRST_S = 0.1


class Slower(NamedTuple):
    """Work takes so many times as long from here to there; infinitely many: it stands still."""

    start_s: float
    end_s: float
    factor: float


def later(work_s: NDArray[np.float64], start_s: float, slower: Sequence[Slower]) -> NDArray[np.float64]:
    """When so much work is done that begins at ``start_s``."""
    done, at = [0.0], [start_s]
    for each in sorted(slower):
        if each.end_s <= start_s:
            continue
        begin_s = max(each.start_s, at[-1])
        done += [done[-1] + begin_s - at[-1], done[-1] + begin_s - at[-1] + (each.end_s - begin_s) / each.factor]
        at += [begin_s, each.end_s]
    done.append(done[-1] + 1e6)
    at.append(at[-1] + 1e6)
    return np.asarray(np.interp(work_s, done, at), dtype=np.float64)


def traffic(
    start_s: float,
    seconds: float,
    *,
    every_s: float = 0.25,
    tokens: int = 100,
    gap_s: float = GAP_S,
    first_s: float = FIRST_S,
    prompt: int = 500,
    slower: Sequence[Slower] = (),
    noise: float = 0.01,
    seed: int = 1,
    gpus: Sequence[str] = (GPU[1],),
    timed: bool = True,
    **told: Any,
) -> list[RequestRecord]:
    """One request each ``every_s``, of so many tokens after the first. timed: tells the times of its tokens."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(round(seconds / every_s)):
        begin_s = start_s + number * every_s
        gaps = gap_s * (1 + noise * random.standard_normal(tokens))
        times = later(np.concatenate(([first_s], first_s + np.cumsum(gaps))), begin_s, slower)
        times_ns = np.rint(times * 1e9).astype(np.int64)
        fields: dict[str, Any] = {
            "trace_id": (seed * 1_000_000 + number + 1).to_bytes(16, "big"),
            "span_id": (number + 1).to_bytes(8, "big"),
            "request_id": str(number),
            "server": "vllm",
            "model": "m",
            "arrived_s": begin_s,
            "start_ns": round(begin_s * 1e9),
            "end_ns": int(times_ns[-1]),
            "first_token_ns": int(times_ns[0]),
            "time_to_first_token_s": float(times[0] - begin_s),
            "prompt_tokens": prompt,
            "completion_tokens": tokens + 1,
            "binding": Binding("resource", gpus=tuple(GpuUuid(uuid) for uuid in gpus)) if gpus else Binding(),
        }
        if timed:
            fields |= {"token_ns": times_ns, "per_token": True}
        found.append(RequestRecord(**(fields | told)))
    return found


class Held(NamedTuple):
    """What a witness sees from here to there."""

    cause: str
    start_s: float
    end_s: float
    evidence: float = 0.95
    cap: float = 1.0
    key: Key = GPU
    fact: Fact | None = None


class Saying:
    """A witness of what is told to it, read once a second."""

    causes: ClassVar[tuple[str, ...]] = ("thermal_throttle",)

    def __init__(self, *held: Held) -> None:
        self.held = held
        self._read_s = 0.0

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterable[Sign]:
        for each in self.held:
            start_s, end_s = max(each.start_s, self._read_s), min(each.end_s, scene.at_s)
            if start_s < end_s:
                yield Sign(each.cause, each.key, start_s, end_s, each.evidence, each.cap, each.fact)
        self._read_s = scene.at_s


class World:
    """A stage, and explanation that looks at it once a second. ``all`` is what it explained, in order."""

    def __init__(self, *witnesses: Witness, **told: Any) -> None:
        self.stage = Stage()
        self.explanation = Explanation(witnesses, **told)
        self.all: list[Explained] = []
        self.explanation.listeners.append(self.all.extend)
        self.incidents: list[Incident] = []
        self.samples: list[Sample] = []

    def step(self, requests: Sequence[RequestRecord] = (), seconds: float = 1.0) -> None:
        """Requests: that became known since the last step."""
        self.samples = self.explanation.look(self.stage.step(seconds, requests), self.incidents)

    def run(self, requests: Iterable[RequestRecord], seconds: int) -> None:
        """Requests become known when they end."""
        waiting = sorted(requests, key=lambda record: record.end_ns)
        for _ in range(seconds):
            now_ns = round((self.stage.at_s + 1.0) * 1e9)
            ended = [record for record in waiting if record.end_ns <= now_ns]
            waiting = waiting[len(ended) :]
            self.step(ended)

    def values(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """The newest samples of a family, but zeros."""
        found = {}
        for sample in self.samples:
            if sample.metric is metric and sample.value:
                assert isinstance(sample.value, float)
                found[sample.labels] = sample.value
        return found

    def outcomes(self) -> dict[str, float]:
        """Requests by outcome, of all models."""
        sums: dict[str, float] = {}
        for labels, count in self.values(EXPLAINED_REQUESTS).items():
            sums[labels[2]] = sums.get(labels[2], 0.0) + count
        return sums

    def seconds(self, phase: str = "decode") -> dict[str, float]:
        """Seconds by cause, of all models."""
        sums: dict[str, float] = {}
        for labels, seconds in self.values(SLOW_TOKEN_SECONDS).items():
            if labels[2] == phase:
                sums[labels[3]] = sums.get(labels[3], 0.0) + seconds
        return sums

    def check_conserved(self) -> None:
        """Of every request, and of the counters: the causes are the excess."""
        for each in self.all:
            for account in (each.first_token, each.decode):
                assert account.excess_s >= 0
                assert abs(account.excess_s - sum(share.seconds for share in account.shares)) <= 1e-9 * account.excess_s
                assert all(share.seconds >= 0 for share in account.shares)
                assert [share.seconds for share in account.shares] == sorted(
                    (share.seconds for share in account.shares), reverse=True
                )
                assert {share.cause for share in account.shares} <= set(CAUSES)
            for gap in each.slow_gaps:
                assert abs(gap.excess_s - sum(share.seconds for share in gap.shares)) <= 1e-9 * gap.excess_s
        causes: dict[tuple[str, ...], float] = {}
        for labels, seconds in self.values(SLOW_TOKEN_SECONDS).items():
            causes[labels[:3]] = causes.get(labels[:3], 0.0) + seconds
        excess = self.values(TOKEN_EXCESS)
        assert causes.keys() == excess.keys()
        for labels, seconds in excess.items():
            assert abs(causes[labels] - seconds) <= 1e-9 * seconds
        told = {phase: sum(labels[2] == phase and seconds for labels, seconds in excess.items()) for phase in PHASES}
        first, decode = sum(e.first_token.excess_s for e in self.all), sum(e.decode.excess_s for e in self.all)
        assert abs(told["first_token"] - first) <= 1e-6 * (1 + first)
        assert abs(told["decode"] - decode) <= 1e-6 * (1 + decode)


def quick(number: int, ended_s: float, **told: Any) -> RequestRecord:
    """A request that took a second and tells little, for tests of many."""
    fields: dict[str, Any] = {"first_s": 0.1, "end_s": ended_s, "completion_tokens": 11, "gpus": [GPU[1]]}
    ids = {"trace_id": (number + 1).to_bytes(16, "big"), "span_id": (number + 1).to_bytes(8, "big")}
    return request(ended_s - 1.0, **(fields | ids | told))


HOT = Held("thermal_throttle", 1040.0, 1050.0, 0.95, 0.3)
HOT_TIME = (Slower(1040.0, 1050.0, 1.45),)


def hot_world(*witnesses: Witness, **told: Any) -> World:
    """A minute of a server that was hot for ten seconds, with a witness that says so, or those given."""
    world = World(*(witnesses or (Saying(HOT),)), **told)
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME), 75)
    return world


def lost(slow: Sequence[RequestRecord], calm: Sequence[RequestRecord]) -> float:
    """Seconds by which the decoding of requests took longer than the same would have."""
    return sum(
        (one.end_ns - int(one.first_token_ns or 0) - (other.end_ns - int(other.first_token_ns or 0))) / 1e9
        for one, other in zip(slow, calm, strict=True)
    )
