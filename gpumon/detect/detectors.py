"""All detectors, in the order in which they look; and made as the configuration wants them.

``detect.off`` names kinds that are not looked for. ``detect.thresholds`` gives other thresholds by kind; a detector of
several kinds has one set of them, to be given under any of its kinds. What is wrong there raises DetectConfigError with
a line for each problem.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, cast

from gpumon.config import DetectConfig
from gpumon.config_types import shown
from gpumon.detect.allocator import AllocatorGap
from gpumon.detect.batch import BatchJitter
from gpumon.detect.bound import MemoryBound, StarvedGpu
from gpumon.detect.contention import GpuContention
from gpumon.detect.context_cliff import ContextCliff
from gpumon.detect.cpu import CpuStarvation
from gpumon.detect.detector import Detector, IncidentKind
from gpumon.detect.graphs import GraphFallback
from gpumon.detect.kv import KvMismatch, KvPressure
from gpumon.detect.latency_shift import LatencyShift
from gpumon.detect.memory_health import EccErrors, RowRemap
from gpumon.detect.memory_pressure import MemoryPressure
from gpumon.detect.moe import MoeImbalance
from gpumon.detect.numa import NumaRemote
from gpumon.detect.nvlink import NvlinkDegraded
from gpumon.detect.page_faults import PageFaultBurst
from gpumon.detect.pcie import PcieDegraded, PcieSaturated
from gpumon.detect.presence import DriverMismatch, GpuLost
from gpumon.detect.quality import QualityDrop
from gpumon.detect.queue import QueueBuildup
from gpumon.detect.stopped import ProcessStopped
from gpumon.detect.straggler import Straggler
from gpumon.detect.tenants import TenantInterference
from gpumon.detect.throttling import HwSlowdown, PowerThrottle, ThermalThrottle
from gpumon.detect.xid import XidErrors

DETECTORS: Final[tuple[type[Detector], ...]] = (
    # The GPUs themselves.
    GpuLost,
    DriverMismatch,
    XidErrors,
    EccErrors,
    RowRemap,
    ThermalThrottle,
    PowerThrottle,
    HwSlowdown,
    MemoryBound,
    StarvedGpu,
    PcieDegraded,
    PcieSaturated,
    NvlinkDegraded,
    GpuContention,
    # The host and its processes.
    PageFaultBurst,
    NumaRemote,
    CpuStarvation,
    ProcessStopped,
    MemoryPressure,
    # What is served.
    LatencyShift,
    ContextCliff,
    TenantInterference,
    QualityDrop,
    QueueBuildup,
    BatchJitter,
    KvPressure,
    KvMismatch,
    Straggler,
    MoeImbalance,
    GraphFallback,
    AllocatorGap,
)
"""Every kind of the catalogue is of exactly one of these."""


class DetectConfigError(ValueError):
    """The section ``detect`` of the configuration cannot be taken. ``str()``: one line for each problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Built(NamedTuple):
    """What is to look, for what."""

    detectors: tuple[Detector, ...]
    kinds: tuple[IncidentKind, ...]
    """Those that are not off: for the ledger, since a detector may also find others."""


class Threshold(NamedTuple):
    """A keyword of a detector's constructor."""

    name: str
    default: float
    """A whole number where only those are taken."""
    meaning: str


def thresholds_of(detector: type[Detector]) -> list[Threshold]:
    """Its thresholds, in the order of the constructor."""
    parameters = inspect.signature(detector).parameters
    return [Threshold(name, parameters[name].default, detector.thresholds[name]) for name in parameters]


def build_detectors(config: DetectConfig, classes: Iterable[type[Detector]] = DETECTORS) -> Built:
    """The detectors, those left out all of whose kinds are off.

    Raises:
        DetectConfigError: it names kinds or thresholds that are not, or values that cannot be.
    """
    every = tuple(classes)
    known = [kind.name for detector in every for kind in detector.kinds]
    problems = [
        f"detect.off[{position}] = {shown(kind)}: expected a kind of incident{_near(kind, known)}"
        for position, kind in enumerate(config.off)
        if kind not in known
    ]
    problems += [
        f"detect.thresholds[{shown(kind)}]: expected a kind of incident{_near(kind, known)}"
        for kind in config.thresholds
        if kind not in known
    ]
    off = frozenset(config.off)
    detectors: list[Detector] = []
    for detector in every:
        given, wrong = _given(detector, config.thresholds)
        problems += wrong
        if wrong or all(kind.name in off for kind in detector.kinds):
            continue
        try:
            detectors.append(cast("Callable[..., Detector]", detector)(**given))
        except ValueError as error:  # a rule over several thresholds
            problems.append(f"detect.thresholds[{detector.kinds[0].name}]: {error}")
    if problems:
        raise DetectConfigError(tuple(problems))
    kinds = (kind for detector in detectors for kind in detector.kinds if kind.name not in off)
    return Built(tuple(detectors), tuple(kinds))


def _given(
    detector: type[Detector], thresholds: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], list[str]]:
    """Keywords for the constructor, and what is wrong with them."""
    defaults = {threshold.name: threshold.default for threshold in thresholds_of(detector)}
    given: dict[str, float] = {}
    said: dict[str, str] = {}
    problems: list[str] = []
    for kind in detector.kinds:
        for name, value in thresholds.get(kind.name, {}).items():
            where = f"detect.thresholds[{kind.name}][{name if name in defaults else shown(name)}]"
            if name not in defaults:
                problems.append(f"{where}: expected the name of a threshold{_near(name, [*defaults])}")
            elif value < 0:  # that it is finite, the configuration sees to
                problems.append(f"{where} = {shown(value)}: expected a number from 0")
            elif isinstance(defaults[name], int) and value != int(value):
                problems.append(f"{where} = {shown(value)}: expected a whole number")
            elif given.setdefault(name, value) != value:
                problems.append(
                    f"{where} = {shown(value)}: expected {shown(given[name])} as for {said[name]}, which shares its "
                    "thresholds"
                )
            else:
                given[name] = int(value) if isinstance(defaults[name], int) else float(value)
                said.setdefault(name, kind.name)
    return given, problems


def _near(word: str, words: list[str]) -> str:
    match = difflib.get_close_matches(word[:80], words, n=1, cutoff=0.6)
    if match:
        return f"; did you mean {match[0]}?"
    return f"; known are {', '.join(words) or 'none'}" if len(words) < 16 else "; docs/DETECTORS.md lists them"
