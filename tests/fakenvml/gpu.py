"""One GPU of the fake node, and its MIG devices, as a test handles them.

Setters speak watts, ratios and bytes; whatever is set is what every NVML call about it answers.
Anything that has no setter of its own is reached by signal name (``set``, ``raw``) or field id.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import struct
from collections.abc import Iterator, Sequence
from typing import Literal

from tests.fakenvml import layout, profiles
from tests.fakenvml.profiles import MigProfile, MigSpec
from tests.fakenvml.rules import RuleBook
from tests.fakenvml.scenario import Scenario, line_value, set_line, set_rate

GPU_IS_LOST = 15
XID_EVENT = 0x8
NO_INSTANCE = 0xFFFFFFFF
MEMORY_NOT_AVAILABLE = 2**64 - 1

# reason -> (bit of the mask, counters in ns); the two thermal counters are one on new drivers
THROTTLE: dict[str, tuple[int, tuple[str, ...]]] = {
    "idle": (0x1, ()),
    "app_clocks": (0x2, ("throttle_app_clocks_ns",)),
    "sw_power_cap": (0x4, ("throttle_power_ns",)),
    "hw_slowdown": (0x8, ()),
    "sync_boost": (0x10, ("throttle_sync_boost_ns",)),
    "sw_thermal": (0x20, ("throttle_sw_thermal_ns", "throttle_thermal_ns")),
    "hw_thermal": (0x40, ("throttle_hw_thermal_ns",)),
    "hw_power_brake": (0x80, ("throttle_hw_power_brake_ns",)),
    "display": (0x100, ()),
    "board_limit": (0x200, ("throttle_board_limit_ns",)),
    "reliability": (0x400, ("throttle_reliability_ns",)),
    "low_utilization": (0, ("throttle_low_utilization_ns",)),
    "base_clocks": (0, ("throttle_base_clocks_ns",)),
}

GPM_IDS: dict[str, int] = {
    "graphics": 1, "sm": 2, "sm_occupancy": 3, "integer": 4, "tensor": 5, "dfma": 6, "hmma": 7,
    "dmma": 8, "imma": 9, "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13,
    "pcie_tx": 20, "pcie_rx": 21, "nvlink_rx": 60, "nvlink_tx": 61,
    **{f"nvdec_{n}": 30 + n for n in range(8)}, **{f"nvjpg_{n}": 40 + n for n in range(8)},
    **{f"nvofa_{n}": 50 + n for n in range(2)},
    **{f"nvlink_l{n}_rx": 62 + 2 * n for n in range(18)},
    **{f"nvlink_l{n}_tx": 63 + 2 * n for n in range(18)},
}  # fmt: skip
_GPM_RATES = frozenset({20, 21, *range(60, 98)})
# What Hopper answers; C2C and context-switch metrics need other parts or a driver mode.
GPM_SUPPORTED = frozenset(GPM_IDS.values())

SAMPLE_KINDS = (
    "power", "gpu", "memory", "encoder", "decoder", "processor_clock", "memory_clock",
    "module_power", "jpg", "ofa",
)  # fmt: skip
AUTO_SAMPLES = {
    "power": ("power_mw", 20_000), "gpu": ("util_gpu", 166_667),
    "memory": ("util_memory", 166_667), "encoder": ("util_encoder", 166_667),
    "decoder": ("util_decoder", 166_667), "processor_clock": ("clock_sm_mhz", 166_667),
    "memory_clock": ("clock_memory_mhz", 166_667),
}  # fmt: skip

ProcessKind = Literal["compute", "graphics", "mps"]
_PROCESS_KINDS: tuple[ProcessKind, ...] = ("compute", "graphics", "mps")

COUNTERS = tuple(
    name for name in layout.SIGNALS
    if name == "energy_mj" or name == "pcie_replays" or name.endswith(("_bytes", "_ns"))
    or (name.startswith("ecc_") and "volatile" in name)
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Proc:
    """A process on a GPU. ``memory`` None is NVML's "not available"."""

    pid: int
    memory: int | None
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


