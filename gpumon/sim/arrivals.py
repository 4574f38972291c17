"""The load: when requests arrive, and what each of them wants.

Every load draws from a generator of its own, in the order of time, and never learns how the server fares: so the same
requests come with and without a fault that does not touch the load. Times are seconds of the story.
"""

from __future__ import annotations

import math
from bisect import bisect
from itertools import accumulate
from random import Random

from gpumon.sim import noise
from gpumon.sim.effects import ServerEffects
from gpumon.sim.scenario import Load, ServerSpec

_STRETCH = 0.25  # prompts are up to this share longer than their length in the scenario
_LONG_SHARE = 0.25  # of prompts that the fault long_prompts makes longer
_MODEL_LENGTH = 0.6  # of the KV cache's capacity: what is longer is cut, as by a server's max_model_len
_BURST_SHARE, _BURST_RATE, _LULL_RATE = 0.3, 2.4, 0.4  # of time, and of the mean rate: bursty arrivals
_BURST_S = 3.0
_SCORE_SPREAD = 0.05
_LONGEST_OUTPUT = 12.0  # means


class Request:
    """One request, from arrival to end. The server fills in what happens to it."""

    __slots__ = (
        *("admitted_s", "alone", "cached", "done", "first_s", "first_truth", "group", "made", "mark", "number"),
        *("own_s", "parameters", "paused_s", "prompt", "score", "segments", "start_s", "tenant", "todo"),
        *("wait_mark", "waits", "wanted"),
    )

    def __init__(self, start_s: float, prompt: int, cached: int, wanted: int, tenant: str) -> None:
        self.start_s = start_s
        self.prompt = prompt
        self.cached = cached
        self.wanted = wanted
        """Tokens to make."""
        self.tenant = tenant
        self.parameters: tuple[tuple[str, float], ...] = ()
        self.group = ""
        self.score: float | None = None
        self.number = 0
        self.admitted_s = -math.inf
        """First admission."""
        self.first_s = -math.inf
        """First token."""
        self.made = 0
        """Tokens made before the present segment."""
        self.done = 0
        """Tokens of context computed, while in prefill."""
        self.todo = 0
        """Tokens left to compute, while in prefill."""
        self.segments: list[tuple[int, int]] = []
        """Steps in which it got tokens, from and to (not itself); several when it was preempted."""
        # For the true account:
        self.own_s = 0.0
        """Time that its own prefill took, on healthy hardware."""
        self.wait_mark: list[float] = []
        """The server's waiting times by cause, at arrival."""
        self.waits: list[float] = []
        """The same that passed until admission."""
        self.mark: list[float] = []
        """The server's ledger at admission, then at the first token or the first after a preemption."""
        self.paused_s: float | None = None
        """When it was preempted, while it is."""
        self.first_truth: list[float] = []
        self.alone: list[float] | None = None
        """True excess of its gaps, as far as it is summed up."""


class LoadSource:
    """Requests of one load."""

    def __init__(self, load: Load, server: ServerSpec, seed: int, index: int) -> None:
        self._load = load
        self._random = Random(noise.bits(seed, index, 31))  # noqa: S311 - a simulation, repeatable on purpose
        self._lengths = list(load.lengths)
        self._length_steps = list(accumulate(load.lengths.values()))
        self._tenants = list(load.tenants)
        self._tenant_weights = list(load.tenants.values())
        self._parameters = list(load.parameters.items())
        self._groups = list(load.evaluations.items())
        self._longest = max(1, int(_MODEL_LENGTH * server.kv_capacity_tokens))
        spread = math.log(1 + load.outputs.spread**2)
        self._output_log, self._output_spread = math.log(load.outputs.mean) - spread / 2, math.sqrt(spread)
        self._constant = load.arrivals.process == "constant"
        self._bursty = load.arrivals.process == "bursty"
        self._in_burst = False
        self._left = self._gap()

    def tick(self, story_s: float, length_s: float, effects: ServerEffects) -> list[Request]:
        """Requests that arrive within a tick, by time."""
        weights = self._tenant_weights
        if effects.tenants:
            named = zip(self._tenants, weights, strict=True)
            weights = [weight * effects.tenants.get(tenant, 1.0) for tenant, weight in named]
        flood = sum(weights) / sum(self._tenant_weights)
        expected = self._rate(story_s, length_s) * effects.arrivals * flood * length_s
        found: list[Request] = []
        used = 0.0
        # Gaps of a process of rate one, stretched by the rate there is.
        while self._left <= expected - used:
            used += self._left
            found.append(self._request(story_s + length_s * used / expected, weights, effects))
            self._left = self._gap()
        self._left -= expected - used
        return found

    def _rate(self, story_s: float, length_s: float) -> float:
        arrivals = self._load.arrivals
        rate = arrivals.per_s
        if arrivals.wave is not None:
            rate *= 1 + arrivals.wave.amplitude * math.sin(2 * math.pi * story_s / arrivals.wave.period_s)
        if self._bursty:
            mean_s = _BURST_S if self._in_burst else _BURST_S * (1 - _BURST_SHARE) / _BURST_SHARE
            if self._random.random() < length_s / mean_s:
                self._in_burst = not self._in_burst
            rate *= _BURST_RATE if self._in_burst else _LULL_RATE
        return rate

    def _gap(self) -> float:
        return 1.0 if self._constant else self._random.expovariate(1.0)

    def _request(self, start_s: float, weights: list[float], effects: ServerEffects) -> Request:
        draw = self._random.random
        length = self._lengths[bisect(self._length_steps, draw() * self._length_steps[-1], hi=len(self._lengths) - 1)]
        prompt = length * (1 + _STRETCH * draw()) * effects.context
        cached = prompt * self._load.cached_share
        if draw() < _LONG_SHARE and effects.long_prompts > 1:
            prompt, cached = prompt * effects.long_prompts, 0.0
        wanted = math.exp(self._output_log + self._output_spread * self._random.gauss(0.0, 1.0))
        tenant = self._random.choices(self._tenants, weights)[0] if len(weights) > 1 else self._tenants[0]
        tokens = max(1, min(self._longest, int(prompt)))
        made = max(1, int(min(wanted, _LONGEST_OUTPUT * self._load.outputs.mean)))
        request = Request(start_s, tokens, min(int(cached), tokens - 1), made, tenant)
        if self._parameters:
            request.parameters = tuple([(name, values[int(draw() * len(values))]) for name, values in self._parameters])
            request.wanted = min(made, max(1, int(dict(request.parameters).get("max_tokens", made))))
        if self._groups:
            place = int(draw() * len(self._groups))
            request.group, mean = self._groups[place]
            score = mean + _SCORE_SPREAD * self._random.gauss(0.0, 1.0)
            if place == 0:
                score *= 1 - effects.quality
            request.score = min(1.0, max(0.0, score))
        return request
