"""The claim about the cost of sampling: 8 GPUs at 10 Hz, 50 processes, the host; and what a batch of fields costs.

The fake library answers in about 0.1 us, so what is measured is gpumon and not the driver. Processes are real ones and
are read from this machine's /proc. CPU is user and system time of both of gpumon's processes, from the kernel.
Usage: python -m benchmarks.sampling [--seconds N]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import cast

import pynvml

from benchmarks.common import REAL, SIZED, children, cpu_s, environment, idle_processes, put_to_work, report, wait
from gpumon import catalogue
from gpumon.app import App
from gpumon.config import Config, HostConfig, HttpConfig, NvmlConfig, OtlpConfig, StateConfig
from gpumon.host.clock import SystemClock
from gpumon.host.nvml import Device, Field
from gpumon.host.nvml_driver import NvmlDriver
from gpumon.machine import real_machine
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_fast import GpuFast
from tests.e2e.daemon import Daemon
from tests.e2e.page import Page
from tests.fakenvml.controller import FakeNode

GPUS, PIDS, SCRAPE_S = 8, 50, 15.0
GZIP = {"Accept-Encoding": "gzip"}
IDS = (82, 83, 185, 186, 74, 76, 77, 78, 79, 81, 269, 270, 271, 197, 198, 138, 139, 94, 142, 143, 144, 145, 3, 4, 5, 6)
FIELDS = (*(Field(number) for number in IDS), Field(38), Field(45), Field(52), Field(160))


def values_per_tick(nvml: NvmlDriver, device: Device) -> int:
    """Values of one GPU in one fast row."""
    fast = GpuFast(nvml, device, Capabilities("gpu 0"))
    for _ in range(3):
        row = fast.row(time.monotonic())
        wait(0.05)
    fast.close()
    return sum(value is not None for value in row)


def batch_us(nvml: NvmlDriver, device: Device) -> dict[str, float]:
    """A batch of 30 fields: ours, pynvml's wrapper, and the bare foreign call that both make; medians."""
    ours = nvml.fields(device, FIELDS)
    ours.read()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    asked = [(field.id, field.scope) for field in FIELDS]
    array = (pynvml.c_nvmlFieldValue_t * len(FIELDS))()
    for entry, field in zip(array, FIELDS, strict=True):
        entry.fieldId, entry.scopeId = field
    bare = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
    count, pointer = ctypes.c_int(len(FIELDS)), ctypes.byref(array)
    times: dict[str, list[float]] = {"bare": [], "ours": [], "pynvml": []}
    for _ in range(40):
        for name, call in (
            ("bare", lambda: bare(handle, count, pointer)),
            ("ours", ours.read),
            ("pynvml", lambda: pynvml.nvmlDeviceGetFieldValues(handle, asked)),
        ):
            began = time.perf_counter_ns()
            for _ in range(200):
                call()
            times[name].append((time.perf_counter_ns() - began) / 200 / 1e3)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "fields": len(FIELDS),
        "bare_call_us": round(median["bare"], 2),
        "ours_us": round(median["ours"], 2),
        "pynvml_us": round(median["pynvml"], 2),
        "python_cost_us": round(median["ours"] - median["bare"], 2),
        "times_less_than_pynvml": round((median["pynvml"] - median["bare"]) / (median["ours"] - median["bare"]), 1),
    }


