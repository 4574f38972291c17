"""NVML that records what it answers: the whole port over another implementation of it.

Devices are the other's own and are known here by a name: the uuid, or ``#index`` until they were asked for it, and
``parent/slot`` for MIG instances. Opening, closing and event sets mark passes of their own; what workers and the
inventory ask belongs to passes that they mark. Answers that differ at every reading (fields, GPM) are written each
time, all others when they change.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from gpumon.host.clock import Clock
from gpumon.host.nvml import (
    UUID,
    Bar1,
    Call,
    CallTimes,
    Device,
    Driver,
    Event,
    EventSet,
    Field,
    FieldBatch,
    GpmReader,
    GpmReading,
    Memory,
    Nvml,
    NvmlError,
    ProcessUtilization,
    RunningProcess,
    TextCall,
    Utilization,
    UtilizationSample,
)
from gpumon.record import entries
from gpumon.record.entries import Calls, Failed, Key, pack, to_bytes
from gpumon.record.recorder import Recorder

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_NOTHING = pack(None)
MOST_DEVICES = 1024
"""Whose names are known: several times what a node has, GPUs and MIG instances together."""


class RecordingNvml:
    """See the module. Threads: as the other implementation."""

    def __init__(self, nvml: Nvml, recorder: Recorder, clock: Clock) -> None:
        self._nvml = nvml
        self._recorder = recorder
        self._clock = clock
        self._names: OrderedDict[Device, str] = OrderedDict()
        """The one used last at the end: of those that nobody uses, which every scan adds to, the oldest go."""
        self._timed: dict[int, tuple[str, CallTimes]] = {}
        self._ended: deque[tuple[str, CallTimes]] = deque()
        """Of generations past, to be taken once more."""
        self._sent: dict[tuple[int, str], list[int]] = {}
        recorder.count_calls(self._take_calls)

    @property
    def generation(self) -> int:
        return self._nvml.generation

    @generation.setter
    def generation(self, value: int) -> None:
        self._nvml.generation = value

    @property
    def calls(self) -> CallTimes:
        return self._nvml.calls

    @calls.setter
    def calls(self, value: CallTimes) -> None:
        self._nvml.calls = value

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._recorder.mark(entries.NVML_OPEN, self._clock.now_s())
        self._ended.extend(self._timed.values())
        self._timed, self._names = {}, OrderedDict()  # of devices that are stale from now on
        self.ask((entries.OPEN, "", ""), _nothing, self._nvml.open, always=True)

    def close(self) -> None:
        self._recorder.mark(entries.NVML_CLOSE, self._clock.now_s())
        self.ask((entries.CLOSE, "", ""), _nothing, self._nvml.close, always=True)

    def driver(self) -> Driver:
        return self.ask((entries.DRIVER, "", ""), pack, self._nvml.driver)

    # --- devices --------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        return self.ask((entries.COUNT, "", ""), pack, self._nvml.device_count)

    def device(self, index: int) -> Device:
        device = self.ask((entries.DEVICE, "", str(index)), _nothing, self._nvml.device, index)
        return self._named(device, f"#{index}")

    def device_by_uuid(self, uuid: str) -> Device:
        device = self.ask((entries.DEVICE_BY_UUID, "", uuid), _index, self._nvml.device_by_uuid, uuid)
        return self._named(device, uuid)

    def mig_device(self, parent: Device, index: int) -> Device:
        key = (entries.MIG_DEVICE, self.name(parent), str(index))
        device = self.ask(key, _instance, self._nvml.mig_device, parent, index)
        return self._named(device, f"{self.name(parent)}/{index}")

    def name(self, device: Device) -> str:
        """By what a device is known in the recording."""
        try:
            self._names.move_to_end(device)
            return self._names[device]
        except KeyError:
            return ""

    def _named(self, device: Device, name: str) -> Device:
        self._names[device] = name
        while len(self._names) > MOST_DEVICES:
            self._names.popitem(last=False)
        self._timed.setdefault(id(device.calls), (name, device.calls))  # kept, so that no other gets its address
        return device

    # --- numbers and texts ----------------------------------------------------------------------------------------

    def number(self, device: Device, call: Call) -> int:
        return self.ask((entries.NUMBER, self.name(device), call.name), pack, self._nvml.number, device, call)

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        return self.ask((entries.NUMBERS, self.name(device), call.name), pack, self._nvml.numbers, device, call)

    def text(self, device: Device, call: TextCall) -> str:
        name = self.name(device)
        text = self.ask((entries.TEXT, name, call.name), to_bytes, self._nvml.text, device, call)
        if call is UUID and name.startswith("#"):
            self._names[device] = text
        return text

    def pci_bus_id(self, device: Device) -> str:
        return self.ask((entries.BUS_ID, self.name(device), ""), to_bytes, self._nvml.pci_bus_id, device)

    # --- structs --------------------------------------------------------------------------------------------------

    def utilization(self, device: Device) -> Utilization:
        return self.ask((entries.UTILIZATION, self.name(device), ""), pack, self._nvml.utilization, device)

    def memory(self, device: Device) -> Memory:
        return self.ask((entries.MEMORY, self.name(device), ""), pack, self._nvml.memory, device)

    def bar1(self, device: Device) -> Bar1:
        return self.ask((entries.BAR1, self.name(device), ""), pack, self._nvml.bar1, device)

    def temperature(self, device: Device) -> int:
        return self.ask((entries.TEMPERATURE, self.name(device), ""), pack, self._nvml.temperature, device)

    def temperature_margin(self, device: Device) -> int:
        return self.ask((entries.MARGIN, self.name(device), ""), pack, self._nvml.temperature_margin, device)

    # --- batches --------------------------------------------------------------------------------------------------

    def fields(self, device: Device, fields: Sequence[Field]) -> RecordingFields:
        name, detail = self.name(device), spelled(fields)
        batch = self.ask((entries.NEW_FIELDS, name, detail), _nothing, self._nvml.fields, device, fields)
        return RecordingFields(self, batch, (entries.FIELDS, name, detail))

    def gpm_supported(self, device: Device) -> bool:
        return self.ask((entries.GPM_SUPPORTED, self.name(device), ""), pack, self._nvml.gpm_supported, device)

    def gpm(self, device: Device, metrics: Sequence[int]) -> RecordingGpm:
        name, detail = self.name(device), ",".join(map(str, metrics))
        reader = self.ask((entries.NEW_GPM, name, detail), _nothing, self._nvml.gpm, device, metrics)
        return RecordingGpm(self, reader, (entries.GPM, name, detail))

    # --- lists ----------------------------------------------------------------------------------------------------

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        def packed(rows: list[UtilizationSample]) -> bytes:
            return pack((since_us, rows))

        key = (entries.SAMPLES, self.name(device), "")
        return self.ask(key, packed, self._nvml.utilization_samples, device, since_us)

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        return self.ask((entries.PROCESSES, self.name(device), kind), pack, self._nvml.processes, device, kind)

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        def packed(rows: list[ProcessUtilization]) -> bytes:
            return pack((since_us, rows))

        key = (entries.PROCESS_UTILIZATION, self.name(device), "")
        return self.ask(key, packed, self._nvml.process_utilization, device, since_us)

    def events(self) -> RecordingEvents:
        self._recorder.mark(entries.XID_EVENTS, self._clock.now_s())
        events = self.ask((entries.NEW_EVENTS, "", ""), _nothing, self._nvml.events)
        return RecordingEvents(self, events, self._recorder, self._clock)

    # --- what the parts share -------------------------------------------------------------------------------------

    def ask(
        self, key: Key, packed: Callable[[T], bytes], function: Callable[[*Ts], T], *args: *Ts, always: bool = False
    ) -> T:
        """The answer of ``function(*args)``, kept under ``key``; ``always``: also if it is the same again."""
        began_ns = time.monotonic_ns()
        keep = self._recorder.add if always else self._recorder.keep
        try:
            answer = function(*args)
        except NvmlError as error:
            keep(key, Failed(error.code, error.function), began_ns)
            raise
        keep(key, packed(answer), began_ns)
        return answer

    def _take_calls(self) -> list[Calls]:
        taken: list[Calls] = []
        timed = self._timed
        known = list(timed.items())
        # Looked at after the list is made, into which a device comes after it has its name.
        held = {id(device.calls) for device in list(self._names)}
        self._take("", self._nvml.calls, taken)
        for address, (name, calls) in known:
            if address in held:
                self._take(name, calls, taken)
            elif timed.pop(address, None) is not None:  # of a device that is forgotten: once again
                self._ended.append((name, calls))
        while self._ended:
            name, calls = self._ended.popleft()
            self._take(name, calls, taken)
            for function in calls.durations:
                self._sent.pop((id(calls), function), None)
        return taken

    def _take(self, name: str, calls: CallTimes, taken: list[Calls]) -> None:
        for function, row in list(calls.durations.items()):  # another thread may be writing them
            before = self._sent.get((id(calls), function))
            now = row.copy()
            if now != before:
                self._sent[id(calls), function] = now
                change = now if before is None else [new - old for new, old in zip(now, before, strict=True)]
                taken.append(Calls(name, function, change))


class RecordingFields:
    """``FieldBatch``."""

    def __init__(self, nvml: RecordingNvml, batch: FieldBatch, key: Key) -> None:
        self.fields = batch.fields
        self._nvml = nvml
        self._batch = batch
        self._key = key

    def read(self) -> list[int | float | None]:
        return self._nvml.ask(self._key, self._packed, self._batch.read)

    def codes(self) -> list[int]:
        return self._batch.codes()

    def _packed(self, values: list[int | float | None]) -> bytes:
        return pack((values, self._batch.codes()))


class RecordingGpm:
    """``GpmReader``."""

    def __init__(self, nvml: RecordingNvml, reader: GpmReader, key: Key) -> None:
        self.metrics = reader.metrics
        self._nvml = nvml
        self._reader = reader
        self._key = key

    def read(self) -> GpmReading | None:
        return self._nvml.ask(self._key, pack, self._reader.read)

    def reset(self) -> None:
        self._reader.reset()

    def close(self) -> None:
        self._reader.close()


class RecordingEvents:
    """``EventSet``."""

    def __init__(self, nvml: RecordingNvml, events: EventSet, recorder: Recorder, clock: Clock) -> None:
        self._nvml = nvml
        self._events = events
        self._recorder = recorder
        self._clock = clock

    def register(self, device: Device) -> bool:
        return self._nvml.ask((entries.REGISTER, self._nvml.name(device), ""), pack, self._events.register, device)

    def wait(self, timeout_ms: int) -> Event | None:
        began_ns = time.monotonic_ns()
        try:
            event = self._events.wait(timeout_ms)
        except NvmlError as error:
            self._tell(Failed(error.code, error.function), began_ns)
            raise
        if event is not None:
            self._tell(pack(event), began_ns)
        return event

    def close(self) -> None:
        self._events.close()

    def _tell(self, answer: bytes | Failed, began_ns: int) -> None:
        self._recorder.mark(entries.XID_EVENTS, self._clock.now_s())
        self._recorder.add((entries.WAIT, "", ""), answer, began_ns)


def spelled(fields: Sequence[Field]) -> str:
    """A field batch as the detail of a question."""
    return ",".join([f"{field.id}:{field.scope}" for field in fields])


def _nothing(_answer: object) -> bytes:
    return _NOTHING


def _index(device: Device) -> bytes:
    return pack(device.index)


def _instance(device: Device) -> bytes:
    return pack((device.gpu_instance, device.compute_instance))
