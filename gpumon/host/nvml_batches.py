"""What is read again and again from one device: field batches, GPM readings, events, with kept buffers.

Parts of ``nvml_driver``: nothing here loads a library or looks for a device. Struct layouts are those of nvidia-ml-py
13; sizes are stated beside each. Values are decoded by the type that comes with each (nvmlValueType_t), never by the
one that is documented; what is not finite or of no known type is absent.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from typing import TYPE_CHECKING, Any

import pynvml

from gpumon.host.nvml import EVENT_XID, CallTimes, Code, Device, Event, Field, GpmReading, NvmlError

if TYPE_CHECKING:
    from gpumon.host.nvml_driver import NvmlDriver

_TWO_POINTERS = struct.Struct("<QQ")


class DriverFieldBatch:
    """A kept array of nvmlFieldValue_t (40 bytes): id, scope, timestamp, latency, type and code, value."""

    def __init__(self, driver: NvmlDriver, device: Device, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._driver = driver
        self._device = device
        self._array = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for entry, wanted in zip(self._array, fields, strict=True):
            entry.fieldId, entry.scopeId = wanted
            entry.nvmlReturn = int(Code.UNKNOWN)
        words = memoryview(self._array).cast("B").cast("Q")
        self._meta_words, self._value_words = words[3::5], words[4::5]
        self._bytes = memoryview(self._array).cast("B")
        self._unanswered = bytes(self._bytes)
        self._meta: list[int] = []
        self._fixes: list[tuple[int, Any]] = []
        self._arguments = (driver.live(device).pointer, ctypes.c_int(len(fields)), self._array)
        self._symbol = driver.symbol("nvmlDeviceGetFieldValues")

    def read(self) -> list[int | float | None]:
        self._driver.live(self._device)
        self._bytes[:] = self._unanswered  # a field the driver does not touch is UNKNOWN, not what it was before
        self._driver.timed(self._device.calls, "nvmlDeviceGetFieldValues", self._symbol, self._arguments)
        meta = self._meta_words.tolist()
        if meta != self._meta:
            # Types and codes seldom change: how to read each value is worked out once and kept.
            self._meta = meta
            self._fixes = [
                (i, absent if word >> 32 else READERS.get(word & 0xFFFFFFFF, absent))
                for i, word in enumerate(meta)
                if word != _PLAIN
            ]
        values: list[int | float | None] = [*self._value_words.tolist()]
        for i, read in self._fixes:
            values[i] = read(values[i])
        return values

    def codes(self) -> list[int]:
        return [word >> 32 for word in self._meta_words.tolist()]


class DriverGpmReader:
    """Two GPM sample buffers used in turn and one kept request (nvmlGpmMetricsGet_t)."""

    def __init__(self, driver: NvmlDriver, device: Device, metrics: tuple[int, ...]) -> None:
        self.metrics = metrics
        self._driver = driver
        self._device = device
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = 1
        self._request.numMetrics = len(metrics)
        for entry, metric in zip(self._request.metrics, metrics, strict=False):
            entry.metricId = metric
            entry.nvmlReturn = int(Code.UNKNOWN)
        self._request_ref = ctypes.byref(self._request)
        # version, count, two sample pointers; then 40 bytes a metric: id, code, value, three pointers
        self._bytes = memoryview(self._request).cast("B")
        self._metrics = self._bytes[24 : 24 + 40 * len(metrics)]
        self._unanswered = bytes(self._metrics)
        self._answer = struct.Struct("<" + "4xId24x" * len(metrics))
        self._older_ns: int | None = None
        self._samples: list[ctypes.c_void_p] = []
        try:
            for _ in range(2):
                sample = ctypes.c_void_p()
                self._call("nvmlGpmSampleAlloc", (ctypes.byref(sample),))
                self._samples.append(sample)
        except NvmlError:
            self.close()
            raise

    def read(self) -> GpmReading | None:
        older, newer = self._samples
        device = self._device
        if device.parent is not None:
            instance = ctypes.c_uint(device.gpu_instance or 0)
            parent = self._driver.live(device.parent)
            self._call("nvmlGpmMigSampleGet", (parent.pointer, instance, newer))
        else:
            self._call("nvmlGpmSampleGet", (self._driver.live(device).pointer, newer))
        taken_ns = time.monotonic_ns()
        if self._older_ns is None:
            self._turn(taken_ns)
            return None
        self._metrics[:] = self._unanswered
        _TWO_POINTERS.pack_into(self._bytes, 8, older.value or 0, newer.value or 0)
        self._call("nvmlGpmMetricsGet", (self._request_ref,))
        answer = self._answer.unpack_from(self._metrics)
        codes = answer[0::2]
        values = tuple(
            value if code == 0 and math.isfinite(value) else None
            for code, value in zip(codes, answer[1::2], strict=True)
        )
        interval_s = (taken_ns - self._older_ns) / 1e9
        self._turn(taken_ns)
        return GpmReading(values, codes, interval_s)

    def reset(self) -> None:
        self._older_ns = None

    def close(self) -> None:
        samples, self._samples = self._samples, []
        if not self._driver.is_live(self._device):
            return  # NVML was shut down since: nothing of it may be given back
        refused: NvmlError | None = None
        for sample in samples:
            try:
                self._call("nvmlGpmSampleFree", (sample,))
            except NvmlError as error:
                refused = error  # the other buffer is to be freed all the same
        if refused is not None:
            raise refused

    def _turn(self, taken_ns: int) -> None:
        self._samples.reverse()
        self._older_ns = taken_ns

    def _call(self, function: str, arguments: tuple[Any, ...]) -> None:
        symbol = self._driver.symbol(function)
        self._driver.timed(self._device.calls, function, symbol, arguments)


class DriverEventSet:
    """nvmlEventSet_t for XID events."""

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._set = ctypes.c_void_p()
        self._data = pynvml.c_nvmlEventData_t()
        self._uuids: dict[int | None, str] = {}
        self._calls = CallTimes()  # waiting a second is this thread's normal state: not one of the driver's calls
        self._call("nvmlEventSetCreate", (ctypes.byref(self._set),))

    def register(self, device: Device) -> bool:
        pointer = self._driver.live(device).pointer
        supported = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetSupportedEventTypes", (pointer, ctypes.byref(supported)))
        if not supported.value & EVENT_XID:
            return False
        self._call("nvmlDeviceRegisterEvents", (pointer, ctypes.c_ulonglong(EVENT_XID), self._set))
        buffer = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", (pointer, buffer, ctypes.c_uint(96)))
        self._uuids[pointer.value] = buffer.value.decode("utf-8", "replace")
        return True

    def wait(self, timeout_ms: int) -> Event | None:
        try:
            self._call("nvmlEventSetWait_v2", (self._set, ctypes.byref(self._data), ctypes.c_uint(timeout_ms)))
        except NvmlError as error:
            if error.code == Code.TIMEOUT:
                return None
            raise
        pointer = ctypes.cast(self._data.device, ctypes.c_void_p).value
        return Event(self._uuids.get(pointer), int(self._data.eventType), int(self._data.eventData))

    def close(self) -> None:
        self._call("nvmlEventSetFree", (self._set,))

    def _call(self, function: str, arguments: tuple[Any, ...]) -> None:
        self._driver.timed(self._calls, function, self._driver.symbol(function), arguments)


def _u64(word: int) -> int:
    return word


def _u32(word: int) -> int:
    return word & 0xFFFFFFFF


def _u16(word: int) -> int:
    return word & 0xFFFF


def _i64(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _i32(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def _f64(word: int) -> float | None:
    value: float = struct.unpack("<d", word.to_bytes(8, "little"))[0]
    return value if math.isfinite(value) else None


def absent(_word: int) -> None:
    return None


_PLAIN = 3  # meta word of an unsigned long long with code SUCCESS: the value needs no fix
# nvmlValueType_t: 0 double, 1 unsigned int, 2 unsigned long, 3 unsigned long long, 4 long long, 5 int, 6 unsigned short
READERS: dict[int, Any] = {0: _f64, 1: _u32, 2: _u64, 3: _u64, 4: _i64, 5: _i32, 6: _u16}
