"""Advances the simulated node tick by tick, and keeps what it was in the last half minute.

The servers' steps in a tick go at the pace that the clocks had in the tick before; what the steps did then moves
clocks, power and heat. The result depends on scenario and seed only, never on who asks when. Times are seconds of the
story; it is simulated from a while before its begin, so that batches are full when it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpumon.sim.arrivals import LoadSource
from gpumon.sim.boards import Model
from gpumon.sim.effects import GpuEffects, ServerEffects, gpu_effects, server_effects
from gpumon.sim.engine import Pulse, Server
from gpumon.sim.hostload import NOTHING, HostLoad
from gpumon.sim.pace import FULL, Pace, pace
from gpumon.sim.physics import TICK_S, Gpu, GpuTick, Work
from gpumon.sim.population import Life, Population
from gpumon.sim.scenario import Scenario
from gpumon.sim.state import LOOK_BACK_S, CollectiveStep, FinishedRequest
from gpumon.sim.timeline import Stretch, Timeline
from gpumon.sim.truth import INDEX

LEAD_S: Final = 20.0
"""Simulated before the story begins."""

_KEPT = round(LOOK_BACK_S / TICK_S) + 2
_LIVES = 4
_IDLE = Work()
_BURST_PERIOD_S, _BURST_S = 10.0, 0.8  # of page faults, at the context below
_BURST_CONTEXT = 4_096
_BURST_GROWTH, _BURST_MOST_S = 1.5, 8.0  # faults per second over context, exponent
_TAIL_S, _TAIL_GROWTH, _TAIL_MOST_S = 0.14, 1.33, 3.0  # in which a burst dies away, and its exponent
_MOST_FAULTS_S = 150_000.0
_SPIN = 0.1  # SM activity of a rank that waits for another


class Reading(NamedTuple):
    """What one server's metrics page says of the engine, after a tick."""

    running: int
    waiting: int
    live: int
    usable: float
    capacity: int
    preempted: int
    prompt: int
    hit: int
    generated: int
    graph_passes: int
    eager_passes: int
    imbalance: float


class Frame(NamedTuple):
    """The node in one tick."""

    number: int
    gpus: tuple[GpuTick, ...]
    hosts: tuple[tuple[float, ...], ...]
    """By server: the sums of ``hostload`` at the tick's end."""
    readings: tuple[Reading, ...]


