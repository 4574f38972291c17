"""NVLinks that went down, and links with errors.

From the number of links by state and the error counters of all links, read every 5 s. How many links a GPU should have
nobody tells (bridges and partitions leave some unused), so a GPU is compared with the most it had active since gpumon
looks. GPUs without NVLink have no such series.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.scene import Growth, Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

_TWICE = 2
_TWICE_S = 1.0
"""Apart from each other, two readings are: links of a GPU that was reset just now are trained one after another."""
_GRAVE = ("replay", "recovery", "ecc_data")
"""Errors that a sound link does not have. CRC errors it may have, now and then."""


@dataclass(slots=True)
class _Watched:
    """One GPU's links."""

    most: float = 0.0
    """Links active at once, the most seen."""
    active: float | None = None
    noisy: int = 0
    """Readings running with too many CRC errors."""
    per_s: float = 0.0
    """CRC errors per second between the newest two readings."""
    errors: dict[str, float] = field(default_factory=dict)
    """By kind, of the readings that had too many, since ``faulty_s``."""
    down_s: float | None = None
    """Since when links have been missing."""
    least: float | None = None
    """Links active when the fewest were, of the time since ``HOLD_S`` before now."""
    least_s: float = -math.inf
    faulty_s: float = 0.0
    """Since when there have been such readings, no further apart than the incident stays open."""
    newest_s: float = -math.inf
    """Of the newest such reading."""


class NvlinkDegraded:
    """Fewer links than before, or errors on them."""

    HOLD_S: ClassVar[float] = 60.0

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "nvlink_degraded",
            "Fewer NVLinks active than the most this GPU had, twice running; or replay, recovery or ECC errors in one "
            "reading (5 s); or CRC errors above `crc_per_s` in two readings running. Critical where no link is left, "
            "or from `crc_grave_per_s`.",
            (Severity.WARNING, Severity.CRITICAL),
            "See which links (nvidia-smi nvlink -s, -e) and look for XID 74 in the kernel log and at the fabric "
            "manager. Collectives over them are slow or hang: drain the GPU's jobs, reset it or reboot the node, and "
            "have the board or its baseplate looked at if it comes back.",
            hold_s=HOLD_S,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "crc_per_s": "CRC errors per second, all links of a GPU. Links in their specification have well below one.",
        "crc_grave_per_s": "CRC errors per second. From 100 on, NVIDIA's DCGM counts them as a failure.",
    }

    def __init__(self, *, crc_per_s: float = 1.0, crc_grave_per_s: float = 100.0) -> None:
        self._crc_per_s = crc_per_s
        self._crc_grave_per_s = crc_grave_per_s
        self._down: Held[Gpu] = Held(on_s=_TWICE_S, off_s=0.0)
        self._gpus: dict[Gpu, _Watched] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        self._look_at_links(scene)
        faulty = self._look_at_errors(scene)
        linked = {labels[:2] for labels in scene.values(catalogue.GPU_NVLINKS)}
        counted = {labels[:2] for labels in scene.values(catalogue.GPU_NVLINK_ERRORS)}
        for gone in self._gpus.keys() - linked - counted:
            del self._gpus[gone]
        self._down.keep(linked)
        for gpu, watched in self._gpus.items():
            if gpu not in linked:
                watched.active = watched.down_s = watched.least = None
            if watched.down_s is not None or gpu in faulty:
                yield self._finding(gpu, watched, is_faulty=gpu in faulty)

    def _watched(self, gpu: Gpu) -> _Watched:
        return self._gpus.setdefault(gpu, _Watched())

    def _look_at_links(self, scene: Scene) -> None:
        for labels, value, at_s in scene.read(catalogue.GPU_NVLINKS):
            if labels[2] == "active":
                watched = self._watched(labels[:2])
                watched.active = value
                watched.most = max(watched.most, value)
                watched.down_s = self._down.feed(labels[:2], value < watched.most, at_s)
                if watched.least is None or value <= watched.least or at_s - watched.least_s > self.HOLD_S:
                    watched.least, watched.least_s = value, at_s

    def _look_at_errors(self, scene: Scene) -> set[Gpu]:
        """GPUs with new errors on their links."""
        new: dict[Gpu, dict[str, Growth]] = {}
        for growth in scene.grown(catalogue.GPU_NVLINK_ERRORS):
            new.setdefault(growth.labels[:2], {})[growth.labels[2]] = growth
        faulty = set()
        for gpu, growths in new.items():
            watched = self._watched(gpu)
            newest = max(growths.values(), key=lambda each: each.at_s)
            grown = {kind: growth.amount for kind, growth in growths.items() if growth.amount > 0}
            watched.per_s = sum([growth.rate for kind, growth in growths.items() if kind not in _GRAVE])
            is_noisy = watched.per_s > self._crc_per_s
            is_grave = any(kind in grown for kind in _GRAVE)
            watched.noisy = watched.noisy + 1 if is_noisy else 0
            if not is_noisy and not is_grave:
                continue
            if newest.at_s - watched.newest_s > self.HOLD_S:
                watched.errors.clear()
                watched.faulty_s = newest.at_s - newest.dt_s
            watched.newest_s = newest.at_s
            for kind, amount in grown.items():
                watched.errors[kind] = watched.errors.get(kind, 0.0) + amount
            if is_grave or watched.noisy >= _TWICE:
                faulty.add(gpu)
        return faulty

    def _finding(self, gpu: Gpu, watched: _Watched, *, is_faulty: bool) -> Finding:
        evidence: list[Evidence] = []
        parts: list[str] = []
        critical = False
        if watched.least is not None:
            evidence.append(Evidence("nvlinks_active", watched.least, Unit.NONE, watched.most))
        if watched.down_s is not None and watched.active is not None:
            parts.append(f"{watched.active:.0f} of {watched.most:.0f} NVLinks active")
            critical = watched.active == 0
        if is_faulty:
            critical = critical or watched.per_s >= self._crc_grave_per_s
            errors = sorted(watched.errors.items())
            evidence += [Evidence(f"nvlink_{kind}_errors", count, Unit.NONE) for kind, count in errors]
            parts.append(f"NVLink errors: {', '.join(f'{count:.0f} {kind}' for kind, count in errors)}")
        since_s = watched.faulty_s if watched.down_s is None else watched.down_s
        if is_faulty:
            since_s = min(since_s, watched.faulty_s)
        return Finding(
            "nvlink_degraded",
            gpu_entity(gpu),
            Severity.CRITICAL if critical else Severity.WARNING,
            since_s,
            "; ".join(parts),
            tuple(evidence),
        )
