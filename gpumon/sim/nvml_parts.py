"""What is made from a simulated device or library: field batches, GPM readers, event sets, and call times.

A call's duration is simulated too: it is what that call usually takes on a real driver, not what this code takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host.clock import Clock
from gpumon.host.nvml import EVENT_XID, CallTimes, Code, Device, Event, Field, GpmReading, NvmlError
from gpumon.sim.answers import GPM, Answer, Counter, field_answer
from gpumon.sim.look import Look, driver_fault
from gpumon.sim.state import Rate, XidEvent
from gpumon.sim.world import Model, World

Ask = Callable[[Device, str], Look]
"""State of a device now, for a function; raises NvmlError and StaleDeviceError as the function would."""

_USUAL_NS = {  # public reports (MangoHud#2104) where there are any, else their order of magnitude
    "nvmlInitWithFlags": 90_000_000,
    "nvmlShutdown": 4_000_000,
    "nvmlDeviceGetUtilizationRates": 2_500,
    "nvmlDeviceGetMemoryInfo_v2": 11_600,
    "nvmlDeviceGetFieldValues": 60_000,
    "nvmlGpmSampleGet": 40_000,
    "nvmlDeviceGetComputeRunningProcesses_v3": 1_200_000,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 4_491_000,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 1_200_000,
    "nvmlDeviceGetProcessUtilization": 300_000,
    "nvmlDeviceGetSamples": 90_000,
}
_OTHER_NS = 5_000
_BOUNDS_NS = [bound * 1e9 for bound in CALL_BOUNDS]
_COUNTED = {function: (bisect_left(_BOUNDS_NS, took_ns), took_ns) for function, took_ns in _USUAL_NS.items()}
"""Bucket and time of a call."""
_COUNTED_OTHER = (bisect_left(_BOUNDS_NS, _OTHER_NS), _OTHER_NS)


def count_call(calls: CallTimes, function: str) -> None:
    """Take down a call that is done."""
    row = calls.durations.get(function)
    if row is None:
        row = calls.durations[function] = [0] * (len(_BOUNDS_NS) + 2)
    bucket, took_ns = _COUNTED.get(function, _COUNTED_OTHER)
    row[bucket] += 1
    row[-1] += took_ns


class SimFieldBatch:
    """A fixed set of fields of one simulated GPU."""

    def __init__(self, device: Device, fields: tuple[Field, ...], model: Model, ask: Ask) -> None:
        self.fields = fields
        self._device = device
        self._ask = ask
        self._still: list[int | float | None] = [None] * len(fields)
        """What never changes, in its place."""
        self._codes = [int(Code.SUCCESS)] * len(fields)
        self._counters: list[tuple[int, Rate, float]] = []
        self._others: list[tuple[int, Answer]] = []
        for place, field in enumerate(fields):
            answer = field_answer(model, field)
            if isinstance(answer, Counter):
                self._counters.append((place, *answer))
            elif isinstance(answer, int):
                self._still[place] = answer
            elif answer is not None:
                self._others.append((place, answer))
            else:
                self._codes[place] = int(Code.NOT_SUPPORTED)

    def read(self) -> list[int | float | None]:
        look = self._ask(self._device, "nvmlDeviceGetFieldValues")
        values = self._still.copy()
        totals = look.moment.totals()
        for place, rate, factor in self._counters:
            values[place] = int(totals[rate] * factor)
        for place, answer in self._others:
            values[place] = answer(look)
        return values

    def codes(self) -> list[int]:
        return self._codes


class SimGpmReader:
    """Means between two readings, which are exact: differences of the integrals."""

    def __init__(self, device: Device, metrics: tuple[int, ...], ask: Ask) -> None:
        self.metrics = metrics
        self._device = device
        self._ask = ask
        self._terms = [GPM.get(metric) for metric in metrics]
        self._codes = tuple(int(Code.SUCCESS if metric in GPM else Code.NOT_SUPPORTED) for metric in metrics)
        self._older: tuple[float, list[float]] | None = None

    def read(self) -> GpmReading | None:
        look = self._ask(self._device, "nvmlGpmSampleGet")
        totals = look.moment.totals()
        older, at_s = self._older, look.at_s
        if older is None:
            self._older = (at_s, totals)
            return None
        count_call(self._device.calls, "nvmlGpmMetricsGet")
        interval_s = at_s - older[0]
        if interval_s <= 0:
            raise NvmlError(Code.INVALID_ARGUMENT, "nvmlGpmMetricsGet")
        self._older = (at_s, totals)
        # Differences of long sums: what is zero may come out a hair below.
        means = [max(0.0, (new - old) / interval_s) for new, old in zip(totals, older[1], strict=True)]
        values: list[float | None] = []
        for terms in self._terms:
            if terms is None:
                values.append(None)
            elif len(terms) == 1:
                rate, factor = terms[0]
                values.append(means[rate] * factor)
            else:
                values.append(float(sum([means[rate] * factor for rate, factor in terms])))
        return GpmReading(tuple(values), self._codes, interval_s)

    def reset(self) -> None:
        self._older = None

    def close(self) -> None:
        self._older = None


class SimEventSet:
    """XID events of the registered GPUs, at the world's times and after registration only."""

    def __init__(
        self, world: World, clock: Clock, sleep: Callable[[float], object], index_of: Callable[[Device], int]
    ) -> None:
        """``index_of``: of a device of this generation; raises StaleDeviceError for any other."""
        self._world = world
        self._clock = clock
        self._sleep = sleep
        self._index_of = index_of
        self._since_s: dict[int, float] = {}
        self._asked_s = clock.now_s()
        """Up to when the world was asked; what it said waits in ``_events``."""
        self._events: deque[XidEvent] = deque()

    def register(self, device: Device) -> bool:
        self._since_s[self._index_of(device)] = self._clock.now_s()
        return True

    def wait(self, timeout_ms: int) -> Event | None:
        deadline_s = self._clock.now_s() + timeout_ms / 1000
        while True:
            now_s = self._clock.now_s()
            due = self._next(max(now_s, deadline_s))
            if due is not None and due.at_s <= now_s:
                self._events.popleft()
                return Event(self._world.boards[due.gpu].uuid, EVENT_XID, due.xid)
            self._check(now_s)
            if now_s >= deadline_s:
                return None
            self._sleep((deadline_s if due is None else min(due.at_s, deadline_s)) - now_s)

    def close(self) -> None:
        self._since_s.clear()

    def _next(self, until_s: float) -> XidEvent | None:
        if not self._since_s:
            return None
        if until_s > self._asked_s:
            self._events.extend(self._world.xids(self._asked_s, until_s))
            self._asked_s = until_s
        while self._events:
            event = self._events[0]
            since_s = self._since_s.get(event.gpu)
            if since_s is not None and event.at_s > since_s:
                return event
            self._events.popleft()
        return None

    def _check(self, at_s: float) -> None:
        """Fail as NVML does when the driver or a registered GPU is gone."""
        function = "nvmlEventSetWait_v2"
        fault = driver_fault(self._world, at_s)
        if fault is not None:
            raise NvmlError(fault, function)
        if not all(self._world.hardware(index, at_s).present for index in self._since_s):
            raise NvmlError(Code.GPU_IS_LOST, function)
