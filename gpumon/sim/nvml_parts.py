"""What is made from a simulated device or library: field batches, GPM readers, event sets, and call times."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host.clock import Clock
from gpumon.host.nvml import EVENT_XID, CallTimes, Code, Device, Event, Field, GpmReading, NvmlError
from gpumon.sim.answers import Answer, gpm_total
from gpumon.sim.story import Kind
from gpumon.sim.timeline import Moment
from gpumon.sim.world import World

Now = Callable[[Device], tuple[float, Moment]]
"""Steady time and the GPU at it; raises StaleDeviceError for a device of another generation."""

_BOUNDS_NS = tuple(int(bound * 1e9) for bound in CALL_BOUNDS)


class Timed:
    """Takes down one call in a device's CallTimes."""

    __slots__ = ("_calls", "_function")

    def __init__(self, calls: CallTimes, function: str) -> None:
        self._calls = calls
        self._function = function

    def __enter__(self) -> None:
        self._calls.started_ns = time.monotonic_ns()
        self._calls.name = self._function

    def __exit__(self, *_: object) -> None:
        calls = self._calls
        took = time.monotonic_ns() - calls.started_ns
        calls.name = None
        row = calls.durations.get(self._function)
        if row is None:
            row = calls.durations[self._function] = [0] * (len(_BOUNDS_NS) + 2)
        row[bisect_left(_BOUNDS_NS, took)] += 1
        row[-1] += took


class SimFieldBatch:
    """A fixed set of fields of one simulated GPU."""

    def __init__(self, device: Device, fields: tuple[Field, ...], answers: Sequence[Answer | None], now: Now) -> None:
        """``answers``: of each field, None where it is not supported."""
        self.fields = fields
        self._device = device
        self._answers = answers
        self._now = now

    def read(self) -> list[int | float | None]:
        with Timed(self._device.calls, "nvmlDeviceGetFieldValues"):
            at_s, moment = self._now(self._device)
            return [None if answer is None else answer(moment, at_s) for answer in self._answers]

    def codes(self) -> list[int]:
        return [Code.NOT_SUPPORTED if answer is None else Code.SUCCESS for answer in self._answers]


class SimGpmReader:
    """Means between two readings, which are exact: differences of the integrals."""

    def __init__(self, device: Device, metrics: tuple[int, ...], now: Now) -> None:
        self.metrics = metrics
        self._device = device
        self._now = now
        self._older: tuple[float, list[float | None]] | None = None

    def read(self) -> GpmReading | None:
        calls = self._device.calls
        with Timed(calls, "nvmlGpmSampleGet"):
            at_s, moment = self._now(self._device)
            totals = [gpm_total(metric, moment) for metric in self.metrics]
        if self._older is None:
            self._older = (at_s, totals)
            return None
        older_s, older = self._older
        interval_s = at_s - older_s
        with Timed(calls, "nvmlGpmMetricsGet"):
            if interval_s <= 0:
                raise NvmlError(Code.INVALID_ARGUMENT, "nvmlGpmMetricsGet")
            self._older = (at_s, totals)
            # Differences of long sums: what is zero may come out a hair below.
            values = tuple(
                None if new is None or old is None else max(0.0, (new - old) / interval_s)
                for new, old in zip(totals, older, strict=True)
            )
            codes = tuple(Code.NOT_SUPPORTED if value is None else Code.SUCCESS for value in values)
            return GpmReading(values, codes, interval_s)

    def reset(self) -> None:
        self._older = None

    def close(self) -> None:
        self._older = None


class SimEventSet:
    """XID events of the registered GPUs, at the story's times and after registration only."""

    def __init__(
        self, world: World, clock: Clock, sleep: Callable[[float], object], index_of: Callable[[Device], int]
    ) -> None:
        """``index_of``: of a device of this generation; raises StaleDeviceError for any other."""
        self._world = world
        self._clock = clock
        self._sleep = sleep
        self._index_of = index_of
        self._since_s: dict[int, float] = {}

    def register(self, device: Device) -> bool:
        self._since_s[self._index_of(device)] = self._clock.now_s()
        return True

    def wait(self, timeout_ms: int) -> Event | None:
        deadline_s = self._clock.now_s() + timeout_ms / 1000
        while True:
            now_s = self._clock.now_s()
            due = self._next(max(now_s, deadline_s))
            if due is not None and due[0] <= now_s:
                at_s, index, xid = due
                self._since_s[index] = at_s
                return Event(self._world.boards[index].uuid, EVENT_XID, xid)
            if now_s >= deadline_s:
                return None
            self._sleep((deadline_s if due is None else min(due[0], deadline_s)) - now_s)

    def close(self) -> None:
        self._since_s.clear()

    def _next(self, until_s: float) -> tuple[float, int, int] | None:
        if not self._since_s:
            return None
        for at_s, event in self._world.occurrences(Kind.XID, min(self._since_s.values()), until_s):
            if at_s > self._since_s.get(event.gpu, at_s):
                return at_s, event.gpu, int(event.rate)
        return None
