"""From fast rows to samples: gauges from the newest row, counters and histograms from every row.

Runs in the main process, so that what it has counted outlives the sampler process. One object per GPU for as long
as gpumon runs. A gap longer than ``longest_gap_s`` is not filled: nobody knows what happened in it.

Bound states (``gpumon_gpu_bound_seconds_total``), from SM activity s and DRAM activity d of each GPM interval:
idle (max(s, d) < 0.3 and no request is known to be open), starved (the same with open requests), memory (d >= 0.6
and d >= s or s < 0.6), compute (s >= 0.6 and d < 0.6), else balanced. The same in docs/ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpumon import catalogue
from gpumon.model import GpuUuid, Metric, Sample
from gpumon.sources.gpu_fast import Column
from gpumon.sources.gpu_state import CarryCounter, Histogram

LOW = 0.3
HIGH = 0.6

# Bit of nvmlDeviceGetCurrentClocksEventReasons, and the column that counts the same time in hardware, if any.
# Bits 0x1 (idle), 0x2 (application clocks) and 0x100 (display) hold clocks down by wish, which is not throttling.
_REASONS: tuple[tuple[str, int | None, Column | None], ...] = (
    ("sw_power_cap", 0x4, Column.THROTTLED_SW_POWER_CAP),
    ("hw_slowdown", 0x8, None),
    ("sync_boost", 0x10, Column.THROTTLED_SYNC_BOOST),
    ("sw_thermal", 0x20, Column.THROTTLED_SW_THERMAL),
    ("hw_thermal", 0x40, Column.THROTTLED_HW_THERMAL),
    ("hw_power_brake", 0x80, Column.THROTTLED_HW_POWER_BRAKE),
    ("board_limit", 0x200, Column.THROTTLED_BOARD_LIMIT),
    ("low_utilization", None, Column.THROTTLED_LOW_UTILIZATION),
    ("reliability", 0x400, Column.THROTTLED_RELIABILITY),
    ("base_clocks", None, Column.THROTTLED_BASE_CLOCKS),
)

_GAUGES: tuple[tuple[Metric, Column, tuple[str, ...]], ...] = (
    (catalogue.GPU_UTILIZATION, Column.UTILIZATION, ()),
    (catalogue.GPU_MEMORY_BUSY, Column.MEMORY_BUSY, ()),
    (catalogue.GPU_SM_ACTIVE, Column.SM_ACTIVE, ()),
    (catalogue.GPU_SM_OCCUPANCY, Column.SM_OCCUPANCY, ()),
    (catalogue.GPU_TENSOR_ACTIVE, Column.TENSOR_ACTIVE, ()),
    (catalogue.GPU_DRAM_ACTIVE, Column.DRAM_ACTIVE, ()),
    (catalogue.GPU_GRAPHICS_ACTIVE, Column.GRAPHICS_ACTIVE, ()),
    (catalogue.GPU_FP64_ACTIVE, Column.FP64_ACTIVE, ()),
    (catalogue.GPU_FP32_ACTIVE, Column.FP32_ACTIVE, ()),
    (catalogue.GPU_FP16_ACTIVE, Column.FP16_ACTIVE, ()),
    (catalogue.GPU_INTEGER_ACTIVE, Column.INTEGER_ACTIVE, ()),
    (catalogue.GPU_CLOCK, Column.CLOCK_GRAPHICS, ("graphics",)),
    (catalogue.GPU_CLOCK, Column.CLOCK_SM, ("sm",)),
    (catalogue.GPU_CLOCK, Column.CLOCK_MEMORY, ("memory",)),
    (catalogue.GPU_CLOCK, Column.CLOCK_VIDEO, ("video",)),
    (catalogue.GPU_POWER, Column.POWER_AVERAGE, ("average",)),
    (catalogue.GPU_POWER, Column.POWER_INSTANT, ("instant",)),
    (catalogue.GPU_TEMPERATURE, Column.TEMPERATURE, ("gpu",)),
    (catalogue.GPU_TEMPERATURE, Column.MEMORY_TEMPERATURE, ("memory",)),
    (catalogue.GPU_MEMORY, Column.MEMORY_USED, ("used",)),
    (catalogue.GPU_MEMORY, Column.MEMORY_FREE, ("free",)),
    (catalogue.GPU_MEMORY, Column.MEMORY_RESERVED, ("reserved",)),
)
_INTEGRALS: tuple[tuple[Metric, Column], ...] = (
    (catalogue.GPU_SM_ACTIVE_SECONDS, Column.SM_ACTIVE),
    (catalogue.GPU_DRAM_ACTIVE_SECONDS, Column.DRAM_ACTIVE),
    (catalogue.GPU_TENSOR_ACTIVE_SECONDS, Column.TENSOR_ACTIVE),
)
# bytes: the hardware's counter, else the GPM rate summed over its interval
_BYTES: tuple[tuple[Metric, str, Column, Column], ...] = (
    (catalogue.GPU_PCIE_BYTES, "tx", Column.PCIE_TX, Column.PCIE_TX_RATE),
    (catalogue.GPU_PCIE_BYTES, "rx", Column.PCIE_RX, Column.PCIE_RX_RATE),
    (catalogue.GPU_NVLINK_BYTES, "tx", Column.NVLINK_TX, Column.NVLINK_TX_RATE),
    (catalogue.GPU_NVLINK_BYTES, "rx", Column.NVLINK_RX, Column.NVLINK_RX_RATE),
)


class GpuActivity:
    """What the fast rows of one GPU add up to."""

    def __init__(
        self,
        gpu: str,
        uuid: GpuUuid,
        *,
        longest_gap_s: float = 1.0,
        requests_open: Callable[[GpuUuid], bool] | None = None,
    ) -> None:
        """``gpu``: index, for display. ``requests_open``: whether a request is open on this GPU; None: not known."""
        self._labels = (gpu, str(uuid))
        self._uuid = uuid
        self.longest_gap_s = longest_gap_s
        self._requests_open = requests_open
        self._rows = 0
        self._new_rows = False
        self._last_ns: int | None = None
        self._last: tuple[float, ...] = ()
        self._counters: dict[Column, CarryCounter] = {}
        self._totals: dict[Column, float] = {}
        self._ahead: dict[Column, float] = {}
        """By how much what was summed up before the hardware's counter first answered was more than that counter."""
        self._sums: dict[Column, float] = {}
        """Integrals over GPM intervals, by column."""
        self._seen_s: dict[str, float] = {}
        """Throttled time summed from the reasons bit mask, by reason."""
        self._bound_s = dict.fromkeys(catalogue.BOUND_STATES, 0.0)
        self._sm = Histogram()
        self._dram = Histogram()
        self._power = Histogram(catalogue.POWER_BOUNDS)
        self._fresh: set[Column] = set()
        """Columns read since ``samples`` was last called: a counter nobody reads any more would say "idle"."""

    def rename(self, gpu: str) -> None:
        """The index changed: NVML may number the GPUs anew when it is opened again."""
        self._labels = (gpu, str(self._uuid))

    def add(self, at_ns: int, values: Sequence[float]) -> None:
        """Take a row, NaN where there was no reading. Rows come in the order of their times."""
        gap_s = 0.0 if self._last_ns is None else (at_ns - self._last_ns) / 1e9
        dt_s = gap_s if 0.0 < gap_s <= self.longest_gap_s else 0.0
        self._rows += 1
        self._new_rows = True
        self._last_ns = at_ns
        self._last = tuple(values)
        self._count(values)
        self._throttle(values, dt_s)
        self._activity(values)
        power = values[Column.POWER_INSTANT]
        if power != power:  # NaN: no instantaneous reading on this GPU
            power = values[Column.POWER_AVERAGE]
        if power == power:
            self._fresh.add(Column.POWER_INSTANT)
            self._power.observe(power)

    def samples(self, to_unix: Callable[[float], float]) -> Iterator[Sample]:
        """Everything that the rows since the last call say; nothing if there were none. Counters never fall."""
        if self._last_ns is None or not self._new_rows:
            return
        self._new_rows = False
        labels, last = self._labels, self._last
        fresh, self._fresh = self._fresh, set()
        for metric, column, extra in _GAUGES:
            value = last[column]
            if value == value:
                yield Sample(metric, labels + extra, value)
        yield Sample(catalogue.GPU_SAMPLES, labels, float(self._rows))
        yield Sample(catalogue.GPU_LAST_SAMPLE, labels, to_unix(self._last_ns / 1e9))
        mask = last[Column.REASONS]
        for reason, bit, column_ in _REASONS:
            if bit is not None and mask == mask:
                yield Sample(catalogue.GPU_THROTTLE_ACTIVE, (*labels, reason), float(bool(int(mask) & bit)))
            throttled_s: float | None = None
            if column_ in self._totals:
                throttled_s = self._totals[column_] if column_ in fresh else None
            elif Column.REASONS in fresh:
                throttled_s = self._seen_s.get(reason)
            if throttled_s is not None:
                yield Sample(catalogue.GPU_THROTTLED_SECONDS, (*labels, reason), throttled_s)
        if Column.ENERGY in fresh:
            yield Sample(catalogue.GPU_ENERGY, labels, self._totals[Column.ENERGY])
        for metric, direction, counter, rate in _BYTES:
            if counter in fresh:
                yield Sample(metric, (*labels, direction), self._totals[counter])
            elif rate in fresh and counter not in self._totals:
                yield Sample(metric, (*labels, direction), self._sums[rate])
        for metric, column in _INTEGRALS:
            if column in fresh:
                yield Sample(metric, labels, self._sums[column])
        if Column.SM_ACTIVE in fresh:
            yield Sample(catalogue.GPU_SM_ACTIVE_SAMPLES, labels, self._sm.distribution())
        if Column.DRAM_ACTIVE in fresh:
            yield Sample(catalogue.GPU_DRAM_ACTIVE_SAMPLES, labels, self._dram.distribution())
        if Column.SM_ACTIVE in fresh and Column.DRAM_ACTIVE in fresh:
            for state, total in self._bound_s.items():
                yield Sample(catalogue.GPU_BOUND_SECONDS, (*labels, state), total)
        if Column.POWER_INSTANT in fresh:
            yield Sample(catalogue.GPU_POWER_SAMPLES, labels, self._power.distribution())

    def _count(self, values: Sequence[float]) -> None:
        for column in _COUNTED:
            value = values[column]
            if value == value:
                counter = self._counters.get(column)
                if counter is None:
                    counter = self._counters[column] = CarryCounter()
                    self._ahead[column] = max(0.0, self._stand_in(column) - value)
                self._totals[column] = counter.feed(value) + self._ahead[column]
                self._fresh.add(column)

    def _stand_in(self, column: Column) -> float:
        """What was exported in the place of this counter while it did not answer."""
        instead = _STAND_INS.get(column)
        if isinstance(instead, Column):
            return self._sums.get(instead, 0.0)
        return self._seen_s.get(instead, 0.0) if instead is not None else 0.0

    def _throttle(self, values: Sequence[float], dt_s: float) -> None:
        mask = values[Column.REASONS]
        if mask != mask:
            return
        self._fresh.add(Column.REASONS)
        bits = int(mask)
        seen_s = self._seen_s
        for reason, bit, column in _REASONS:
            if bit is not None and (column is None or column not in self._totals):
                seen_s[reason] = seen_s.get(reason, 0.0) + (dt_s if bits & bit else 0.0)

    def _activity(self, values: Sequence[float]) -> None:
        interval_s = values[Column.GPM_INTERVAL]
        if not 0.0 < interval_s <= self.longest_gap_s:
            return
        for column in _SUMMED:
            value = values[column]
            if value == value:
                self._sums[column] = self._sums.get(column, 0.0) + value * interval_s
                self._fresh.add(column)
        sm, dram = values[Column.SM_ACTIVE], values[Column.DRAM_ACTIVE]
        if sm == sm:
            self._sm.observe(sm)
        if dram == dram:
            self._dram.observe(dram)
        if sm == sm and dram == dram:
            self._bound_s[self._state(sm, dram)] += interval_s

    def _state(self, sm: float, dram: float) -> str:
        if sm < LOW and dram < LOW:
            return "starved" if self._requests_open is not None and self._requests_open(self._uuid) else "idle"
        if dram >= HIGH and (dram >= sm or sm < HIGH):
            return "memory"
        return "compute" if sm >= HIGH and dram < HIGH else "balanced"


_COUNTED = (
    Column.ENERGY,
    *(column for _, _, column in _REASONS if column is not None),
    *(counter for _, _, counter, _ in _BYTES),
)
_STAND_INS: dict[Column, str | Column] = {column: reason for reason, _, column in _REASONS if column is not None} | {
    counter: rate for _, _, counter, rate in _BYTES
}
_SUMMED = (*(column for _, column in _INTEGRALS), *(rate for _, _, _, rate in _BYTES))
