"""What a detector is and what it finds: the contract between detectors, incidents and everything that shows them.

A detector is a small class over (its own state, ``Scene``): no clock, no randomness, no I/O, so that the same recording
gives the same findings, byte for byte. It tells at every step what holds *now*; opening, merging and closing
incidents is the ledger's (``detect.ledger``). One file per subject, listed in ``detect.detectors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol

from gpumon.detect.scene import Scene
from gpumon.model import Unit


class Severity(StrEnum):
    """How soon a person should look. The values are label values of ``gpumon_incidents_total``."""

    INFO = "info"  # explains, costs nothing by itself
    WARNING = "warning"  # costs latency or throughput, or will
    CRITICAL = "critical"  # requests fail, or hardware does


class Entity(NamedTuple):
    """What an incident is of. Two findings of one kind and one entity are one incident."""

    scope: str
    """gpu, process, server, host, tenant, collective."""
    name: str
    """For people, and stable while the entity lives: ``gpu 3``, ``pid 41403 VLLM::Worker_TP``, ``vllm/llama-70b``."""
    gpu: str = ""
    """Index of the one GPU concerned; empty where there is none, or more than one."""
    uuid: str = ""


def gpu_entity(labels: tuple[str, ...]) -> Entity:
    """Of a series whose first labels are gpu and uuid."""
    return Entity("gpu", f"gpu {labels[0]}", labels[0], labels[1])


def server_entity(labels: tuple[str, ...]) -> Entity:
    """Of a series whose first labels are server, model and endpoint; model and endpoint may be empty.

    ``vllm/llama-70b at 127.0.0.1:8000``: a node may run several servers of one model.
    """
    server, model, endpoint = labels[:3]
    return Entity("server", f"{server}{'/' if model else ''}{model}{' at ' if endpoint else ''}{endpoint}")


class Evidence(NamedTuple):
    """One figure behind a finding."""

    name: str
    """Snake case, without the unit: ``sm_clock``, ``inter_token_p99``, ``burst_duration``."""
    observed: float
    unit: Unit
    baseline: float | None = None
    """What it was before, or is elsewhere; None where there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds now, or (``over``) has just ended, with its last figures."""

    kind: str
    """One of catalogue.INCIDENT_KINDS."""
    entity: Entity
    severity: Severity
    since_s: float
    """Steady seconds at which the effect began, not when it was found."""
    summary: str
    """One line with the figures, for a log or a page: ``SM clock 1410 → 1005 MHz at 90 °C``."""
    evidence: tuple[Evidence, ...]
    over: bool = False
    """The condition has ended and these are its final figures: the incident closes now, without waiting ``hold_s``.
    One that began and ended between two steps may be told of only once, like this."""
    weight: float = 0.0
    """How bad the figures are, to compare findings of one incident: the heaviest one's summary and evidence are kept,
    of equal ones the newest. In any unit; a detector whose figures only grow leaves it at 0."""


@dataclass(frozen=True, slots=True)
class IncidentKind:
    """One kind of incident, as docs/DETECTORS.md tells it."""

    name: str
    fires_when: str
    """The definition, with the thresholds by their names in backticks."""
    severities: tuple[Severity, ...]
    """Those it can have, the usual one first."""
    action: str
    """What a person should do."""
    hold_s: float = 10.0
    """An incident stays open this long after it was last found: what flickers is one incident."""


class Detector(Protocol):
    """Finds incidents of one or several kinds. Constructed with thresholds only, each a keyword with a default."""

    kinds: ClassVar[tuple[IncidentKind, ...]]
    thresholds: ClassVar[Mapping[str, str]]
    """Meaning, unit and origin of each keyword of the constructor."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        """Look once; ``scene.at_s`` grows from step to step, usually by a second, at times by more."""
        ...