def cpu_percent(node: FakeNode, folder: Path, seconds: float, medium_s: float) -> dict[str, float]:
    """CPU of a running gpumon, in percent of a core, and the sampling rate it reached.

    ``medium_s``: how often processes and host are read.
    """
    options = SIZED | {"GPUMON_CADENCE__MEDIUM_S": f"{medium_s:g}"}
    with Daemon(folder, *REAL, env=environment(node), options=options) as gpumon:
        gpumon.await_ready()
        gpumon.await_series("gpumon_process_gpu_memory_bytes", PIDS)
        wait(10.0)
        pids = {"main": gpumon.process.pid, "sampler": children(gpumon.process.pid)[0]}
        before, began_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
        first = _counted(gpumon.page())
        next_s = began_s
        while (left_s := began_s + seconds - time.monotonic()) > 0:
            wait(min(left_s, max(0.0, next_s - time.monotonic())))
            if time.monotonic() >= next_s:
                gpumon.ask("/metrics", headers=GZIP)
                next_s += SCRAPE_S
        spent = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
        took_s = time.monotonic() - began_s
        last = _counted(gpumon.page())
        series = gpumon.page().value("gpumon_series")
    result = {f"{name}_percent": round(100 * value / took_s, 2) for name, value in spent.items()}
    rates = [(last[gpu][0] - first[gpu][0]) / (last[gpu][1] - first[gpu][1]) for gpu in first]
    return {
        "total_percent": round(100 * sum(spent.values()) / took_s, 2),
        **result,
        "seconds": round(took_s, 1),
        "series": series,
        "least_rate_hz": round(min(rates), 2),
    }


def _counted(page: Page) -> dict[str, tuple[float, float]]:
    """Samples of each GPU so far, and when the last of them was taken: what is published is up to 1 s old."""
    counts = page.by("gpu", "gpumon_gpu_samples_total")
    times = page.by("gpu", "gpumon_gpu_last_sample_timestamp_seconds")
    return {gpu: (count, times[gpu]) for gpu, count in counts.items()}


def saturated_rate_hz(node: FakeNode, seconds: float) -> dict[str, float]:
    """Sampling rate while another thread of the main process never lets go of the interpreter by itself."""
    os.environ |= node.variables()
    config = Config(
        http=HttpConfig(ui=False),
        host=HostConfig(kernel_log=None),
        nvml=NvmlConfig(library=str(node.library)),
        otlp=OtlpConfig(enabled=False),
        state=StateConfig(folder=None),
    )
    clock = SystemClock()
    app = App(config, real_machine(config), clock, None)
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(10_000))

    def samples() -> list[tuple[float, float]]:
        view = app.store.view(clock.now_s())
        found = zip(view.family(catalogue.GPU_SAMPLES), view.family(catalogue.GPU_LAST_SAMPLE), strict=True)
        return [(cast(float, count.value), cast(float, at.value)) for count, at in found]

    app.start()
    try:
        while len(samples()) < GPUS:
            wait(0.1)
        burner = threading.Thread(target=burn)
        burner.start()
        wait(3.0)
        first = samples()
        wait(seconds)
        last = samples()
        stop.set()
        burner.join()
        lost = app.store.view(clock.now_s()).value(catalogue.SERIES_DROPPED, ("sampler_backlog",))
    finally:
        app.stop()
    rates = [(new[0] - old[0]) / (new[1] - old[1]) for old, new in zip(first, last, strict=True)]
    return {"least_hz": round(min(rates), 2), "mean_hz": round(statistics.mean(rates), 2), "rows_lost": lost or 0.0}  # type: ignore[dict-item]  # a scalar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    seconds = parser.parse_args().seconds
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with FakeNode.create(folder / "node", profile="h200", count=GPUS) as node, idle_processes(PIDS) as pids:
        put_to_work(node, pids)
        node.use_here()
        nvml = NvmlDriver(str(node.library))
        nvml.open()
        pynvml.nvmlInit()
        device = nvml.device(0)
        values = values_per_tick(nvml, device)
        batch = batch_us(nvml, device)
        nvml.close()
        pynvml.nvmlShutdown()
        report(
            "sampling",
            gpus=GPUS,
            hz=10,
            processes=PIDS,
            values_per_gpu_and_tick=values,
            cpu_host_at_1hz=cpu_percent(node, folder, seconds, 1.0),
            cpu_host_at_2hz=cpu_percent(node, folder, seconds, 0.5),
            field_batch=batch,
            saturated=saturated_rate_hz(node, 15.0),
        )


if __name__ == "__main__":
    main()
