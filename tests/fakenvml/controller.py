"""The fake node as a test sees it: create one, change it, look at what was called.

    node = FakeNode.create(tmp_path / "node", profile="h200", count=8, clock="stepped")
    subprocess.run([...], env=node.env())          # the child's pynvml finds the fake library
    node.gpu(3).throttle("sw_thermal", 0.5)
    node.step(1.0)
    assert node.calls("nvmlDeviceGetPcieThroughput") == 0

GPUs are named by slot, which never changes; NVML's index order is ``node.set_order``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from tests.fakenvml import build, layout, profiles
from tests.fakenvml.filling import fill_gpu, make_sick
from tests.fakenvml.gpu import FakeGpu, FakeMig
from tests.fakenvml.rules import LoggedCall, RuleBook
from tests.fakenvml.scenario import Scenario, wait_until

DRIVER_NOT_LOADED = 9

Device = int | FakeGpu | FakeMig | None
Step = tuple[float, Callable[[], object]]
ClockMode = Literal["real", "stepped"]

# Costs that people reported for single calls, microseconds.
REPORTED_LATENCIES_US = {
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 4491,
    "nvmlDeviceGetFanSpeed": 137,
    "nvmlDeviceGetPowerUsage": 365,
    "nvmlDeviceGetMemoryInfo": 12,
    "nvmlDeviceGetMemoryInfo_v2": 12,
    "nvmlDeviceGetUtilizationRates": 3,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Misuse:
    """How often a caller did what a real driver punishes; all zero for a correct program."""

    call_before_init: int
    call_after_shutdown: int
    stale_handle: int
    set_freed_while_waiting: int
    shutdown_while_waiting: int
    gpm_use_after_free: int
    gpm_leaked_at_shutdown: int
    sets_leaked_at_shutdown: int


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """What processes hold open now (killed ones included)."""

    inits: int
    event_sets: int
    gpm_samples: int
    waiters: int


class Player:
    """A timeline in progress. On a stepped clock ``FakeNode.step`` drives it."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._error: Exception | None = None
        self.thread: threading.Thread | None = None

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()
        self.join()

    def join(self, timeout_s: float | None = None) -> None:
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def run(self, steps: Iterator[Step], start_ns: int) -> None:
        """Due times are absolute, so lateness does not add up.

        A step takes effect when it runs, not as of its due time: a reader in between has seen the
        old slope, and a counter must not fall behind what it saw.
        """
        try:
            for at_s, action in steps:
                due = start_ns + round(at_s * 1e9)
                if self._stop.wait(max(0.0, (due - time.time_ns()) * 1e-9)):
                    return
                action()
        except Exception as error:  # noqa: BLE001  # raised again by join()
            self._error = error


# due time, tie-break, player, action, the steps after it, start time
_Due = tuple[int, int, Player, Callable[[], object], Iterator[Step], int]


