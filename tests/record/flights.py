"""A node for tests of the flight recorder: a store, what was, and the recorder, on a clock that is stepped."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from gpumon import catalogue
from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.detect.incident import Incident
from gpumon.model import GpuUuid, Item, Metric, Miss, Sample, Unit
from gpumon.record.fast_past import FastPast
from gpumon.record.flight import Create, FlightMemory, FlightRecorder, Reopen
from gpumon.record.flight_folder import FlightFolder
from gpumon.record.format import Writer
from gpumon.record.packing import unpack
from gpumon.record.past import Chunk, Past
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column
from gpumon.store import Store

GPU = ("3", "GPU-3")
SM = (*GPU, "sm")
UNIX_OFFSET_S = 1_795_000_000.0
START_S = 1000.0


def clock_and_energy(at_s: float) -> list[Sample]:
    """A gauge that stands still and a counter that grows by 500 J a second."""
    return [
        Sample(catalogue.GPU_CLOCK, SM, 1980e6),
        Sample(catalogue.GPU_ENERGY, GPU, 1e13 + 500.0 * at_s),
    ]


def incident(number: int = 1, *, at_s: float, kind: str = "thermal_throttle") -> Incident:
    """One that opens now and began five seconds ago."""
    return Incident(
        id=f"20261129T1710{number:02d}Z-{kind}-gpu-3",
        kind=kind,
        entity=Entity("gpu", "gpu 3", *GPU),
        severity=Severity.WARNING,
        since_s=at_s - 5.0,
        opened_s=at_s,
        seen_s=at_s,
        summary="SM clock 1980 → 1005 MHz at 90 °C",
        evidence=(Evidence("sm_clock", 1005e6, Unit.HERTZ, 1980e6), Evidence("temperature", 90.0, Unit.CELSIUS)),
        action="Look after the cooling.",
    )


def row(at_s: float, **values: float) -> Row:
    """A fast row; columns by name, NaN where there was no reading."""
    cells = [float("nan")] * len(Column)
    for name, value in values.items():
        cells[Column[name]] = value
    return Row(round(at_s * 1e9), tuple(cells))


Readings = dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]]


def readings(chunks: Iterable[Chunk]) -> Readings:
    """Times and values by family and labels, oldest first; NaN left out."""
    found: Readings = {}
    for chunk in chunks:
        tables = {table.number: json.loads(zlib.decompress(table.payload)) for table in chunk.tables}
        for block in unpack(chunk.payload):
            columns = [(family[0], tuple(labels)) for family in tables[block.table] for labels in family[4]]
            assert block.rows.shape[1] == 1 + len(columns)
            for cells in block.rows.tolist():
                for key, value in zip(columns, cells[1:], strict=True):
                    if value == value:
                        found.setdefault(key, []).append((cells[0], value))
    return found


def key(metric: Metric, *labels: str) -> tuple[str, tuple[str, ...]]:
    return metric.name, labels


class Node:
    """Steps second by second; the recorder writes below ``folder``."""

    def __init__(
        self,
        folder: Path,
        *,
        after_s: float = 60.0,
        before_s: float = 1800.0,
        memory_bytes: int = 8 << 20,
        file_bytes: int = 20 << 20,
        folder_bytes: int = 512 << 20,
        create: Create = Writer.create,
        reopen: Reopen = Writer.open_append,
    ) -> None:
        self.at_s = START_S
        self.store = Store()
        self.past = Past(memory_bytes=memory_bytes, before_s=before_s)
        self.fast_past = FastPast(seconds=120.0, fast_s=0.1)
        self.memory = FlightMemory(self.store.view, self.past)
        self.folder = FlightFolder(folder, folder_bytes=folder_bytes, file_bytes=file_bytes)
        self.recorder = FlightRecorder(
            self.past,
            self.fast_past,
            self.folder,
            lambda at_s: at_s + UNIX_OFFSET_S,
            after_s=after_s,
            file_bytes=file_bytes,
            create=create,
            reopen=reopen,
        )
        self.items: list[Item] = []
        """Of the last pass of the recorder."""
        self.values: Callable[[float], list[Sample]] = clock_and_energy
        self.fast: Callable[[float], list[Row]] = lambda at_s: [
            row(at_s + tenth / 10, SM_ACTIVE=0.5, PCIE_TX=1e13 + at_s) for tenth in range(-9, 1)
        ]

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.at_s += 1.0
            self.store.put("gpu", self.at_s, self.values(self.at_s), 3.0)
            self.fast_past.add(GpuUuid(GPU[1]), self.fast(self.at_s))
            assert self.memory.read(self.at_s) == []
            self.items = self.recorder.read(self.at_s)

    def open(self, number: int = 1) -> Incident:
        opened = incident(number, at_s=self.at_s)
        self.recorder.opened(opened, self.at_s)
        return opened

    def close(self, closed: Incident) -> None:
        closed.seen_s = closed.closed_s = self.at_s
        self.recorder.closed(closed, self.at_s)

    def value(self, metric: Metric, *labels: str) -> float | None:
        """Of the recorder's own samples."""
        for item in self.items:
            if isinstance(item, Sample) and item.metric is metric and item.labels == labels:
                assert isinstance(item.value, float)
                return item.value
        return None

    def outcomes(self) -> dict[str, float]:
        """gpumon_flight_recordings_total, those that are not 0."""
        counted = {
            outcome: self.value(catalogue.FLIGHT_RECORDINGS, outcome) for outcome in catalogue.FLIGHT_RECORDINGS.values
        }
        return {outcome: count for outcome, count in counted.items() if count}

    @property
    def misses(self) -> list[Miss]:
        return [item for item in self.items if isinstance(item, Miss)]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.path.iterdir()) if self.folder.path.is_dir() else []