@dataclasses.dataclass(frozen=True, slots=True)
class ProcUtil:
    """A row of process utilisation; without ``ts_us`` it is as new as the call that reads it."""

    pid: int
    sm: int
    mem: int = 0
    enc: int = 0
    dec: int = 0
    jpg: int = 0
    ofa: int = 0
    ts_us: int | None = None


def gpm_id(metric: str | int) -> int:
    return metric if isinstance(metric, int) else GPM_IDS[metric]


def encode(value: float, value_type: int) -> int:
    """A value as the 64 bits of NVML's value union."""
    if value_type == profiles.DOUBLE:
        return int.from_bytes(struct.pack("<d", value), "little")
    bits = {profiles.UINT: 32, profiles.INT: 32, profiles.USHORT: 16}.get(value_type, 64)
    return int(value) & ((1 << bits) - 1)


class _GpmOwner:
    """What a GPU and a MIG device have in common: metrics that integrate."""

    def __init__(self, scenario: Scenario, rules: RuleBook, slot: int) -> None:
        self._scenario = scenario
        self._rules = rules
        self.slot = slot

    @property
    def data(self) -> layout.Gpu:
        return self._scenario.state.gpus[self.slot]

    @property
    def column(self) -> int:
        raise NotImplementedError

    def _gpm(self) -> ctypes.Array[layout.Gpm]:
        raise NotImplementedError

    @contextlib.contextmanager
    def _writing(self) -> Iterator[int]:
        """The seqlock of this GPU; gives the time at which the change takes effect."""
        with self._scenario.lock:
            self.data.seq = (self.data.seq + 1) & 0xFFFFFFFF
            try:
                yield self._scenario.now_ns()
            finally:
                self.data.seq = (self.data.seq + 1) & 0xFFFFFFFF

    # GPM

    def set_gpm(self, metric: str | int, value: float) -> None:
        """The metric's value from now on: a ratio 0-1 for activities, MiB/s for rates."""
        number = gpm_id(metric)
        entry = self._gpm()[number]
        with self._writing() as now:
            set_rate(entry.integral, now, value if number in _GPM_RATES else value * 100)
            entry.flags = 0
            entry.ret = 0

    def gpm_answer(
        self, metric: str | int, *, value: float | None = None, code: int | None = None
    ) -> None:
        """A fixed answer in NVML's units (NaN, negative, huge) or an error for one metric."""
        entry = self._gpm()[gpm_id(metric)]
        with self._writing():
            if value is not None:
                entry.override_value = value
                entry.flags = layout.GPM_OVERRIDE
            if code is not None:
                entry.ret = code

    # rules for this device only

    def fail(self, fn: str, code: int, *, from_call: int = 1, to_call: int | None = None) -> None:
        self._rules.add(fn, layout.RULE_CODE, code, self.column, from_call, to_call)

    def delay(self, fn: str, us: int, *, from_call: int = 1, to_call: int | None = None) -> None:
        self._rules.add(fn, layout.RULE_DELAY, us, self.column, from_call, to_call)

    def hang(self, fn: str, *, from_call: int = 1, to_call: int | None = None) -> None:
        self._rules.add(fn, layout.RULE_HANG, 0, self.column, from_call, to_call)

    def release(self, fn: str | None = None) -> None:
        self._rules.clear(fn, self.column, layout.RULE_HANG)

    def clear_rules(self, fn: str | None = None) -> None:
        self._rules.clear(fn, self.column)

    def calls(self, fn: str) -> int:
        return self._rules.calls(fn, self.column)

    def hanging(self, fn: str) -> int:
        return self._rules.waiting(fn, self.column)

    def unsupported(self, fn: str, code: int = profiles.NOT_SUPPORTED) -> None:
        """The part itself answers this; ``code=0`` gives the function to the part."""
        self._rules.set_base(fn, self.column, code=code)


