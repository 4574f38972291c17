"""Step: what every call costs, through pynvml and as gpumon's own passes make them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpumon.host.host_files import HostFiles
from gpumon.host.nvml import UUID
from gpumon.host.nvml_driver import NvmlDriver
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import GpuFast
from gpumon.sources.gpu_inventory import GpuInventory
from gpumon.sources.gpu_processes import GpuProcesses
from gpumon.sources.gpu_state import GpuState
from tests.gpu.common import LIBRARY, Row, nvml, plain, repeat, run, seconds, spread, timed, write

_SLOW = {"nvmlDeviceGetPcieThroughput": 5, "nvmlDeviceGetGraphicsRunningProcesses": 20}
"""Known to block or crawl: few repetitions."""


def _questions(p: Any, h: Any) -> dict[str, Callable[[], object]]:
    """Every getter gpumon or its peers make, by pynvml's name and argument."""
    one = {  # with the device alone
        *("Name", "UUID", "Serial", "VbiosVersion", "PciInfo_v3", "MinorNumber", "BoardId", "Architecture"),
        *("CudaComputeCapability", "PowerUsage", "TotalEnergyConsumption", "EnforcedPowerLimit"),
        *("PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints"),
        *("UtilizationRates", "MemoryInfo", "BAR1MemoryInfo", "PerformanceState", "PersistenceMode"),
        *("CurrentClocksEventReasons", "SupportedClocksEventReasons", "CurrPcieLinkGeneration"),
        *("MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth", "PcieReplayCounter", "PcieSpeed"),
        *("EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization", "NumFans", "FanSpeed"),
        *("EccMode", "RemappedRows", "RowRemapperHistogram", "MigMode", "MaxMigDeviceCount", "MarginTemperature"),
        *("ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses", "NumaNodeId"),
        *("SupportedEventTypes", "MemoryBusWidth", "NumGpuCores", "AccountingMode", "ComputeMode"),
    }
    questions: dict[str, Callable[[], object]] = {}

    def add(name: str, *args: object, of: str = "", **named: object) -> None:
        function = getattr(p, of or name, None)  # pynvml of another release may lack it
        if function is not None:
            shown = ",".join(map(str, args))
            questions[f"{name}({shown})" if shown else name] = partial(function, h, *args, **named)

    for name in sorted(one):
        add(f"nvmlDeviceGet{name}", of=f"nvmlDeviceGet{name.removesuffix('_v3')}")
    for domain in range(4):
        for name in ("ClockInfo", "MaxClockInfo", "TemperatureThreshold"):
            add(f"nvmlDeviceGet{name}", domain)
    for direction in range(2):
        add("nvmlDeviceGetPcieThroughput", direction)
        for scope in range(2):
            add("nvmlDeviceGetTotalEccErrors", direction, scope)
    for policy in (0, 1, 2, 3, 4, 5, 10, 11):
        add("nvmlDeviceGetViolationStatus", policy)
    for link in range(18):
        add("nvmlDeviceGetNvLinkState", link)
    add("nvmlDeviceGetTemperature", 0)
    add("nvmlDeviceGetTemperatureV", 0)
    add("nvmlDeviceGetMemoryInfo_v2", of="nvmlDeviceGetMemoryInfo", version=p.nvmlMemory_v2)
    add("nvmlDeviceGetProcessUtilization", 0)
    add("nvmlDeviceGetProcessesUtilizationInfo", 0)
    add("nvmlDeviceGetSamples", 1, 0)
    add("nvmlDeviceGetCpuAffinity", 16)
    questions["nvmlSystemGetDriverVersion"] = p.nvmlSystemGetDriverVersion
    questions["nvmlSystemGetCudaDriverVersion_v2"] = p.nvmlSystemGetCudaDriverVersion_v2
    questions["nvmlDeviceGetCount_v2"] = p.nvmlDeviceGetCount
    questions["nvmlDeviceGetHandleByIndex_v2"] = partial(p.nvmlDeviceGetHandleByIndex, 0)
    return questions


def measure() -> Iterator[Row]:
    document: dict[str, Any] = {"pynvml": {}, "passes": {}}
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for name, question in _questions(pynvml, handle).items():
            try:
                answer, _, first_us = timed(question)
                code, durations = repeat(question, _SLOW.get(name.partition("(")[0], 200), seconds(0.12))
            except (TypeError, ValueError, AttributeError) as error:  # pynvml of another release
                document["pynvml"][name] = {"error": f"{type(error).__name__}: {error}"}
                continue
            document["pynvml"][name] = {
                "code": code,
                "answer": plain(answer),
                "first_us": round(first_us, 1),
                **spread(durations),
            }
    document["passes"] = _passes()
    write("calls.json", document)
    answered = [entry for entry in document["pynvml"].values() if entry.get("code") == 0]
    yield Row("pynvml calls", f"{len(answered)} of {len(document['pynvml'])} answered")
    slowest = sorted(document["pynvml"].items(), key=lambda item: -item[1].get("p50", 0))[:4]
    yield Row("slowest calls (p50)", ", ".join(f"{name[10:]} {entry['p50']:.0f} us" for name, entry in slowest))
    for name, entry in document["passes"].items():
        yield Row(f"one {name} pass", f"p50 {entry['p50'] / 1e3:.2f} ms, p99 {entry['p99'] / 1e3:.2f} ms")


def _passes() -> dict[str, dict[str, float]]:
    """Durations of gpumon's own passes over GPU 0."""
    driver = NvmlDriver(LIBRARY)
    driver.open()
    device = driver.device(0)
    labels = ("0", driver.text(device, UUID))
    capabilities, state = Capabilities("gpu 0"), GpuState()
    fast = GpuFast(driver, device, capabilities)
    slow = GpuSlow(driver, device, labels, capabilities, state)
    processes = GpuProcesses(driver, device, labels, capabilities, tuple)
    inventory = GpuInventory(driver, device, labels, capabilities, HostFiles())
    results = {}
    for name, read, every_s, most in (
        ("fast", fast.row, 0.1, 40),
        ("slow", slow.read, 0.0, 20),
        ("processes", processes.read_processes, 0.0, 20),
        ("inventory", inventory.read, 0.0, 20),
    ):
        durations: list[float] = []
        end = time.monotonic() + seconds(4)
        read(time.monotonic())  # the first finds out what there is
        while len(durations) < 3 or (len(durations) < most and time.monotonic() < end):
            start = time.perf_counter_ns()
            read(time.monotonic())
            durations.append((time.perf_counter_ns() - start) / 1e3)
            time.sleep(min(every_s, seconds(every_s)))
        results[name] = spread(durations)
    fast.close()
    driver.close()
    return results


if __name__ == "__main__":
    sys.exit(run("calls", measure))