class FakeNode:
    """A node with fake GPUs. Close it (or use ``with``) to release whatever hangs in it."""

    def __init__(self, scenario: Scenario, library: Path) -> None:
        self.scenario = scenario
        self.rules = RuleBook(scenario)
        self.library = library
        self._timeline: list[_Due] = []
        self._order = itertools.count()
        self._players: list[Player] = []

    @classmethod
    def create(
        cls, path: Path | str, profile: str = "h200", count: int = 8, *,
        missing: Iterable[str] = (), clock: ClockMode = "real", start_s: float = 1_700_000_000.0,
        sanitize: bool = False,
    ) -> Self:  # fmt: skip
        """A new scenario file at ``path``. Profiles: ``profiles.PROFILES`` and ``"sick8"``."""
        library = build.build_library(missing, sanitize=sanitize)
        node = cls(Scenario(Path(path), create=True), library)
        state = node.state
        state.clock_stepped = clock == "stepped"
        state.clock_ns = round(start_s * 1e9)
        state.canary = 1
        data = profiles.PROFILES["h100" if profile == "sick8" else profile]
        state.driver_version = data.driver.encode()
        state.nvml_version = f"{data.cuda // 1000}.{data.driver}".encode()
        state.cuda_version = data.cuda
        for slot in range(count):
            fill_gpu(node.gpu(slot), node.rules, data, node.scenario.now_ns())
        node.set_order(range(count))
        if profile == "sick8":
            make_sick(node.gpu)
        return node

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Another process's scenario, to steer it from here."""
        return cls(Scenario(Path(path), create=False), build.build_library())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends players, releases every hang and wait for good."""
        self.scenario.close()  # first: a player may have failed, and stop() tells so
        for player in self._players:
            player.stop()

    @property
    def state(self) -> layout.State:
        return self.scenario.state

    # ---- running something against it ----

    def variables(self) -> dict[str, str]:
        """What a child needs beyond its usual environment."""
        older = os.environ.get("LD_LIBRARY_PATH")
        directory = str(self.library.parent)
        return {
            "FAKENVML_STATE": str(self.scenario.path),
            "LD_LIBRARY_PATH": f"{directory}:{older}" if older else directory,
        }

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**(os.environ if base is None else base), **self.variables()}

    def use_here(self) -> None:
        """For this process: loads the library (first one wins) and points it at this node.

        The library looks at the variable on each first init, so nodes can follow one another.
        """
        ctypes.CDLL(str(self.library))
        os.environ["FAKENVML_STATE"] = str(self.scenario.path)

    # ---- GPUs ----

    def gpu(self, slot: int) -> FakeGpu:
        return FakeGpu(self.scenario, self.rules, slot)

    @property
    def gpus(self) -> tuple[FakeGpu, ...]:
        """Those NVML enumerates, in its order."""
        return tuple(self.gpu(slot) for slot in self.state.order[: self.state.gpu_count])

    def set_order(self, slots: Iterable[int]) -> None:
        """NVML index -> slot; leaving a slot out makes the count fall."""
        order = list(slots)
        for index, slot in enumerate(order):
            self.state.order[index] = slot
        self.state.gpu_count = len(order)

    def remove_gpu(self, slot: int) -> None:
        """Gone from the count, and lost for whoever still holds a handle."""
        self.gpu(slot).data.present = 0
        self.set_order(s for s in self.state.order[: self.state.gpu_count] if s != slot)
        self.scenario.wake()

    def restore_gpu(self, slot: int) -> None:
        self.gpu(slot).data.present = 1
        self.set_order([*self.state.order[: self.state.gpu_count], slot])

    def set_uuid(self, slot: int, uuid: str) -> None:
        """Another board in the same slot."""
        self.gpu(slot).data.uuid = uuid.encode()

    def set_versions(
        self, *, driver: str | None = None, nvml: str | None = None, cuda: int | None = None
    ) -> None:
        if driver is not None:
            self.state.driver_version = driver.encode()
        if nvml is not None:
            self.state.nvml_version = nvml.encode()
        if cuda is not None:
            self.state.cuda_version = cuda

    # ---- clock ----

    def now_s(self) -> float:
        return self.scenario.now_ns() * 1e-9

    def now_us(self) -> int:
        return self.scenario.now_ns() // 1000

    def step(self, dt_s: float) -> None:
        """Moves a stepped clock; timeline steps on the way run at their exact times."""
        if not self.state.clock_stepped:
            raise ValueError("this node runs on the real clock")
        end = self.state.clock_ns + round(dt_s * 1e9)
        while self._timeline and self._timeline[0][0] <= end:
            due, _, player, action, steps, start = heapq.heappop(self._timeline)
            if player.stopped:
                continue
            self.state.clock_ns = max(due, self.state.clock_ns)
            action()
            self._schedule(player, steps, start)
        self.state.clock_ns = end
        self.scenario.wake()

    def play(self, timeline: Iterable[Step]) -> Player:
        """Runs (seconds from now, action) pairs, sorted by time; may be endless."""
        player = Player()
        self._players.append(player)
        steps, start = iter(timeline), self.scenario.now_ns()
        if self.state.clock_stepped:
            self._schedule(player, steps, start)
        else:
            player.thread = threading.Thread(target=player.run, args=(steps, start), daemon=True)
            player.thread.start()
        return player

    def _schedule(self, player: Player, steps: Iterator[Step], start: int) -> None:
        step = next(steps, None)
        if step is not None:
            due = start + round(step[0] * 1e9)
            entry = (due, next(self._order), player, step[1], steps, start)
            heapq.heappush(self._timeline, entry)

    # ---- rules ----

    def fail(
        self, fn: str, code: int, *, gpu: Device = None, from_call: int = 1,
        to_call: int | None = None,
    ) -> None:  # fmt: skip
        """``code`` for calls from_call..to_call, counted from now per device; 0 forces success."""
        self.rules.add(fn, layout.RULE_CODE, code, _column(gpu), from_call, to_call)

    def delay(
        self, fn: str, us: int, *, gpu: Device = None, from_call: int = 1,
        to_call: int | None = None,
    ) -> None:  # fmt: skip
        """Replaces the call's own latency; real time, whatever the clock."""
        self.rules.add(fn, layout.RULE_DELAY, us, _column(gpu), from_call, to_call)

    def hang(
        self, fn: str, *, gpu: Device = None, from_call: int = 1, to_call: int | None = None
    ) -> None:
        """Calls block until ``release`` or ``close``."""
        self.rules.add(fn, layout.RULE_HANG, 0, _column(gpu), from_call, to_call)

    def release(self, fn: str | None = None, *, gpu: Device = None) -> None:
        self.rules.clear(fn, _column(gpu), layout.RULE_HANG)

    def clear_rules(self, fn: str | None = None, *, gpu: Device = None) -> None:
        self.rules.clear(fn, _column(gpu))

    def unsupported(self, fn: str, *, gpu: Device = None, code: int = 3) -> None:
        """The part itself answers this, rules or not; ``code=0`` takes it back."""
        self.rules.set_base(fn, _column(gpu), code=code)

    def use_reported_latencies(self, scale: float = 1.0) -> None:
        for fn, us in REPORTED_LATENCIES_US.items():
            self.rules.set_base(fn, None, delay_us=round(us * scale))

    def serialise(self, on: bool = True) -> None:
        """Delays of one process's threads queue up, as on the driver's global lock."""
        self.state.serialise = on

    # ---- the whole driver ----

    def break_everything(self, code: int, *, after_calls: int = 0, init_too: bool = True) -> None:
        """Every call answers ``code``, from that many calls on: 999, 18, 9 …"""
        self.state.global_from_call = self.state.total_calls + after_calls + 1
        self.state.global_spares_init = not init_too
        self.state.global_code = code
        self.scenario.wake()

    def heal(self) -> None:
        self.state.global_code = 0
        self.scenario.wake()

    def unload_driver(self) -> None:
        self.break_everything(DRIVER_NOT_LOADED)

    def reload_driver(self) -> None:
        """Old handles die (INVALID_ARGUMENT), counters restart, calls work again."""
        self.state.driver_generation += 1
        for gpu in self.gpus:
            gpu.reset_counters()
        self.heal()

    def fail_init(self, times: int, code: int = DRIVER_NOT_LOADED) -> None:
        self.state.init_code = code
        self.state.init_failures_left = times

    def fields_all_failed(self, code: int) -> None:
        """What GetFieldValues itself returns when not one field was filled (default 0)."""
        self.state.fields_all_failed_code = code

    def wake_waiters(self) -> None:
        """EventSetWait returns TIMEOUT early, as it does on an interrupt."""
        self.state.spurious_sequence += 1
        self.scenario.wake()

    # ---- what was called ----

    def calls(self, fn: str, gpu: Device = None) -> int:
        """Calls so far, of all devices unless one is named."""
        return self.rules.calls(fn, _column(gpu))

    def all_calls(self) -> dict[str, int]:
        return self.rules.all_calls()

    def hanging(self, fn: str, gpu: Device = None) -> int:
        """Threads that hang in the call now."""
        return self.rules.waiting(fn, _column(gpu))

    def log_calls(self, on: bool = True) -> None:
        self.state.log_on = on

    def log(self) -> list[LoggedCall]:
        """Logged calls by start time, the newest 65536."""
        return self.rules.log()

    def forget_log(self) -> None:
        self.rules.forget_calls()

    def misuse(self) -> Misuse:
        names = [field.name for field in dataclasses.fields(Misuse)]
        return Misuse(**{name: getattr(self.state.misuse, name) for name in names})

    def live(self) -> Live:
        state = self.state
        return Live(
            inits=state.live_inits, event_sets=state.live_sets,
            gpm_samples=state.live_gpm_samples, waiters=state.live_waiters,
        )  # fmt: skip

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """For the moment when another thread or process has got somewhere."""
        wait_until(condition, timeout_s)


def _column(device: Device) -> int | None:
    if device is None or isinstance(device, int):
        return device
    return device.column