class FakeMig(_GpmOwner):
    """A MIG device, by its index on the parent."""

    def __init__(self, scenario: Scenario, rules: RuleBook, slot: int, index: int) -> None:
        super().__init__(scenario, rules, slot)
        self.index = index

    @property
    def column(self) -> int:
        return layout.column(self.slot, self.index)

    @property
    def instance(self) -> layout.Mig:
        return self.data.migs[self.index]

    @property
    def uuid(self) -> str:
        return self.instance.uuid.decode()

    @property
    def gpu_instance(self) -> int:
        return self.instance.gpu_instance

    def _gpm(self) -> ctypes.Array[layout.Gpm]:
        return self.instance.gpm

    def set(self, line: str, value: float, rate: float = 0.0) -> None:
        with self._writing() as now:
            set_line(self.instance.lines[layout.MIG_INDEX[line]], now, value, rate)

    def set_memory(self, used_bytes: int) -> None:
        self.set("memory_used", used_bytes)


class FakeGpu(_GpmOwner):
    """A physical GPU by slot: the slot stays the same when NVML's index order changes."""

    @property
    def column(self) -> int:
        return self.slot

    @property
    def uuid(self) -> str:
        return self.data.uuid.decode()

    @property
    def name(self) -> str:
        return self.data.name.decode()

    @property
    def bus_id(self) -> str:
        gpu = self.data
        return f"{gpu.pci_domain:08X}:{gpu.pci_bus:02X}:{gpu.pci_device:02X}.0"

    def _gpm(self) -> ctypes.Array[layout.Gpm]:
        return self.data.gpm

    # signals and fields

    def set(self, signal: str, value: float, rate: float = 0.0, *, wrap: int = 0) -> None:
        """Any signal of ``layout.SIGNALS``: value now, slope per second, modulus of a wrap."""
        line = self.data.lines[layout.SIGNAL_INDEX[signal]]
        with self._writing() as now:
            set_line(line, now, value, rate)
            line.wrap = wrap

    def rate(self, signal: str, per_s: float) -> None:
        """A counter's slope from now on, its value unbroken."""
        with self._writing() as now:
            set_rate(self.data.lines[layout.SIGNAL_INDEX[signal]], now, per_s)

    def add(self, signal: str, amount: float) -> None:
        line = self.data.lines[layout.SIGNAL_INDEX[signal]]
        with self._writing() as now:
            set_line(line, now, line_value(line, now) + amount, line.rate)

    def get(self, signal: str) -> float:
        line = self.data.lines[layout.SIGNAL_INDEX[signal]]
        return line_value(line, self._scenario.now_ns())

    def raw(self, signal: str, bits: int) -> None:
        """Exactly these bits, for sentinels that no double holds."""
        with self._writing():
            line = self.data.lines[layout.SIGNAL_INDEX[signal]]
            line.raw = bits
            line.flags = layout.LINE_RAW

    def set_field(
        self, field: int, value: float, *, value_type: int | None = None, rate: float = 0.0,
        wrap: int = 0, raw: int | None = None,
    ) -> None:  # fmt: skip
        """Gives a field id a value of its own, apart from the signal it usually shows."""
        entry = self.data.fields[field]
        with self._writing() as now:
            index = layout.SIGNAL_SLOTS + field
            line = self.data.lines[index]
            set_line(line, now, value, rate)
            line.wrap = wrap
            if raw is not None:
                line.raw = raw
                line.flags = layout.LINE_RAW
            if value_type is not None:
                entry.value_type = value_type
            elif entry.ret and not entry.value_type:
                entry.value_type = profiles.ULL
            entry.source = layout.FIELD_LINE
            entry.line = index
            entry.ret = 0

    def field_type(self, field: int, value_type: int) -> None:
        """The same value under another type than the documented one."""
        self.data.fields[field].value_type = value_type

    def field_error(self, field: int, code: int) -> None:
        self.data.fields[field].ret = code

    def field_timestamp(self, field: int, ts_us: int | None) -> None:
        """A fixed timestamp (0 as some drivers give) or, with None, the time of the call."""
        entry = self.data.fields[field]
        entry.ts_us = ts_us or 0
        entry.ts_mode = layout.TS_NOW if ts_us is None else layout.TS_FIXED

    # activity, power, heat

    def set_power(self, watts: float) -> None:
        """Board power; the energy counter goes on with this slope."""
        self.set("power_mw", watts * 1000)
        self.set("power_instant_mw", watts * 1000)
        self.rate("energy_mj", watts * 1000)

    def set_power_limit(self, watts: float) -> None:
        for name in ("power_limit_mw", "power_limit_enforced_mw", "power_limit_requested_mw"):
            self.set(name, watts * 1000)

    def set_utilization(
        self, gpu: float | None = None, memory: float | None = None, *,
        encoder: float | None = None, decoder: float | None = None,
        jpg: float | None = None, ofa: float | None = None,
    ) -> None:  # fmt: skip
        """Ratios 0-1 of NVML's coarse utilisation; what is not given stays."""
        for name, ratio in (
            ("util_gpu", gpu), ("util_memory", memory), ("util_encoder", encoder),
            ("util_decoder", decoder), ("util_jpg", jpg), ("util_ofa", ofa),
        ):  # fmt: skip
            if ratio is not None:
                self.set(name, ratio * 100)

    def set_clock(self, mhz: float, domain: str = "sm") -> None:
        """``sm`` moves the graphics clock with it, as the hardware does."""
        self.set(f"clock_{domain}_mhz", mhz)
        if domain == "sm":
            self.set("clock_graphics_mhz", mhz)

    def set_temperature(self, gpu_c: float, memory_c: float | None = None) -> None:
        """The margin to the limit follows."""
        limit = self.get("temp_gpu_c") + self.get("temp_margin_c")
        self.set("temp_gpu_c", gpu_c)
        self.set("temp_margin_c", limit - gpu_c)
        if memory_c is not None:
            self.set("temp_memory_c", memory_c)

    def throttle(self, reason: str, fraction: float = 1.0) -> None:
        """The counter runs at this fraction of time, the bit is set; 0 ends it."""
        bit, counters = THROTTLE[reason]
        for name in counters:
            self.rate(name, fraction * 1e9)
        mask = int(self.get("event_reasons"))
        self.set("event_reasons", mask | bit if fraction > 0 else mask & ~bit)

    def unthrottle(self) -> None:
        for reason in THROTTLE:
            self.throttle(reason, 0)

    def set_memory(self, used_bytes: int, *, bar1_used: int | None = None) -> None:
        self.set("memory_used", used_bytes)
        if bar1_used is not None:
            self.set("bar1_used", bar1_used)

    # links

    def set_pcie(self, tx_bytes_s: float, rx_bytes_s: float) -> None:
        """Counters, the blocking call's gauges and the GPM rates together."""
        for name, rate in (("tx", tx_bytes_s), ("rx", rx_bytes_s)):
            self.rate(f"pcie_{name}_bytes", rate)
            self.set(f"pcie_{name}_kbps", rate / 1000)
            if self.get("gpm_supported"):
                self.set_gpm(f"pcie_{name}", rate / 2**20)

    def set_nvlink(self, tx_bytes_s: float, rx_bytes_s: float) -> None:
        """Spread evenly over the links; raw traffic is a tenth more than data."""
        links = self.data.link_count
        for name, rate in (("tx", tx_bytes_s), ("rx", rx_bytes_s)):
            share = rate / links if links else 0.0
            with self._writing() as now:
                for link in self.data.links[:links]:
                    lines = link.lines
                    set_rate(lines[layout.LINK_INDEX[f"{name}_kib"]], now, share / 1024)
                    set_rate(lines[layout.LINK_INDEX[f"raw_{name}_kib"]], now, share * 1.1 / 1024)
            if self.get("gpm_supported"):
                self.set_gpm(f"nvlink_{name}", rate / 2**20)
                for n in range(links):
                    self.set_gpm(f"nvlink_l{n}_{name}", share / 2**20)

    def set_link(self, link: int, line: str, value: float, rate: float = 0.0) -> None:
        """One line of one link (``layout.LINK_LINES``): errors, state, speed, traffic."""
        with self._writing() as now:
            set_line(self.data.links[link].lines[layout.LINK_INDEX[line]], now, value, rate)

    # faults

    def ecc(self, kind: str, count: int = 1, where: str = "dram") -> None:
        """Errors happen now: the location's and the total, volatile and aggregate, go up."""
        for scope in layout.ECC_SCOPES:
            self.add(f"ecc_{kind}_{scope}", count)
            self.add(f"ecc_{kind}_{scope}_{where}", count)

    def remap(
        self, *, corrected: int = 0, uncorrected: int = 0, pending: bool = False,
        failure: bool = False,
    ) -> None:  # fmt: skip
        self.set("remap_corrected", corrected)
        self.set("remap_uncorrected", uncorrected)
        self.set("remap_pending", pending)
        self.set("remap_failure", failure)

    def retire_pages(self, cause: int, pages: Sequence[tuple[int, int]]) -> None:
        """(address, timestamp) pairs; cause 0 is multiple single-bit, 1 double-bit errors."""
        for i, (address, at) in enumerate(pages):
            self.data.pages[cause][i] = address
            self.data.page_times[cause][i] = at
        self.data.page_count[cause] = len(pages)

    def lose(self, code: int = GPU_IS_LOST) -> None:
        """Every call about this GPU answers ``code``; NVML still counts it."""
        self.data.dead_code = code
        self._scenario.wake()

    def recover(self, *, reset_counters: bool = False) -> None:
        if reset_counters:
            self.reset_counters()
        self.data.dead_code = 0
        self._scenario.wake()

    def reset_counters(self) -> None:
        """As after a driver reload: counters restart at zero and keep their slopes."""
        with self._writing() as now:
            lines = [self.data.lines[layout.SIGNAL_INDEX[name]] for name in COUNTERS]
            for link in self.data.links[: self.data.link_count]:
                lines += link.lines[:9]  # traffic and errors, not speed and state
            lines += [entry.integral for entry in self.data.gpm]
            for line in lines:
                set_line(line, now, 0, line.rate)

    def freeze(self) -> None:
        """Values and timestamps stand still, calls keep succeeding."""
        self.data.frozen_ns = self._scenario.now_ns()

    def thaw(self) -> None:
        self.data.frozen_ns = 0

    def skew_timestamps(self, us: int) -> None:
        self.data.ts_offset_us = us

    def freeze_gpm(self, on: bool = True, *, code: int = 0) -> None:
        """Samples get one timestamp; the metrics of such a pair are NaN, or the call fails."""
        self.data.gpm_frozen_ns = self._scenario.now_ns() if on else 0
        self.data.gpm_equal_code = code

    def push_event(
        self, event_type: int, data: int = 0, *, gpu_instance: int = NO_INSTANCE,
        compute_instance: int = NO_INSTANCE,
    ) -> None:  # fmt: skip
        """Into the queue of every event set that registered this GPU and type."""
        state = self._scenario.state
        with self._scenario.lock:
            event = state.events[state.event_head % layout.EVENTS]
            event.gpu = self.slot
            event.gpu_instance = gpu_instance
            event.compute_instance = compute_instance
            event.type = event_type
            event.data = data
            state.event_head += 1
            self._scenario.wake()

    def push_xid(self, xid: int) -> None:
        self.push_event(XID_EVENT, xid)

    # processes and samples

    def set_processes(self, processes: Sequence[Proc], kind: ProcessKind = "compute") -> None:
        index = _PROCESS_KINDS.index(kind)
        with self._writing():
            for entry, process in zip(self.data.processes[index], processes, strict=False):
                entry.pid = process.pid
                entry.memory = MEMORY_NOT_AVAILABLE if process.memory is None else process.memory
                entry.gpu_instance = process.gpu_instance
                entry.compute_instance = process.compute_instance
            self.data.process_count[index] = len(processes)

    def set_process_utilization(self, rows: Sequence[ProcUtil]) -> None:
        with self._writing():
            for entry, row in zip(self.data.utils, rows, strict=False):
                for name in ("pid", "sm", "mem", "enc", "dec", "jpg", "ofa"):
                    setattr(entry, name, getattr(row, name))
                entry.auto_ts = row.ts_us is None
                entry.ts_us = row.ts_us or 0
            self.data.util_count = len(rows)

    def process_utilization_quirks(
        self, *, success_with_zero: bool = False, races: int = 0
    ) -> None:
        """The sizing call answers SUCCESS with 0; ``races`` reads meet INSUFFICIENT_SIZE."""
        self.data.util_success_zero = success_with_zero
        self.data.util_race = races

    def set_samples(
        self, kind: str, samples: Sequence[tuple[int, float]], value_type: int = profiles.UINT
    ) -> None:
        """The ring's whole content, (timestamp us, value), any timestamps in any order."""
        ring = self.data.rings[SAMPLE_KINDS.index(kind)]
        with self._writing():
            ring.auto_period_us = 0
            ring.value_type = value_type
            kept = samples[-layout.SAMPLES :]
            for entry, (ts_us, value) in zip(ring.samples, kept, strict=False):
                entry.ts_us = ts_us
                entry.bits = encode(value, value_type)
            ring.count = len(kept)

    def auto_samples(self, kind: str, signal: str | None = None, period_us: int = 0) -> None:
        """Samples made at read time from a signal's present line, at fixed times."""
        default_signal, default_period = AUTO_SAMPLES.get(kind, ("", 0))
        ring = self.data.rings[SAMPLE_KINDS.index(kind)]
        with self._writing():
            ring.value_type = profiles.UINT
            ring.auto_signal = layout.SIGNAL_INDEX[signal or default_signal]
            ring.auto_period_us = period_us or default_period

    # MIG

    def mig(self, index: int) -> FakeMig:
        return FakeMig(self._scenario, self._rules, self.slot, index)

    def set_mig(
        self, specs: Sequence[MigSpec | None], known: dict[str, MigProfile] | None = None
    ) -> None:
        """MIG mode with these devices; ``None`` is a hole. New instances start with GPM at 0."""
        table = known or {name: p for q in profiles.PROFILES.values()
                          for name, p in q.mig_profiles.items()}  # fmt: skip
        with self._writing() as now:
            for index in range(layout.MIGS):
                spec = specs[index] if index < len(specs) else None
                mig = self.data.migs[index]
                ctypes.memset(ctypes.addressof(mig), 0, ctypes.sizeof(mig))
                if spec is not None:
                    self._fill_mig(mig, spec, table[spec.profile], now)
            self.data.mig_current = self.data.mig_pending = 1

    def _fill_mig(self, mig: layout.Mig, spec: MigSpec, size: MigProfile, now: int) -> None:
        mig.gpu_instance = spec.gpu_instance
        mig.compute_instance = spec.compute_instance
        mig.name = f"{self.name} MIG {spec.profile}".encode()
        made_up = f"MIG-{self.uuid[4:22]}-{spec.gpu_instance:04x}-{spec.compute_instance:012x}"
        mig.uuid = (spec.uuid or made_up).encode()
        counts = (size.multiprocessors, 1, size.decoders, 0, 0, 0, size.slices, size.slices)
        for i, count in enumerate(counts):
            mig.attributes[i] = count
        mig.memory_mb = size.memory_mb
        values = (size.memory_mb * 2**20, 17 * 2**20, 0, size.memory_mb * 2**20 // 2, 0, 0)
        for line, value in zip(mig.lines, values, strict=False):
            set_line(line, now, value)
        for number, entry in enumerate(mig.gpm):
            entry.ret = 0 if number in GPM_SUPPORTED and number < 60 else profiles.NOT_SUPPORTED
        mig.present = 1

    def mig_off(self) -> None:
        with self._writing():
            for mig in self.data.migs:
                mig.present = 0
            self.data.mig_current = self.data.mig_pending = 0

    def mig_pending(self, on: bool) -> None:
        self.data.mig_pending = on
