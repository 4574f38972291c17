"""Runs in the child that has the fake library: every question of the port, asked of the driver and of pynvml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pynvml as nv

from gpumon.host import nvml as port
from gpumon.host.nvml import Call, Device, Field, NvmlError, TextCall
from gpumon.host.nvml_driver import NvmlDriver

FIELDS = tuple(
    Field(*entry)
    for entry in (
        *((number,) for number in (82, 83, 185, 186, 74, 76, 77, 78, 79, 81, 269, 270, 271, 197, 198, 3, 4, 5, 6, 94)),
        *((number,) for number in (29, 193, 194, 195, 196, 230, 91, 142, 143, 144, 145, 301)),
        (138, 0xFFFFFFFF),
        (139, 0xFFFFFFFF),
        (138, 3),
    )
)
CALLS: tuple[Call, ...] = (
    *port.CLOCKS,
    *port.MAX_CLOCKS,
    port.REASONS,
    port.SUPPORTED_REASONS,
    port.TEMPERATURE,
    *port.TEMPERATURE_THRESHOLDS,
    port.POWER_USAGE,
    *port.POWER_LIMITS.values(),
    port.POWER_CONSTRAINTS,
    port.ENERGY,
    *port.PCIE_GENERATIONS.values(),
    *port.PCIE_WIDTHS.values(),
    port.PERFORMANCE_STATE,
    *port.CODECS.values(),
    port.FANS,
    port.MINOR,
    port.ARCHITECTURE,
    port.COMPUTE_CAPABILITY,
    port.MIG_MODE,
    port.MAX_MIG,
    port.REMAPPED_ROWS,
    port.ECC_MODE,
    *port.FAN_SPEEDS[:2],
    *port.NVLINK_STATES[:2],
)
TEXTS: tuple[TextCall, ...] = (port.NAME, port.UUID, port.VBIOS)


def answer(function: Callable[..., Any], *args: Any) -> Any:
    """The answer as plain lists, or ``{"code": N}``."""
    try:
        return plain(function(*args))
    except NvmlError as error:
        return {"code": error.code}
    except nv.NVMLError as error:
        return {"code": error.value}


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def ours(driver: NvmlDriver, device: Device) -> dict[str, Any]:
    """Everything, by the port."""
    answers = {call.name: answer(driver.numbers, device, call) for call in CALLS}
    answers |= {call.name: answer(driver.text, device, call) for call in TEXTS}
    answers["pci_bus_id"] = answer(driver.pci_bus_id, device)
    answers["utilization"] = answer(driver.utilization, device)
    answers["memory"] = answer(driver.memory, device)
    answers["bar1"] = answer(driver.bar1, device)
    answers["temperature_v"] = answer(driver.temperature, device)
    answers["margin"] = answer(driver.temperature_margin, device)
    answers["gpm_supported"] = answer(driver.gpm_supported, device)
    answers["samples"] = answer(driver.utilization_samples, device, 1)
    answers["process_utilization"] = answer(driver.process_utilization, device, 1)
    for kind in ("compute", "graphics", "mps"):
        answers[kind] = answer(driver.processes, device, kind)
    answers["fields"] = answer(read_fields, driver, device)
    answers["driver"] = answer(driver.driver)
    answers["count"] = answer(driver.device_count)
    return answers


def read_fields(driver: NvmlDriver, device: Device, fields: tuple[Field, ...] = FIELDS) -> Any:
    batch = driver.fields(device, fields)
    values = batch.read()
    return list(zip(values, batch.codes(), strict=True))


def theirs(handle: Any) -> dict[str, Any]:
    """Everything, by pynvml's wrappers."""
    domains = (nv.NVML_CLOCK_GRAPHICS, nv.NVML_CLOCK_SM, nv.NVML_CLOCK_MEM, nv.NVML_CLOCK_VIDEO)
    by_pynvml: dict[str, Callable[[], Any]] = {
        **_by_number(port.CLOCKS, domains, lambda domain: [nv.nvmlDeviceGetClockInfo(handle, domain)]),
        **_by_number(port.MAX_CLOCKS, domains, lambda domain: [nv.nvmlDeviceGetMaxClockInfo(handle, domain)]),
        "reasons": lambda: [nv.nvmlDeviceGetCurrentClocksEventReasons(handle)],
        "supported_reasons": lambda: [nv.nvmlDeviceGetSupportedClocksEventReasons(handle)],
        "temperature": lambda: [nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)],
        **_by_number(
            port.TEMPERATURE_THRESHOLDS, range(4), lambda limit: [nv.nvmlDeviceGetTemperatureThreshold(handle, limit)]
        ),
        "power_usage": lambda: [nv.nvmlDeviceGetPowerUsage(handle)],
        "power_enforced": lambda: [nv.nvmlDeviceGetEnforcedPowerLimit(handle)],
        "power_requested": lambda: [nv.nvmlDeviceGetPowerManagementLimit(handle)],
        "power_default": lambda: [nv.nvmlDeviceGetPowerManagementDefaultLimit(handle)],
        "power_constraints": lambda: nv.nvmlDeviceGetPowerManagementLimitConstraints(handle),
        "energy": lambda: [nv.nvmlDeviceGetTotalEnergyConsumption(handle)],
        "pcie_generation": lambda: [nv.nvmlDeviceGetCurrPcieLinkGeneration(handle)],
        "pcie_max_generation": lambda: [nv.nvmlDeviceGetMaxPcieLinkGeneration(handle)],
        "pcie_width": lambda: [nv.nvmlDeviceGetCurrPcieLinkWidth(handle)],
        "pcie_max_width": lambda: [nv.nvmlDeviceGetMaxPcieLinkWidth(handle)],
        "performance_state": lambda: [nv.nvmlDeviceGetPerformanceState(handle)],
        "encoder": lambda: nv.nvmlDeviceGetEncoderUtilization(handle),
        "decoder": lambda: nv.nvmlDeviceGetDecoderUtilization(handle),
        "jpeg": lambda: nv.nvmlDeviceGetJpgUtilization(handle),
        "ofa": lambda: nv.nvmlDeviceGetOfaUtilization(handle),
        "fans": lambda: [nv.nvmlDeviceGetNumFans(handle)],
        "minor": lambda: [nv.nvmlDeviceGetMinorNumber(handle)],
        "architecture": lambda: [nv.nvmlDeviceGetArchitecture(handle)],
        "compute_capability": lambda: nv.nvmlDeviceGetCudaComputeCapability(handle),
        "mig_mode": lambda: nv.nvmlDeviceGetMigMode(handle),
        "max_mig": lambda: [nv.nvmlDeviceGetMaxMigDeviceCount(handle)],
        "remapped_rows": lambda: nv.nvmlDeviceGetRemappedRows(handle),
        "ecc_mode": lambda: nv.nvmlDeviceGetEccMode(handle),
        "fan_0": lambda: [nv.nvmlDeviceGetFanSpeed_v2(handle, 0)],
        "fan_1": lambda: [nv.nvmlDeviceGetFanSpeed_v2(handle, 1)],
        "nvlink_state_0": lambda: [nv.nvmlDeviceGetNvLinkState(handle, 0)],
        "nvlink_state_1": lambda: [nv.nvmlDeviceGetNvLinkState(handle, 1)],
        "name": lambda: nv.nvmlDeviceGetName(handle),
        "uuid": lambda: nv.nvmlDeviceGetUUID(handle),
        "vbios": lambda: nv.nvmlDeviceGetVbiosVersion(handle),
        "pci_bus_id": lambda: nv.nvmlDeviceGetPciInfo(handle).busId.lower()[4:],
        "utilization": lambda: _of(nv.nvmlDeviceGetUtilizationRates(handle), "gpu", "memory"),
        "memory": lambda: _of(
            nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2), "total", "used", "free", "reserved"
        ),
        "bar1": lambda: _of(nv.nvmlDeviceGetBAR1MemoryInfo(handle), "bar1Total", "bar1Used", "bar1Free"),
        "temperature_v": lambda: nv.nvmlDeviceGetTemperatureV(handle, nv.NVML_TEMPERATURE_GPU),
        "margin": lambda: nv.nvmlDeviceGetMarginTemperature(handle),
        "gpm_supported": lambda: bool(nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice),
        "samples": lambda: _samples(handle),
        "process_utilization": lambda: [
            _of(row, "pid", "timeStamp", "smUtil", "memUtil") for row in nv.nvmlDeviceGetProcessUtilization(handle, 1)
        ],
        "compute": lambda: _processes(nv.nvmlDeviceGetComputeRunningProcesses(handle)),
        "graphics": lambda: _processes(nv.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        "mps": lambda: _processes(nv.nvmlDeviceGetMPSComputeRunningProcesses(handle)),
        "fields": lambda: [_field(v) for v in nv.nvmlDeviceGetFieldValues(handle, [tuple(f) for f in FIELDS])],
        "driver": lambda: [nv.nvmlSystemGetDriverVersion(), nv.nvmlSystemGetNVMLVersion(), _cuda()],
        "count": lambda: nv.nvmlDeviceGetCount(),
    }
    answers = {name: answer(function) for name, function in by_pynvml.items()}
    for name in ("samples", "process_utilization"):  # pynvml raises where there is nothing
        if answers[name] in ({"code": 6}, {"code": 0}):
            answers[name] = []
    return answers


def _by_number(
    calls: Sequence[Call], numbers: Sequence[int], function: Callable[[int], Any]
) -> dict[str, Callable[[], Any]]:
    return {call.name: partial(function, number) for call, number in zip(calls, numbers, strict=True)}


def _of(struct: Any, *names: str) -> list[Any]:
    return [getattr(struct, name) for name in names]


def _cuda() -> str:
    version = nv.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def _processes(rows: list[Any]) -> list[Any]:
    none = 0xFFFFFFFF
    return [
        [r.pid, r.usedGpuMemory, *(None if i == none else i for i in (r.gpuInstanceId, r.computeInstanceId))]
        for r in rows
    ]


def _samples(handle: Any) -> list[Any]:
    kind, rows = nv.nvmlDeviceGetSamples(handle, nv.NVML_GPU_UTILIZATION_SAMPLES, 1)
    return [[row.timeStamp, int(_value(kind, row.sampleValue))] for row in rows]


def _value(kind: int, union: Any) -> Any:
    return getattr(union, ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[kind])


def _field(value: Any) -> list[Any]:
    return [None if value.nvmlReturn else _value(value.valueType, value.value), value.nvmlReturn]
