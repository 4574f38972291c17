"""Wires detection and what hears of incidents: the state file, the flight recorder, spans. ``app`` owns one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpumon.config import Config
from gpumon.detect.engine import Detection
from gpumon.detect.incident import IncidentListener
from gpumon.detect.state_file import StateFile
from gpumon.host.clock import Clock
from gpumon.model import GpuUuid
from gpumon.record.fast_past import FastPast
from gpumon.record.flight import FlightMemory, FlightRecorder
from gpumon.record.flight_folder import SUBFOLDER, FlightFolder
from gpumon.record.past import Past
from gpumon.sampler.ring import Row
from gpumon.store import Store
from gpumon.wiring import Scheduled, build_detection, build_explanation

if TYPE_CHECKING:
    from gpumon.detect.incident_spans import IncidentSpans, Send

FLIGHT_S = 1.0
STATE_S = 1.0
WRITING_S = 30.0
"""A recording of 20 MB may take a slow disk this long."""


class Detecting:
    """Detectors, ledger, and the listeners. ``sources`` go to the runner; ``close`` when it has stopped."""

    def __init__(self, config: Config, clock: Clock, store: Store, host_name: str, send: Send | None) -> None:
        """send: takes an export request of incident spans; None: there is nowhere to send them.

        Raises DetectConfigError.
        """
        self._clock = clock
        self._every_s = config.detect.every_s
        folder = config.state.folder
        self._state = StateFile(folder) if folder is not None else None
        self._spans = _spans(send, clock, host_name) if send is not None else None
        recorded = folder is not None and config.recorder.enabled
        self._flight = _Flight(config, clock, store, folder) if folder is not None and recorded else None
        listeners: list[IncidentListener] = []
        if self._flight is not None:
            listeners.append(self._flight.recorder)
        if self._spans is not None:
            listeners.append(self._spans)
        self.explanation = build_explanation(config)
        self.detection: Detection = build_detection(
            config, clock.to_unix, store.view, listeners=listeners, state=self._state, explanation=self.explanation
        )

    @property
    def rows(self) -> Callable[[GpuUuid, Sequence[Row]], None] | None:
        """Who wants every fast row."""
        takers = [self._flight.fast.add] if self._flight is not None else []
        if self.explanation is not None:
            takers.append(self.explanation.correlations.add_rows)
        if len(takers) < 2:
            return takers[0] if takers else None

        def hand_on(uuid: GpuUuid, rows: Sequence[Row]) -> None:
            for take in takers:
                take(uuid, rows)

        return hand_on

    def sources(self) -> list[Scheduled]:
        """In the order in which they are best read."""
        found = [Scheduled(self.detection, self._every_s)]
        if self._flight is not None:
            found.append(Scheduled(self._flight.memory, FLIGHT_S))
            found.append(Scheduled(self._flight.recorder, FLIGHT_S, WRITING_S))
        if self._state is not None:
            found.append(Scheduled(self._state, STATE_S))
        return found

    def close(self) -> None:
        """Keep what must be kept. The sources are not read any more."""
        at_s = self._clock.now_s()
        self.detection.close(at_s)
        if self._spans is not None:
            self._spans.end(self.detection.incidents(), at_s)
        if self._flight is not None:
            self._flight.recorder.stop(at_s)
        if self._state is not None:
            self._state.flush()


def _spans(send: Send, clock: Clock, host_name: str) -> IncidentSpans:
    from gpumon.detect.incident_spans import IncidentSpans  # protobuf, which a node without tracing never loads

    return IncidentSpans(send, clock.to_unix, host_name)


class _Flight:
    """The parts of the flight recorder."""

    def __init__(self, config: Config, clock: Clock, store: Store, folder: Path) -> None:
        recorder = config.recorder
        self.fast = FastPast(seconds=recorder.full_rate_s, fast_s=config.cadence.fast_s)
        past = Past(memory_bytes=recorder.memory_bytes, before_s=recorder.before_s)
        self.memory = FlightMemory(store.view, past)
        self.recorder = FlightRecorder(
            past,
            self.fast,
            FlightFolder(folder / SUBFOLDER, folder_bytes=recorder.folder_bytes, file_bytes=recorder.file_bytes),
            clock.to_unix,
            after_s=recorder.after_s,
            file_bytes=recorder.file_bytes,
        )
