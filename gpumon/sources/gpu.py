"""One GPU's slow facts, every 5 s: errors, limits, links, fans, codecs, and the driver's utilization ring.

NVML only: one field batch and one call per further value, each failing alone. Units are converted here, ranges
checked here. What the GPU does not have is asked for once per generation and then left out; what cannot change
while a generation lasts (highest clocks, thresholds, constraints) is asked for every minute. Error counters go on
over driver reloads. ECC counters of a GPU with ECC off may come back uninitialised instead of refused, so the
ECC mode decides, and a count that is no whole number is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, TypeVarTuple

from gpumon import catalogue
from gpumon.host import nvml as port
from gpumon.host.nvml import Call, Code, Device, Field, Nvml
from gpumon.model import Item, Metric, Reason, Rejection, Sample
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_fields import FieldSet
from gpumon.sources.gpu_ring import UtilizationRing
from gpumon.sources.gpu_state import BYTES_MAX, ERRORS_MAX, GpuState, possible

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HELD_S = 60.0
"""How long an answer that cannot change while the board is in use is believed."""

_UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN
_LINKS_KEY = "nvlink_links:count"


class _Row(NamedTuple):
    """One value: under which capability it is read, as what it is exported, and what it can be, in NVML's unit."""

    key: str
    metric: Metric
    tail: tuple[str, ...]
    low: float
    high: float
    scale: float = 1.0
    counter: bool = False


def _errors(key: str, metric: Metric, *tail: str) -> _Row:
    return _Row(key, metric, tail, 0, ERRORS_MAX, counter=True)


_ECC = tuple(
    _errors(f"ecc_errors:{kind}_{scope}", catalogue.GPU_ECC_ERRORS, kind, scope)
    for scope in ("volatile", "aggregate")
    for kind in ("corrected", "uncorrected")
)
_REMAPS = (  # in the order of nvmlDeviceGetRemappedRows' answer
    _Row("remapped_rows:correctable", catalogue.GPU_REMAPPED_ROWS, ("correctable",), 0, 1e6),
    _Row("remapped_rows:uncorrectable", catalogue.GPU_REMAPPED_ROWS, ("uncorrectable",), 0, 1e6),
    _Row("row_remap_pending", catalogue.GPU_ROW_REMAP_PENDING, (), 0, 1),
    _Row("row_remap_failed", catalogue.GPU_ROW_REMAP_FAILED, (), 0, 1),
)
_FIELD_ROWS = (  # NVML_FI_DEV_* numbers
    *zip(_ECC, map(Field, (3, 4, 5, 6)), strict=True),
    *zip(_REMAPS, map(Field, (142, 143, 144, 145)), strict=True),
    (_Row("retired_pages:single_bit", catalogue.GPU_RETIRED_PAGES, ("single_bit",), 0, 1e6), Field(29)),
    (_Row("retired_pages:double_bit", catalogue.GPU_RETIRED_PAGES, ("double_bit",), 0, 1e6), Field(30)),
    (_Row("retired_pages_pending", catalogue.GPU_RETIRED_PAGES_PENDING, (), 0, 1), Field(31)),
    (_errors("pcie_replays", catalogue.GPU_PCIE_REPLAYS), Field(94)),
    *(
        (_Row(f"temperature_margin_limit:{limit}", catalogue.GPU_TEMPERATURE_MARGIN_LIMIT, (limit,), -200, 200), field)
        for limit, field in zip(
            ("shutdown", "slowdown", "memory_max", "gpu_max"), map(Field, (193, 194, 195, 196)), strict=True
        )
    ),
    *(
        (_errors(f"nvlink_errors:{kind}", catalogue.GPU_NVLINK_ERRORS, kind), field)
        for kind, field in zip(
            ("crc_flit", "crc_data", "replay", "recovery", "ecc_data"), map(Field, (38, 45, 52, 59, 160)), strict=True
        )
    ),
    (_Row("recovery_action", catalogue.GPU_RECOVERY_ACTION, (), 0, 255), Field(230)),
)
_FIELDS = {row.key: field for row, field in _FIELD_ROWS} | {_LINKS_KEY: Field(91)}

