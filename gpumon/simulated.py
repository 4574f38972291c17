"""A scenario in fast mode: the simulated node and the whole of gpumon on a stepped clock, as fast as they go.

The same world, faces, sampler passes, sources, decoding, assembly and detectors as in ``gpumon demo``. What the
servers export is taken every half second, as their SDKs' batches would bring it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import Progress

from gpumon.config import Config
from gpumon.detect.incident import Incident, IncidentListener
from gpumon.explain.explained import Explained
from gpumon.findings_text import as_json, as_text
from gpumon.host.clock import ManualClock
from gpumon.host.garbage import few_collections
from gpumon.machine import simulated_ports
from gpumon.model import RequestRecord
from gpumon.sim.builtin import find_scenario
from gpumon.sim.labels import AFTER_S, EARLY_S, REQUIRED, Label, explaining, labels, strikes
from gpumon.sim.nvml import SimNvml
from gpumon.sim.scenario import Fault, Scenario
from gpumon.sim.spans import SpanMaker
from gpumon.sim.state import FinishedRequest
from gpumon.sim.world import Task, World
from gpumon.stepped import SteppedNode

STARTED_S = 10_000.0
"""Steady time at which every simulation begins."""
UNIX_S = 1_800_000_000.0
EXPORT_S = 0.5


class SimulatedNode:
    """One scenario on one node. ``advance``, then look at ``node``; story time 0 is ``STARTED_S``."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        config: Config,
        *,
        listeners: Sequence[IncidentListener] = (),
        on_requests: Callable[[Sequence[RequestRecord]], None] | None = None,
        on_explained: Callable[[Sequence[Explained]], None] | None = None,
        on_truth: Callable[[bytes, FinishedRequest], None] | None = None,
    ) -> None:
        """on_requests: is told of the requests that gpumon has assembled; on_explained: of those it has explained.

        on_truth: is told of each request that a server exports, as it was, with its trace id.
        """
        self.clock = ManualClock(STARTED_S, UNIX_S)
        self.world = World(scenario, started_at_s=STARTED_S, seed=seed)
        world, clock = self.world, self.clock
        nvml = SimNvml(world, clock, sleep=clock.step)
        self.node = SteppedNode(
            config,
            simulated_ports(world, clock),
            nvml,
            clock,
            listeners=listeners,
            on_requests=on_requests,
            on_explained=on_explained,
        )
        self._spans = SpanMaker(world, clock.to_unix, on_truth)
        self._exports = 1
        """Number of the next one: they come on a grid, however ``advance`` is called."""
        self._tasks: tuple[Task, ...] = ()
        self.servers: dict[str, str] = {}
        """Name of the server by pid, of every process that lived."""

    @property
    def story_s(self) -> float:
        """Seconds since the scenario began."""
        return self.clock.now_s() - STARTED_S

    def advance(self, story_s: float) -> None:
        """Go on until a moment of the story."""
        until_s = STARTED_S + story_s
        while (export_s := STARTED_S + self._exports * EXPORT_S) <= until_s:
            self._exports += 1
            self.node.advance(export_s)
            if (tasks := self.world.tasks(export_s)) is not self._tasks:
                self._tasks = tasks
                self.servers |= {str(task.pid): task.server for task in tasks}
            for body in self._spans.bodies(export_s):
                self.node.offer(body, peer="127.0.0.1")
        self.node.advance(until_s)

    def incidents(self) -> list[Incident]:
        """Found so far, the earliest opening first."""
        return sorted(self.node.detection.incidents(), key=lambda each: (each.opened_s, each.id))


class Verdict(NamedTuple):
    """What was found against what the scenario's faults should make one find."""

    found: list[tuple[Label, Incident]]
    """With the incident that opened first."""
    missed: list[Label]
    true: list[Incident]
    """Incidents that a fault explains, as what it is or as a consequence."""
    false: list[Incident]


def judge(scenario: Scenario, simulated: SimulatedNode, duration_s: float) -> Verdict:
    """Compare, after ``duration_s`` of the story."""
    incidents = simulated.incidents()
    verdict = Verdict([], [], [], [])
    for label in labels(scenario, duration_s):
        hit = next((incident for incident in incidents if _hits(simulated, label, incident)), None)
        if hit is not None:
            verdict.found.append((label, hit))
        else:
            verdict.missed.append(label)
    for incident in incidents:
        faults = explaining(scenario, incident.kind, incident.opened_s - STARTED_S)
        is_true = any(_is_of(simulated, fault, incident) for fault in faults)
        (verdict.true if is_true else verdict.false).append(incident)
    return verdict


def _hits(simulated: SimulatedNode, label: Label, incident: Incident) -> bool:
    """Whether an incident is of the label's kind and time, and of what its fault strikes."""
    opened_s = incident.opened_s - STARTED_S
    in_time = label.begins_s - EARLY_S <= opened_s <= label.ends_s + AFTER_S
    return incident.kind == label.kind and in_time and _is_of(simulated, label.fault, incident)


def _is_of(simulated: SimulatedNode, fault: Fault, incident: Incident) -> bool:
    """Whether an incident is of what a fault strikes: its GPU, a server on it, the server's processes, the host."""
    scenario = simulated.world.scenario
    gpus, models = strikes(scenario, fault)
    if not gpus:
        return True  # the whole node
    servers = [server for server in scenario.servers if server.model in models]
    entity = incident.entity
    match entity.scope:
        case "gpu":
            # What the fault itself is, is on its own GPUs. What follows may be on any of a server that it slows.
            itself = incident.kind in REQUIRED[fault.kind]
            slowed = () if itself else [str(gpu) for server in servers for gpu in server.gpus]
            return not entity.gpu or entity.gpu in (*gpus, *slowed)
        case "process":
            return simulated.servers.get(entity.name.split()[1]) in {server.name for server in servers}
        case "server":
            return any(model in entity.name for model in models)
        case "tenant":
            return fault.tenant is None or fault.tenant == entity.name
        case "collective":
            return not entity.gpu or any(int(entity.gpu) in server.gpus for server in servers)
        case _:
            return True


def main(name: str, seed: int | None, duration_s: float | None, *, json_output: bool, config: Config) -> int:
    """``gpumon simulate``: run a scenario, tell what was found and what should have been; the exit status.

    0: all that had to be found was, and nothing else; 1: not so. Raises ScenarioError.
    """
    scenario = find_scenario(name)
    duration_s = scenario.duration_s if duration_s is None else duration_s
    simulated = SimulatedNode(scenario, scenario.seed if seed is None else seed, config)
    progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with few_collections(), progress:
        task = progress.add_task(scenario.name, total=duration_s)
        while simulated.story_s < duration_s:
            simulated.advance(min(duration_s, simulated.story_s + 1.0))
            progress.update(task, completed=simulated.story_s)
    verdict = judge(scenario, simulated, duration_s)
    to_unix = simulated.clock.to_unix
    for incident in simulated.incidents():
        click.echo(as_json(incident, to_unix) if json_output else as_text(incident, to_unix, STARTED_S))
    for incident in verdict.false:
        opened_s = incident.opened_s - STARTED_S
        click.echo(f"not explained: {incident.kind} of {incident.entity.name}, found at {opened_s:g} s", err=True)
    for label in verdict.missed:
        click.echo(f"not found: {label.kind}, from {label.begins_s:g} s, of the fault {label.fault.kind}", err=True)
    return 0 if not verdict.missed and not verdict.false else 1
