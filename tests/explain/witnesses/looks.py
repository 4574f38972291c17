"""A witness on a stage: what it said, and of which moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from gpumon.detect.detector import Entity, Finding, IncidentKind, Severity
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain.causes import INDEX
from gpumon.explain.group import Key
from gpumon.explain.signs import Sign, Witness


class Looks:
    """Takes the place of a detector where a stage runs, and keeps the signs."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = ()
    thresholds: ClassVar[Mapping[str, str]] = {}

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.incidents: list[Incident] = []
        self.signs: list[Sign] = []

    def step(self, scene: Scene) -> list[Finding]:
        for sign in self.witness.look(scene, self.incidents):
            check(sign, scene.at_s)
            assert sign.cause in self.witness.causes
            self.signs.append(sign)
        return []

    def at(self, at_s: float, *key: str) -> tuple[float, float]:
        """Evidence and cap of a moment, as the board would take them; 0 where nothing was said. key: of one thing."""
        found = [
            (sign.evidence, sign.cap)
            for sign in self.signs
            if sign.start_s <= at_s < sign.end_s and (not key or sign.key == key)
        ]
        return max(found, default=(0.0, 0.0))

    def keys(self) -> list[Key]:
        """Whom signs are of, each once, sorted."""
        return sorted({sign.key for sign in self.signs})

    def take(self) -> list[Sign]:
        """The signs since the last call."""
        taken, self.signs = self.signs, []
        return taken


def check(sign: Sign, at_s: float) -> None:
    """What is so of every sign."""
    assert sign.cause in INDEX
    assert all(math.isfinite(value) for value in (sign.start_s, sign.end_s, sign.evidence, sign.cap))
    assert 0 < sign.evidence <= 1
    assert 0 <= sign.cap <= 1
    assert sign.start_s < sign.end_s <= at_s
    if sign.fact is not None:
        assert math.isfinite(sign.fact.observed)
        assert sign.fact.usual is None or math.isfinite(sign.fact.usual)


def incident(kind: str, scope: str, name: str, *, closed_s: float | None = None) -> Incident:
    """One that is open, or was closed."""
    return Incident(
        id=f"{kind}-{name}",
        kind=kind,
        entity=Entity(scope, name),
        severity=Severity.WARNING,
        since_s=0.0,
        opened_s=0.0,
        seen_s=0.0,
        summary="",
        evidence=(),
        action="",
        closed_s=closed_s,
    )
