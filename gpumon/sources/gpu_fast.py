"""The fast set of one GPU: about forty values every 100 ms, as one row of fixed columns.

Read in the sampler process, at most a dozen NVML calls a tick: one field-value batch (power, energy, throttle
times, PCIe and NVLink bytes), utilization, memory, clocks, clock-event reasons, temperature, and one GPM sample
(Hopper and newer: SM, DRAM, tensor and pipe activity over exactly the time since the sample before).

Columns are in base units and checked against their possible range; what was not read is None. What this GPU or
driver does not have is asked once per generation (``Capabilities``) and then left alone. ``gpu_activity`` turns
rows into samples in the main process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpumon.host.nvml import CLOCKS, POWER_USAGE, REASONS, Code, Device, Field, FieldBatch, GpmReader, Nvml, NvmlError
from gpumon.model import Reason, Rejection
from gpumon.sources.capabilities import Capabilities


class Column(IntEnum):
    """Columns of a row. Base units: ratio, Hz, bytes, celsius, joules, watts, seconds."""

    UTILIZATION = 0
    MEMORY_BUSY = 1
    CLOCK_GRAPHICS = 2
    CLOCK_SM = 3
    CLOCK_MEMORY = 4
    CLOCK_VIDEO = 5
    REASONS = 6  # bit mask, exact in a double
    MEMORY_USED = 7
    MEMORY_FREE = 8
    MEMORY_RESERVED = 9
    TEMPERATURE = 10
    MEMORY_TEMPERATURE = 11
    ENERGY = 12
    POWER_AVERAGE = 13
    POWER_INSTANT = 14
    THROTTLED_SW_POWER_CAP = 15
    THROTTLED_SYNC_BOOST = 16
    THROTTLED_BOARD_LIMIT = 17
    THROTTLED_LOW_UTILIZATION = 18
    THROTTLED_RELIABILITY = 19
    THROTTLED_BASE_CLOCKS = 20
    THROTTLED_SW_THERMAL = 21
    THROTTLED_HW_THERMAL = 22
    THROTTLED_HW_POWER_BRAKE = 23
    PCIE_TX = 24
    PCIE_RX = 25
    NVLINK_TX = 26
    NVLINK_RX = 27
    GRAPHICS_ACTIVE = 28
    SM_ACTIVE = 29
    SM_OCCUPANCY = 30
    INTEGER_ACTIVE = 31
    TENSOR_ACTIVE = 32
    DRAM_ACTIVE = 33
    FP64_ACTIVE = 34
    FP32_ACTIVE = 35
    FP16_ACTIVE = 36
    PCIE_TX_RATE = 37  # bytes per second over the GPM interval
    PCIE_RX_RATE = 38
    NVLINK_RX_RATE = 39
    NVLINK_TX_RATE = 40
    GPM_INTERVAL = 41


_MI, _MILLI, _NANO, _PERCENT, _MHZ = 2.0**20, 1e-3, 1e-9, 0.01, 1e6
_ALL_LINKS = 0xFFFFFFFF
_MOST = 2.0**62  # counters past this are sentinels (NVML spells "none" as all ones)


class _FieldPlan(NamedTuple):
    field: Field
    column: Column
    factor: float
    most: float
    """Most possible, in base units; the least is 0."""
    name: str


class _GpmPlan(NamedTuple):
    metric: int
    column: Column
    factor: float
    most: float
    name: str


_FIELDS = tuple(
    _FieldPlan(*entry)
    for entry in (
        (Field(82), Column.MEMORY_TEMPERATURE, 1.0, 150.0, "memory_temperature"),
        (Field(83), Column.ENERGY, _MILLI, _MOST * _MILLI, "energy"),
        (Field(185), Column.POWER_AVERAGE, _MILLI, 5000.0, "power_average"),
        (Field(186), Column.POWER_INSTANT, _MILLI, 5000.0, "power_instant"),
        (Field(74), Column.THROTTLED_SW_POWER_CAP, _NANO, _MOST * _NANO, "throttled_sw_power_cap"),
        (Field(76), Column.THROTTLED_SYNC_BOOST, _NANO, _MOST * _NANO, "throttled_sync_boost"),
        (Field(77), Column.THROTTLED_BOARD_LIMIT, _NANO, _MOST * _NANO, "throttled_board_limit"),
        (Field(78), Column.THROTTLED_LOW_UTILIZATION, _NANO, _MOST * _NANO, "throttled_low_utilization"),
        (Field(79), Column.THROTTLED_RELIABILITY, _NANO, _MOST * _NANO, "throttled_reliability"),
        (Field(81), Column.THROTTLED_BASE_CLOCKS, _NANO, _MOST * _NANO, "throttled_base_clocks"),
        (Field(269), Column.THROTTLED_SW_THERMAL, _NANO, _MOST * _NANO, "throttled_sw_thermal"),
        (Field(270), Column.THROTTLED_HW_THERMAL, _NANO, _MOST * _NANO, "throttled_hw_thermal"),
        (Field(271), Column.THROTTLED_HW_POWER_BRAKE, _NANO, _MOST * _NANO, "throttled_hw_power_brake"),
        (Field(197), Column.PCIE_TX, 1.0, _MOST, "pcie_tx"),
        (Field(198), Column.PCIE_RX, 1.0, _MOST, "pcie_rx"),
        (Field(138, _ALL_LINKS), Column.NVLINK_TX, 1024.0, _MOST, "nvlink_tx"),
        (Field(139, _ALL_LINKS), Column.NVLINK_RX, 1024.0, _MOST, "nvlink_rx"),
    )
)

_ACTIVITY = 1.05  # a share measured over 100 ms may pass 1 by timing noise; it is clamped, more is refused
_GPM = tuple(
    _GpmPlan(*entry)
    for entry in (
        (1, Column.GRAPHICS_ACTIVE, _PERCENT, _ACTIVITY, "graphics_active"),
        (2, Column.SM_ACTIVE, _PERCENT, _ACTIVITY, "sm_active"),
        (3, Column.SM_OCCUPANCY, _PERCENT, _ACTIVITY, "sm_occupancy"),
        (4, Column.INTEGER_ACTIVE, _PERCENT, _ACTIVITY, "integer_active"),
        (5, Column.TENSOR_ACTIVE, _PERCENT, _ACTIVITY, "tensor_active"),
        (10, Column.DRAM_ACTIVE, _PERCENT, _ACTIVITY, "dram_active"),
        (11, Column.FP64_ACTIVE, _PERCENT, _ACTIVITY, "fp64_active"),
        (12, Column.FP32_ACTIVE, _PERCENT, _ACTIVITY, "fp32_active"),
        (13, Column.FP16_ACTIVE, _PERCENT, _ACTIVITY, "fp16_active"),
        (20, Column.PCIE_TX_RATE, _MI, 1e12, "gpm_pcie_tx"),
        (21, Column.PCIE_RX_RATE, _MI, 1e12, "gpm_pcie_rx"),
        (60, Column.NVLINK_RX_RATE, _MI, 1e13, "gpm_nvlink_rx"),
        (61, Column.NVLINK_TX_RATE, _MI, 1e13, "gpm_nvlink_tx"),
    )
)
_CLOCKS = tuple(
    zip(
        ("clock_graphics", "clock_sm", "clock_memory", "clock_video"),
        CLOCKS,
        (Column.CLOCK_GRAPHICS, Column.CLOCK_SM, Column.CLOCK_MEMORY, Column.CLOCK_VIDEO),
        strict=True,
    )
)
BLANK: list[float | None] = [None] * len(Column)
"""A row without a reading."""
_GPM_PATIENCE = 10
"""Failed comparisons in a row after which the older GPM sample is forgotten (a GPU reset makes it useless)."""


class GpuFast:
    """Reads the rows of one GPU of one generation; used by that GPU's thread alone."""

    name = "gpu_fast"

    def __init__(self, nvml: Nvml, device: Device, capabilities: Capabilities) -> None:
        self._nvml = nvml
        self._device = device
        self._capabilities = capabilities
        self._batch: FieldBatch | None = None
        self._field_plan: tuple[_FieldPlan, ...] = _FIELDS
        self._gpm: GpmReader | None = None
        self._gpm_plan: tuple[_GpmPlan, ...] = _GPM
        self._gpm_failures = 0
        self._reconsider_gpm = False
        self._gpm_codes: tuple[int, ...] = ()
        self._codes: list[int] = []
        """Of the fields, as noted last: they seldom change."""
        self._rejections: list[Rejection] = []

    def row(self, at_s: float) -> list[float | None]:
        """One row, in column order. Raises NvmlError when the GPU or the driver is gone."""
        row = BLANK.copy()
        ask, nvml, device = self._capabilities.ask, self._nvml, self._device
        if (utilization := ask(at_s, "utilization", nvml.utilization, device)) is not None:
            row[Column.UTILIZATION] = self._percent("utilization", utilization.gpu)
            row[Column.MEMORY_BUSY] = self._percent("memory_busy", utilization.memory)
        for name, call, column in _CLOCKS:
            if (mhz := ask(at_s, name, nvml.number, device, call)) is not None:
                row[column] = mhz * _MHZ if mhz <= 10_000 else self._refuse(name)
        if (mask := ask(at_s, "reasons", nvml.number, device, REASONS)) is not None:
            row[Column.REASONS] = float(mask) if mask < 1 << 32 else self._refuse("reasons")
        if (memory := ask(at_s, "memory", nvml.memory, device)) is not None:
            self._memory(row, memory.total, memory.used, memory.free, memory.reserved)
        if (degrees := ask(at_s, "temperature", nvml.temperature, device)) is not None:
            # -1 is what all ones, NVML's "none", are in a signed number.
            row[Column.TEMPERATURE] = (
                float(degrees) if -50 <= degrees <= 150 and degrees != -1 else self._refuse("temperature")
            )
        self._read_fields(at_s, row)
        if (
            row[Column.POWER_AVERAGE] is None
            and (mw := ask(at_s, "power", nvml.number, device, POWER_USAGE)) is not None
        ):
            row[Column.POWER_AVERAGE] = mw * _MILLI if mw <= 5_000_000 else self._refuse("power_average")
        self._read_gpm(at_s, row)
        return row

    def take_rejections(self) -> list[Rejection]:
        """Values refused since the last call; at most 256 are kept."""
        taken, self._rejections = self._rejections, []
        return taken

    def reconsider(self) -> None:
        """Build the batches anew at the next row: what was denied may have been granted. For once a minute."""
        self._batch = None
        self._reconsider_gpm = True

    def close(self) -> None:
        """Free the GPM buffers; before the generation ends."""
        reader, self._gpm = self._gpm, None
        if reader is not None:
            try:
                reader.close()
            except NvmlError:
                # Buffers that NVML will not take back: nothing is left to try, and they end with the generation.
                return

    def _memory(self, row: list[float | None], total: int, used: int, free: int, reserved: int | None) -> None:
        if used > total or free > total or not 0 < total < 1 << 50:
            self._refuse("memory")
            return
        row[Column.MEMORY_USED] = float(used)
        row[Column.MEMORY_FREE] = float(free)
        if reserved is not None:
            row[Column.MEMORY_RESERVED] = float(reserved) if reserved <= total else self._refuse("memory_reserved")

    def _read_fields(self, at_s: float, row: list[float | None]) -> None:
        capabilities = self._capabilities
        if self._batch is None:
            # Only what this GPU may answer: each other field would cost a driver call at every tick.
            self._field_plan = tuple(plan for plan in _FIELDS if capabilities.wanted(at_s, plan.name))
            self._codes = []
        if not self._field_plan:
            return
        values = capabilities.ask(at_s, "fields", self._read_batch)
        if values is None or self._batch is None:
            return
        codes = self._batch.codes()
        if codes != self._codes:
            self._codes = codes
            for plan, code in zip(self._field_plan, codes, strict=True):
                capabilities.note(at_s, plan.name, code)
        failed = False
        for i, (value, plan) in enumerate(zip(values, self._field_plan, strict=True)):
            if value is None:
                failed = True
                if capabilities.note(at_s, plan.name, codes[i]):
                    self._refuse(plan.name)  # SUCCESS with a value that is not finite, or of no known type
                continue
            value *= plan.factor
            row[plan.column] = value if 0.0 <= value <= plan.most else self._refuse(plan.name)
        if failed and not all(capabilities.wanted(at_s, plan.name) for plan in self._field_plan):
            self._batch = None

    def _read_batch(self) -> list[int | float | None]:
        if self._batch is None:
            self._batch = self._nvml.fields(self._device, [plan.field for plan in self._field_plan])
        return self._batch.read()

    def _read_gpm(self, at_s: float, row: list[float | None]) -> None:
        capabilities = self._capabilities
        if self._reconsider_gpm and self._gpm is not None:
            self._reconsider_gpm = False
            if self._gpm_plan != self._wanted_gpm(at_s):
                self.close()
        if self._gpm is None and not self._open_gpm(at_s):
            return
        assert self._gpm is not None
        self._gpm_failures += 1
        reading = capabilities.ask(at_s, "gpm", self._gpm.read)
        if reading is None:
            # The first sample has none before it. Later, the older sample may have become useless (GPU reset).
            if self._gpm_failures >= _GPM_PATIENCE:
                self._gpm_failures = 0
                self._gpm.reset()
            return
        self._gpm_failures = 0
        row[Column.GPM_INTERVAL] = reading.interval_s
        failed = any(reading.codes)
        if failed or reading.codes != self._gpm_codes:
            self._gpm_codes = reading.codes
            for plan, code in zip(self._gpm_plan, reading.codes, strict=True):
                capabilities.note(at_s, plan.name, code)
        for value, code, plan in zip(reading.values, reading.codes, self._gpm_plan, strict=True):
            if value is None:
                if code == Code.SUCCESS:
                    self._refuse(plan.name)  # SUCCESS with a value that is not finite
                continue
            value *= plan.factor
            if not 0.0 <= value <= plan.most:
                self._refuse(plan.name)
            else:
                row[plan.column] = min(value, 1.0) if plan.most == _ACTIVITY else value
        if failed and not all(capabilities.wanted(at_s, plan.name) for plan in self._gpm_plan):
            self.close()  # ask without what it does not have

    def _open_gpm(self, at_s: float) -> bool:
        capabilities = self._capabilities
        supported = capabilities.ask(at_s, "gpm", self._nvml.gpm_supported, self._device)
        if not supported:
            if supported is False:
                capabilities.note(at_s, "gpm", Code.NOT_SUPPORTED)
            return False
        self._gpm_plan = self._wanted_gpm(at_s)
        if not self._gpm_plan:
            return False
        metrics = [plan.metric for plan in self._gpm_plan]
        self._gpm = capabilities.ask(at_s, "gpm", self._nvml.gpm, self._device, metrics)
        self._gpm_failures = 0
        return self._gpm is not None

    def _wanted_gpm(self, at_s: float) -> tuple[_GpmPlan, ...]:
        return tuple(plan for plan in _GPM if self._capabilities.wanted(at_s, plan.name))

    def _percent(self, name: str, percent: int) -> float | None:
        return percent * _PERCENT if 0 <= percent <= 100 else self._refuse(name)

    def _refuse(self, name: str) -> float | None:
        if len(self._rejections) < 256:
            self._rejections.append(Rejection(name, Reason.OUT_OF_RANGE))
        return None
