"""The incidents of a period in brief, and which of them say where a cause was at work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gpumon.detect.detector import Severity
from gpumon.detect.incident import Incident
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.model import IncidentBrief

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
    "gpu": ("GPU", "GPUs"),
    "process": ("process", "processes"),
    "server": ("server", "servers"),
    "tenant": ("tenant", "tenants"),
    "collective": ("communicator", "communicators"),
}
_THINGS: Final = ("part of the node", "parts of the node")
_PERCENT: Final = re.compile(r"(?<=\d)%")
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
            severity=each.severity.value,
            entity=each.entity.name,
            gpu=each.entity.uuid,
            summary=summary(each),
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


def summary(incident: Incident) -> str:
    """With percent written as everywhere here."""
    return _PERCENT.sub(" %", incident.summary)


def more_like(found: Sequence[Incident]) -> str:
    """``, and 3 more processes``: how many others were found beside the first one, and of what; empty for none."""
    scopes = {each.entity.name: each.entity.scope for each in found if each.entity.name != found[0].entity.name}
    if not scopes:
        return ""
    (scope, *different) = sorted({*scopes.values()})
    one, many = _SCOPES.get(scope, _THINGS) if not different else _THINGS
    return f", and likewise on {len(scopes)} more {many if len(scopes) > 1 else one}"


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
