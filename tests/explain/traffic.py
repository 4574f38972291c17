"""Requests of a server that takes as long as the test says, and a witness that says what the test says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.model import Binding, GpuUuid, RequestRecord

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
    **told: object,
) -> list[RequestRecord]:
    """One request each ``every_s``, of so many tokens after the first. timed: tells the times of its tokens."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(round(seconds / every_s)):
        begin_s = start_s + number * every_s
        gaps = gap_s * (1 + noise * random.standard_normal(tokens))
        times = later(np.concatenate(([first_s], first_s + np.cumsum(gaps))), begin_s, slower)
        times_ns = np.rint(times * 1e9).astype(np.int64)
        fields: dict[str, object] = {
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
        found.append(RequestRecord(**(fields | told)))  # type: ignore[arg-type]
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
