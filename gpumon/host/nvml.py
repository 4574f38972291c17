"""The port to NVML: what the rest of gpumon may ask the driver, and the errors it may get.

Thin on purpose: raw numbers in NVML's own units, one method per shape of answer, no policy. Units are converted
and ranges checked by the source that reads. ``nvml_driver.py`` implements the port over the real library,
``sim/nvml.py`` over a simulated node.

Threads: a ``Device`` and what is made from it (``FieldBatch``, ``GpmReader``) belong to one thread at a time;
different devices may be used from different threads at once. ``open`` and ``close`` want every device at rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

DRIVER_ROOT = "/run/nvidia/driver"
"""Where the GPU operator's driver container shows its files."""


class Code(IntEnum):
    """NVML return codes that gpumon tells apart (nvmlReturn_t)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


NEVER = frozenset({Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED})
"""Answers that do not change within a generation: ask once, remember."""
DEVICE_GONE = frozenset({Code.GPU_IS_LOST, Code.GPU_NOT_FOUND})
"""The one GPU is gone; its neighbours are not."""
DRIVER_GONE = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH})
"""The whole generation is dead."""


class NvmlError(Exception):
    """A call answered with a code other than SUCCESS."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {code_name(code)}")
        self.code = code
        self.function = function


class StaleDeviceError(Exception):
    """A device of an earlier generation was used: gpumon's own fault, never the driver's."""


def code_name(code: int) -> str:
    """NVML's own name of a return code, or its number."""
    try:
        return Code(code).name
    except ValueError:
        return f"code {code}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A question with integer answers: function name(s) to try in order, fixed arguments, shape of the answer."""

    name: str
    functions: tuple[str, ...]
    args: tuple[int, ...] = ()
    outs: tuple[str, ...] = ("u32",)
    """ctypes of the out-parameters: u32, i32 or u64."""


def _call(name: str, *functions: str, args: tuple[int, ...] = (), outs: tuple[str, ...] = ("u32",)) -> Call:
    return Call(name, functions, args, outs)


