"""The JSON API's part about incidents: what was found, what it is based on and what to do. Times are unix seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from gpumon import catalogue
from gpumon.detect import incident as found
from gpumon.detect.ledger import CLOSED_MAX, OPEN_MAX
from gpumon.explain.diagnosis.incidents import KINDS
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


class Served(BaseModel):
    """Whose requests ran on it meanwhile or, until one has ended, just before."""

    server: str = Field(description="Kind of server.")
    model: str
    gpus: list[str] = Field(description="Indices of the GPUs that they were bound to; empty where not known.")
    requests: int = Field(description="How many of them have ended.")


class Process(BaseModel):
    """The one process that an incident is of, or that holds its GPU."""

    pid: str
    name: str = Field(description="As the kernel has it: 15 bytes at most.")


class Rank(BaseModel):
    """A process's place among those that work together, as its collective operations told it."""

    communicator: str = Field(description="Its name and id.")
    rank: int


class Tenant(BaseModel):
    """Whose requests those were."""

    tenant: str = Field(description="other: all past a number of them.")
    requests: int
    late_seconds: float | None = Field(description="By which their tokens were late; null where not known yet.")


class Incident(BaseModel):
    """One incident."""

    id: str
    kind: str
    title: str = Field(description="Of that kind, as people call it.")
    severity: Severity = Field(description="The worst so far.")
    state: Literal["open", "closed"]
    entity: Entity
    gpus: list[str] = Field(
        description="Indices of the GPUs that it is of: its own, its process's; of a server those of its requests. "
        "Empty where not known, and of the host."
    )
    process: Process | None = Field(description="Null where it is not of one, or not known.")
    rank: Rank | None = Field(description="Of that process, or of the collective's; null where not known.")
    servers: list[Served] = Field(description="Those with most requests first, 8 at most; empty where not known.")
    tenants: list[Tenant] = Field(description="Those that lost most first; empty where none are told.")
    late_seconds: float | None = Field(
        description="By which tokens of requests that ran on it meanwhile were late, all causes together; null while "
        "none is explained."
    )
    cost_seconds: float | None = Field(
        description="Of these, those by the cause that this kind of incident is; null where it is none, such as "
        "latency_shift, and while none is explained."
    )
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
    detailed_traces: list[str] = Field(description="Of these, those that /api/v1/explain knows.")
    recording: str | None = Field(
        description="File of its flight recording, in state.folder. It is named after the incident that opened first."
    )
    recording_shared_with: list[str] = Field(description="Ids of the other incidents in the same file.")
    restored: bool = Field(description="It was open before gpumon last started.")


Knows = Callable[[str, str], bool]
"""Whether /api/v1/explain knows a request, by trace and span id in hex digits."""


class Telling:
    """Incidents as the API says them. From any thread."""

    def __init__(
        self,
        incidents: Callable[[], Sequence[found.Incident]],
        now_s: Callable[[], float],
        to_unix: Callable[[float], float],
        knows: Knows | None = None,
    ) -> None:
        """incidents: those kept, newest first. now_s: steady seconds; to_unix: unix time of such. knows: None: nothing
        is explained."""
        self.incidents = incidents
        self._now_s = now_s
        self._to_unix = to_unix
        self._knows: Knows = knows if knows is not None else _nobody

    def tell(self, chosen: Sequence[found.Incident], known: Sequence[found.Incident]) -> list[Incident]:
        """known: all of them."""
        at_s = self._now_s()
        by_recording: dict[str, list[str]] = {}
        for incident in known:
            by_recording.setdefault(incident.recording, []).append(incident.id)
        return [told(each, at_s, self._to_unix, self._knows, by_recording.get(each.recording, ())) for each in chosen]


def incident_routes(telling: Telling) -> APIRouter:
    """See the module."""
    router = APIRouter(prefix="/api/v1/incidents", route_class=Answers, responses=REFUSED)

    @router.get("")
    def newest(
        state: Literal["open", "closed", "all"] = "all",
        kind: Kind | None = None,
        severity: Severity | None = None,
        uuid: Annotated[str | None, Query(max_length=96, description="Of a GPU.")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> list[Incident]:
        """Incidents, the newest first."""
        known = telling.incidents()
        chosen = [
            incident
            for incident in known
            if (state == "all" or incident.is_open == (state == "open"))
            and kind in (None, incident.kind)
            and severity in (None, incident.severity.value)
            and uuid in (None, incident.entity.uuid)
        ]
        return telling.tell(chosen[:limit], known)

    @router.get("/{incident_id}", responses=NOT_FOUND)
    def one(incident_id: Annotated[str, Path(max_length=120)]) -> Incident:
        """One incident by its id."""
        known = telling.incidents()
        for incident in known:
            if incident.id == incident_id:
                return telling.tell([incident], known)[0]
        raise HTTPException(
            404,
            f"no incident has this id; known are those that are open, {OPEN_MAX} at most, and the {CLOSED_MAX} that "
            "closed last since gpumon started",
        )

    return router


def _nobody(trace_id: str, span_id: str) -> bool:  # noqa: ARG001 - of the form of Knows
    return False


def told(
    incident: found.Incident, at_s: float, to_unix: Callable[[float], float], knows: Knows, recorded: Sequence[str]
) -> Incident:
    """An incident as the API says it. at_s: steady seconds now. recorded: ids of incidents in the same recording."""
    entity, concerned = incident.entity, incident.concerned
    is_explained = incident.explained > 0
    late_s = dict(incident.late_by_tenant)
    tenants = sorted(concerned.tenants, key=lambda each: (-late_s.get(each[0], 0.0), -each[1], each[0]))
    of_servers = dict.fromkeys(gpu for served in concerned.servers for gpu in served.gpus)
    gpus = concerned.gpus or (of_servers if entity.scope == "server" else ())
    return Incident(
        id=incident.id,
        kind=incident.kind,
        title=catalogue.TITLES[incident.kind],
        severity=incident.severity.value,
        state="open" if incident.is_open else "closed",
        entity=Entity(scope=entity.scope, name=entity.name, gpu=entity.gpu or None, uuid=entity.uuid or None),
        gpus=sorted(gpus, key=lambda gpu: (len(gpu), gpu)),
        process=Process(pid=concerned.pid, name=concerned.process) if concerned.pid else None,
        rank=Rank(communicator=concerned.rank.communicator, rank=concerned.rank.rank) if concerned.rank else None,
        servers=[
            Served(server=each.server, model=each.model, gpus=[*each.gpus], requests=each.requests)
            for each in concerned.servers
        ],
        tenants=[
            Tenant(
                tenant=name,
                requests=requests,
                late_seconds=round(late_s.get(name, 0.0), 6) if is_explained else None,
            )
            for name, requests in tenants
        ],
        late_seconds=round(sum(seconds for _, seconds in incident.causes), 6) if is_explained else None,
        cost_seconds=_cost_s(incident) if is_explained else None,
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
        detailed_traces=[
            trace_id
            for trace_id, span_id in zip(incident.traces, incident.spans, strict=True)
            if knows(trace_id, span_id)
        ],
        recording=incident.recording or None,
        recording_shared_with=[each for each in recorded if incident.recording and each != incident.id],
        restored=incident.restored,
    )


def _cost_s(incident: found.Incident) -> float | None:
    """Seconds by the causes that its kind stands for; None where it stands for none."""
    causes = {cause for cause in catalogue.CAUSES if cause == incident.kind or incident.kind in KINDS.get(cause, ())}
    return round(sum(seconds for cause, seconds in incident.causes if cause in causes), 6) if causes else None
