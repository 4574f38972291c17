"""The incidents of a period in brief, and which of them say where a cause was at work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from gpumon.catalogue import TITLES
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.model import IncidentBrief
from gpumon.explain.group import Group

MOST: Final = 50
CAUSES: Final = 3
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "memory_bandwidth": ("memory_bound",),
    "pcie": ("pcie_degraded", "pcie_saturated"),
    "nvlink": ("nvlink_degraded",),
    "page_faults": ("page_fault_burst",),
    "queueing": ("queue_buildup", "batch_jitter"),
    "kv_pressure": ("kv_pressure", "kv_mismatch"),
    "prefill_interference": ("tenant_interference",),
    "batch_growth": ("tenant_interference",),
    "long_context": ("context_cliff",),
    "gpu_error": ("xid", "gpu_lost", "ecc"),
}
"""Kinds of incidents that tell where a cause was at work, where they are not called as it is."""
SIGNS: Final = frozenset(
    ("latency_shift", "queue_buildup", "batch_jitter", "context_cliff", "starved_gpu", "memory_bound", "quality_drop")
)
"""Kinds that say how slowness shows, not where it is from."""
_SCOPES: Final = {
    "gpu": "GPUs",
    "process": "processes",
    "server": "servers",
    "tenant": "tenants",
    "collective": "communicators",
}
_THINGS: Final = "parts of the node"
_SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


def incidents(inputs: Inputs) -> tuple[IncidentBrief, ...]:
    """Those that held at some time in the period, by severity, then by what requests lost, then by time."""
    found = sorted(
        held_in(concerning(inputs), inputs.from_s, inputs.to_s),
        key=lambda each: (_SEVERITIES.index(each.severity), -_lost_s(each), each.since_s, each.id),
    )
    return tuple(
        IncidentBrief(
            id=each.id,
            kind=each.kind,
            title=TITLES[each.kind],
            severity=each.severity.value,
            entity=each.entity.name,
            gpu=each.entity.uuid,
            summary=each.summary,
            opened=inputs.to_unix(each.opened_s),
            lasted_seconds=each.duration_s(inputs.to_s),
            is_open=each.is_open,
            causes=tuple(cause for cause, _ in each.causes[:CAUSES]),
        )
        for each in found[:MOST]
    )


def concerning(inputs: Inputs) -> list[Incident]:
    """All but those of engines that were not asked for."""
    return [each for each in inputs.incidents if each.id not in inputs.of_others]


def of_others(
    found: Iterable[Incident], mine: Iterable[Group], others: Iterable[Group], held: Mapping[str, Set[str]]
) -> frozenset[str]:
    """Ids of those that are of other engines alone: of their servers, their GPUs, or processes on these.

    What is of both, such as a GPU that two engines share, is not. held: UUIDs of the GPUs that a process holds, by pid.
    """
    own, other = [*mine], [*others]
    gpus = {uuid for group in other for uuid in group.gpus} - {uuid for group in own for uuid in group.gpus}
    models = {group.model for group in other if group.model} - {group.model for group in own}
    return frozenset(each.id for each in found if _is_on(each.entity, gpus, models, held))


def _is_on(entity: Entity, gpus: Set[str], models: Set[str], held: Mapping[str, Set[str]]) -> bool:
    if entity.uuid:
        return entity.uuid in gpus
    if entity.scope == "server":
        return _model_of(entity) in models
    on = held.get(_pid_of(entity), frozenset())
    return bool(on) and on <= gpus


def _model_of(server: Entity) -> str:
    return server.name.partition(" at ")[0].partition("/")[2]


def _pid_of(entity: Entity) -> str:
    """Of a process; empty of anything else."""
    words = entity.name.split(maxsplit=2)  # pid 41403 VLLM::Worker_TP
    return words[1] if entity.scope == "process" and len(words) > 1 else ""


def concerns(incident: Incident, engine: Group, held: Mapping[str, Set[str]]) -> bool:
    """Whether it can have to do with an engine: is of its GPUs, its processes, its server, or the host. What is not
    known of either to be elsewhere can. held: UUIDs of the GPUs that a process holds, by pid.
    """
    entity = incident.entity
    if entity.uuid:
        # Which GPU a MIG instance is of is not told here.
        return not engine.gpus or entity.uuid in engine.gpus or any(uuid.startswith("MIG") for uuid in engine.gpus)
    if entity.scope == "server":
        model = _model_of(entity)
        return not (model and engine.model) or model == engine.model
    pid = _pid_of(entity)
    if not pid:
        return True
    on = held.get(pid, frozenset())
    return not on.isdisjoint(engine.gpus) if on and engine.gpus else engine.pid in ("", pid)


def more_like(found: Sequence[Incident]) -> str:
    """``, and likewise on 3 more processes``: what was found beside the first one; empty for none."""
    scopes = {each.entity.name: each.entity.scope for each in found if each.entity.name != found[0].entity.name}
    if not scopes:
        return ""
    if len(scopes) == 1:
        return f", and likewise on {next(iter(scopes))}"
    (scope, *different) = sorted({*scopes.values()})
    return f", and likewise on {len(scopes)} more {_SCOPES.get(scope, _THINGS) if not different else _THINGS}"


def held_in(found: Iterable[Incident], from_s: float, to_s: float) -> list[Incident]:
    """Those that held at some time between two."""
    return [each for each in found if each.since_s <= to_s and (each.is_open or each.seen_s >= from_s)]


def telling(found: Iterable[Incident], cause: str) -> list[Incident]:
    """Those of the kinds that a cause has, of which requests lost most to that very cause first."""
    kinds = KINDS.get(cause, (cause,))
    return sorted(
        (each for each in found if each.kind in kinds),
        key=lambda each: (-dict(each.causes).get(cause, 0.0), -each.requests, each.since_s, each.id),
    )


def meanwhile(found: Iterable[Incident]) -> list[Incident]:
    """Those that are no mere sign of slowness, by severity, then by what requests lost: what may be behind it."""
    return sorted(
        (each for each in found if each.kind not in SIGNS and each.severity is not Severity.INFO),
        key=lambda each: (_SEVERITIES.index(each.severity), -_lost_s(each), each.since_s, each.id),
    )


def _lost_s(incident: Incident) -> float:
    return sum(seconds for _, seconds in incident.causes)
