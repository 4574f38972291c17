"""One simulated inference server: continuous batching, step by step.

``batch`` says which requests are in a step; how long it takes is ``costs`` for healthy hardware and ``pace`` for what
is wrong, with noise of a few per cent and rare hiccups. What the steps do to the GPUs comes out as means per tick.
Times are seconds of the story.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, NamedTuple

from gpumon.sim import noise
from gpumon.sim.accounts import Accounts
from gpumon.sim.arrivals import LoadSource
from gpumon.sim.batch import Batch
from gpumon.sim.boards import Model
from gpumon.sim.costs import DRAM_BUSY, LOGITS_BYTES, PROMPT_BYTES, TENSOR_BUSY, costs
from gpumon.sim.effects import ServerEffects
from gpumon.sim.pace import FULL, Pace
from gpumon.sim.physics import TICK_S, Work
from gpumon.sim.scenario import ServerSpec
from gpumon.sim.state import CollectiveStep
from gpumon.sim.truth import INDEX

_NOISE = 0.025  # of GPU and host time, log-normal
_HICCUP_SHARE, _HICCUP_S = 0.0008, 0.006  # of steps; mean of what they take longer
_FAULT_S = 58e-6  # that one major page fault stalls a step
_PRESSURE_STALL = 0.6  # of time, under the strongest memory pressure
_JITTER_SHARE = 0.1  # of steps
_MEMORY_SM, _COMPUTE_SM = 0.53, 0.43  # what the gauge shows while a pass reads; and on top, while it computes
_REDUCE_SM = 0.12  # all-reduce takes a few SMs only
_ACTIVATIONS = 0.3  # of the bandwidth, while a pass computes
_SEQUENCE_BYTES = 4_096.0  # per sequence and step, to the GPU
_OUTAGE_PATIENCE_S = 30.0
_FOLLOW = 0.03  # per tick, of the way to the present context: three seconds
_SKEWS = 64
_SKEW = 0.015  # of a pass, by which ranks differ in reaching the collective

_STOPPED, _QUEUE, _FAULTS, _PRESSURE, _EAGER, _UNKNOWN = (
    INDEX[cause]
    for cause in ("process_stopped", "queueing", "page_faults", "memory_pressure", "graph_fallback", "unexplained")
)
_STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Pulse(NamedTuple):
    """How a server spent a tick."""

    work: Work
    """Of each of its GPUs."""
    running: float
    """Mean number of requests in the batch."""
    faults: float
    """Major page faults of its first worker, from bursts."""


QUIET: Final = Pulse(Work(), 0.0, 0.0)


class Server:
    """See the module. One of ``tick``, ``stopped`` and ``away`` is to be called once per tick, in order."""

    def __init__(
        self, spec: ServerSpec, model: Model, seed: int, index: int, sources: list[LoadSource], shift_s: float
    ) -> None:
        """``shift_s``: steady time at which the story begins."""
        self.spec = spec
        self.costs = costs(spec, model)
        self.accounts = Accounts(self.costs)
        self.batch = Batch(spec, index, self.costs, self.accounts, shift_s)
        self.collectives: list[CollectiveStep] = []
        """Since the caller last emptied it."""
        self.graph_passes = self.eager_passes = 0
        self.mean_context = 0.0
        """Tokens of context per running request, over the last seconds."""
        self._index = index
        self._sources = sources
        self._shift_s = shift_s
        self._random = Random(noise.bits(seed, index, 47))  # noqa: S311 - a simulation, repeatable on purpose
        self._until_s = -math.inf  # when the step under way ends
        self._rates = _STILL  # what it does, per second
        self._sequence = 0
        self._collects = spec.collectives and len(spec.gpus) > 1
        self._skews = [_skews(seed, index, row, len(spec.gpus)) for row in range(_SKEWS)]

    def away(self, start_s: float, effects: ServerEffects, cause: int) -> Pulse:
        """A tick without the process: its requests fail, new ones wait a while. ``cause``: of the outage."""
        until_s = start_s + TICK_S
        self._expect(start_s, effects)
        self.batch.fail(start_s)
        self.batch.receive(until_s)
        self.batch.give_up(until_s, _OUTAGE_PATIENCE_S)
        self.accounts.gone(cause)
        self._until_s, self._rates = until_s, _STILL
        return QUIET

    def stopped(self, start_s: float, effects: ServerEffects) -> Pulse:
        """A tick in which the processes are stopped; the kernels under way come to their end."""
        until_s = start_s + TICK_S
        self._expect(start_s, effects)
        self.batch.receive(until_s)
        lost_s = until_s - max(self._until_s, start_s)
        if lost_s <= 0:
            return Pulse(_work(list(self._rates), TICK_S), 0.0, 0.0)
        work = _work(list(self._rates), TICK_S - lost_s)
        self.accounts.wait(_STOPPED, lost_s)
        if self.batch.running or self.batch.prefilling:
            self.accounts.late(_STOPPED, lost_s)
        self.accounts.close(effects, len(self.batch.running), len(self.batch.waiting))
        self._until_s, self._rates = until_s, _STILL
        return Pulse(work, 0.0, 0.0)

    def tick(self, start_s: float, effects: ServerEffects, pace: Pace, faults_s: float) -> Pulse:
        """Work for a tick. ``faults_s``: major page faults per second of running."""
        batch, until_s = self.batch, start_s + TICK_S
        self._expect(start_s, effects)
        batch.usable = self.spec.kv_capacity_tokens * effects.kv_share * (1 - effects.kv_empty)
        at_s = max(self._until_s, start_s)
        # What the step that began earlier does in this tick.
        share_s = min(at_s, until_s) - start_s
        busy, sm, tensor, dram, sent, received, linked = [rate * share_s for rate in self._rates]
        running_s = share_s * len(batch.running)
        faults = 0.0
        while at_s < until_s:
            batch.receive(at_s)
            if batch.waiting:
                batch.admit(at_s)
            if not batch.running and not batch.prefilling:
                next_s = batch.next_s
                at_s = until_s if next_s is None else next_s
                self._until_s, self._rates = at_s, _STILL
                continue
            n = len(batch.running)
            took_s, faulted = self._step(at_s, n, effects, pace, faults_s)
            if batch.waiting:
                self.accounts.wait(batch.blocked, took_s)
            inside_s = min(took_s, until_s - at_s)
            rates = self._rates
            busy += rates[0] * inside_s
            sm += rates[1] * inside_s
            tensor += rates[2] * inside_s
            dram += rates[3] * inside_s
            sent += rates[4] * inside_s
            received += rates[5] * inside_s
            linked += rates[6] * inside_s
            running_s += (n or 1) * inside_s
            faults += faulted
            at_s += took_s
            self._until_s = at_s
        self.accounts.close(effects, len(batch.running), len(batch.waiting))
        if batch.running:
            context = batch.context / len(batch.running)
            self.mean_context += (_FOLLOW if self.mean_context else 1.0) * (context - self.mean_context)
        return Pulse(_work([busy, sm, tensor, dram, sent, received, linked], 1.0), running_s / TICK_S, faults)

    def _expect(self, start_s: float, effects: ServerEffects) -> None:
        found = [request for source in self._sources for request in source.tick(start_s, TICK_S, effects)]
        if len(self._sources) > 1:
            found.sort(key=lambda request: request.start_s)
        self.batch.expect(found)

    def _step(self, at_s: float, n: int, effects: ServerEffects, pace: Pace, faults_s: float) -> tuple[float, float]:
        """One step with ``n`` requests decoding: how long it takes, and major faults in it."""
        costs, accounts, batch, draw = self.costs, self.accounts, self.batch, self._random
        tokens, attended = batch.fill() if batch.prefilling else (0, 0.0)
        read_s = (costs.all_weights_s if tokens else costs.weights_s[n]) + batch.context * costs.context_s
        compute_s = (n + tokens) * costs.token_s + attended * costs.attention_s
        gpu_s = (read_s if read_s > compute_s else compute_s) * costs.unevenness
        reduce_s = costs.reduce_s + (n + tokens) * costs.reduce_token_s
        copy_s = n * costs.copy_sequence_s + tokens * costs.copy_token_s
        host_s = costs.host_s + n * costs.host_sequence_s
        accounts.load(n, batch.context, tokens, gpu_s, tokens * (costs.reduce_token_s + costs.copy_token_s))
        dram_s = DRAM_BUSY * read_s * costs.unevenness
        if compute_s > read_s:
            dram_s += _ACTIVATIONS * (compute_s - read_s)
        if pace is not FULL:
            slow = pace.memory if read_s * pace.memory.factor > compute_s * pace.compute.factor else pace.compute
            slower_s = max(read_s * pace.memory.factor, compute_s * pace.compute.factor) * costs.unevenness
            for shares, more_s in (
                (slow.shares, slower_s - gpu_s),
                (pace.reduce.shares, reduce_s * (pace.reduce.factor - 1)),
                (pace.copy.shares, copy_s * (pace.copy.factor - 1)),
                (pace.host.shares, host_s * (pace.host.factor - 1)),
            ):
                if shares:
                    accounts.slow(shares, more_s)
            gpu_s = slower_s
            compute_s *= pace.compute.factor
            reduce_s *= pace.reduce.factor
            copy_s *= pace.copy.factor
            host_s *= pace.host.factor
        if not tokens:
            host_s += self._launch_s(effects)
        wobble = math.exp(_NOISE * draw.gauss(0.0, 1.0))
        gpu_s *= wobble
        took_s = gpu_s + reduce_s + copy_s + host_s * wobble
        if draw.random() < _HICCUP_SHARE:
            took_s += draw.expovariate(1 / _HICCUP_S)
        faulted = 0.0
        if faults_s or effects.stalls:
            faulted = faults_s * took_s
            took_s += self._stall_s(took_s, effects, faulted)
        over_s = 1 / took_s
        computing_s = compute_s if compute_s < gpu_s else gpu_s
        self._rates = (
            (gpu_s + reduce_s) * over_s,
            (_MEMORY_SM * gpu_s + _COMPUTE_SM * computing_s + _REDUCE_SM * reduce_s) * over_s,
            TENSOR_BUSY * computing_s * over_s,
            min(dram_s, DRAM_BUSY * gpu_s) * over_s,
            n * LOGITS_BYTES * over_s,
            (tokens * PROMPT_BYTES + n * _SEQUENCE_BYTES) * over_s,
            (n + tokens) * costs.reduce_token_bytes * over_s,
        )
        end_s = at_s + took_s
        if self._collects:
            self._gather(end_s + self._shift_s, gpu_s, reduce_s, n + tokens, pace)
        batch.give(end_s)
        return took_s, faulted

    def _launch_s(self, effects: ServerEffects) -> float:
        """Host time to launch a decode pass, on top of the usual."""
        if not self.spec.cuda_graphs:
            self.eager_passes += 1
            return self.costs.eager_s
        if effects.eager and self._random.random() < effects.eager:
            self.eager_passes += 1
            self.accounts.late(_EAGER, self.costs.eager_s)
            return self.costs.eager_s
        self.graph_passes += 1
        return 0.0

    def _stall_s(self, took_s: float, effects: ServerEffects, faulted: float) -> float:
        """What holds a step up that is no part of it."""
        late = self.accounts.late
        extra_s = faulted * _FAULT_S
        if faulted:
            late(_FAULTS, extra_s)
        if effects.memory_pressure:
            share = _PRESSURE_STALL * effects.memory_pressure
            stall_s = took_s * share / (1 - share) * 2 * self._random.random()
            extra_s += stall_s
            late(_PRESSURE, stall_s)
        if effects.jitter and self._random.random() < _JITTER_SHARE:
            pause_s = took_s * self._random.expovariate(1 / effects.jitter)
            extra_s += pause_s
            late(_QUEUE, pause_s)
        if effects.quality:
            slow_s = took_s * (1 / (1 - effects.quality) - 1)
            extra_s += slow_s
            late(_UNKNOWN, slow_s)
        return extra_s

    def _gather(self, end_s: float, gpu_s: float, reduce_s: float, tokens: int, pace: Pace) -> None:
        """Tell of the step's collective: when each rank came to it."""
        skews = self._skews[self._sequence % _SKEWS]
        if pace.ranks:
            skews = tuple([skew * share for skew, share in zip(skews, pace.ranks, strict=True)])
        began_s = end_s - reduce_s - gpu_s * max(skews)
        starts = tuple([began_s + gpu_s * skew for skew in skews])
        size = int(tokens * self.costs.reduce_token_bytes)
        self.collectives.append(CollectiveStep(self._index, self._sequence, starts, end_s, size))
        self._sequence += 1


def _work(sums: list[float], share_s: float) -> Work:
    """Means over a tick, from sums over it, or from rates that held for ``share_s`` of it."""
    busy, sm, tensor, dram, sent, received, linked = [value * share_s / TICK_S for value in sums]
    # Rounding, and the sampling of kernels, never show more than all of the time.
    return Work(min(1.0, busy), min(0.99, sm), min(0.9, tensor), min(DRAM_BUSY, dram), sent, received, linked)


def _skews(seed: int, index: int, row: int, ranks: int) -> tuple[float, ...]:
    return tuple([1 - _SKEW * noise.unit(seed, index, 53, row, rank) for rank in range(ranks)])
