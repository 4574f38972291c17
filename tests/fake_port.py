"""A scripted NVML behind the port: what each question answers or fails with, by name, and a log of what was asked.

No library and no policy. Questions are named after the call (``power_enforced``, ``bar1``, ``processes:compute``,
``field:94``, ``gpm.read``, ``events.wait``); ``<handle>/<name>`` goes before ``<name>``. An answer that is callable
is called with the question's arguments. A question without an answer is the test's mistake: KeyError.
"""

# mypy: disable-error-code="no-any-return"
# The script is data: its types are the test's business.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpumon.host.files import ReadError
from gpumon.host.nvml import (
    Bar1,
    Call,
    CallTimes,
    Code,
    Device,
    Driver,
    Event,
    Field,
    GpmReading,
    Memory,
    NvmlError,
    ProcessUtilization,
    RunningProcess,
    TextCall,
    Utilization,
    UtilizationSample,
)
from gpumon.model import Reason

GIB = 1 << 30

HEALTHY: dict[str, Any] = {
    "driver": Driver("590.48.01", "13.590.48.01", "13.1"),
    "device_count": 1,
    "name": "NVIDIA H200",
    "vbios": "96.00.AE.00.01",
    "pci_bus_id": "0000:3b:00.0",
    "minor": 0,
    "architecture": 9,
    "compute_capability": (9, 0),
    "mig_mode": (0, 0),
    "max_mig": 7,
    "memory": Memory(141 * GIB, 32 * GIB, 108 * GIB, 1 * GIB),
    "bar1": Bar1(256 * GIB, 33 * GIB, 223 * GIB),
    "temperature_margin": 35,
    "gpm_supported": True,
    "power_enforced": 700_000,
    "power_requested": 690_000,
    "power_default": 680_000,
    "power_constraints": (200_000, 750_000),
    "pcie_generation": 4,
    "pcie_max_generation": 5,
    "pcie_width": 8,
    "pcie_max_width": 16,
    "performance_state": 2,
    "encoder": (11, 167_000),
    "decoder": (22, 167_000),
    "jpeg": (33, 167_000),
    "ofa": (44, 167_000),
    "max_clock_graphics": 1980,
    "max_clock_sm": 1981,
    "max_clock_memory": 3201,
    "max_clock_video": 1545,
    "threshold_shutdown": 92,
    "threshold_slowdown": 89,
    "threshold_memory_max": 95,
    "threshold_gpu_max": 87,
    "fans": 2,
    "fan_0": 30,
    "fan_1": 130,
    "ecc_mode": (1, 1),
    "remapped_rows": (1, 2, 0, 1),
    "utilization_samples": [UtilizationSample(1_000_000, 50)],
    "processes:compute": [],
    "processes:graphics": [],
    "processes:mps": [],
    "process_utilization": [],
} | {f"nvlink_state_{link}": 1 if link < 17 else 0 for link in range(18)}

PAST_THE_END = dict.fromkeys(
    [*(f"nvlink_state_{link}" for link in range(18, 36)), *(f"fan_{fan}" for fan in range(2, 8))], Code.INVALID_ARGUMENT
)

FIELDS: dict[int, int | float] = {
    3: 101,
    4: 102,
    5: 103,
    6: 104,
    29: 1,
    30: 2,
    31: 0,
    38: 201,
    45: 202,
    52: 203,
    59: 204,
    91: 18,
    94: 301,
    142: 3,
    143: 4,
    144: 1,
    145: 0,
    160: 205,
    193: -8,
    194: -2,
    195: 0,
    196: 0,
    230: 0,
}


def device(index: int = 0, handle: str | None = None) -> Device:
    return Device(generation=1, index=index, handle=handle or f"gpu{index}")