class Simulation:
    """See the module. Not for several threads at once."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        model: Model,
        population: Population,
        timeline: Timeline,
        shift_s: float,
        on_finished: Callable[[Sequence[FinishedRequest]], None],
        on_collectives: Callable[[Sequence[CollectiveStep]], None],
    ) -> None:
        """``shift_s``: steady time at which the story begins. The others hear of what has ended, once each."""
        self._scenario = scenario
        self._model = model
        self._population = population
        self._timeline = timeline
        self._shift_s = shift_s
        self._gpus = [Gpu(model, seed, index) for index in range(scenario.node.gpus)]
        self._servers = []
        for index, spec in enumerate(scenario.servers):
            sources = [
                LoadSource(load, spec, seed, number)
                for number, load in enumerate(scenario.load)
                if load.server == spec.name
            ]
            self._servers.append(Server(spec, model, seed, index, sources, shift_s))
        self._hosts = [HostLoad() for _ in self._servers]
        self._starts: list[dict[int, tuple[float, ...]]] = [{0: NOTHING} for _ in self._servers]
        self._counts: list[dict[int, Reading]] = [{} for _ in self._servers]
        self._effects: dict[int, tuple[list[GpuEffects], list[ServerEffects]]] = {}
        self._frames: list[Frame | None] = [None] * _KEPT
        self._newest = -round(LEAD_S / TICK_S) - 1
        self._first = self._newest + 1
        self._paces: list[Pace] = [FULL] * len(self._servers)
        self._paced_for: list[tuple[ServerEffects | None, list[tuple[float, str | None]]]] = [
            (None, []) for _ in self._servers
        ]
        """What they were worked out for."""
        self._on_finished = on_finished
        self._on_collectives = on_collectives

    # --- what others ask ----------------------------------------------------------------------------------------------

    def frame(self, story_s: float) -> tuple[Frame, float]:
        """The tick of a moment, and the seconds since its begin. Nearest there is to moments long past."""
        number = max(math.floor(story_s / TICK_S), self._first)
        while self._newest < number:
            self._tick(self._newest + 1)
        oldest = max(self._first, self._newest - _KEPT + 2)
        if number < oldest:
            return self._frame(oldest), 0.0
        # Before the first tick it is the first tick's begin.
        return self._frame(number), min(max(story_s - number * TICK_S, 0.0), TICK_S)

    def host(self, server: int, story_s: float) -> list[float]:
        """The sums of ``hostload`` at a moment."""
        frame, begun_s = self.frame(story_s)
        newer = frame.hosts[server]
        older = self._frame(frame.number - 1).hosts[server] if frame.number > self._first else NOTHING
        share = begun_s / TICK_S
        # No further than the next tick begins: a rounding must not let a counter fall.
        return [min(old + (new - old) * share, new) for old, new in zip(older, newer, strict=True)]

    def host_at_start(self, server: int, life: int) -> tuple[float, ...]:
        """The same at the begin of one of the server's last lives, of those that had begun when last asked."""
        return self._starts[server].get(life, NOTHING)

    def reading_at_start(self, server: int, life: int) -> Reading | None:
        """The server's counters at the begin of one of its last lives; None for its first."""
        return self._counts[server].get(life)

    def _frame(self, number: int) -> Frame:
        frame = self._frames[number % _KEPT]
        assert frame is not None
        assert frame.number == number
        return frame

    # --- a tick -------------------------------------------------------------------------------------------------------

    def _tick(self, number: int) -> None:
        start_s = number * TICK_S
        stretch = self._timeline.at(start_s)
        gpu_rows, server_rows = self._of(stretch)
        works = [_IDLE] * len(self._gpus)
        for index, server in enumerate(self._servers):
            effects, ranks = server_rows[index], server.spec.gpus
            life = self._population.life(index, start_s)
            work, pulse = self._serve(index, start_s, life, effects)
            now = self._paced(index, [self._gpus[gpu] for gpu in ranks], [gpu_rows[gpu] for gpu in ranks], effects)
            for rank, gpu in enumerate(ranks):
                works[gpu] = _of_rank(work, now.ranks[rank]) if now.ranks else work
            if pulse is not None:
                self._hosts[index].serving(pulse.running, pulse.faults, effects)
            # What ended in the lead is not told.
            if server.batch.finished:
                self._on_finished([row for row in server.batch.finished if row.end_s > self._shift_s])
                server.batch.finished.clear()
            if server.collectives:
                if number >= 0:
                    self._on_collectives(server.collectives)
                server.collectives.clear()
        ticks = tuple(
            [
                gpu.tick(number, row, _IDLE if row.lost else work)
                for gpu, row, work in zip(self._gpus, gpu_rows, works, strict=True)
            ]
        )
        self._frames[number % _KEPT] = Frame(
            number,
            ticks,
            tuple([host.sums for host in self._hosts]),
            tuple([_reading(server, row) for server, row in zip(self._servers, server_rows, strict=True)]),
        )
        self._newest = number

    def _serve(self, index: int, start_s: float, life: Life, effects: ServerEffects) -> tuple[Work, Pulse | None]:
        """Let a server have its tick: what its GPUs do, and how it fared; None where it does not serve."""
        server = self._servers[index]
        if start_s < life.ready_s:
            server.away(start_s, effects, INDEX[life.cause])
            if start_s < life.began_s:
                return _IDLE, None
            self._begin(index, life)
            self._hosts[index].loading()
            rate = server.costs.weights_bytes / (life.ready_s - life.began_s)
            return Work(busy=0.1, sm=0.01, dram=0.03, pcie_rx=min(rate, 0.9 * self._model.pcie_bytes_s)), None
        if effects.stopped and (start_s - effects.stopped_at_s + 1e-6) % 1.0 < effects.stopped - 1e-6:
            return server.stopped(start_s, effects).work, None
        faults_s = _faults_s(start_s, effects, server) if effects.page_faults else 0.0
        pulse = server.tick(start_s, effects, self._paces[index], faults_s)
        return pulse.work, pulse

    def _paced(self, index: int, gpus: list[Gpu], rows: list[GpuEffects], effects: ServerEffects) -> Pace:
        """Pace of a server from now on: the one before while clocks and effects stay, which they mostly do."""
        clocks = [(gpu.pace, gpu.cause) for gpu in gpus]
        # Effects are made once for a stretch of time, those of the GPUs with those of the servers.
        if effects is not self._paced_for[index][0] or clocks != self._paced_for[index][1]:
            self._paced_for[index] = (effects, clocks)
            self._paces[index] = pace(gpus, rows, effects)
        return self._paces[index]

    def _begin(self, index: int, life: Life) -> None:
        """Take down the counters at the begin of a life."""
        starts = self._starts[index]
        if life.number not in starts:
            starts[life.number] = self._hosts[index].sums
            self._counts[index][life.number] = _reading(self._servers[index], ServerEffects())
            for kept in (starts, self._counts[index]):
                while len(kept) > _LIVES:
                    del kept[next(iter(kept))]

    def _of(self, stretch: Stretch) -> tuple[list[GpuEffects], list[ServerEffects]]:
        found = self._effects.get(stretch.number)
        if found is None:
            found = self._effects[stretch.number] = (
                [gpu_effects(stretch.faults, gpu, self._model) for gpu in range(len(self._gpus))],
                [server_effects(stretch.faults, index, self._scenario) for index in range(len(self._servers))],
            )
        return found


def _of_rank(work: Work, share: float) -> Work:
    """What a rank does that is done with its part of a pass after ``share`` of it, and waits."""
    return work._replace(sm=work.sm * share + _SPIN * work.busy * (1 - share), tensor=work.tensor * share)


def _faults_s(start_s: float, effects: ServerEffects, server: Server) -> float:
    """Major page faults per second of running, in the bursts of a server."""
    context = server.mean_context / _BURST_CONTEXT
    if not context:
        return 0.0  # nothing runs
    phase_s = (start_s - effects.faults_at_s + 1e-6) % _BURST_PERIOD_S
    burst_s = min(_BURST_MOST_S, _BURST_S * context)
    tail_s = min(_TAIL_MOST_S, _TAIL_S * math.pow(context, _TAIL_GROWTH))
    share = 1.0 if phase_s < burst_s else max(0.0, 1 - (phase_s - burst_s) / tail_s)
    return min(_MOST_FAULTS_S, share * effects.page_faults * math.pow(context, _BURST_GROWTH))


def _reading(server: Server, effects: ServerEffects) -> Reading:
    batch = server.batch
    return Reading(
        *(len(batch.running), len(batch.waiting), batch.live, batch.usable),
        int(server.spec.kv_capacity_tokens * effects.kv_share),
        *(batch.preempted, batch.prompt, batch.hit, batch.generated, server.graph_passes, server.eager_passes),
        effects.imbalance,
    )
