"""One flight recording while gpumon goes on with it: its file, whom it tells of, how long it lasts, what is in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from gpumon.detect.incident import Incident
from gpumon.model import GpuUuid
from gpumon.record.flight_file import FlightFile

CLOSED_S = 10.0
"""How long a recording goes on after its incident has closed."""


@dataclass(slots=True, eq=False)
class Recording:
    """One that runs."""

    path: Path
    file: FlightFile
    started_s: float
    incidents: list[Incident] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)
    """When each of them opened; for one from an earlier life of gpumon, when it was found again."""
    is_told: bool = False
    """Whether all of them are in the file."""
    open: list[Incident] = field(default_factory=list)
    """Once it has ended: those of which the file does not tell the end yet."""
    chunk: int = 0
    """The last one that is in the file, or was left out of it."""
    fast_s: dict[GpuUuid, float] = field(default_factory=dict)
    """The newest fast row that is, by GPU."""

    def add(self, incident: Incident, heard_s: float) -> None:
        self.incidents.append(incident)
        self.heard_s.append(heard_s)
        self.is_told = False
        incident.recording = self.path.name

    def tell(self) -> None:
        """Write the incidents, if there are new ones. Raises OSError."""
        if not self.is_told:
            self.file.incidents(self.incidents)
            self.is_told = True

    def end_s(self, after_s: float) -> float:
        ends_s = [
            min(heard_s + after_s, over_s(incident))
            for incident, heard_s in zip(self.incidents, self.heard_s, strict=True)
        ]
        return min(max(ends_s), self.started_s + 2 * after_s)


def over_s(incident: Incident) -> float:
    """When all is over that a recording is to tell of it; never, while it is open."""
    closed_s = incident.closed_s  # asked once: another thread may open it again
    return math.inf if closed_s is None else closed_s + CLOSED_S