_CALL_ROWS: tuple[tuple[_Row, Call], ...] = (
    *(
        (_Row(f"power_limit:{kind}", catalogue.GPU_POWER_LIMIT, (kind,), 1, 1e7, 1e-3), port.POWER_LIMITS[kind])
        for kind in ("enforced", "requested")
    ),
    (
        _Row("pcie_link_generation:current", catalogue.GPU_PCIE_GENERATION, ("current",), 1, 16),
        port.PCIE_GENERATIONS["current"],
    ),
    (_Row("pcie_link_width:current", catalogue.GPU_PCIE_WIDTH, ("current",), 1, 32), port.PCIE_WIDTHS["current"]),
    *(
        (_Row(f"codec_utilization:{engine}", catalogue.GPU_CODEC_UTILIZATION, (engine,), 0, 100, 1e-2), call)
        for engine, call in port.CODECS.items()
    ),
)
_HELD_ROWS: tuple[tuple[_Row, Call], ...] = (
    (_Row("power_limit:default", catalogue.GPU_POWER_LIMIT, ("default",), 1, 1e7, 1e-3), port.POWER_LIMITS["default"]),
    (_Row("pcie_link_generation:max", catalogue.GPU_PCIE_GENERATION, ("max",), 1, 16), port.PCIE_GENERATIONS["max"]),
    (_Row("pcie_link_width:max", catalogue.GPU_PCIE_WIDTH, ("max",), 1, 32), port.PCIE_WIDTHS["max"]),
    *(
        (_Row(f"clock_max:{domain}", catalogue.GPU_CLOCK_MAX, (domain,), 1, 20_000, 1e6), call)
        for domain, call in zip(catalogue.CLOCK_DOMAINS, port.MAX_CLOCKS, strict=True)
    ),
    *(
        (_Row(f"temperature_limit:{limit}", catalogue.GPU_TEMPERATURE_LIMIT, (limit,), -50, 200), call)
        for limit, call in zip(
            ("shutdown", "slowdown", "memory_max", "gpu_max"), port.TEMPERATURE_THRESHOLDS, strict=True
        )
    ),
)
_CONSTRAINTS = tuple(
    _Row("power_limit:constraints", catalogue.GPU_POWER_LIMIT, (kind,), 1, 1e7, 1e-3) for kind in ("min", "max")
)
_STATE = _Row("performance_state", catalogue.GPU_PERFORMANCE_STATE, (), 0, 15)
_MARGIN = _Row("temperature_margin", catalogue.GPU_TEMPERATURE_MARGIN, (), -200, 200)


