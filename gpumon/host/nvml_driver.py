"""NVML over the real library: ``host.nvml.Nvml`` with pynvml's structs and plain ctypes.

The calls that run many times a second are bound once per device with kept out-parameters, which costs 0.3 us
instead of the 1-40 us of pynvml's wrappers. Struct layouts are those of nvidia-ml-py 13; sizes
are stated beside each.

Needs libnvidia-ml.so.1: by ``library``, by the loader's path, or below the driver roots of the GPU operator.
Without it ``open`` raises NvmlError(LIBRARY_NOT_FOUND), and looks anew each time. The library is never unloaded, so
a driver that was upgraded under a running process needs a new process (NvmlError(LIB_RM_VERSION_MISMATCH) says so).
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host.nvml import (
    DRIVER_GONE,
    DRIVER_ROOT,
    Bar1,
    Call,
    CallTimes,
    Code,
    Device,
    Driver,
    Field,
    Memory,
    NvmlError,
    ProcessUtilization,
    RunningProcess,
    StaleDeviceError,
    TextCall,
    Utilization,
    UtilizationSample,
)
from gpumon.host.nvml_batches import READERS, DriverEventSet, DriverFieldBatch, DriverGpmReader, absent

LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu")
_CTYPES: dict[str, Any] = {"u32": ctypes.c_uint, "i32": ctypes.c_int, "u64": ctypes.c_ulonglong}
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in CALL_BOUNDS)
_ZEROS = [0] * (len(CALL_BOUNDS) + 2)
_NO_INSTANCE = 0xFFFFFFFF
_NO_VALUE = 0xFFFFFFFFFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE
_PROCESS = struct.Struct("<I4xQII")  # nvmlProcessInfo_t v2 and v3, 24 bytes
_PROCESS_UTILIZATION = struct.Struct("<I4xQIIII")  # nvmlProcessUtilizationSample_t, 32 bytes
_SAMPLE = struct.Struct("<QQ")  # nvmlSample_t, 16 bytes
_SAMPLE_GPU_UTILIZATION = 1
_LIST_MAX = 4096
"""Most entries asked for: the driver keeps at most 950 processes per query and some hundred samples."""
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PROCESS_FUNCTIONS = {  # v2 and v3 have the same layout; v3 came with driver 510
    kind: tuple(f"nvmlDeviceGet{name}RunningProcesses{version}" for version in ("_v3", "_v2"))
    for kind, name in {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}.items()
}


class NvmlDriver:
    """The port over the machine's NVML."""

    def __init__(self, library: str | None = None) -> None:
        self.generation = 0
        self.calls = CallTimes()
        self._path = library
        self._library: Any = None
        self._symbols: dict[str, Any] = {}
        self._open = False
        self._counting = threading.Lock()  # over ``calls``, which the threads of all devices share

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._library is None:
            self._library = _load(self._path)
        self._shared("nvmlInitWithFlags", (ctypes.c_uint(0),))
        self._open = True
        self.generation += 1

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._shared("nvmlShutdown", ())

    # --- system ---------------------------------------------------------------------------------------------------

    def driver(self) -> Driver:
        return Driver(
            self._system_text("nvmlSystemGetDriverVersion", 81),
            self._system_text("nvmlSystemGetNVMLVersion", 81),
            self._cuda_version(),
        )

    def _system_text(self, function: str, size: int) -> str | None:
        buffer = ctypes.create_string_buffer(size)
        return _decode(buffer.value) if self._answers(function, (buffer, ctypes.c_uint(size))) else None

    def _cuda_version(self) -> str | None:
        version = ctypes.c_int()
        if not self._answers("nvmlSystemGetCudaDriverVersion_v2", (ctypes.byref(version),)):
            return None
        return f"{version.value // 1000}.{version.value % 1000 // 10}"  # 13020 is 13.2

    def _answers(self, function: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a question about the system is answered. Raises NvmlError when the driver is gone."""
        try:
            self._shared(function, arguments)
        except NvmlError as error:
            if error.code in DRIVER_GONE:
                raise
            return False
        return True

    # --- devices --------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        count = ctypes.c_uint()
        self._shared("nvmlDeviceGetCount_v2", (ctypes.byref(count),))
        return count.value

    def device(self, index: int) -> Device:
        return self._device("nvmlDeviceGetHandleByIndex_v2", (ctypes.c_uint(index),), index)

    def device_by_uuid(self, uuid: str) -> Device:
        device = self._device("nvmlDeviceGetHandleByUUID", (ctypes.c_char_p(uuid.encode()),), -1)
        device.index = self._u32(device, "nvmlDeviceGetIndex")
        return device

    def mig_device(self, parent: Device, index: int) -> Device:
        pointer = ctypes.c_void_p()
        function = "nvmlDeviceGetMigDeviceHandleByIndex"
        arguments = (self.live(parent).pointer, ctypes.c_uint(index), ctypes.byref(pointer))
        self.timed(parent.calls, function, self.symbol(function), arguments)
        device = Device(self.generation, index, _Handle(pointer), parent=parent, calls=parent.calls)
        device.gpu_instance = self._u32(device, "nvmlDeviceGetGpuInstanceId")
        device.compute_instance = self._u32(device, "nvmlDeviceGetComputeInstanceId")
        return device

    def _device(self, function: str, arguments: tuple[Any, ...], index: int) -> Device:
        pointer = ctypes.c_void_p()
        self._shared(function, (*arguments, ctypes.byref(pointer)))
        return Device(self.generation, index, _Handle(pointer))

    def _u32(self, device: Device, function: str) -> int:
        out = ctypes.c_uint()
        self.timed(device.calls, function, self.symbol(function), (self.live(device).pointer, ctypes.byref(out)))
        return out.value

    # --- numbers and texts ----------------------------------------------------------------------------------------

    def number(self, device: Device, call: Call) -> int:
        bound = self.live(device).bound.get(call)
        if bound is None:
            bound = self._bind(device, call)
        self.timed(device.calls, bound.function, bound.symbol, bound.arguments)
        value: int = bound.outs[0].value
        return value

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        self.number(device, call)
        return tuple(out.value for out in self.live(device).bound[call].outs)

    def _bind(self, device: Device, call: Call) -> _Bound:
        for function in call.functions:
            try:
                symbol = self.symbol(function)
            except NvmlError:
                continue
            handle = self.live(device)
            outs = tuple(_CTYPES[kind]() for kind in call.outs)
            arguments = (handle.pointer, *(ctypes.c_int(arg) for arg in call.args), *map(ctypes.byref, outs))
            bound = handle.bound[call] = _Bound(function, symbol, arguments, outs)
            return bound
        raise NvmlError(Code.FUNCTION_NOT_FOUND, call.functions[0])

    def text(self, device: Device, call: TextCall) -> str:
        buffer = ctypes.create_string_buffer(call.size)
        arguments = (self.live(device).pointer, buffer, ctypes.c_uint(call.size))
        self.timed(device.calls, call.function, self.symbol(call.function), arguments)
        return _decode(buffer.value)

    def pci_bus_id(self, device: Device) -> str:
        info = pynvml.nvmlPciInfo_t()  # 68 bytes
        function = "nvmlDeviceGetPciInfo_v3"
        self.timed(device.calls, function, self.symbol(function), (self.live(device).pointer, ctypes.byref(info)))
        raw = info.busId
        bus_id = _decode(raw) if isinstance(raw, bytes) else str(raw)
        address = parse_bus_id(bus_id)
        if address is None:
            raise NvmlError(Code.UNKNOWN, f"{function} ({bus_id!r})")
        return address

    # --- structs --------------------------------------------------------------------------------------------------

    def utilization(self, device: Device) -> Utilization:
        handle = self.live(device)
        out = handle.pair  # nvmlUtilization_t: gpu, memory
        function = "nvmlDeviceGetUtilizationRates"
        self.timed(device.calls, function, self.symbol(function), (handle.pointer, handle.pair_ref))
        return Utilization(out[0], out[1])

    def memory(self, device: Device) -> Memory:
        handle = self.live(device)
        words = handle.words  # nvmlMemory_v2_t, 40 bytes: version, total, reserved, free, used
        function = "nvmlDeviceGetMemoryInfo_v2"
        symbol = self._optional(function)
        if symbol is None:
            return self._memory_v1(device)
        words[0] = ctypes.sizeof(words) | 2 << 24
        self.timed(device.calls, function, symbol, (handle.pointer, handle.words_ref))
        return Memory(total=words[1], used=words[4], free=words[3], reserved=words[2])

    def _memory_v1(self, device: Device) -> Memory:
        total, free, used = self._three_words(device, "nvmlDeviceGetMemoryInfo")
        return Memory(total=total, used=used, free=free, reserved=None)

    def bar1(self, device: Device) -> Bar1:
        total, free, used = self._three_words(device, "nvmlDeviceGetBAR1MemoryInfo")
        return Bar1(total=total, used=used, free=free)

    def _three_words(self, device: Device, function: str) -> tuple[int, int, int]:
        words = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t and nvmlBAR1Memory_t, 24 bytes: total, free, used
        arguments = (self.live(device).pointer, ctypes.byref(words))
        self.timed(device.calls, function, self.symbol(function), arguments)
        return words[0], words[1], words[2]

    def temperature(self, device: Device) -> int:
        function = "nvmlDeviceGetTemperatureV"
        symbol = self._optional(function)
        handle = self.live(device)
        if symbol is None:
            out = ctypes.c_uint()
            function = "nvmlDeviceGetTemperature"
            arguments = (handle.pointer, ctypes.c_int(0), ctypes.byref(out))
            self.timed(device.calls, function, self.symbol(function), arguments)
            return ctypes.c_int(out.value).value
        triple = handle.triple  # nvmlTemperature_v1_t, 12 bytes: version, sensor, degrees
        triple[0], triple[1] = ctypes.sizeof(triple) | 1 << 24, 0
        self.timed(device.calls, function, symbol, (handle.pointer, handle.triple_ref))
        return int(triple[2])

    def temperature_margin(self, device: Device) -> int:
        pair = (ctypes.c_int * 2)(8 | 1 << 24, 0)  # nvmlMarginTemperature_v1_t, 8 bytes: version, degrees
        function = "nvmlDeviceGetMarginTemperature"
        arguments = (self.live(device).pointer, ctypes.byref(pair))
        self.timed(device.calls, function, self.symbol(function), arguments)
        return pair[1]

    # --- batches --------------------------------------------------------------------------------------------------

    def fields(self, device: Device, fields: Sequence[Field]) -> DriverFieldBatch:
        return DriverFieldBatch(self, device, tuple(fields))

    def gpm_supported(self, device: Device) -> bool:
        if device.parent is not None:
            device = device.parent
        support = (ctypes.c_uint * 2)(1, 0)  # nvmlGpmSupport_t, 8 bytes: version, isSupportedDevice
        function = "nvmlGpmQueryDeviceSupport"
        arguments = (self.live(device).pointer, ctypes.byref(support))
        self.timed(device.calls, function, self.symbol(function), arguments)
        return support[1] == 1

    def gpm(self, device: Device, metrics: Sequence[int]) -> DriverGpmReader:
        return DriverGpmReader(self, device, tuple(metrics))

    # --- lists ----------------------------------------------------------------------------------------------------

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        handle = self.live(device)
        function = "nvmlDeviceGetSamples"
        symbol = self.symbol(function)
        kind, count = ctypes.c_int(), ctypes.c_uint()
        fixed = (handle.pointer, ctypes.c_int(_SAMPLE_GPU_UTILIZATION), ctypes.c_ulonglong(since_us))
        try:
            self.timed(device.calls, function, symbol, (*fixed, ctypes.byref(kind), ctypes.byref(count), None))
            if count.value == 0:
                return []
            buffer = ctypes.create_string_buffer(min(count.value, _LIST_MAX) * _SAMPLE.size)
            count.value = len(buffer) // _SAMPLE.size
            self.timed(device.calls, function, symbol, (*fixed, ctypes.byref(kind), ctypes.byref(count), buffer))
        except NvmlError as error:
            if error.code == Code.NOT_FOUND:  # nothing newer
                return []
            raise
        rows = _SAMPLE.iter_unpack(buffer.raw[: min(count.value * _SAMPLE.size, len(buffer))])
        read = READERS.get(kind.value, absent)
        values = ((at_us, read(word)) for at_us, word in rows)
        return [UtilizationSample(at_us, int(value)) for at_us, value in values if value is not None]

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        function, symbol = self._first_symbol(_PROCESS_FUNCTIONS[kind])
        pointer = self.live(device).pointer

        def ask(count: ctypes.c_uint, buffer: ctypes.Array[ctypes.c_char]) -> None:
            self.timed(device.calls, function, symbol, (pointer, ctypes.byref(count), buffer))

        return [
            RunningProcess(
                pid,
                None if used == _NO_VALUE else used,
                None if gpu_instance == _NO_INSTANCE else gpu_instance,
                None if compute_instance == _NO_INSTANCE else compute_instance,
            )
            for pid, used, gpu_instance, compute_instance in _rows(ask, _PROCESS, 64)
        ]

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        function = "nvmlDeviceGetProcessUtilization"
        symbol = self.symbol(function)
        pointer = self.live(device).pointer
        since = ctypes.c_ulonglong(since_us)

        def ask(count: ctypes.c_uint, buffer: ctypes.Array[ctypes.c_char]) -> None:
            self.timed(device.calls, function, symbol, (pointer, buffer, ctypes.byref(count), since))

        try:
            rows = _rows(ask, _PROCESS_UTILIZATION, 128)
        except NvmlError as error:
            if error.code == Code.NOT_FOUND:  # no samples: an idle GPU
                return []
            raise
        return [ProcessUtilization(pid, at_us, sm, memory) for pid, at_us, sm, memory, _, _ in rows]

    def events(self) -> DriverEventSet:
        return DriverEventSet(self)

    # --- the two places where a call is made ----------------------------------------------------------------------

    def _shared(self, function: str, arguments: tuple[Any, ...]) -> None:
        """A call that belongs to no device, from any thread: not to be seen under way, only counted."""
        symbol = self.symbol(function)
        start = time.monotonic_ns()
        code = symbol(*arguments)
        took = time.monotonic_ns() - start
        with self._counting:
            _count(self.calls, function, took)
        if code:
            raise NvmlError(code, function)

    def timed(self, calls: CallTimes, function: str, symbol: Any, arguments: tuple[Any, ...]) -> None:  # noqa: ANN401
        """A call that belongs to one thread: seen under way, and counted."""
        start = time.monotonic_ns()
        calls.started_ns = start
        calls.name = function
        code = symbol(*arguments)
        took = time.monotonic_ns() - start
        calls.name = None
        _count(calls, function, took)
        if code:
            raise NvmlError(code, function)

    def symbol(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function pointer
        """The library's function of that name, or NvmlError(FUNCTION_NOT_FOUND)."""
        symbol = self._optional(name)
        if symbol is None:
            raise NvmlError(Code.FUNCTION_NOT_FOUND, name)
        return symbol

    def _optional(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function pointer or None
        try:
            return self._symbols[name]
        except KeyError:
            # Remembered either way: ctypes takes a lock and 8 us to find that a symbol is missing.
            symbol = self._symbols[name] = getattr(self._library, name, None)
            return symbol

    def _first_symbol(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            symbol = self._optional(name)
            if symbol is not None:
                return name, symbol
        raise NvmlError(Code.FUNCTION_NOT_FOUND, names[0])

    def live(self, device: Device) -> _Handle:
        """The device's handle, if it is of this generation. Raises StaleDeviceError."""
        if not self.is_live(device):
            raise StaleDeviceError(f"device of generation {device.generation}, now {self.generation}")
        handle = device.handle
        assert isinstance(handle, _Handle)
        return handle

    def is_live(self, device: Device) -> bool:
        """Whether NVML is open, and the device of this generation."""
        return self._open and device.generation == self.generation


class _Bound:
    """A call bound to a device: nothing is allocated when it is made."""

    __slots__ = ("arguments", "function", "outs", "symbol")

    def __init__(self, function: str, symbol: Any, arguments: tuple[Any, ...], outs: tuple[Any, ...]) -> None:  # noqa: ANN401
        self.function = function
        self.symbol = symbol
        self.arguments = arguments
        self.outs = outs


class _Handle:
    """nvmlDevice_t with the out-parameters that its thread uses again and again."""

    __slots__ = ("bound", "pair", "pair_ref", "pointer", "triple", "triple_ref", "words", "words_ref")

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self.pointer = pointer
        self.bound: dict[Call, _Bound] = {}
        self.pair = (ctypes.c_uint * 2)()
        self.pair_ref = ctypes.byref(self.pair)
        self.triple = (ctypes.c_int * 3)()
        self.triple_ref = ctypes.byref(self.triple)
        self.words = (ctypes.c_ulonglong * 5)()
        self.words_ref = ctypes.byref(self.words)


def parse_bus_id(text: str) -> str | None:
    """``00000000:3B:00.0`` as the kernel spells it, ``0000:3b:00.0``; None for anything else: it becomes a path."""
    address = text.lower()
    if not _BUS_ID.fullmatch(address):
        return None
    domain, _, rest = address.partition(":")
    return f"{domain[-4:]}:{rest}"


def _load(path: str | None) -> Any:  # noqa: ANN401 - a ctypes library
    detail = ""
    for candidate in [path] if path else _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            if not detail or os.path.exists(candidate):  # a file that is there and cannot be loaded says more
                detail = str(error)
    raise NvmlError(Code.LIBRARY_NOT_FOUND, detail)


def _candidates() -> list[str]:
    """The loader's own choice first. It remembers which folders did not exist, and a driver may come later: so the
    usual folders also by their names."""
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_FOLDERS]
    folders += [DRIVER_ROOT + folder for folder in _FOLDERS]
    return [LIBRARY, *(os.path.join(folder, LIBRARY) for folder in folders)]


def _rows(
    ask: Callable[[ctypes.c_uint, ctypes.Array[ctypes.c_char]], None], row: struct.Struct, most: int
) -> list[tuple[Any, ...]]:
    """Rows of a list whose length nobody knows: it may grow between being told that it is longer and the next try."""
    while True:
        count = ctypes.c_uint(most)
        buffer = ctypes.create_string_buffer(most * row.size)
        try:
            ask(count, buffer)
        except NvmlError as error:
            if error.code != Code.INSUFFICIENT_SIZE or most >= _LIST_MAX:
                raise
            most = min(max(count.value + 16, 2 * most), _LIST_MAX)
            continue
        return list(row.iter_unpack(buffer.raw[: min(count.value, most) * row.size]))


def _count(calls: CallTimes, function: str, took_ns: int) -> None:
    row = calls.durations.get(function)
    if row is None:
        row = calls.durations[function] = _ZEROS.copy()
    row[bisect_left(_BOUNDS_NS, took_ns)] += 1
    row[-1] += took_ns


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
