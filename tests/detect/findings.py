"""Findings, kinds and what hears of incidents, for tests of the ledger and of what is around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.incident import Incident
from gpumon.detect.ledger import Ledger, State
from gpumon.detect.scene import Scene
from gpumon.detect.state_file import Memory
from gpumon.model import RequestRecord, Unit
from tests.detect.scenes import Stage

OFFSET_S = 1_800_000_000.0
"""Unix time of steady 0: 2027-01-15T08:00:00Z."""

GPU3 = Entity("gpu", "gpu 3", "3", "GPU-0003")
SERVER = Entity("server", "vllm/llama-70b")

THERMAL = IncidentKind("thermal_throttle", "hot", (Severity.WARNING, Severity.CRITICAL), "Cool it.", hold_s=10.0)
POWER = IncidentKind("power_throttle", "starved of power", (Severity.WARNING,), "Raise the limit.", hold_s=10.0)
QUEUE = IncidentKind("queue_buildup", "long queue", (Severity.INFO,), "Add a replica.", hold_s=5.0)


def to_unix(at_s: float) -> float:
    return at_s + OFFSET_S


def finding(
    kind: str = "thermal_throttle",
    entity: Entity = GPU3,
    severity: Severity = Severity.WARNING,
    *,
    since_s: float = 1000.0,
    summary: str = "SM clock 1410 → 1005 MHz",
    clock: float = 1.005e9,
    over: bool = False,
    weight: float = 0.0,
) -> Finding:
    """One with a figure, the clock."""
    figures = (Evidence("sm_clock", clock, Unit.HERTZ, 1.41e9),)
    return Finding(kind, entity, severity, since_s, summary, figures, over, weight)


class Ear:
    """An ``IncidentListener`` that remembers: (what, id, at_s)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []

    def opened(self, incident: Incident, at_s: float) -> None:
        self.heard.append(("opened", incident.id, at_s))

    def closed(self, incident: Incident, at_s: float) -> None:
        assert incident.closed_s == at_s
        self.heard.append(("closed", incident.id, at_s))

    def count(self, what: str) -> int:
        return [told for told, _, _ in self.heard].count(what)


class Shelf:
    """A ``ledger.State`` in memory. Lives on when a ledger does not."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.kept = 0

    def load(self) -> Memory:
        return self.memory

    def keep(self, memory: Memory) -> None:
        self.memory = memory
        self.kept += 1


class Book:
    """A ledger, and time that passes."""

    def __init__(self, kinds: Sequence[IncidentKind] = (THERMAL, POWER, QUEUE), state: State | None = None) -> None:
        self.ear = Ear()
        self.stage = Stage()
        self.ledger = Ledger(kinds, to_unix, (self.ear,), state)

    def step(self, *findings: Finding, seconds: float = 1.0, requests: Sequence[RequestRecord] = ()) -> None:
        """Let time pass, then find these."""
        self.ledger.step(findings, self.stage.step(seconds, requests))

    @property
    def incidents(self) -> list[Incident]:
        return self.ledger.incidents()

    @property
    def only(self) -> Incident:
        (incident,) = self.ledger.incidents()
        return incident

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Samples of a family, by labels."""
        found: dict[tuple[str, ...], float] = {}
        for sample in self.ledger.samples():
            if sample.metric.name == name:
                assert isinstance(sample.value, float)
                assert sample.labels not in found
                found[sample.labels] = sample.value
        return found

    def counted(self) -> dict[tuple[str, ...], float]:
        """gpumon_incidents_total above 0."""
        return {labels: count for labels, count in self.values("gpumon_incidents_total").items() if count}

    def active(self) -> dict[tuple[str, ...], float]:
        return self.values("gpumon_incident_active")


class Scripted:
    """A detector that finds what it is told to; an exception is raised."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (THERMAL, POWER)
    thresholds: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.script: list[Finding | Exception] = []
        self.scenes: list[Scene] = []

    def step(self, scene: Scene) -> Iterable[Finding]:
        self.scenes.append(scene)
        for each in self.script:
            if isinstance(each, Exception):
                raise each
            yield each


class Other(Scripted):
    """Another one."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (QUEUE,)
