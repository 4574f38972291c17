"""NVML of the simulated node: the whole of ``host.nvml.Nvml`` over a ``World``.

Answers as an H200 with driver 590 does (``answers``), MIG off. It asks the clock at every call, as hardware would;
nothing is cached. Call times are really measured: they are this code's own, a few microseconds each. Waiting for
events sleeps by the function that is handed in, so that a stepped clock can pass the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from gpumon.sim.answers import CODES, FIXED, TEXTS, Answer, call_answers, field_answer, margin_c
from gpumon.sim.nvml_parts import SimEventSet, SimFieldBatch, SimGpmReader, Timed
from gpumon.sim.timeline import Moment
from gpumon.sim.workload import Rate
from gpumon.sim.world import BAR1_MIB, MEMORY_MIB, MIB, RESERVED_MIB, World

_TICK_S = 1 / 7  # the driver's utilization ring: 72 samples, about 10 s
_RING = 72
_PROCESS_FUNCTIONS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


@dataclass(frozen=True, slots=True)
class _Handle:
    """What a Device of the simulation stands for."""

    index: int
    answers: dict[str, Answer]


class SimNvml:
    """The port over a simulated node. One ``World`` may serve many; each has its own generations."""

    def __init__(self, world: World, clock: Clock, sleep: Callable[[float], object] = time.sleep) -> None:
        """``sleep``: passes seconds while an event set waits; the step of a manual clock in tests."""
        self.generation = 0
        self.calls = CallTimes()
        self._world = world
        self._clock = clock
        self._sleep = sleep
        self._open = False
        self._epoch_s = 0.0

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        with Timed(self.calls, "nvmlInitWithFlags"):
            # Frozen for the generation: the driver's timestamps must not jitter with the wall clock.
            self._epoch_s = self._clock.to_unix(0.0)
            self._open = True
            self.generation += 1

    def close(self) -> None:
        if self._open:
            with Timed(self.calls, "nvmlShutdown"):
                self._open = False

    def driver(self) -> Driver:
        self._need_open("nvmlSystemGetDriverVersion")
        with Timed(self.calls, "nvmlSystemGetDriverVersion"):
            return Driver("590.48.01", "13.590.48.01", "13.1")

    # --- devices --------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        self._need_open("nvmlDeviceGetCount_v2")
        with Timed(self.calls, "nvmlDeviceGetCount_v2"):
            return len(self._world.boards)

    def device(self, index: int) -> Device:
        function = "nvmlDeviceGetHandleByIndex_v2"
        self._need_open(function)
        with Timed(self.calls, function):
            if not 0 <= index < len(self._world.boards):
                raise NvmlError(Code.INVALID_ARGUMENT, function)
            return Device(self.generation, index, _Handle(index, call_answers(self._world, index)))

    def device_by_uuid(self, uuid: str) -> Device:
        function = "nvmlDeviceGetHandleByUUID"
        self._need_open(function)
        for board in self._world.boards:
            if board.uuid == uuid:
                return self.device(board.index)
        raise NvmlError(Code.NOT_FOUND, function)

    def mig_device(self, parent: Device, index: int) -> Device:
        function = "nvmlDeviceGetMigDeviceHandleByIndex"
        self._live(parent)
        with Timed(parent.calls, function):
            raise NvmlError(Code.NOT_FOUND, f"{function}({index})")

    # --- numbers and texts ----------------------------------------------------------------------------------------

    def number(self, device: Device, call: Call) -> int:
        return self.numbers(device, call)[0]

    def numbers(self, device: Device, call: Call) -> tuple[int, ...]:
        handle = self._live(device)
        function = call.functions[0]
        with Timed(device.calls, function):
            answer = handle.answers.get(call.name)
            if answer is not None:
                at_s = self._clock.now_s()
                return (answer(self._world.gpu(handle.index, at_s), at_s),)
            fixed = FIXED.get(call.name)
            if fixed is None:
                raise NvmlError(CODES.get(call.name, Code.NOT_SUPPORTED), function)
            return fixed

    def text(self, device: Device, call: TextCall) -> str:
        handle = self._live(device)
        with Timed(device.calls, call.function):
            if call.name == "uuid":
                return self._world.boards[handle.index].uuid
            text = TEXTS.get(call.name)
            if text is None:
                raise NvmlError(Code.NOT_SUPPORTED, call.function)
            return text

    def pci_bus_id(self, device: Device) -> str:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetPciInfo_v3"):
            return self._world.boards[handle.index].bdf

    # --- structs --------------------------------------------------------------------------------------------------

    def utilization(self, device: Device) -> Utilization:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetUtilizationRates"):
            end_s = self._clock.now_s() // _TICK_S * _TICK_S
            older, newer = self._world.gpu(handle.index, end_s - _TICK_S), self._world.gpu(handle.index, end_s)
            busy = _percent(newer.total(Rate.BUSY) - older.total(Rate.BUSY))
            # Time in which memory was touched at all, not bandwidth.
            return Utilization(busy, min(busy, _percent(0.6 * (newer.total(Rate.DRAM) - older.total(Rate.DRAM)))))

    def memory(self, device: Device) -> Memory:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetMemoryInfo_v2"):
            used = self._used_mib(handle.index)
            return Memory(
                total=MEMORY_MIB * MIB,
                used=used * MIB,
                free=(MEMORY_MIB - RESERVED_MIB - used) * MIB,
                reserved=RESERVED_MIB * MIB,
            )

    def bar1(self, device: Device) -> Bar1:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetBAR1MemoryInfo"):
            used = self._used_mib(handle.index) + 2
            return Bar1(total=BAR1_MIB * MIB, used=used * MIB, free=(BAR1_MIB - used) * MIB)

    def temperature(self, device: Device) -> int:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetTemperatureV"):
            return int(self._moment(handle.index).temperature_c)

    def temperature_margin(self, device: Device) -> int:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetMarginTemperature"):
            return margin_c(self._moment(handle.index))

    # --- batches --------------------------------------------------------------------------------------------------

    def fields(self, device: Device, fields: Sequence[Field]) -> SimFieldBatch:
        handle = self._live(device)
        answers = [field_answer(self._world, handle.index, field) for field in fields]
        return SimFieldBatch(device, tuple(fields), answers, self._now)

    def gpm_supported(self, device: Device) -> bool:
        self._live(device)
        with Timed(device.calls, "nvmlGpmQueryDeviceSupport"):
            return True

    def gpm(self, device: Device, metrics: Sequence[int]) -> SimGpmReader:
        self._live(device)
        return SimGpmReader(device, tuple(metrics), self._now)

    # --- lists ----------------------------------------------------------------------------------------------------

    def utilization_samples(self, device: Device, since_us: int) -> list[UtilizationSample]:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetSamples"):
            newest = int(self._clock.now_s() // _TICK_S)
            ticks = [tick for tick in range(newest - _RING + 1, newest + 1) if self._stamp_us(tick) > since_us]
            if not ticks:
                return []
            totals = [self._world.gpu(handle.index, tick * _TICK_S).total(Rate.BUSY) for tick in (ticks[0] - 1, *ticks)]
            return [
                UtilizationSample(self._stamp_us(tick), _percent(newer - older))
                for tick, older, newer in zip(ticks, totals[:-1], totals[1:], strict=True)
            ]

    def processes(self, device: Device, kind: str) -> list[RunningProcess]:
        handle = self._live(device)
        with Timed(device.calls, _PROCESS_FUNCTIONS[kind]):
            if kind != "compute":
                return []
            tasks = self._world.gpu_tasks(handle.index, self._clock.now_s())
            return [RunningProcess(task.pid, task.gpu_mib * MIB, None, None) for task in tasks]

    def process_utilization(self, device: Device, since_us: int) -> list[ProcessUtilization]:
        handle = self._live(device)
        with Timed(device.calls, "nvmlDeviceGetProcessUtilization"):
            tick = int(self._clock.now_s() // _TICK_S)
            stamp_us = self._stamp_us(tick)
            tasks = self._world.gpu_tasks(handle.index, tick * _TICK_S)
            if stamp_us <= since_us or not tasks:
                return []
            older = self._world.gpu(handle.index, (tick - 7) * _TICK_S)
            newer = self._world.gpu(handle.index, tick * _TICK_S)
            sm = newer.total(Rate.SM) - older.total(Rate.SM)
            dram = newer.total(Rate.DRAM) - older.total(Rate.DRAM)
            rows = []
            for task in tasks:
                share = 1.0 if len(tasks) == 1 else 0.15 if task.server == "job" else 0.85
                row = ProcessUtilization(task.pid, stamp_us, int(100 * share * sm), int(60 * share * dram))
                if row.sm or row.memory:  # NVML leaves out who did nothing
                    rows.append(row)
            return rows

    def events(self) -> SimEventSet:
        self._need_open("nvmlEventSetCreate")
        return SimEventSet(self._world, self._clock, self._sleep, lambda device: self._live(device).index)

    # --- what the parts share -------------------------------------------------------------------------------------

    def _need_open(self, function: str) -> None:
        if not self._open:
            raise NvmlError(Code.UNINITIALIZED, function)

    def _live(self, device: Device) -> _Handle:
        if device.generation != self.generation or not self._open:
            raise StaleDeviceError(f"device of generation {device.generation}, now {self.generation}")
        handle = device.handle
        assert isinstance(handle, _Handle)
        return handle

    def _now(self, device: Device) -> tuple[float, Moment]:
        at_s = self._clock.now_s()
        return at_s, self._world.gpu(self._live(device).index, at_s)

    def _moment(self, index: int) -> Moment:
        return self._world.gpu(index, self._clock.now_s())

    def _used_mib(self, index: int) -> int:
        # The contexts' own memory is on top of what the processes are told to hold.
        return 512 + sum(task.gpu_mib for task in self._world.gpu_tasks(index, self._clock.now_s()))

    def _stamp_us(self, tick: int) -> int:
        return int((self._epoch_s + tick * _TICK_S) * 1e6)


def _percent(busy_s: float) -> int:
    return min(100, max(0, round(100 * busy_s / _TICK_S)))
