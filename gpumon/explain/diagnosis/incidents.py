"""The incidents of a period in brief, and which of them say where a cause was at work."""

from __future__ import annotations

from collections.abc import Iterable
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
_SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


def incidents(inputs: Inputs) -> tuple[IncidentBrief, ...]:
    """Those that held at some time in the period, by severity, then by what requests lost, then by time."""
    found = sorted(
        held_in(inputs.incidents, inputs.from_s, inputs.to_s),
        key=lambda each: (_SEVERITIES.index(each.severity), -_lost_s(each), each.since_s, each.id),
    )
    return tuple(
        IncidentBrief(
            id=each.id,
            kind=each.kind,
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
