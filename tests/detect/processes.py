"""Processes of a simulated host for tests of detectors: what the source ``processes`` says of them each half second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.detect.detector import Detector, Finding
from gpumon.model import RequestRecord
from tests.detect.scenes import Stage, gpu

SAMPLE_S = 0.5
SLOW_S = 5.0


@dataclass
class Process:
    """What it does in a second. Everything may be changed while it runs."""

    pid: int
    gpu: int | None = None
    name: str = "VLLM::Worker_TP"
    pod: str = "vllm-0"
    container: str = "server"
    cpu: float = 1.3
    wait: float | None = 0.045
    throttled: float | None = 0.0
    stalled: float | None = 0.01
    """Share of time, of its cgroup, for a CPU."""
    memory_some: float | None = 0.0006
    memory_full: float | None = 0.0004
    stopped: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return (str(self.pid), self.name, "llm" if self.pod else "", self.pod, self.container)


class Host:
    """Published each half second; waits, throttling and pressure are read every five, and repeated meanwhile."""

    def __init__(self, *processes: Process) -> None:
        self.stage = Stage()
        self.processes = list(processes)
        self._kept: dict[tuple[int, str], float] = {}
        self._since_read_s = SLOW_S
        self._was: dict[int, bool] = {}

    def run(
        self,
        detector: Detector,
        seconds: float,
        *,
        step_s: float = 1.0,
        requests: Callable[[float], list[RequestRecord]] | None = None,
    ) -> list[Finding]:
        """Findings in order. requests: those that end at a moment."""
        found: list[Finding] = []
        for sample in range(1, round(seconds / SAMPLE_S) + 1):
            self._since_read_s += SAMPLE_S
            reads = self._since_read_s >= SLOW_S
            self._since_read_s = 0.0 if reads else self._since_read_s
            for process in self.processes:
                self._publish(process, reads=reads)
            ended = requests(self.stage.at_s + SAMPLE_S) if requests is not None else ()
            scene = self.stage.step(SAMPLE_S, ended)
            if sample % round(step_s / SAMPLE_S) == 0:
                found += detector.step(scene)
        return found

    def end(self, process: Process) -> None:
        """The process is gone."""
        self.processes.remove(process)
        for metric in (m for m in catalogue.METRICS if m.stem.startswith("process_")):
            self.stage.drop(metric, labels=process.labels)
            if process.gpu is not None:
                self.stage.drop(metric, labels=(*gpu(process.gpu), *process.labels))

    def _publish(self, process: Process, *, reads: bool) -> None:
        labels = process.labels
        if process.gpu is not None:
            self.stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(process.gpu), *labels)): 1e11})
        was = self._was.get(process.pid, process.stopped)
        self._was[process.pid] = process.stopped
        self.stage.grow(
            {
                (catalogue.PROCESS_CPU_SECONDS, labels): 0.0 if process.stopped else process.cpu * SAMPLE_S,
                (catalogue.PROCESS_STOPPED_SECONDS, labels): (was + process.stopped) / 2 * SAMPLE_S,
            }
        )
        for name, (metric, tail) in _SLOW.items():
            rate = getattr(process, name)
            if rate is None:
                continue
            kept = self._kept.get((process.pid, name), 0.0) + rate * SAMPLE_S
            if reads:
                self.stage.grow({(metric, (*labels, *tail)): kept})
                kept = 0.0
            self._kept[process.pid, name] = kept


_SLOW = {
    "wait": (catalogue.PROCESS_RUNQUEUE_SECONDS, ()),
    "throttled": (catalogue.PROCESS_CPU_THROTTLED, ()),
    "stalled": (catalogue.PROCESS_PRESSURE, ("cpu", "some")),
    "memory_some": (catalogue.PROCESS_PRESSURE, ("memory", "some")),
    "memory_full": (catalogue.PROCESS_PRESSURE, ("memory", "full")),
}
