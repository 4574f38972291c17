"""NVML out of a recording: the whole of ``host.nvml.Nvml``, as of the clock that it is given.

Answers, refusals and call times are those that were recorded. What was never asked of a device is NO_DATA, a device
that was never found NOT_FOUND, and a recording without NVML has no library. Waiting for events does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host.clock import Clock
from gpumon.host.nvml import (
    UUID,
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
    StaleDeviceError,
    TextCall,
    Utilization,
    UtilizationSample,
)
from gpumon.record import entries
from gpumon.record.entries import Calls, Failed, Fields, Key, ProcessRows, Rows, to_text
from gpumon.record.recording_nvml import spelled
from gpumon.record.timeline import NOTHING, Recording

T = TypeVar("T")
_READING_OR_NONE: tuple[type[GpmReading | None], ...] = (GpmReading, type(None))


class ReplayNvml:
    """See the module. One thread, which it shares with the other ports of the recording."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self.generation = 0
        self.calls = CallTimes()
        self._recording = recording
        self._now_s = clock.now_s
        self._open = False
        self._times: dict[str, CallTimes] = {}
        recording.on_calls = self._add_calls

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._ask((entries.OPEN, "", ""), type(None), Code.LIBRARY_NOT_FOUND)
        self._open = True
        self.generation += 1
        self._times = {}

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ask((entries.CLOSE, "", ""), type(None), None)

    def driver(self) -> Driver:
        return self._ask((entries.DRIVER, "", ""), Driver)

    # --- devices --------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        return self._ask((entries.COUNT, "", ""), int)

    def device(self, index: int) -> Device:
        self._ask((entries.DEVICE, "", str(index)), type(None), Code.NOT_FOUND)
        return self._device(f"#{index}", index)

    def device_by_uuid(self, uuid: str) -> Device:
        return self._device(uuid, self._ask((entries.DEVICE_BY_UUID, "", uuid), int, Code.NOT_FOUND))

    def mig_device(self, parent: Device, index: int) -> Device:
        name = self._name(parent)
        gpu_instance, compute_instance = self._ask((entries.MIG_DEVICE, name, str(index)), tuple, Code.NOT_FOUND)
        device = Device(self.generation, index, f"{name}/{index}", gpu_instance, compute_instance, parent)
        device.calls = parent.calls
        return device

    def _device(self, name: str, index: int) -> Device:
        if not self._open:
            raise NvmlError(Code.UNINITIALIZED, "not open")
        device = Device(self.generation, index, name)
        self._times[name] = device.calls
        return device

    def _name(self, device: Device) -> str:
        """By what the device is known in the recording."""
        if device.generation != self.generation or not self._open:
            raise StaleDeviceError(f"device of generation {device.generation}, now {self.generation}")
        return str(device.handle)

    # --- numbers and texts ----------------------------------------------------------------------------------------

    def number(self, device: Device, call: Call) -> int:
        return self._ask((entries.NUMBER, self._name(device), call.name), int)

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        return self._ask((entries.NUMBERS, self._name(device), call.name), tuple)

    def text(self, device: Device, call: TextCall) -> str:
        name = self._name(device)
        text = to_text(self._ask((entries.TEXT, name, call.name), bytes))
        if call is UUID and name.startswith("#"):
            device.handle = text  # as the recording went on to name it
        return text

    def pci_bus_id(self, device: Device) -> str:
        return to_text(self._ask((entries.BUS_ID, self._name(device), ""), bytes))

    # --- structs --------------------------------------------------------------------------------------------------

    def utilization(self, device: Device) -> Utilization:
        return self._ask((entries.UTILIZATION, self._name(device), ""), Utilization)

    def memory(self, device: Device) -> Memory:
        return self._ask((entries.MEMORY, self._name(device), ""), Memory)

    def bar1(self, device: Device) -> Bar1:
        return self._ask((entries.BAR1, self._name(device), ""), Bar1)

    def temperature(self, device: Device) -> int:
        return self._ask((entries.TEMPERATURE, self._name(device), ""), int)

    def temperature_margin(self, device: Device) -> int:
        return self._ask((entries.MARGIN, self._name(device), ""), int)

    # --- batches --------------------------------------------------------------------------------------------------

    def fields(self, device: Device, fields: Sequence[Field]) -> ReplayFields:
        name, detail = self._name(device), spelled(fields)
        self._ask((entries.NEW_FIELDS, name, detail), type(None), None)
        return ReplayFields(self, device, tuple(fields), detail)

    def gpm_supported(self, device: Device) -> bool:
        return self._ask((entries.GPM_SUPPORTED, self._name(device), ""), bool)

    def gpm(self, device: Device, metrics: Sequence[int]) -> ReplayGpm:
        name, detail = self._name(device), ",".join(map(str, metrics))
        self._ask((entries.NEW_GPM, name, detail), type(None))
        return ReplayGpm(self, device, tuple(metrics), detail)

    # --- lists ----------------------------------------------------------------------------------------------------

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        told_since_us, rows = self._ask((entries.SAMPLES, self._name(device), ""), Rows)
        # Asked the same, the same rows, also those that are none of those asked for, as drivers have them.
        return rows if since_us == told_since_us else [row for row in rows if row.timestamp_us > since_us]

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        return self._ask((entries.PROCESSES, self._name(device), kind), list)

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        told_since_us, rows = self._ask((entries.PROCESS_UTILIZATION, self._name(device), ""), ProcessRows)
        return rows if since_us == told_since_us else [row for row in rows if row.timestamp_us > since_us]

    def events(self) -> ReplayEvents:
        if not self._open:
            raise NvmlError(Code.UNINITIALIZED, "not open")
        self._ask((entries.NEW_EVENTS, "", ""), type(None))
        return ReplayEvents(self)

    # --- what the parts share -------------------------------------------------------------------------------------

    def of_device(self, device: Device, kind: int, detail: str, shape: type[T] | tuple[type[T], ...]) -> T:
        """An answer about a device. Raises NvmlError."""
        return self._ask((kind, self._name(device), detail), shape)

    def event(self) -> Event | None:
        """The next event, if one was told by now."""
        told = self._recording.take(entries.WAIT, self._now_s())
        if isinstance(told, Failed):
            raise _refused(told)
        return told if isinstance(told, Event) else None

    def _ask(self, key: Key, shape: type[T] | tuple[type[T], ...], absent: Code | None = Code.NO_DATA) -> T:
        """The answer, of that type. absent: the code of what was never asked; None: as if it had been well."""
        answer = self._recording.find(key, self._now_s())
        if isinstance(answer, shape):
            return answer
        if isinstance(answer, Failed):
            raise _refused(answer)
        if absent is None and answer is NOTHING:
            return None  # type: ignore[return-value]  # only of questions whose answer is nothing
        raise NvmlError(absent or Code.NO_DATA, "not in the recording")

    def _add_calls(self, changes: list[Calls]) -> None:
        for change in changes:
            times = self._times.get(change.device, self.calls)
            if len(change.row) != len(CALL_BOUNDS) + 2:
                continue  # of another version's buckets
            row = times.durations.setdefault(change.function, [0] * len(change.row))
            for i, count in enumerate(change.row):
                row[i] += count


