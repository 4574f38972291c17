"""Errors of device memory, and rows that wait to be replaced or cannot be.

From the ECC counters since the driver loaded (those over the board's life where there are no others) and the flags of
row remapping, on boards before Ampere those of page retirement; read every 5 s. A GPU with ECC off, or without it, has
no such series. What was counted before the first look is not reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

_MINUTE_S: Final = 60.0
_GROWTHS_MAX: Final = 128
_OUTWEIGHS: Final = 1e12
"""An uncorrectable error outweighs so many corrected ones: any number that a minute can have."""


@dataclass(slots=True)
class _Errors:
    """What one GPU had of late."""

    corrected: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_GROWTHS_MAX))
    """Time of a reading, and new errors in it; of the last minute."""
    uncorrected: float = 0.0
    """New ones since ``since_s``."""
    since_s: float = 0.0
    newest_s: float = -math.inf
    """When the newest uncorrected one was read."""


class EccErrors:
    """Errors that memory could not correct, and many that it could."""

    HOLD_S: ClassVar[float] = 60.0

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "ecc",
            "A new uncorrectable ECC error (critical), or more than `corrected_per_min` corrected ones in a minute "
            "(information; warning from `storm_per_min`).",
            (Severity.CRITICAL, Severity.WARNING, Severity.INFO),
            "After an uncorrectable error, what ran on the GPU is dead or wrong: drain it, reset it, and see whether a "
            "row was remapped. Corrected errors cost nothing by themselves; a rate that stays high comes before "
            "uncorrectable ones, so reset the GPU at the next chance and watch it.",
            hold_s=HOLD_S,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "corrected_per_min": "Corrected errors in the last 60 s; a number. Single ones now and then are normal on a "
        "large memory; NVIDIA's DCGM has a rate of 10 as a placeholder.",
        "storm_per_min": "Corrected errors in the last 60 s; a number. Ten times as many.",
    }

    def __init__(self, *, corrected_per_min: float = 10.0, storm_per_min: float = 100.0) -> None:
        self._corrected_per_min = corrected_per_min
        self._storm_per_min = storm_per_min
        self._gpus: dict[Gpu, _Errors] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        counts = scene.values(catalogue.GPU_ECC_ERRORS)
        read: dict[Gpu, float] = {}
        failed: set[Gpu] = set()
        for labels, amount, dt_s, at_s in scene.grown(catalogue.GPU_ECC_ERRORS):
            gpu, kind, scope = labels[:2], labels[2], labels[3]
            if scope == "aggregate" and (*gpu, kind, "volatile") in counts:
                continue  # the same errors, counted over the life of the board
            read[gpu] = at_s
            errors = self._gpus.setdefault(gpu, _Errors())
            if kind == "corrected":
                errors.corrected.append((at_s, amount))
            elif amount > 0:
                if at_s - errors.newest_s > self.HOLD_S:
                    errors.uncorrected, errors.since_s = 0.0, at_s - dt_s
                errors.uncorrected += amount
                errors.newest_s = at_s
                failed.add(gpu)
        for gpu, at_s in read.items():
            errors = self._gpus[gpu]
            while errors.corrected and at_s - errors.corrected[0][0] >= _MINUTE_S:
                errors.corrected.popleft()
            corrected = sum([count for _, count in errors.corrected])
            if gpu in failed or corrected > self._corrected_per_min:
                yield self._finding(gpu, errors, corrected, at_s)
        there = {labels[:2] for labels in counts}
        for gone in self._gpus.keys() - there:
            del self._gpus[gone]

    def _finding(self, gpu: Gpu, errors: _Errors, corrected: float, at_s: float) -> Finding:
        evidence = [Evidence("corrected_errors_per_minute", corrected, Unit.NONE)]
        since_s = next((read_s for read_s, count in errors.corrected if count > 0), at_s)
        if at_s - errors.newest_s <= self.HOLD_S:
            evidence.insert(0, Evidence("uncorrected_errors", errors.uncorrected, Unit.NONE))
            text = f"{errors.uncorrected:.0f} uncorrectable memory errors"
            weight = _OUTWEIGHS * errors.uncorrected
            return Finding(
                "ecc", gpu_entity(gpu), Severity.CRITICAL, errors.since_s, text, tuple(evidence), weight=weight
            )
        severity = Severity.WARNING if corrected >= self._storm_per_min else Severity.INFO
        text = f"{corrected:.0f} corrected memory errors in the last minute"
        return Finding("ecc", gpu_entity(gpu), severity, since_s, text, tuple(evidence), weight=corrected)


class RowRemap:
    """Memory rows, before Ampere pages, that wait for a reset to be replaced, or for which there is no spare."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "row_remap",
            "A row remapping or page retirement is pending (warning), or a row could not be remapped (critical).",
            (Severity.WARNING, Severity.CRITICAL),
            "Pending: drain the GPU and reset it, then the row is replaced; until then the faulty one may be used. "
            "Failed: the board has no spare rows left there, which is NVIDIA's criterion for its replacement: drain "
            "the GPU and have the board replaced.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._held: Held[Gpu] = Held(on_s=0.0, off_s=0.0)

    def step(self, scene: Scene) -> Iterator[Finding]:
        failed = scene.values(catalogue.GPU_ROW_REMAP_FAILED)
        pending = scene.values(catalogue.GPU_ROW_REMAP_PENDING)
        retiring = scene.values(catalogue.GPU_RETIRED_PAGES_PENDING)
        there = failed.keys() | pending.keys() | retiring.keys()
        self._held.keep(there)
        for gpu in sorted(there):
            flags = [family.get(gpu, 0.0) > 0 for family in (failed, pending, retiring)]
            since_s = self._held.feed(gpu, any(flags), scene.at_s)
            if since_s is not None:
                yield _remap(scene, gpu, since_s, flags)


def _remap(scene: Scene, gpu: Gpu, since_s: float, flags: Sequence[bool]) -> Finding:
    """flags: a remapping failed, one is pending, a page retirement is pending."""
    texts = (
        "a memory row could not be remapped",
        "a memory row is replaced at the next reset",
        "a memory page is retired at the next reset",
    )
    evidence = [
        Evidence(name, 1.0, Unit.NONE, 0.0)
        for name, flag in zip(("row_remap_failed", "row_remap_pending", "page_retirement_pending"), flags, strict=True)
        if flag
    ]
    for cause in ("correctable", "uncorrectable"):
        rows = scene.value(catalogue.GPU_REMAPPED_ROWS, (*gpu, cause))
        if rows is not None:
            evidence.append(Evidence(f"remapped_rows_{cause}", rows, Unit.NONE))
    severity = Severity.CRITICAL if flags[0] else Severity.WARNING
    text = "; ".join(text for text, flag in zip(texts, flags, strict=True) if flag)
    weight = sum(2.0**-place for place, flag in enumerate(flags) if flag)
    return Finding("row_remap", gpu_entity(gpu), severity, since_s, text, tuple(evidence), weight=weight)
