"""The whole of gpumon on a stepped clock, in one thread: for a simulated hour in seconds, and for replays.

The same sampler passes, sources, receivers' decoding, statistics and detectors as in the daemon; left out are
threads, processes, sockets and waiting. What is due at the same moment runs in a fixed order, so the same input gives
the same findings, byte for byte. Nothing in here reads the machine's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpumon.config import Config, ForwardConfig
from gpumon.detect.engine import Detection
from gpumon.detect.incident import IncidentListener
from gpumon.explain.explained import Explained
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.host.nvml import Nvml
from gpumon.ingest.records import DecodeError
from gpumon.ingest.request import Signal
from gpumon.machine import Ports
from gpumon.model import RequestRecord
from gpumon.node import Node
from gpumon.runner import Runner, Source
from gpumon.sampler.hearing import Hearing
from gpumon.sampler.stepped import SteppedSampler
from gpumon.store import Store
from gpumon.tracing import Taps, Tracing
from gpumon.wiring import build_detection, build_explanation, host_sources, sampler_plan

LOOK_S = 1.0
"""Between two looks of the sampler's supervisor: five times as long as in the daemon, where it also beats a heart."""


@dataclass(order=True, slots=True)
class _Task:
    """Something that is done again and again."""

    due_s: float
    order: int
    name: str = field(compare=False)
    every_s: float = field(compare=False)
    tick: int = field(compare=False)
    """Whole multiples of every_s since the clock's zero: adding up fractions would drift off the grid."""
    run: Callable[[float], None] = field(compare=False)


class SteppedNode:
    """One gpumon. ``advance`` from moment to moment; ``offer`` what servers send."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        nvml: Nvml | None,
        clock: ManualClock,
        *,
        node_names: Sequence[str] = ("node",),
        listeners: Sequence[IncidentListener] = (),
        by_hand: frozenset[str] = frozenset(),
        on_requests: Callable[[Sequence[RequestRecord]], None] | None = None,
        on_explained: Callable[[Sequence[Explained]], None] | None = None,
    ) -> None:
        """by_hand: names of tasks that run only when ``run`` is called: a replay knows when they ran.

        on_requests: is told of the requests that are complete, after detection; on_explained: of those that were
        explained.
        """
        self.clock = clock
        self.config = config = _within(config)
        self.undecodable = 0
        """Bodies that were offered and could not be read."""
        self.store = Store(max_series=config.store.max_series, history_points=config.store.history_points)
        self.health = Health(clock.to_unix)
        self.node = Node(self.store, self.health, clock)
        self.explanation = build_explanation(config)
        if self.explanation is not None and on_explained is not None:
            self.explanation.listeners.append(on_explained)
        self.detection: Detection = build_detection(
            config,
            clock.to_unix,
            lambda at_s: self.store.view(at_s),
            listeners=listeners,
            explanation=self.explanation,
        )

        def take(records: Sequence[RequestRecord]) -> None:
            self.detection.offer_requests(records)
            if on_requests is not None:
                on_requests(records)

        taps = Taps(requests=take, collective=self.detection.offer_collective)
        self.tracing = Tracing(config, clock, self.store, self.node, ports.files, node_names, None, taps)
        plan = sampler_plan(config)
        self._fast_ttl_s = 3 * max(config.cadence.publish_s, plan.fast_s)
        rows = self.explanation.correlations.add_rows if self.explanation is not None else None
        self._hearing = Hearing(self.node, clock, self.tracing.requests_open, rows)
        self._hearing.begin(plan)
        self.sampler = SteppedSampler(nvml, ports.files, plan, self._hearing, clock) if nvml is not None else None
        self._runner = Runner(clock, self.store, self.health)
        self._tasks: list[_Task] = []
        self.by_name: dict[str, Callable[[float], None]] = {}
        publish_s = config.cadence.publish_s
        if self.sampler is not None:
            self._add("gpu_fast", plan.fast_s, self.sampler.tick, by_hand)
            self._add("look", LOOK_S, self.sampler.look, by_hand)
            self._add("publish", publish_s, self._publish, by_hand)
        for scheduled in host_sources(config, ports, self.node):
            self._add_source(scheduled.source, scheduled.every_s, by_hand)
        for source, every_s in self.tracing.sources(publish_s):
            self._add_source(source, every_s, by_hand)
        self._add_source(self.detection, config.detect.every_s, by_hand)

    def offer(self, body: bytes, *, signal: Signal = Signal.TRACES, is_json: bool = False, peer: str = "") -> None:
        """What a server exports, arriving now."""
        try:
            self.tracing.take_body(signal, body, is_json, peer, self.clock.now_s())
        except DecodeError:
            self.undecodable += 1

    def advance(self, until_s: float) -> None:
        """Do all that is due up to and at a moment, each thing at its time."""
        tasks = self._tasks
        while tasks and tasks[0].due_s <= until_s:
            task = tasks[0]
            at_s = max(task.due_s, self.clock.now_s())
            self.clock.move_to(at_s)
            task.run(at_s)
            task.tick += 1
            task.due_s = task.tick * task.every_s
            heapq.heapreplace(tasks, task)
        self.clock.move_to(until_s)

    def run(self, name: str, at_s: float) -> bool:
        """Run a task by its name at a moment, which must not be past; False if there is none."""
        task = self.by_name.get(name)
        if task is None:
            return False
        self.advance(at_s)
        task(at_s)
        return True

    def _add_source(self, source: Source, every_s: float, by_hand: frozenset[str]) -> None:
        def read(at_s: float) -> None:
            self._runner.run_once(source, every_s, at_s, lambda: 0.0)

        self.health.expect(source.name)
        self._add(source.name, every_s, read, by_hand)

    def _add(self, name: str, every_s: float, run: Callable[[float], None], by_hand: frozenset[str]) -> None:
        self.by_name[name] = run
        if name not in by_hand:
            tick = int(self.clock.now_s() // every_s) + 1
            # In the order of addition: rows before what is made of them, and detection last.
            heapq.heappush(self._tasks, _Task(tick * every_s, len(self.by_name), name, every_s, tick, run))

    def _publish(self, at_s: float) -> None:
        assert self.sampler is not None
        self._hearing.drain(self.sampler.rows, at_s, self._fast_ttl_s)
        self.store.put("sampler", at_s, list(self._hearing.samples()), 10 * self.config.cadence.publish_s + 5.0)


def _within(config: Config) -> Config:
    """The configuration without what reaches past the ports: this machine's servers and files, and any downstream."""
    requests = config.requests.model_copy(update={"nccl_inspector": None})
    servers = config.servers.model_copy(update={"targets": ()})
    return config.model_copy(update={"requests": requests, "servers": servers, "forward": ForwardConfig()})
