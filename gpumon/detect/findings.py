"""Findings of one step made fit to become incidents: one per kind and entity, finite, bounded; and incidents' names.

What detectors say may hold names of processes, servers and tenants, which are foreign text: of any length and with
bytes that are none. A figure that is not finite is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Final

from gpumon.detect.detector import Entity, Evidence, Finding, Severity

ID_MAX: Final = 120
NAME_MAX: Final = 200
SUMMARY_MAX: Final = 500
EVIDENCE_MAX: Final = 32

_LAST_UNIX_S: Final = 253_402_300_799.0  # of the year 9999: a clock may say anything

Key = tuple[str, Entity]
"""What there is one incident of, see ``key_of``."""

RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}


def key_of(kind: str, entity: Entity) -> Key:
    """Kind and entity. Of what is no GPU without its GPU: what a process runs on may be unknown for a moment."""
    return kind, entity if entity.scope == "gpu" else entity._replace(gpu="", uuid="")


def clean(finding: Finding, at_s: float) -> Finding:
    """The finding of this moment as it may go on. Raises whatever one raises that is not typed as it should be."""
    entity = finding.entity
    return replace(
        finding,
        entity=Entity(*(_text(part, NAME_MAX) for part in entity)),
        severity=Severity(finding.severity),
        since_s=min(float(finding.since_s), at_s) if math.isfinite(finding.since_s) else at_s,
        summary=_text(finding.summary, SUMMARY_MAX),
        evidence=tuple(_figure(each) for each in finding.evidence if math.isfinite(each.observed))[:EVIDENCE_MAX],
        weight=float(finding.weight) if math.isfinite(finding.weight) else 0.0,
    )


def merged(findings: Iterable[Finding], kinds: Container[str]) -> dict[Key, Finding]:
    """Clean findings of these kinds, one per kind and entity, in the order given.

    Of two the newer one's figures count before the older one's, the worse one's severity and summary, the earlier
    beginning and the larger weight; they are over if both say so.
    """
    found: dict[Key, Finding] = {}
    for finding in findings:
        if finding.kind not in kinds:
            continue
        key = key_of(finding.kind, finding.entity)
        other = found.get(key)
        found[key] = finding if other is None else _joined(other, finding)
    return found


def incident_id(unix_s: float, kind: str, entity: Entity, taken: Container[str]) -> str:
    """See ``Incident.id``. taken: ids that are in use; then a number is appended."""
    moment = moment_of(unix_s)
    name = re.sub(r"[^A-Za-z0-9_]+", "-", entity.name).strip("-") or "unnamed"
    stem = f"{moment:%Y%m%dT%H%M%SZ}-{kind}-{name}"
    return next(id_ for number in count(1) if (id_ := _numbered(stem, number)) not in taken)


def moment_of(unix_s: float) -> datetime:
    """Unix time as a moment that has a name, whatever the clock said."""
    return datetime.fromtimestamp(min(max(unix_s, 0.0), _LAST_UNIX_S), UTC)


def _numbered(stem: str, number: int) -> str:
    suffix = f"-{number}" if number > 1 else ""
    return stem[: ID_MAX - len(suffix)].rstrip("-") + suffix


def _figure(evidence: Evidence) -> Evidence:
    baseline = evidence.baseline
    if baseline is not None:
        baseline = float(baseline) if math.isfinite(baseline) else None
    return evidence._replace(observed=float(evidence.observed), baseline=baseline)


def _text(text: str, limit: int) -> str:
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    # Names of processes may hold bytes that are no text; no output format can carry those.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _joined(older: Finding, newer: Finding) -> Finding:
    worse = newer if RANK[newer.severity] >= RANK[older.severity] else older
    names = {each.name for each in newer.evidence}
    return replace(
        newer,
        entity=newer.entity if newer.entity.uuid else older.entity,
        severity=worse.severity,
        since_s=min(older.since_s, newer.since_s),
        summary=worse.summary,
        evidence=(*newer.evidence, *(each for each in older.evidence if each.name not in names)),
        over=older.over and newer.over,
        weight=max(older.weight, newer.weight),
    )