class ReplayFields:
    """``FieldBatch``."""

    def __init__(self, nvml: ReplayNvml, device: Device, fields: tuple[Field, ...], detail: str) -> None:
        self.fields = fields
        self._nvml = nvml
        self._device = device
        self._detail = detail
        self._codes = [int(Code.UNKNOWN)] * len(fields)

    def read(self) -> list[int | float | None]:
        values, codes = self._nvml.of_device(self._device, entries.FIELDS, self._detail, Fields)
        if len(values) != len(self.fields) or len(codes) != len(self.fields):
            raise NvmlError(Code.NO_DATA, "not in the recording")
        self._codes = list(codes)
        return list(values)

    def codes(self) -> list[int]:
        return list(self._codes)


class ReplayGpm:
    """``GpmReader``."""

    def __init__(self, nvml: ReplayNvml, device: Device, metrics: tuple[int, ...], detail: str) -> None:
        self.metrics = metrics
        self._nvml = nvml
        self._device = device
        self._detail = detail

    def read(self) -> GpmReading | None:
        reading = self._nvml.of_device(self._device, entries.GPM, self._detail, _READING_OR_NONE)
        if reading is not None and not len(reading.values) == len(reading.codes) == len(self.metrics):
            raise NvmlError(Code.NO_DATA, "not in the recording")
        return reading

    def reset(self) -> None:
        """The recorded readings are what they are."""

    def close(self) -> None:
        """Nothing is held."""


class ReplayEvents:
    """``EventSet``."""

    def __init__(self, nvml: ReplayNvml) -> None:
        self._nvml = nvml

    def register(self, device: Device) -> bool:
        return self._nvml.of_device(device, entries.REGISTER, "", bool)

    def wait(self, timeout_ms: int) -> Event | None:  # noqa: ARG002 (a replay does not wait)
        return self._nvml.event()

    def close(self) -> None:
        """Nothing is held."""


def _refused(answer: Failed) -> NvmlError:
    return NvmlError(answer.code if isinstance(answer.code, int) else Code.UNKNOWN, answer.text)
