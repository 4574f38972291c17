"""Step: sixty seconds of GPU 0 through gpumon's own sources, idle and under three loads, recorded at the port.

Judges the measured SM, tensor and DRAM activity against what the loads must cause, and the energy counter against
the power. recording.jsonl.gz is what fixtures are made from.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from gpumon.host.host_files import HostFiles
from gpumon.host.nvml import UUID, Device, Nvml, NvmlError
from gpumon.host.nvml_driver import NvmlDriver
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import Column, GpuFast
from gpumon.sources.gpu_inventory import GpuInventory
from gpumon.sources.gpu_processes import GpuProcesses
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.mig import Mig
from tests.gpu.common import LIBRARY, LOAD, OUT, Row, judged, nvml, run, seconds, spread, write
from tests.gpu.load import Load
from tests.gpu.recorder import Recorder, Recording

TICK_S = 0.1
PHASES = (("idle", 10.0), ("matmul", 16.0), ("copy", 16.0), ("decode", 16.0))
SETTLE_S = 1.5
"""At the beginning of a phase that is not counted: clocks rise, buffers are made."""


@dataclass(slots=True)
class _Due:
    """A pass and when it is next due."""

    every_s: float
    read: Callable[[float], object]
    at_s: float = 0.0


class Reader:
    """Every source of one GPU at its cadence, over one port."""

    def __init__(self, port: Nvml) -> None:
        device: Device = port.device(0)
        labels = ("0", port.text(device, UUID))
        capabilities, state = Capabilities("gpu 0"), GpuState()
        self.fast = GpuFast(port, device, capabilities)
        self.mig = Mig(port, device, labels, capabilities, state)
        slow = GpuSlow(port, device, labels, capabilities, state)
        inventory = GpuInventory(port, device, labels, capabilities, HostFiles())
        processes = GpuProcesses(port, device, labels, capabilities, self.mig.instances)
        self.events = port.events()
        try:
            self.events.register(device)
        except NvmlError:
            pass  # recorded; permissions.json has who may
        self._dues = [
            _Due(60.0, inventory.read),
            _Due(5.0, slow.read),
            _Due(5.0, processes.read_processes),
            _Due(1.0, self.mig.read),
            _Due(1.0, self._wait),
        ]
        self.capabilities = capabilities

    def tick(self) -> tuple[float, list[float | None]]:
        """One row, and whatever is due."""
        at_s = time.monotonic()
        row = self.fast.row(at_s)
        for due in self._dues:
            if at_s >= due.at_s:
                due.at_s = at_s + due.every_s
                due.read(at_s)
        return at_s, row

    def _wait(self, at_s: float) -> None:
        try:
            self.events.wait(0)
        except NvmlError:
            return  # recorded

    def close(self) -> None:
        for part in (self.fast, self.mig, self.events):
            part.close()


def measure() -> Iterator[Row]:
    load = Load()
    recording = Recording(OUT / "recording.jsonl.gz")
    driver = NvmlDriver(LIBRARY)
    port = cast(Nvml, Recorder(driver, recording))  # stands in for the port, method by method
    port.open()
    reader = Reader(port)
    phases: dict[str, dict[str, Any]] = {}
    for kind, wanted_s in PHASES:
        phases[kind] = _phase(reader, load, kind, seconds(wanted_s, least=0.6))
    supported = {key: reader.capabilities.supported(key) for key in ("utilization", "gpm", "fields", "power")}
    reader.close()
    port.close()
    load.close()
    recording.close()
    peak = _peak_bytes_per_second()
    write(
        "activity.json",
        {"load": load.hello, "supported": supported, "peak_bytes_per_second": peak, "phases": phases},
    )
    yield from _rows(phases, peak)
    yield Row("recording", f"{recording.lines} calls of the port")


def _phase(reader: Reader, load: Load, kind: str, length_s: float) -> dict[str, Any]:
    if kind != "idle":
        load.run(kind, 0.05)  # buffers are made here
        load.start(kind, length_s)
    rows: list[tuple[float, list[float | None]]] = []
    took_us: list[float] = []
    began = due = time.monotonic()
    while due - began < length_s:
        start = time.perf_counter_ns()
        rows.append(reader.tick())
        took_us.append((time.perf_counter_ns() - start) / 1e3)
        due += TICK_S
        time.sleep(max(0.0, due - time.monotonic()))
    done = load.result() if kind != "idle" else None
    settle_s = min(SETTLE_S, length_s / 3)
    counted = [(at_s, row) for at_s, row in rows if began + settle_s <= at_s <= began + length_s - 0.2]
    return {
        "load": done,
        "rows": len(rows),
        "tick_us": spread(took_us),
        "mean": {column.name.lower(): _mean([row[column] for _, row in counted]) for column in Column},
        "energy_w": _slope(counted, Column.ENERGY),
        "throttled_s_per_s": {
            column.name.lower(): _slope(counted, column) for column in Column if column.name.startswith("THROTTLED")
        },
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _slope(rows: list[tuple[float, list[float | None]]], column: Column) -> float | None:
    known = [(at_s, value) for at_s, row in rows if (value := row[column]) is not None]
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _peak_bytes_per_second() -> float | None:
    """Double data rate over the whole bus at the highest memory clock."""
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        try:
            bits = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
            mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, 2)
        except pynvml.NVMLError:
            return None
    return float(bits / 8 * mhz * 1e6 * 2)


def _rows(phases: dict[str, dict[str, Any]], peak: float | None) -> Iterator[Row]:
    for kind, column, bounds in (
        ("idle", "sm_active", {"most": 0.05}),
        ("matmul", "sm_active", {"least": 0.9}),
        ("matmul", "tensor_active", {"least": 0.5}),
        ("copy", "dram_active", {"least": 0.6}),
        ("decode", "dram_active", {"least": 0.5}),
    ):
        value = phases[kind]["mean"][column]
        if value is None:
            yield Row(f"{kind}: {column}", "not measured", "NO" if LOAD == "cuda" else "INFO")
        else:
            yield judged(f"{kind}: {column}", value, f"{value:.3f}", **bounds)
    done = phases["copy"]["load"]
    dram = phases["copy"]["mean"]["dram_active"]
    if peak and dram is not None:
        share = done["bytes_per_second"] / peak
        shown = f"measured {dram:.2f}, moved {share:.2f} of {peak / 1e12:.2f} TB/s"
        yield judged("copy: DRAM against bytes moved", abs(dram - share), shown, most=0.15)
    energy, power = phases["matmul"]["energy_w"], phases["matmul"]["mean"]["power_average"]
    if energy is not None and power:
        shown = f"{energy:.0f} W by energy, {power:.0f} W by power"
        yield judged("matmul: energy against power", abs(energy / power - 1), shown, most=0.1)
    for kind in phases:
        held = {name: value for name, value in phases[kind]["throttled_s_per_s"].items() if value}
        told = ", ".join(f"{name[10:]} {value:.2f}" for name, value in held.items())
        yield Row(f"{kind}: throttled s/s", told or "none")
    tick = phases["matmul"]["tick_us"]
    yield Row("tick under load", f"p50 {tick['p50'] / 1e3:.2f} ms, p99 {tick['p99'] / 1e3:.2f} ms")


if __name__ == "__main__":
    sys.exit(run("activity", measure))
