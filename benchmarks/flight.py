"""The claim about the flight recorder: what remembering half an hour of 4,000 series costs, and how large a file is.

A node of eight GPUs at work and 238 processes, made here: 4,000 series of the catalogue, of which the fast ones and
those of processes are new each second and the rest every 5 s, with noise in the digits that sensors have. Half an hour
of it at once, with two minutes of fast rows (42 columns at 10 Hz); then an incident opens and the file is written. One
JSON line; times are CPU time of this process.
Usage: python -m benchmarks.flight [--minutes N]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import report
from gpumon import catalogue
from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.detect.incident import Incident
from gpumon.model import GpuUuid, Metric, Sample, Unit
from gpumon.record.comparison import compare, periods
from gpumon.record.fast_past import FastPast
from gpumon.record.flight import FlightRecorder
from gpumon.record.flight_folder import FlightFolder, recordings
from gpumon.record.flight_reader import read_flight
from gpumon.record.past import Past
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column
from gpumon.store import Store, View

GPUS = 8
PROCESSES = 238
SLOW_S = 5
FAST_HZ = 10
RANDOM = random.Random(11)
UUIDS = [f"GPU-{RANDOM.getrandbits(32):08x}-1f2e-4c3d-9a8b-{RANDOM.getrandbits(48):012x}" for _ in range(GPUS)]
FAST_COUNTERS = {
    column for column in Column if column.name.startswith(("THROTTLED_", "ENERGY", "PCIE_", "NVLINK_"))
} - {Column.PCIE_TX_RATE, Column.PCIE_RX_RATE, Column.NVLINK_TX_RATE, Column.NVLINK_RX_RATE}


class Load:
    """Values that move as a serving node's do."""

    def __init__(self) -> None:
        self._totals: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self.store = Store(history_points=2)

    def count(self, metric: Metric, labels: tuple[str, ...], by: float) -> Sample:
        key = (metric, labels)
        self._totals[key] = total = self._totals.get(key, 1e13 if metric.unit is Unit.BYTES else 1e5) + by
        return Sample(metric, labels, total)

    def gpu(self, index: int) -> Iterator[Sample]:
        """54 series a second: 30 that move, 24 that stand still."""
        c, gpu = catalogue, (str(index), UUIDS[index])
        for metric in (c.GPU_UTILIZATION, c.GPU_MEMORY_BUSY):
            yield Sample(metric, gpu, RANDOM.randrange(80, 101) / 100)
        for metric in (c.GPU_SM_ACTIVE, c.GPU_SM_OCCUPANCY, c.GPU_TENSOR_ACTIVE, c.GPU_DRAM_ACTIVE):
            yield Sample(metric, gpu, RANDOM.gauss(0.5, 0.05))
        for metric in (c.GPU_GRAPHICS_ACTIVE, c.GPU_FP32_ACTIVE, c.GPU_FP16_ACTIVE, c.GPU_INTEGER_ACTIVE):
            yield Sample(metric, gpu, RANDOM.gauss(0.3, 0.02))
        for domain in c.CLOCK_DOMAINS:
            yield Sample(c.GPU_CLOCK, (*gpu, domain), 1980e6 - 15e6 * RANDOM.randrange(3))
        for kind in ("average", "instant"):
            yield Sample(c.GPU_POWER, (*gpu, kind), RANDOM.randrange(500_000, 600_000) * 1e-3)
        for sensor in ("gpu", "memory"):
            yield Sample(c.GPU_TEMPERATURE, (*gpu, sensor), float(RANDOM.randrange(60, 63)))
        for state in ("used", "free", "reserved"):
            yield Sample(c.GPU_MEMORY, (*gpu, state), float(100 * 2**30))
        for reason in c.THROTTLE_REASONS:
            yield Sample(c.GPU_THROTTLE_ACTIVE, (*gpu, reason), 0.0)
            by = 0.3 * RANDOM.random() if reason == "sw_power_cap" else 0.0
            yield self.count(c.GPU_THROTTLED_SECONDS, (*gpu, reason), by)
        yield self.count(c.GPU_ENERGY, gpu, RANDOM.randrange(500_000, 600_000) * 1e-3)
        for metric in (c.GPU_SM_ACTIVE_SECONDS, c.GPU_DRAM_ACTIVE_SECONDS, c.GPU_TENSOR_ACTIVE_SECONDS):
            yield self.count(metric, gpu, RANDOM.random())
        for metric in (c.GPU_PCIE_BYTES, c.GPU_NVLINK_BYTES):
            for direction in ("tx", "rx"):
                yield self.count(metric, (*gpu, direction), RANDOM.randrange(10**9))
        for state in c.BOUND_STATES:
            by = 0.5 * RANDOM.random() if state in ("compute", "balanced") else 0.0
            yield self.count(c.GPU_BOUND_SECONDS, (*gpu, state), by)

    def slow(self, index: int) -> Iterator[Sample]:
        c, gpu = catalogue, (str(index), UUIDS[index])
        for state in ("used", "free"):
            yield Sample(c.GPU_BAR1, (*gpu, state), 2.0**35)
        for kind in c.GPU_NVLINK_ERRORS.values:
            yield self.count(c.GPU_NVLINK_ERRORS, (*gpu, kind), 0.0)
        for limit in c.GPU_PCIE_WIDTH.values:
            yield Sample(c.GPU_PCIE_WIDTH, (*gpu, limit), 16.0)

    def processes(self) -> Iterator[Sample]:
        """14 series each: 5 that move, one of them seldom."""
        c = catalogue
        for number in range(PROCESSES):
            who = (str(41_000 + number), "VLLM::Worker_TP", "prod", f"vllm-{number % 8}-7d4b9c6f5-xk2p9", "vllm")
            yield self.count(c.PROCESS_PAGE_FAULTS, (*who, "minor"), RANDOM.randrange(5))
            yield self.count(c.PROCESS_PAGE_FAULTS, (*who, "major"), 0)
            yield self.count(c.PROCESS_CPU_SECONDS, who, RANDOM.randrange(100) / 100)
            yield self.count(c.PROCESS_RUNQUEUE_SECONDS, who, 0.01 * RANDOM.random())
            yield Sample(c.PROCESS_THREADS, who, 100.0)
            yield Sample(c.PROCESS_RESIDENT, who, 1e9 + 4096 * (RANDOM.randrange(10) == 0))
            yield self.count(c.PROCESS_CPU_THROTTLED, who, 0.0)
            yield Sample(c.PROCESS_GPU_MEMORY, (str(number % GPUS), UUIDS[number % GPUS], *who), 2.0**33)
            for resource in ("cpu", "memory", "io"):
                for kind in ("some", "full"):
                    by = 0.01 * RANDOM.random() if (resource, kind) == ("cpu", "some") else 0.0
                    yield self.count(c.PROCESS_PRESSURE, (*who, resource, kind), by)

    def host(self) -> Iterator[Sample]:
        c = catalogue
        for node in range(c.NODES):
            for event in c.HOST_NUMA_PAGES.values:
                yield self.count(c.HOST_NUMA_PAGES, (str(node), event), RANDOM.randrange(1000))
            for state in c.HOST_MEMORY.values:
                yield Sample(c.HOST_MEMORY, (str(node), state), 4096.0 * RANDOM.randrange(10**6))
        for kind in c.INCIDENT_KINDS:
            yield Sample(c.INCIDENT_ACTIVE, (kind, "", ""), 0.0)

    def tick(self, at_s: float) -> View:
        for index in range(GPUS):
            self.store.put(f"gpu_fast/{index:02d}", at_s, self.gpu(index), 3.0)
            if at_s % SLOW_S == 0:
                self.store.put(f"gpu_slow/{index:02d}", at_s, self.slow(index), 20.0)
        self.store.put("processes", at_s, self.processes(), 3.0)
        if at_s % SLOW_S == 0:
            self.store.put("host", at_s, self.host(), 20.0)
        return self.store.view(at_s)


