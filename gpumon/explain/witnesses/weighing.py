"""How witnesses of the host and of servers weigh what they see: over its own usual, and with open incidents."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from gpumon.detect.detector import server_entity
from gpumon.detect.hysteresis import Baseline
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Labels
from gpumon.detect.serving import cgroup_of
from gpumon.explain.group import Key

HOLDS: Final = 0.2
"""Evidence from which a reading is not one of a calm time."""
CONFIRMED: Final = 0.8
"""Least evidence where a detector has found the same."""
PROCESSES_MAX: Final = 256
"""As many as are followed at most (``processes.limit``)."""
_POINTS: Final = 0.1
"""Evidence from which a reading says the same as an open incident."""


def ramp(value: float, low: float, high: float) -> float:
    """0 up to ``low``, 1 from ``high`` on, even between. A step where the two are one."""
    if high <= low:
        return float(value > low)
    return min(1.0, max(0.0, (value - low) / (high - low)))


def confirmed(evidence: float, *, is_found: bool) -> float:
    """Evidence, with what a detector says. An incident alone is none: it stays open for a while after its end."""
    return max(evidence, CONFIRMED) if is_found and evidence >= _POINTS else evidence


class Usual:
    """What a thing is like in calm times: the median of the newest readings at which nothing held.

    The first ones are taken as they are: what has always been so is usual. So is what goes on for long enough.
    """

    def __init__(self, size: int, least: int, *, settles: int = 900) -> None:
        """size: readings kept. least: fewer are no usual. settles: readings running with evidence after which they
        count: a quarter of an hour, where there is one a second."""
        self._calm = Baseline(size, least)
        self._settles = settles
        self._held = 0

    @property
    def value(self) -> float | None:
        """None until enough is known."""
        return self._calm.median

    def feed(self, value: float, evidence: float) -> None:
        """A reading, and the evidence that it gave."""
        self._held = self._held + 1 if evidence >= HOLDS else 0
        if self._held == 0 or self._held > self._settles or not self._calm.known:
            self._calm.feed(value)


def found_pids(incidents: Iterable[Incident], kind: str) -> set[str]:
    """Pids after which open incidents of a kind are named; "" where there is one of the host."""
    found = set()
    for incident in incidents:
        if incident.kind == kind and incident.is_open:
            words = incident.entity.name.split(maxsplit=2)
            if incident.entity.scope == "host":
                found.add("")
            elif incident.entity.scope == "process" and len(words) > 1:
                found.add(words[1])
    return found


def sharing(processes: Iterable[Labels], pids: Container[str]) -> set[Labels]:
    """Of processes (labels of a workload) those that share a cgroup with any of these pids: what strikes one of a
    container strikes all, and its incident is named after one."""
    groups: dict[Labels, list[Labels]] = {}
    for process in processes:
        groups.setdefault(cgroup_of(process), []).append(process)
    return {each for group in groups.values() if any(process[0] in pids for process in group) for each in group}


def is_of(found: Container[str], pids: Iterable[str]) -> bool:
    """Whether any of these processes, or the host, is among ``found_pids``."""
    return "" in found or any(pid in found for pid in pids)


def found_servers(incidents: Sequence[Incident], kind: str) -> set[str]:
    """Names of servers of which incidents of a kind are open, as ``server_entity`` makes them."""
    return {each.entity.name for each in incidents if each.kind == kind and each.is_open}


def server_name(labels: Labels) -> str:
    """Of a series of a metrics page, as incidents name it."""
    return server_entity(labels).name


def server_key(labels: Labels) -> Key:
    """Of a series of a metrics page: whom its signs are of."""
    return ("server", labels[1] or f"{labels[0]}/")