class FakeNvml:
    """Implements the port; see the module."""

    def __init__(self, answers: Mapping[str, Any] = HEALTHY, fields: Mapping[int, int | float] = FIELDS) -> None:
        self.generation = 1
        self.calls = CallTimes()
        self.answers = dict(answers)
        self.field_values: dict[int, int | float | None] = dict(fields)
        self.field_codes: dict[int, int] = {}
        self.errors: dict[str, int] = dict(PAST_THE_END)
        self.log: list[str] = []
        self.readers: set[FakeGpm] = set()
        """GPM readers that are open."""
        self.sets: set[FakeEvents] = set()
        """Event sets that are open."""

    def ask(self, at: Device | None, name: str, *args: Any) -> Any:
        self.log.append(name)
        keys = (name,) if at is None else (f"{at.handle}/{name}", name)
        for key in keys:
            if key in self.errors:
                raise NvmlError(self.errors[key], key)
        for key in keys:
            if key in self.answers:
                answer = self.answers[key]
                return answer(*args) if callable(answer) else answer
        raise KeyError(name)

    def open(self) -> None:
        self.generation += 1

    def close(self) -> None:
        assert not self.readers
        assert not self.sets

    def driver(self) -> Driver:
        return self.ask(None, "driver")

    def device_count(self) -> int:
        return self.ask(None, "device_count")

    def device(self, index: int) -> Device:
        return self.ask(None, f"device:{index}")

    def device_by_uuid(self, uuid: str) -> Device:
        return self.ask(None, f"device:{uuid}")

    def mig_device(self, parent: Device, index: int) -> Device:
        """The answer is (uuid, gpu instance, compute instance); no answer is a hole."""
        name = f"mig_device:{index}"
        try:
            uuid, gpu_instance, compute_instance = self.ask(parent, name)
        except KeyError:
            raise NvmlError(Code.NOT_FOUND, name) from None
        self.answers.setdefault(f"{uuid}/uuid", uuid)
        return Device(1, index, uuid, gpu_instance, compute_instance, parent)

    def number(self, device: Device, call: Call) -> int:
        answer = self.ask(device, call.name)
        return answer[0] if isinstance(answer, tuple) else answer

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        return self.ask(device, call.name)

    def text(self, device: Device, call: TextCall) -> str:
        return self.ask(device, call.name)

    def pci_bus_id(self, device: Device) -> str:
        return self.ask(device, "pci_bus_id")

    def utilization(self, device: Device) -> Utilization:
        return self.ask(device, "utilization")

    def memory(self, device: Device) -> Memory:
        return self.ask(device, "memory")

    def bar1(self, device: Device) -> Bar1:
        return self.ask(device, "bar1")

    def temperature(self, device: Device) -> int:
        return self.ask(device, "temperature")

    def temperature_margin(self, device: Device) -> int:
        return self.ask(device, "temperature_margin")

    def fields(self, device: Device, fields: Sequence[Field]) -> FakeBatch:
        return FakeBatch(self, device, tuple(fields))

    def gpm_supported(self, device: Device) -> bool:
        return self.ask(device, "gpm_supported")

    def gpm(self, device: Device, metrics: Sequence[int]) -> FakeGpm:
        if "gpm" in self.errors:
            raise NvmlError(self.errors["gpm"], "gpm")
        return FakeGpm(self, device, tuple(metrics))

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        return self.ask(device, "utilization_samples", since_us)

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        return self.ask(device, f"processes:{kind}")

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        return self.ask(device, "process_utilization", since_us)

    def events(self) -> FakeEvents:
        self.log.append("events")
        if "events" in self.errors:
            raise NvmlError(self.errors["events"], "events")
        return FakeEvents(self)


class FakeBatch:
    """Answers from ``field_values`` and ``field_codes``; a field in neither is NOT_SUPPORTED."""

    def __init__(self, nvml: FakeNvml, device: Device, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._nvml = nvml
        self._device = device

    def read(self) -> list[int | float | None]:
        name = "fields.read"
        self._nvml.log.append(name)
        if name in self._nvml.errors:
            raise NvmlError(self._nvml.errors[name], name)
        self._nvml.log.extend(f"field:{field.id}" for field in self.fields)
        values = self._nvml.field_values
        return [None if code else values[field.id] for field, code in zip(self.fields, self.codes(), strict=True)]

    def codes(self) -> list[int]:
        values, codes = self._nvml.field_values, self._nvml.field_codes
        return [codes.get(field.id, 0 if field.id in values else Code.NOT_SUPPORTED) for field in self.fields]


class FakeGpm:
    """Readings are the answer to ``gpm.read``: a GpmReading, None, or a callable of (handle, metrics)."""

    def __init__(self, nvml: FakeNvml, device: Device, metrics: tuple[int, ...]) -> None:
        self.metrics = metrics
        self.resets = 0
        self.nvml = nvml
        self.device = device
        nvml.readers.add(self)

    def read(self) -> GpmReading | None:
        assert self in self.nvml.readers, "read after close"
        return self.nvml.ask(self.device, "gpm.read", self.device.handle, self.metrics)

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.nvml.readers.remove(self)
        if "gpm.close" in self.nvml.errors:
            raise NvmlError(self.nvml.errors["gpm.close"], "gpm.close")


class FakeEvents:
    """``events.register`` answers a bool, ``events.wait`` a callable of (handles registered, timeout_ms)."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.handles: list[object] = []
        self.nvml = nvml
        nvml.sets.add(self)

    def register(self, device: Device) -> bool:
        assert self in self.nvml.sets, "register after close"
        if self.nvml.ask(device, "events.register"):
            self.handles.append(device.handle)
            return True
        return False

    def wait(self, timeout_ms: int) -> Event | None:
        assert self in self.nvml.sets, "wait after close"
        return self.nvml.ask(None, "events.wait", tuple(self.handles), timeout_ms)

    def close(self) -> None:
        self.nvml.sets.remove(self)
        if "events.close" in self.nvml.errors:
            raise NvmlError(self.nvml.errors["events.close"], "events.close")


class DictFiles:
    """Files of a host that has just these. A value that is a Reason is what reading it fails with."""

    def __init__(self, files: Mapping[str, bytes | Reason], links: Mapping[str, str] | None = None) -> None:
        self.files = dict(files)
        self.links = dict(links or {})

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        content = self.files.get(path, Reason.UNAVAILABLE)
        if isinstance(content, Reason):
            raise ReadError(path, content)
        return content

    def list(self, path: str) -> list[str]:
        names = {rest.split("/")[0] for name in self.files if (rest := name.removeprefix(f"{path}/")) != name}
        if not names:
            raise ReadError(path, Reason.UNAVAILABLE)
        return sorted(names)

    def link(self, path: str) -> str:
        if path not in self.links:
            raise ReadError(path, Reason.UNAVAILABLE)
        return self.links[path]
