"""Runs all detectors at every step, over the same scene, and hands what they find to the ledger. A source.

Decides nothing about what is found. A detector that fails loses its findings of that step and nothing else: the others
go on, ``gpumon_detector_failures_total`` counts it, and its traceback is logged once for every distinct error. What
comes in between two steps waits in bounded queues, and what does not fit is counted in
``gpumon_detection_dropped_total``.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from gpumon import catalogue
from gpumon.detect.detector import Detector, Finding
from gpumon.detect.findings import clean
from gpumon.detect.incident import Incident
from gpumon.detect.ledger import Ledger
from gpumon.detect.scene import Scene, SceneMaker
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Item, RequestRecord, Sample
from gpumon.store import View

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 16_384
COLLECTIVES_MAX: Final = 65_536
RECENT_S: Final = 360.0
AFTER: Final = "explain"
"""What comes after the detectors, as ``gpumon_detector_failures_total`` names it."""
_CLOSE_S: Final = 2.0
_ERRORS_TOLD: Final = 256
"""Distinct errors whose tracebacks are logged, of all detectors together."""

Entry = TypeVar("Entry")


After = Callable[[Scene, Sequence[Incident]], Iterable[Sample]]
"""Is given a scene, and the incidents that are open or closed in the last minutes; has samples of its own."""


class Detection:
    """``read`` and ``close`` from one thread at a time; the rest from any."""

    name = "detect"
    """As a source of the runner."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        ledger: Ledger,
        scenes: SceneMaker,
        view: Callable[[float], View],
        after: After | None = None,
    ) -> None:
        """view: the store at a moment, steady seconds. after: looks at every scene once the ledger knows of it."""
        self._after = after
        self._detectors = [(_name(detector), detector) for detector in detectors]
        self._ledger = ledger
        self._scenes = scenes
        self._view = view
        self._step_lock = threading.Lock()
        """A pass that outlived a reload may still run."""
        self._queue_lock = threading.Lock()
        self._requests: list[RequestRecord] = []
        self._collectives: list[CollectiveRecord] = []
        self._dropped = {"requests": 0, "collectives": 0}
        self._failures = Counter(dict.fromkeys((name for name, _ in self._detectors), 0))
        if after is not None:
            self._failures[AFTER] = 0
        self._told: set[tuple[str, str]] = set()

    def offer_requests(self, records: Sequence[RequestRecord]) -> None:
        """Requests that are complete, to be seen at the next step."""
        with self._queue_lock:
            self._dropped["requests"] += _fill(self._requests, records, REQUESTS_MAX)

    def offer_collective(self, record: CollectiveRecord) -> None:
        """A collective operation of one rank, to be seen at the next step."""
        with self._queue_lock:
            self._dropped["collectives"] += _fill(self._collectives, (record,), COLLECTIVES_MAX)

    def read(self, at_s: float) -> list[Item]:
        """One step."""
        with self._step_lock:
            with self._queue_lock:
                requests, self._requests = self._requests, []
                collectives, self._collectives = self._collectives, []
                dropped = dict(self._dropped)
            scene = self._scenes.make(self._view(at_s), requests, collectives)
            findings = [finding for name, detector in self._detectors for finding in self._ask(name, detector, scene)]
            # In an order that does not depend on how a detector keeps its things.
            self._ledger.step(sorted(findings, key=_order), scene)
            more = self._ask_after(scene) if self._after is not None else []
            dropped["tokens_late"] = scene.latencies.late
            dropped["requests_of_models"] = scene.latencies.left_out
            return [
                *self._ledger.samples(),
                *(Sample(catalogue.DETECTOR_FAILURES, (name,), float(n)) for name, n in self._failures.items()),
                *(Sample(catalogue.DETECTION_DROPPED, (what,), float(n)) for what, n in dropped.items()),
                *more,
            ]

    @property
    def failures(self) -> int:
        """Passes in which a detector, or what comes after, failed."""
        return self._failures.total()

    def incidents(self) -> list[Incident]:
        """Copies of the incidents kept, the newest opening first."""
        return self._ledger.incidents()

    def close(self, at_s: float) -> None:
        """No more steps; what is open is remembered. A step that hangs in a disk is not waited for."""
        if not self._step_lock.acquire(timeout=_CLOSE_S):
            return
        try:
            self._ledger.close(at_s)
        finally:
            self._step_lock.release()

    def _ask(self, name: str, detector: Detector, scene: Scene) -> list[Finding]:
        try:
            findings = [clean(finding, scene.at_s) for finding in detector.step(scene)]
            known = {kind.name for kind in detector.kinds}
            foreign = sorted({finding.kind for finding in findings} - known)
            if foreign:
                raise ValueError(f"findings of kinds that it does not declare: {', '.join(foreign)}")
        except Exception as error:  # noqa: BLE001 - the one loop around detectors: a bug in one must not end the rest
            self._failed(name, error)
            return []
        return findings

    def _ask_after(self, scene: Scene) -> list[Sample]:
        assert self._after is not None
        try:
            return list(self._after(scene, self._ledger.recent(scene.at_s - RECENT_S)))
        except Exception as error:  # noqa: BLE001 - a bug in what comes after must not end detection
            self._failed(AFTER, error)
            return []

    def _failed(self, name: str, error: Exception) -> None:
        self._failures[name] += 1
        what = (name, repr(error)[:200])
        if what not in self._told and len(self._told) < _ERRORS_TOLD:  # the same one may come at every step
            self._told.add(what)
            log.error("detector=%s state=bug detail='said once, counted always'", name, exc_info=error)


def _name(detector: Detector) -> str:
    """Of its first kind: every kind is of one detector only."""
    return detector.kinds[0].name


def _order(finding: Finding) -> tuple[str, tuple[str, ...]]:
    return finding.kind, finding.entity


def _fill(queue: list[Entry], entries: Iterable[Entry], most: int) -> int:
    """Append as many as there is room for; how many were left out."""
    offered = list(entries)
    room = max(0, most - len(queue))
    queue.extend(offered[:room])
    return max(0, len(offered) - room)
