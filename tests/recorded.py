"""A recording of a short story, made on a stepped clock within a second, and what was found while it was made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpumon.config import Config
from gpumon.findings_text import as_json
from gpumon.host.clock import ManualClock
from gpumon.ingest.request import Signal
from gpumon.machine import Machine, simulated_machine
from gpumon.model import Item
from gpumon.record.entries import gpu_pass
from gpumon.record.joining import join
from gpumon.record.recorder import Recorder
from gpumon.record.recording_nvml import RecordingNvml
from gpumon.recording import DaemonRecording, Wish
from gpumon.sim.nvml import SimNvml
from gpumon.sim.spans import SpanMaker
from gpumon.stepped import SteppedNode

STARTED_S = 10_000.0
UNIX_S = 1_800_000_000.0
CADENCES = {"host": 5, "gpu_holders": 20, "processes": 5, "kernel_log": 10, "numa": 100, "servers": 20, "binding": 50}
"""Sources that ask a port, and how many ticks of a tenth of a second lie between two passes."""


class Pass:
    """A source of a stepped node, as the recording wants to wrap it."""

    def __init__(self, node: SteppedNode, name: str) -> None:
        self.name = name
        self._node = node

    def read(self, at_s: float) -> Iterable[Item]:
        self._node.run(self.name, at_s)
        return ()


class Studio:
    """Records a daemon that runs on a stepped clock. ``advance``, then ``close``."""

    def __init__(
        self,
        path: Path,
        scenario: Path,
        *,
        mask: bool = False,
        limit_bytes: int | None = None,
        config: Config | None = None,
        names: tuple[str, ...] = ("gpu-box-17.example.org",),
    ) -> None:
        config = Config() if config is None else config
        self.clock = ManualClock(STARTED_S, UNIX_S)
        self.machine: Machine = simulated_machine(self.clock, str(scenario))
        assert self.machine.world is not None
        self.recording = DaemonRecording(
            Wish(path, mask=mask, limit_bytes=limit_bytes), config, self.machine, self.clock, names
        )
        self.stops: list[str] = []
        """Why the sampler's part ended by itself."""
        joined = join(self.recording.machine.sampler_options, self.clock, self.stops.append)
        assert joined is not None
        self.sampler: Recorder = joined
        self.node = SteppedNode(
            config,
            self.recording.machine.ports,
            RecordingNvml(SimNvml(self.machine.world, self.clock, sleep=self.clock.step), self.sampler, self.clock),
            self.clock,
            node_names=names,
            by_hand=frozenset({"gpu_fast", *CADENCES}),
        )
        self._spans = SpanMaker(self.machine.world, self.clock.to_unix)
        self._sources = {name: self.recording.source(Pass(self.node, name)) for name in CADENCES}
        self._tick = 0

    def advance(self, story_s: float) -> None:
        """Go on to a moment of the story, in tenths of a second."""
        assert self.node.sampler is not None
        while self._tick < round(story_s * 10):
            self._tick += 1
            at_s = STARTED_S + self._tick / 10
            self.node.advance(at_s)
            if not self.node.sampler.workers():
                self.node.sampler.tick(at_s, uuid="")  # opens NVML when that is due
            for worker in self.node.sampler.workers():
                self.sampler.mark(gpu_pass(worker.uuid), at_s)
                self.node.sampler.tick(at_s, worker.uuid)
            for name, every in CADENCES.items():
                if self._tick % every == 0:
                    self._sources[name].read(at_s)
            if self._tick % 5 == 0:
                for body in self._spans.bodies(at_s):
                    self.offer(body)
            if self._tick % 10 == 0:
                self.sampler.flush()
                self.recording._recorder.flush()

    def offer(self, body: bytes) -> None:
        """A server exports something."""
        self.node.offer(body, peer="127.0.0.1")
        self.recording.body(Signal.TRACES, body, False, "127.0.0.1", self.clock.now_s())

    def close(self) -> list[str]:
        """End the recording; the findings so far, as lines of JSON."""
        self.sampler.close()
        self.recording.close()
        incidents = sorted(self.node.detection.incidents(), key=lambda each: (each.opened_s, each.id))
        return [as_json(incident, self.clock.to_unix) for incident in incidents]


def record(path: Path, scenario: Path, story_s: float, *, mask: bool = False) -> list[str]:
    """The recording of so much of a scenario; what was found meanwhile."""
    studio = Studio(path, scenario, mask=mask)
    studio.advance(story_s)
    return studio.close()