class GpuSlow:
    """Source of one GPU in one generation; built anew for the next."""

    name = "gpu_slow"

    def __init__(
        self, nvml: Nvml, device: Device, labels: tuple[str, str], capabilities: Capabilities, state: GpuState
    ) -> None:
        """``labels``: gpu, uuid. ``capabilities``: of this device and generation. ``state``: of this GPU, kept."""
        self._nvml = nvml
        self._device = device
        self._labels = labels
        self._capabilities = capabilities
        self._state = state
        self._fields = FieldSet(nvml, device, capabilities, "field_values", _FIELDS)
        self._ring = UtilizationRing(nvml, device, labels, capabilities, state)
        self._held: dict[str, tuple[float, object]] = {}
        self._links: tuple[int, ...] = tuple(range(len(port.NVLINK_STATES)))

    def read(self, at_s: float) -> list[Item]:
        """All slow values. Raises NvmlError when the GPU or the driver is gone, and for nothing else."""
        items: list[Item] = []
        self._read_fields(at_s, items)
        nvml, device, ask = self._nvml, self._device, self._capabilities.ask
        for row, call in _CALL_ROWS:
            self._put(items, row, ask(at_s, row.key, nvml.number, device, call))
        for row, call in _HELD_ROWS:
            self._put(items, row, self._ask_held(at_s, row.key, nvml.number, device, call))
        constraints = self._ask_held(at_s, _CONSTRAINTS[0].key, nvml.numbers, device, port.POWER_CONSTRAINTS)
        for row, limit in zip(_CONSTRAINTS, constraints or (), strict=False):
            self._put(items, row, limit)
        state = ask(at_s, _STATE.key, nvml.number, device, port.PERFORMANCE_STATE)
        self._put(items, _STATE, None if state == _UNKNOWN_STATE else state)
        self._put(items, _MARGIN, ask(at_s, _MARGIN.key, nvml.temperature_margin, device))
        self._read_bar1(at_s, items)
        self._read_fans(at_s, items)
        items += self._ring.read(at_s)
        items += self._capabilities.take()
        items += self._capabilities.samples(self._labels)
        return items

    def _put(self, items: list[Item], row: _Row, raw: float | None) -> None:
        if raw is None:
            return
        if not possible(raw, row.low, row.high):
            items.append(Rejection(_field(row.key), Reason.OUT_OF_RANGE))
            return
        value = self._state.carry(row.key, raw) if row.counter else raw * row.scale
        items.append(Sample(row.metric, self._labels + row.tail, float(value)))

    def _ask_held(self, at_s: float, key: str, function: Callable[[*Ts], T], *args: *Ts) -> T | None:
        until_s, held = self._held.get(key, (0.0, None))
        if at_s < until_s:
            return held  # type: ignore[return-value]  # put there below, under the key of the same question
        answer = self._capabilities.ask(at_s, key, function, *args)
        if answer is None:
            self._held.pop(key, None)
        else:
            self._held[key] = (at_s + HELD_S, answer)
        return answer

    def _read_fields(self, at_s: float, items: list[Item]) -> None:
        values = self._fields.read(at_s)
        self._drop_uninitialised(at_s, values, items)
        for row, _field_id in _FIELD_ROWS:
            self._put(items, row, values.get(row.key))
        self._read_remaps(at_s, items)
        self._read_links(at_s, values.get(_LINKS_KEY, len(port.NVLINK_STATES)), items)

    def _drop_uninitialised(self, at_s: float, values: dict[str, int | float], items: list[Item]) -> None:
        keys = [row.key for row in _ECC if row.key in values]
        if not keys:
            return
        mode = self._ask_held(at_s, "ecc_mode", self._nvml.numbers, self._device, port.ECC_MODE)
        off = mode is not None and mode[0] == 0
        for key in keys:
            if off:
                del values[key]
                self._fields.drop(at_s, key)
            elif isinstance(values[key], float):  # value type 0 is the untouched one: the bits are no count
                del values[key]
                items.append(Rejection(_field(key), Reason.MALFORMED))

    def _read_remaps(self, at_s: float, items: list[Item]) -> None:
        """Some drivers answer the call and not the fields."""
        refused = [row for row in _REMAPS if self._capabilities.supported(row.key) is False]
        if not refused:
            return
        answer = self._capabilities.ask(
            at_s, "remapped_rows:call", self._nvml.numbers, self._device, port.REMAPPED_ROWS
        )
        for row, value in zip(_REMAPS, answer or (), strict=False):
            if row in refused:
                self._capabilities.note(at_s, f"{_field(row.key)}:call", Code.SUCCESS)
                self._put(items, row, value)

    def _read_bar1(self, at_s: float, items: list[Item]) -> None:
        bar1 = self._capabilities.ask(at_s, "bar1", self._nvml.bar1, self._device)
        if bar1 is None:
            return
        total = bar1.total if possible(bar1.total, 0, BYTES_MAX) else BYTES_MAX
        for state, value in (("used", bar1.used), ("free", bar1.free)):
            self._put(items, _Row("bar1", catalogue.GPU_BAR1, (state,), 0, total), value)

    def _read_fans(self, at_s: float, items: list[Item]) -> None:
        count = self._ask_held(at_s, "fan:count", self._nvml.number, self._device, port.FANS)
        if count is None:
            return
        if count == 0:  # cooled by the chassis: the same as never
            self._capabilities.note(at_s, "fan:count", Code.NOT_SUPPORTED)
            self._held.pop("fan:count", None)
        if not possible(count, 0, 64):
            items.append(Rejection("fan", Reason.OUT_OF_RANGE))
            return
        for fan, call in enumerate(port.FAN_SPEEDS[:count]):
            percent = self._capabilities.ask(at_s, f"fan:{fan}", self._nvml.number, self._device, call)
            self._put(items, _Row("fan", catalogue.GPU_FAN, (str(fan),), 0, 200, 1e-2), percent)

    def _read_links(self, at_s: float, count: float, items: list[Item]) -> None:
        """Links by state, only when every link that exists was read: a link unread is not a link down."""
        states: list[int] = []
        refused: list[int] = []
        complete = True
        for link in self._links:
            if link >= count:
                break
            key = f"nvlink_links:{link}"
            state = self._capabilities.ask(at_s, key, self._nvml.number, self._device, port.NVLINK_STATES[link])
            if state in (0, 1):
                states.append(state)
            elif state is not None:
                items.append(Rejection("nvlink_links", Reason.OUT_OF_RANGE))
                complete = False
            elif self._capabilities.supported(key) is False:
                refused.append(link)
            else:
                complete = False
        if refused:
            self._links = tuple(link for link in self._links if link not in refused)
        if complete and states:
            active = sum(states)
            for name, number in (("active", active), ("inactive", len(states) - active)):
                items.append(Sample(catalogue.GPU_NVLINKS, (*self._labels, name), float(number)))


def _field(key: str) -> str:
    return key.partition(":")[0]
