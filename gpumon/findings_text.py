"""Incidents told on standard output, for commands that run on a stepped clock: lines as they happen, or JSON lines.

Everything told is of the findings alone, in a fixed form: the same findings are the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gpumon.detect.findings import moment_of
from gpumon.detect.incident import Incident


def as_json(incident: Incident, to_unix: Callable[[float], float]) -> str:
    """One line. Times are unix seconds, to the millisecond."""
    return json.dumps(
        {
            "id": incident.id,
            "kind": incident.kind,
            "severity": incident.severity.value,
            "scope": incident.entity.scope,
            "entity": incident.entity.name,
            "gpu": incident.entity.gpu or None,
            "uuid": incident.entity.uuid or None,
            "since": round(to_unix(incident.since_s), 3),
            "opened": round(to_unix(incident.opened_s), 3),
            "last_seen": round(to_unix(incident.seen_s), 3),
            "closed": round(to_unix(incident.closed_s), 3) if incident.closed_s is not None else None,
            "summary": incident.summary,
            "evidence": [
                {"name": each.name, "observed": each.observed, "baseline": each.baseline, "unit": each.unit.value}
                for each in incident.evidence
            ],
            "requests": incident.requests,
            "traces": list(incident.traces),
        },
        ensure_ascii=False,
    )


def as_text(incident: Incident, to_unix: Callable[[float], float], began_s: float) -> str:
    """One line for a person: when, in the story and by the clock, what, of whom, how bad, with which figures."""
    moment = moment_of(to_unix(incident.opened_s))
    lasted = "open" if incident.closed_s is None else f"{incident.duration_s(incident.closed_s):.1f} s"
    return (
        f"{incident.opened_s - began_s:8.1f} s  {moment:%H:%M:%S}  {incident.severity.value:8}  {incident.kind:20}"
        f"  {incident.entity.name}  ({lasted})\n{'':23}{incident.summary}"
    )
