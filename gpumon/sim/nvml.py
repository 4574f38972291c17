"""NVML of the simulated node: the whole of ``host.nvml.Nvml`` over a ``World``.

Answers as the board does with driver 590 (``answers``), MIG off, at the moment that the clock tells. A GPU that fell
off the bus answers every call with GPU_IS_LOST; while the driver is unloaded, or was upgraded under the library, so
does everything with the code for that. Waiting for events sleeps by the function that is handed in, so that a stepped
clock can pass the time.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from gpumon.host.clock import Clock
from gpumon.host.nvml import (
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
from gpumon.sim.answers import fixed_calls, moving_calls, refusals
from gpumon.sim.look import TICK_S, Look, driver_fault
from gpumon.sim.nvml_parts import SimEventSet, SimFieldBatch, SimGpmReader, count_call
from gpumon.sim.timeline import Timeline
from gpumon.sim.world import MIB, World

_RING = 72  # of the driver's utilization samples: about 10 s
_PROCESS_TICKS = 7
_CONTEXTS_MIB = 512  # what contexts hold besides what the processes are told to hold
_PROCESS_FUNCTIONS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


class SimNvml:
    """The port over a simulated node. One ``World`` may serve many; each has its own generations."""

    def __init__(self, world: World, clock: Clock, sleep: Callable[[float], object] = time.sleep) -> None:
        """``sleep``: passes seconds while an event set waits; the step of a manual clock in tests."""
        self.generation = 0
        self.calls = CallTimes()
        self._world = world
        self._clock = clock
        self._sleep = sleep
        self._timeline = Timeline(world.scenario)
        self._fixed = [fixed_calls(world.model, board.index) for board in world.boards]
        self._moving = moving_calls(world.model)
        self._refusals = refusals(world.model)
        self._open = False
        self._epoch_s = 0.0

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        function = "nvmlInitWithFlags"
        count_call(self.calls, function)
        fault = driver_fault(self._world, self._clock.now_s())
        if fault is not None:
            raise NvmlError(fault, function)
        # Frozen for the generation: the driver's timestamps must not jitter with the wall clock.
        self._epoch_s = self._clock.to_unix(0.0)
        self._open = True
        self.generation += 1

    def close(self) -> None:
        if self._open:
            count_call(self.calls, "nvmlShutdown")
            self._open = False

    def driver(self) -> Driver:
        self._need_driver("nvmlSystemGetDriverVersion")
        return Driver("590.48.01", "13.590.48.01", "13.1")

    # --- devices --------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        self._need_driver("nvmlDeviceGetCount_v2")
        return len(self._world.boards)

    def device(self, index: int) -> Device:
        return self._device(index, "nvmlDeviceGetHandleByIndex_v2")

    def device_by_uuid(self, uuid: str) -> Device:
        function = "nvmlDeviceGetHandleByUUID"
        for board in self._world.boards:
            if board.uuid == uuid:
                return self._device(board.index, function)
        self._need_driver(function)
        raise NvmlError(Code.NOT_FOUND, function)

    def mig_device(self, parent: Device, index: int) -> Device:
        function = "nvmlDeviceGetMigDeviceHandleByIndex"
        self._ask(parent, function)
        raise NvmlError(Code.NOT_FOUND, f"{function}({index})")

    # --- numbers and texts ----------------------------------------------------------------------------------------

    def number(self, device: Device, call: Call) -> int:
        return self.numbers(device, call)[0]

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        look = self._ask(device, call.functions[0])
        name = call.name
        moving = self._moving.get(name)
        if moving is not None:
            return moving(look)
        fixed = self._fixed[look.index].get(name)
        if fixed is None:
            raise NvmlError(self._refusals.get(name, Code.NOT_SUPPORTED), call.functions[0])
        return fixed

    def text(self, device: Device, call: TextCall) -> str:
        look = self._ask(device, call.function)
        match call.name:
            case "uuid":
                return self._world.boards[look.index].uuid
            case "name":
                return look.model.name
            case "vbios":
                return look.model.vbios
        raise NvmlError(Code.NOT_SUPPORTED, call.function)

    def pci_bus_id(self, device: Device) -> str:
        return self._world.boards[self._ask(device, "nvmlDeviceGetPciInfo_v3").index].bdf

    # --- structs --------------------------------------------------------------------------------------------------

    def utilization(self, device: Device) -> Utilization:
        return Utilization(*self._ask(device, "nvmlDeviceGetUtilizationRates").utilization())

    def memory(self, device: Device) -> Memory:
        look = self._ask(device, "nvmlDeviceGetMemoryInfo_v2")
        model, used = look.model, self._used_mib(look)
        return Memory(
            model.memory_mib * MIB,
            used * MIB,
            (model.memory_mib - model.reserved_mib - used) * MIB,
            model.reserved_mib * MIB,
        )

    def bar1(self, device: Device) -> Bar1:
        look = self._ask(device, "nvmlDeviceGetBAR1MemoryInfo")
        total, used = look.model.bar1_mib, self._used_mib(look) + 2
        return Bar1(total=total * MIB, used=used * MIB, free=(total - used) * MIB)

    def temperature(self, device: Device) -> int:
        return int(self._ask(device, "nvmlDeviceGetTemperatureV").moment.temperature_c)

    def temperature_margin(self, device: Device) -> int:
        look = self._ask(device, "nvmlDeviceGetMarginTemperature")
        return int(look.model.slowdown_c) - int(look.moment.temperature_c)

    # --- batches --------------------------------------------------------------------------------------------------

    def fields(self, device: Device, fields: Sequence[Field]) -> SimFieldBatch:
        self._live(device)
        return SimFieldBatch(device, tuple(fields), self._world.model, self._ask)

    def gpm_supported(self, device: Device) -> bool:
        return self._ask(device, "nvmlGpmQueryDeviceSupport").model.gpm

    def gpm(self, device: Device, metrics: Sequence[int]) -> SimGpmReader:
        if not self._live(device).model.gpm:
            raise NvmlError(Code.NOT_SUPPORTED, "nvmlGpmSampleGet")
        return SimGpmReader(device, tuple(metrics), self._ask)

    # --- lists ----------------------------------------------------------------------------------------------------

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        look = self._ask(device, "nvmlDeviceGetSamples")
        newest = int(look.at_s // TICK_S)
        oldest = newest - _RING + 1
        stamps_us = [self._stamp_us(tick) for tick in range(oldest, newest + 1)]
        known = bisect_right(stamps_us, since_us)
        if known == _RING:
            return []
        busy = look.busy_percents(oldest + known, newest)
        return [UtilizationSample(stamp, value) for stamp, value in zip(stamps_us[known:], busy, strict=True)]

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        look = self._ask(device, _PROCESS_FUNCTIONS[kind])
        if kind != "compute":
            return []
        tasks = self._world.gpu_tasks(look.index, look.at_s)
        return [RunningProcess(task.pid, task.gpu_mib * MIB, None, None) for task in tasks]

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        look = self._ask(device, "nvmlDeviceGetProcessUtilization")
        tick = int(look.at_s // TICK_S)
        stamp_us = self._stamp_us(tick)
        if stamp_us <= since_us:
            return []
        rows = [ProcessUtilization(pid, stamp_us, sm, memory) for pid, sm, memory in look.shares(tick, _PROCESS_TICKS)]
        return [row for row in rows if row.sm or row.memory]  # NVML leaves out who did nothing

    def events(self) -> SimEventSet:
        self._need_driver("nvmlEventSetCreate")
        return SimEventSet(self._world, self._clock, self._sleep, lambda device: self._live(device).index)

    # --- what the parts share -------------------------------------------------------------------------------------

    def _device(self, index: int, function: str) -> Device:
        self._need_driver(function)
        if not 0 <= index < len(self._world.boards):
            raise NvmlError(Code.INVALID_ARGUMENT, function)
        look = Look(self._world, self._timeline, index, self._clock.now_s())
        if look.fault is not None:
            raise NvmlError(look.fault, function)
        return Device(self.generation, index, look)

    def _need_driver(self, function: str) -> None:
        """For calls that are of no device."""
        count_call(self.calls, function)
        fault = driver_fault(self._world, self._clock.now_s()) if self._open else Code.UNINITIALIZED
        if fault is not None:
            raise NvmlError(fault, function)

    def _live(self, device: Device) -> Look:
        if device.generation != self.generation or not self._open:
            raise StaleDeviceError(f"device of generation {device.generation}, now {self.generation}")
        look = device.handle
        assert isinstance(look, Look)
        return look

    def _ask(self, device: Device, function: str) -> Look:
        """The GPU now; every call on a device comes through here."""
        look = self._live(device)
        count_call(device.calls, function)
        at_s = self._clock.now_s()
        if at_s != look.at_s:
            look.turn(at_s)
        if look.fault is not None:
            raise NvmlError(look.fault, function)
        return look

    def _used_mib(self, look: Look) -> int:
        return _CONTEXTS_MIB + sum([task.gpu_mib for task in self._world.gpu_tasks(look.index, look.at_s)])

    def _stamp_us(self, tick: int) -> int:
        return int((self._epoch_s + tick * TICK_S) * 1e6)
