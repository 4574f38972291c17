"""Runs a simulated node for tests of its physics, and sums up what it made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpumon.sim.scenario import parse_scenario
from gpumon.sim.state import CollectiveStep, FinishedRequest, Rate
from gpumon.sim.world import World

STARTED_S = 5_000.0

TEXT = """
name: test
duration_s: {duration_s}
repeat: {repeat}
node: {{model: {model}, gpus: {gpus}}}
servers:
  - {{name: a, model: m, gpus: {served}, parameters_b: 70, {server}}}
load:
  - {{server: a, arrivals: {arrivals}, prompts: {prompts}, cached_share: {cached}, outputs: {outputs}, {load}}}
faults: [{faults}]
"""


def world(*faults: str, **changes: str) -> World:
    """One server of four H200 unless ``changes`` (keys of TEXT) say otherwise. faults: flow mappings without braces."""
    keys = {
        "duration_s": "200",
        "repeat": "false",
        "model": "h200",
        "gpus": "4",
        "served": "[0, 1, 2, 3]",
        "server": "kv_capacity_tokens: 600000, max_batch: 64, prefill_chunk_tokens: 512, host_overhead_s: 0.003",
        "arrivals": "{process: constant, per_s: 1.5}",
        "prompts": "{1k: 1}",
        "cached": "1",
        "outputs": "{mean: 200, spread: 0.1}",
        "load": "tenants: {acme: 3, globex: 1}, evaluations: {chat: 0.8, sum: 0.9}",
        "faults": ", ".join(f"{{{fault}}}" for fault in faults),
    } | changes
    return World(parse_scenario(TEXT.format(**keys)), started_at_s=STARTED_S)


@dataclass
class Run:
    """What a world made up to a second of the story."""

    world: World
    requests: list[FinishedRequest] = field(default_factory=list)
    collectives: list[CollectiveStep] = field(default_factory=list)

    def between(self, since_s: float, until_s: float) -> list[FinishedRequest]:
        """Requests that had all their tokens in a part of the story."""
        return [
            request
            for request in self.requests
            if request.token_s and since_s <= request.token_s[0] - STARTED_S and request.end_s - STARTED_S <= until_s
        ]

    def tokens(self, since_s: float, until_s: float) -> int:
        """Tokens made in a part of the story."""
        return sum(since_s <= at_s - STARTED_S < until_s for row in self.requests for at_s in row.token_s)


def run(world: World, until_s: float) -> Run:
    """Take everything up to a second of the story, a second at a time."""
    found = Run(world)
    at_s = 0.0
    while at_s < until_s:
        at_s = min(until_s, at_s + 1.0)
        found.requests += world.take_requests(STARTED_S + at_s)
        found.collectives += world.take_collectives(STARTED_S + at_s)
    return found


def gaps(requests: Sequence[FinishedRequest]) -> list[float]:
    """Seconds between tokens of the same request."""
    return [later - sooner for row in requests for sooner, later in zip(row.token_s, row.token_s[1:], strict=False)]


def mean_gap(requests: Sequence[FinishedRequest]) -> float:
    """Mean of ``gaps``."""
    found = gaps(requests)
    return sum(found) / len(found)


def truth(requests: Sequence[FinishedRequest], *, first: bool = False) -> Counter[str]:
    """True excess seconds by cause, of the gaps or of the times to first token."""
    total: Counter[str] = Counter()
    for row in requests:
        total.update(dict(row.first_truth if first else row.truth))
    return total


def top(total: Counter[str]) -> str:
    """The cause with the most."""
    return total.most_common(1)[0][0]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def grown(world: World, gpu: int, rate: Rate, since_s: float, until_s: float) -> float:
    """Mean of a rate between two seconds of the story no further apart than the world looks back."""
    newer = world.gpu(gpu, STARTED_S + until_s).total(rate)
    return (newer - world.gpu(gpu, STARTED_S + since_s).total(rate)) / (until_s - since_s)
