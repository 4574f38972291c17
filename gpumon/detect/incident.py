"""An incident: findings of one kind and one entity, from the first to the last, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpumon.detect.concerned import NOTHING, Concerned
from gpumon.detect.detector import Entity, Evidence, Severity


@dataclass(slots=True, eq=False)
class Incident:
    """Changes while it is open; the ledger owns it, others read. Times are steady seconds."""

    id: str
    """Of unix time, kind and entity, unique on the node: ``20261129T171047Z-thermal_throttle-gpu-3``. Safe as a file
    name and in a URL: letters, digits, ``-`` and ``_``, at most 120."""
    kind: str
    entity: Entity
    """Its GPU may become known later."""
    severity: Severity
    """The worst so far."""
    since_s: float
    """When the effect began."""
    opened_s: float
    """When it was found."""
    seen_s: float
    """When it last held."""
    summary: str
    """Of the heaviest finding, or the one that said that it is over."""
    evidence: tuple[Evidence, ...]
    """As ``summary``."""
    action: str
    closed_s: float | None = None
    traces: tuple[str, ...] = ()
    """Trace ids of requests that ran on the entity meanwhile, 32 hex digits, the first ones, bounded."""
    spans: tuple[str, ...] = ()
    """Span id of each of those requests, 16 hex digits; empty where it is not known."""
    requests: int = 0
    """How many requests ran on it meanwhile."""
    recording: str = ""
    """File name of the flight recording; empty while there is none."""
    weight: float = 0.0
    """``Finding.weight`` of summary and evidence."""
    causes: tuple[tuple[str, float], ...] = ()
    """Of the requests that ran on it meanwhile: seconds of excess by cause, the largest first; filled in some seconds
    after they ended, where explanation is on."""
    late_by_tenant: tuple[tuple[str, float], ...] = ()
    """Seconds of excess of the same requests by tenant, the largest first; what is past a number of them is
    ``other``."""
    explained: int = 0
    """How many requests causes are known of, late ones or not."""
    concerned: Concerned = NOTHING
    """Whom it concerns, as far as that is known."""
    restored: bool = False
    """It was open when gpumon ended the last time, and was found again."""

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    def duration_s(self, at_s: float) -> float:
        """From the beginning of the effect to its end, or until now."""
        return max(0.0, (self.seen_s if self.closed_s is not None else at_s) - self.since_s)

    @property
    def recovery_s(self) -> float | None:
        """From its opening until it held no more; None while it is open."""
        return max(0.0, self.seen_s - self.opened_s) if self.closed_s is not None else None


class IncidentListener(Protocol):
    """Hears of incidents, in the detection's thread: must not wait, and must not raise."""

    def opened(self, incident: Incident, at_s: float) -> None:
        """Once for each incident; for a ``restored`` one once more in every life of gpumon."""
        ...

    def closed(self, incident: Incident, at_s: float) -> None:
        """Again for one that was over, began anew within its kind's ``hold_s`` and is over for good."""
        ...