_DOMAINS = ("graphics", "sm", "memory", "video")
CLOCKS = tuple(_call(f"clock_{d}", "nvmlDeviceGetClockInfo", args=(i,)) for i, d in enumerate(_DOMAINS))  # MHz
MAX_CLOCKS = tuple(
    _call(f"max_clock_{d}", "nvmlDeviceGetMaxClockInfo", args=(i,)) for i, d in enumerate(_DOMAINS)
)  # MHz
REASONS = _call(
    "reasons", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", outs=("u64",)
)  # bit mask
SUPPORTED_REASONS = _call(
    "supported_reasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons",
    outs=("u64",),
)
TEMPERATURE = _call("temperature", "nvmlDeviceGetTemperature", args=(0,))  # degrees C, drivers without TemperatureV
TEMPERATURE_THRESHOLDS = tuple(
    _call(f"threshold_{limit}", "nvmlDeviceGetTemperatureThreshold", args=(i,))
    for i, limit in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
)  # degrees C
POWER_USAGE = _call("power_usage", "nvmlDeviceGetPowerUsage")  # mW
POWER_LIMITS = {
    "enforced": _call("power_enforced", "nvmlDeviceGetEnforcedPowerLimit"),
    "requested": _call("power_requested", "nvmlDeviceGetPowerManagementLimit"),
    "default": _call("power_default", "nvmlDeviceGetPowerManagementDefaultLimit"),
}  # mW
POWER_CONSTRAINTS = _call(
    "power_constraints", "nvmlDeviceGetPowerManagementLimitConstraints", outs=("u32", "u32")
)  # mW
ENERGY = _call("energy", "nvmlDeviceGetTotalEnergyConsumption", outs=("u64",))  # mJ
PCIE_GENERATIONS = {
    "current": _call("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    "max": _call("pcie_max_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
}
PCIE_WIDTHS = {
    "current": _call("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    "max": _call("pcie_max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
}
PERFORMANCE_STATE = _call("performance_state", "nvmlDeviceGetPerformanceState")
CODECS = {
    "encoder": _call("encoder", "nvmlDeviceGetEncoderUtilization", outs=("u32", "u32")),
    "decoder": _call("decoder", "nvmlDeviceGetDecoderUtilization", outs=("u32", "u32")),
    "jpeg": _call("jpeg", "nvmlDeviceGetJpgUtilization", outs=("u32", "u32")),
    "ofa": _call("ofa", "nvmlDeviceGetOfaUtilization", outs=("u32", "u32")),
}  # percent, sample period in us
FANS = _call("fans", "nvmlDeviceGetNumFans")
MINOR = _call("minor", "nvmlDeviceGetMinorNumber")
ARCHITECTURE = _call("architecture", "nvmlDeviceGetArchitecture")
COMPUTE_CAPABILITY = _call("compute_capability", "nvmlDeviceGetCudaComputeCapability", outs=("i32", "i32"))
MIG_MODE = _call("mig_mode", "nvmlDeviceGetMigMode", outs=("u32", "u32"))  # current, pending
MAX_MIG = _call("max_mig", "nvmlDeviceGetMaxMigDeviceCount")
REMAPPED_ROWS = _call(
    "remapped_rows", "nvmlDeviceGetRemappedRows", outs=("u32", "u32", "u32", "u32")
)  # correctable, uncorrectable, pending, failed
ECC_MODE = _call("ecc_mode", "nvmlDeviceGetEccMode", outs=("u32", "u32"))  # current, pending: 0 off, 1 on
FAN_SPEEDS = tuple(_call(f"fan_{i}", "nvmlDeviceGetFanSpeed_v2", args=(i,)) for i in range(8))  # percent
NVLINK_STATES = tuple(_call(f"nvlink_state_{i}", "nvmlDeviceGetNvLinkState", args=(i,)) for i in range(36))


class TextCall(NamedTuple):
    """A question with a string for an answer."""

    name: str
    function: str
    size: int


NAME = TextCall("name", "nvmlDeviceGetName", 96)
UUID = TextCall("uuid", "nvmlDeviceGetUUID", 96)
VBIOS = TextCall("vbios", "nvmlDeviceGetVbiosVersion", 32)


class Field(NamedTuple):
    """One entry of a field-value batch (NVML_FI_*)."""

    id: int
    scope: int = 0


class Driver(NamedTuple):
    """Versions, as NVML spells them; None where it did not say."""

    driver_version: str | None
    nvml_version: str | None
    cuda_version: str | None


class Utilization(NamedTuple):
    """nvmlUtilization_t, percent."""

    gpu: int
    memory: int


class Memory(NamedTuple):
    """nvmlMemory_v2_t or nvmlMemory_t, bytes; reserved is None where the driver is too old to tell."""

    total: int
    used: int
    free: int
    reserved: int | None


class Bar1(NamedTuple):
    """nvmlBAR1Memory_t, bytes."""

    total: int
    used: int
    free: int


class RunningProcess(NamedTuple):
    """nvmlProcessInfo_t; used_bytes is None where the driver cannot tell (NVML_VALUE_NOT_AVAILABLE)."""

    pid: int
    used_bytes: int | None
    gpu_instance: int | None
    compute_instance: int | None


class ProcessUtilization(NamedTuple):
    """nvmlProcessUtilizationSample_t; percent, timestamp in us of the driver's clock."""

    pid: int
    timestamp_us: int
    sm: int
    memory: int


class UtilizationSample(NamedTuple):
    """nvmlSample_t of the GPU utilization ring; percent, timestamp in us of the driver's clock."""

    timestamp_us: int
    value: int


class GpmReading(NamedTuple):
    """Means over the time between two GPM samples, in NVML's unit, in the order asked for."""

    values: tuple[float | None, ...]
    """None where NVML had no finite value."""
    codes: tuple[int, ...]
    """Return code per metric."""
    interval_s: float
    """Time between the two samples."""


class Event(NamedTuple):
    """One NVML event. uuid is None when the event named no device that is known."""

    uuid: str | None
    kind: int
    data: int


EVENT_XID = 0x8


@dataclass(eq=False, slots=True)
class Device:
    """A GPU or MIG instance of one generation. ``handle`` is the implementation's own."""

    generation: int
    index: int
    handle: object
    gpu_instance: int | None = None
    compute_instance: int | None = None
    parent: Device | None = None
    calls: CallTimes = field(default_factory=lambda: CallTimes())


class CallTimes:
    """What the calls on one device took, and the one under way. Written by the device's thread, read by any."""

    __slots__ = ("durations", "name", "started_ns")

    def __init__(self) -> None:
        self.name: str | None = None
        """Function under way now; None at rest."""
        self.started_ns = 0
        """CLOCK_MONOTONIC at its start."""
        self.durations: dict[str, list[int]] = {}
        """Per function: counts per bucket of catalogue.CALL_BOUNDS plus one, then the sum in ns."""


class FieldBatch(Protocol):
    """A fixed set of fields of one device, read in one NVML call."""

    fields: tuple[Field, ...]

    def read(self) -> list[int | float | None]:
        """Values in the order of ``fields``; None where that field's own return code is not SUCCESS.

        Raises NvmlError when the whole call fails.
        """
        ...

    def codes(self) -> list[int]:
        """Return code of each field at the last read."""
        ...


class GpmReader(Protocol):
    """Two GPM sample buffers of one device or GPU instance, used in turn."""

    metrics: tuple[int, ...]

    def read(self) -> GpmReading | None:
        """Take a sample and compare it with the one before; None at the first.

        Raises NvmlError when sampling or the whole comparison fails; the older sample is kept then, so that the
        next reading covers the longer time.
        """
        ...

    def reset(self) -> None:
        """Forget the older sample: after a gap, a reset, or an error."""
        ...

    def close(self) -> None:
        """Free the buffers. Before ``Nvml.close``."""
        ...


class EventSet(Protocol):
    """Registered events. Waited on by one thread; closed by the same."""

    def register(self, device: Device) -> bool:
        """Ask for the device's XID events; False if it has none."""
        ...

    def wait(self, timeout_ms: int) -> Event | None:
        """Next event, or None when the time passed. Raises NvmlError (GPU_IS_LOST repeats at once for ever)."""
        ...

    def close(self) -> None:
        """Free the set."""
        ...


class Nvml(Protocol):
    """NVML as gpumon uses it. Every method may raise NvmlError; a device of an older generation StaleDeviceError."""

    generation: int
    """Counts successful opens; 0 before the first."""
    calls: CallTimes
    """Calls that belong to no device: open, count, handles, events."""

    def open(self) -> None:
        """Load and initialise. A new generation: every earlier Device is stale."""
        ...

    def close(self) -> None:
        """Shut down; nothing may be under way. Safe when not open."""
        ...

    def driver(self) -> Driver: ...

    def device_count(self) -> int: ...

    def device(self, index: int) -> Device: ...

    def device_by_uuid(self, uuid: str) -> Device: ...

    def mig_device(self, parent: Device, index: int) -> Device:
        """MIG instance in slot ``index`` with its instance ids filled in; NOT_FOUND for a hole."""
        ...

    def number(self, device: Device, call: Call) -> int:
        """First out-parameter of the call."""
        ...

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        """All out-parameters of the call."""
        ...

    def text(self, device: Device, call: TextCall) -> str: ...

    def pci_bus_id(self, device: Device) -> str:
        """As the kernel spells it: ``0000:3b:00.0``."""
        ...

    def utilization(self, device: Device) -> Utilization: ...

    def memory(self, device: Device) -> Memory: ...

    def bar1(self, device: Device) -> Bar1: ...

    def temperature(self, device: Device) -> int:
        """Degrees C of the die, by nvmlDeviceGetTemperatureV where it exists, else nvmlDeviceGetTemperature."""
        ...

    def temperature_margin(self, device: Device) -> int:
        """Degrees C below the limit."""
        ...

    def fields(self, device: Device, fields: Sequence[Field]) -> FieldBatch: ...

    def gpm_supported(self, device: Device) -> bool: ...

    def gpm(self, device: Device, metrics: Sequence[int]) -> GpmReader:
        """For a MIG device: of its GPU instance, through the parent."""
        ...

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        """GPU utilization samples newer than ``since_us``; empty when there are none."""
        ...

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        """kind: ``compute``, ``graphics`` or ``mps``."""
        ...

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        """Samples newer than ``since_us``; empty when there are none."""
        ...

    def events(self) -> EventSet: ...