def fast_rows(since_s: float, until_s: float) -> list[Row]:
    """Rows of one GPU: a third counters, the rest gauges with three digits of noise."""
    totals = dict.fromkeys(FAST_COUNTERS, 1e12)
    rows: list[Row] = []
    for step in range(round((until_s - since_s) * FAST_HZ)):
        values: list[float] = []
        for column in Column:
            if column in totals:
                totals[column] += (
                    0.001 * RANDOM.randrange(1000) if "THROTTLED" in column.name else 1e6 * RANDOM.random()
                )
                values.append(totals[column])
            elif column.name.startswith("CLOCK"):
                values.append(1980e6 - 15e6 * RANDOM.randrange(3))
            elif column.name.startswith("MEMORY_") or column is Column.REASONS:
                values.append(4.0)
            else:
                values.append(RANDOM.randrange(1000) / 1000)
        rows.append(Row(round((since_s + step / FAST_HZ) * 1e9), tuple(values)))
    return rows


def incident(at_s: float) -> Incident:
    return Incident(
        id="20261129T171047Z-thermal_throttle-gpu-3",
        kind="thermal_throttle",
        entity=Entity("gpu", "gpu 3", "3", UUIDS[3]),
        severity=Severity.WARNING,
        since_s=at_s - 5,
        opened_s=at_s,
        seen_s=at_s,
        summary="SM clock 1410 → 1005 MHz at 90 °C",
        evidence=(Evidence("sm_clock", 1005e6, Unit.HERTZ, 1410e6),),
        action="Look after the cooling.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    seconds = 60 * parser.parse_args().minutes
    load, ticks = Load(), []
    past = Past(memory_bytes=64 << 20, before_s=seconds)
    fast_past = FastPast(seconds=120.0, fast_s=1 / FAST_HZ)
    view = load.tick(0.0)
    for second in range(1, seconds + 1):
        view = load.tick(float(second))
        start = time.process_time()
        past.add(view)
        ticks.append(time.process_time() - start)
    for uuid in UUIDS:
        fast_past.add(GpuUuid(uuid), fast_rows(seconds - 120.0, float(seconds)))
    past.seal()
    with tempfile.TemporaryDirectory() as name:
        folder = FlightFolder(Path(name) / "flights", folder_bytes=512 << 20, file_bytes=64 << 20)
        recorder = FlightRecorder(past, fast_past, folder, lambda at_s: at_s + 1.8e9, after_s=60.0, file_bytes=64 << 20)
        recorder.opened(incident(float(seconds)), float(seconds))
        start = time.process_time()
        recorder.read(float(seconds))
        write_s = time.process_time() - start
        recorder.stop(float(seconds))
        (path,) = recordings(folder.path)
        start = time.process_time()
        flight = read_flight(path)
        changes = compare(flight.series, periods(seconds - 5.0, None, float(seconds)))
        read_s = time.process_time() - start
        report(
            "flight",
            series=sum(len(batch.samples) for batch in view.batches.values()),
            seconds=seconds,
            tick_ms={
                "mean": round(1e3 * statistics.mean(ticks), 3),
                "p50": round(1e3 * statistics.median(ticks), 3),
                "max": round(1e3 * max(ticks[1:]), 3),
            },
            kept_bytes_per_minute=round(past.size_bytes / seconds * 60),
            kept_bytes=past.size_bytes,
            fast_ring_bytes=fast_past.size_bytes,
            file_bytes=path.stat().st_size,
            write_s=round(write_s, 3),
            read_and_compare_s=round(read_s, 3),
            signals=len(changes),
        )


if __name__ == "__main__":
    main()
