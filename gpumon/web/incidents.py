"""The JSON API's part about incidents: what was found, what it is based on and what to do. Times are unix seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from gpumon import catalogue
from gpumon.detect import incident as found
from gpumon.detect.ledger import CLOSED_MAX, OPEN_MAX
from gpumon.web.answers import NOT_FOUND, REFUSED, Answers


def _known_kind(kind: str) -> str:
    if kind not in catalogue.INCIDENT_KINDS:
        raise ValueError(f"no kind of incident; they are {', '.join(catalogue.INCIDENT_KINDS)}")
    return kind


Kind = Annotated[
    str, AfterValidator(_known_kind), WithJsonSchema({"type": "string", "enum": [*catalogue.INCIDENT_KINDS]})
]
Severity = Literal["info", "warning", "critical"]


class Entity(BaseModel):
    """What an incident is of."""

    scope: str = Field(description="gpu, process, server, host, tenant or collective.")
    name: str
    gpu: str | None = Field(description="NVML's index of the one GPU concerned.")
    uuid: str | None = Field(description="Of that GPU.")


class Evidence(BaseModel):
    """A figure behind an incident, in its base unit."""

    name: str
    observed: float
    unit: str = Field(description="seconds, bytes, watts, …; empty for a bare number.")
    baseline: float | None = Field(description="What it was before, or is elsewhere.")


class Incident(BaseModel):
    """One incident."""

    id: str
    kind: str
    severity: Severity = Field(description="The worst so far.")
    state: Literal["open", "closed"]
    entity: Entity
    summary: str = Field(description="The newest figures in a line.")
    action: str = Field(description="What to do.")
    since: float = Field(description="When the effect began.")
    opened: float = Field(description="When it was found.")
    last_seen: float = Field(description="When it last held.")
    closed: float | None
    duration_seconds: float = Field(description="From the beginning of the effect to its end, or until now.")
    recovery_seconds: float | None = Field(description="From its finding until it held no more; null while it is open.")
    evidence: list[Evidence]
    causes: dict[str, float] = Field(
        description="Seconds by which tokens of those requests were late, by cause, the largest first; known some "
        "seconds after they ended."
    )
    requests: int = Field(description="Requests that ran on the entity meanwhile and have ended.")
    traces: list[str] = Field(description="Trace ids of the first of those.")
    recording: str | None = Field(description="File of its flight recording, in state.folder.")
    restored: bool = Field(description="It was open before gpumon last started.")


def incident_routes(
    incidents: Callable[[], Sequence[found.Incident]],
    now_s: Callable[[], float],
    to_unix: Callable[[float], float],
) -> APIRouter:
    """incidents: those kept, newest first. now_s: steady seconds; to_unix: unix time of such."""
    router = APIRouter(prefix="/api/v1/incidents", route_class=Answers, responses=REFUSED)

    def tell(incident: found.Incident) -> Incident:
        return told(incident, now_s(), to_unix)

    @router.get("")
    def newest(
        state: Literal["open", "closed", "all"] = "all",
        kind: Kind | None = None,
        severity: Severity | None = None,
        uuid: Annotated[str | None, Query(max_length=96, description="Of a GPU.")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> list[Incident]:
        """Incidents, the newest first."""
        chosen = [
            incident
            for incident in incidents()
            if (state == "all" or incident.is_open == (state == "open"))
            and kind in (None, incident.kind)
            and severity in (None, incident.severity.value)
            and uuid in (None, incident.entity.uuid)
        ]
        return [tell(incident) for incident in chosen[:limit]]

    @router.get("/{incident_id}", responses=NOT_FOUND)
    def one(incident_id: Annotated[str, Path(max_length=120)]) -> Incident:
        """One incident by its id."""
        for incident in incidents():
            if incident.id == incident_id:
                return tell(incident)
        raise HTTPException(
            404,
            f"no incident has this id; known are those that are open, {OPEN_MAX} at most, and the {CLOSED_MAX} that "
            "closed last since gpumon started",
        )

    return router


def told(incident: found.Incident, at_s: float, to_unix: Callable[[float], float]) -> Incident:
    """An incident as the API says it. at_s: steady seconds now."""
    entity = incident.entity
    return Incident(
        id=incident.id,
        kind=incident.kind,
        severity=incident.severity.value,
        state="open" if incident.is_open else "closed",
        entity=Entity(scope=entity.scope, name=entity.name, gpu=entity.gpu or None, uuid=entity.uuid or None),
        summary=incident.summary,
        action=incident.action,
        since=to_unix(incident.since_s),
        opened=to_unix(incident.opened_s),
        last_seen=to_unix(incident.seen_s),
        closed=to_unix(incident.closed_s) if incident.closed_s is not None else None,
        duration_seconds=incident.duration_s(at_s),
        recovery_seconds=incident.recovery_s,
        evidence=[
            Evidence(name=each.name, observed=each.observed, unit=each.unit.value, baseline=each.baseline)
            for each in incident.evidence
        ],
        causes={cause: round(seconds, 6) for cause, seconds in incident.causes},
        requests=incident.requests,
        traces=list(incident.traces),
        recording=incident.recording or None,
        restored=incident.restored,
    )
