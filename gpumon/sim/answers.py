"""What a simulated board answers to each NVML question: data for ``sim.nvml``.

Fixed numbers, what moves with the GPU, and NOT_SUPPORTED where an SXM board says so (no fans, no page retirement,
temperature limits only relative to the margin). Units are NVML's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpumon.host.nvml import NVLINK_STATES, Code, Field
from gpumon.sim.look import Look
from gpumon.sim.state import Rate
from gpumon.sim.world import MIB, Model

Answer = Callable[[Look], int]
"""From the state at hand."""

_ALL_LINKS = 0xFFFFFFFF
_MEMORY_BELOW_DIE_C = 11  # between the two sensors of an H200 under load, by a public capture
_NS, _MILLI, _KIB = 1e9, 1e3, 1024


class Counter(NamedTuple):
    """A field that is an integral."""

    rate: Rate
    factor: float


def fixed_calls(model: Model, index: int) -> dict[str, tuple[int, ...]]:
    """Calls by name whose answer never changes."""
    limit_mw = int(model.limit_w * _MILLI)
    codecs = dict.fromkeys(("encoder", "decoder", "jpeg", "ofa"), (0, 167_000))
    return codecs | {
        "max_clock_graphics": (model.max_clock_mhz,),
        "max_clock_sm": (model.max_clock_mhz,),
        "max_clock_memory": (model.memory_clock_mhz,),
        "max_clock_video": (model.max_video_clock_mhz,),
        "clock_memory": (model.memory_clock_mhz,),
        "supported_reasons": (0x1FF,),
        "power_default": (limit_mw,),
        "power_constraints": (int(model.least_limit_w * _MILLI), limit_mw),
        "pcie_max_generation": (model.pcie_generation,),
        "pcie_max_width": (model.pcie_width,),
        "architecture": (model.architecture,),
        "compute_capability": model.compute_capability,
        "ecc_mode": (1, 1),
        "mig_mode": (0, 0),
        "max_mig": (7,),
        "minor": (index,),
    }


def moving_calls(model: Model) -> dict[str, Callable[[Look], tuple[int, ...]]]:
    """Calls by name whose answer moves with the GPU."""
    video = model.max_video_clock_mhz / model.max_clock_mhz

    def link_state(link: int) -> Callable[[Look], tuple[int, ...]]:
        return lambda look: (int(link < look.hardware.nvlinks_active),)

    return {
        "clock_graphics": lambda look: (look.moment.clock_mhz,),
        "clock_sm": lambda look: (look.moment.clock_mhz,),
        "clock_video": lambda look: (int(look.moment.clock_mhz * video),),
        "reasons": lambda look: (look.moment.reasons,),
        "performance_state": lambda look: (look.moment.performance_state,),
        "temperature": lambda look: (int(look.moment.temperature_c),),
        "power_usage": lambda look: (look.mean_power_mw(),),
        "power_enforced": lambda look: (int(look.enforced_limit_w() * _MILLI),),
        "power_requested": lambda look: (int(look.enforced_limit_w() * _MILLI),),
        "energy": lambda look: (int(look.moment.total(Rate.POWER) * _MILLI),),
        "pcie_generation": lambda look: (look.hardware.pcie_generation,),
        "pcie_width": lambda look: (look.hardware.pcie_width,),
        "remapped_rows": lambda look: _remapped(look),
        **{f"nvlink_state_{link}": link_state(link) for link in range(model.nvlinks)},
    }


def refusals(model: Model) -> dict[str, Code]:
    """Calls by name that fail in another way than NOT_SUPPORTED: links that the board lacks."""
    return {f"nvlink_state_{link}": Code.INVALID_ARGUMENT for link in range(model.nvlinks, len(NVLINK_STATES))}


GPM: dict[int, tuple[tuple[Rate, float], ...]] = {
    1: ((Rate.BUSY, 100.0),),
    2: ((Rate.SM, 100.0),),
    3: ((Rate.OCCUPANCY, 100.0),),
    4: ((Rate.SM, 24.0),),  # integer pipe: addressing goes with every kernel
    5: ((Rate.TENSOR, 100.0),),
    6: (),
    7: ((Rate.TENSOR, 100.0),),
    8: (),
    9: (),
    10: ((Rate.DRAM, 100.0),),
    11: (),
    12: ((Rate.SM, 12.0),),  # softmax and norms
    13: ((Rate.SM, 7.0), (Rate.TENSOR, 6.0)),
    20: ((Rate.PCIE_TX, 1 / MIB),),
    21: ((Rate.PCIE_RX, 1 / MIB),),
    60: ((Rate.NVLINK, 1 / MIB),),
    61: ((Rate.NVLINK, 1 / MIB),),
}
"""GPM metrics as sums of rates, in their own unit: percent or MiB/s."""


def field_answer(model: Model, field: Field) -> int | Counter | Answer | None:
    """How a field is answered; None where the board does not have it. Signed fields are signed numbers."""
    if field.id in (138, 139):  # KiB, of one link or of all
        links = 1 if field.scope == _ALL_LINKS else model.nvlinks
        return Counter(Rate.NVLINK, 1 / (_KIB * links))
    if field.id == 91:
        return model.nvlinks
    if field.id == 164:
        return int(model.nvlink_bytes_s / 1e6)
    if field.id in (187, 188, 189):  # least, most and default power limit
        return int((model.least_limit_w if field.id == 187 else model.limit_w) * _MILLI)
    return _FIELDS.get(field.id)


def _remapped(look: Look) -> tuple[int, int, int, int]:
    hardware = look.hardware
    return (*hardware.rows_remapped, int(hardware.row_remap_pending), int(hardware.row_remap_failed))


_FIELDS: dict[int, int | Counter | Answer] = {
    1: 1,  # ECC is on
    3: lambda look: look.hardware.ecc_corrected,  # since the driver loaded
    4: lambda look: look.hardware.ecc_uncorrected,
    5: lambda look: look.hardware.ecc_corrected,  # over the board's life
    6: lambda look: look.hardware.ecc_uncorrected,
    38: lambda look: look.hardware.nvlink_errors,
    **dict.fromkeys((45, 52, 59, 160), 0),
    74: Counter(Rate.POWER_CAPPED, _NS),
    269: Counter(Rate.THERMAL, _NS),
    270: Counter(Rate.HW_THERMAL, _NS),
    271: Counter(Rate.POWER_BRAKE, _NS),
    **dict.fromkeys((76, 77, 78, 79, 81), 0),  # throttle times that stay at zero
    82: lambda look: int(look.moment.temperature_c) - _MEMORY_BELOW_DIE_C,
    83: Counter(Rate.POWER, _MILLI),
    94: lambda look: look.hardware.pcie_replays,
    95: 0,
    142: lambda look: look.hardware.rows_remapped[0],
    143: lambda look: look.hardware.rows_remapped[1],
    144: lambda look: int(look.hardware.row_remap_pending),
    145: lambda look: int(look.hardware.row_remap_failed),
    185: lambda look: look.mean_power_mw(),
    186: lambda look: int(look.moment.rate(Rate.POWER) * _MILLI),
    190: lambda look: int(look.enforced_limit_w() * _MILLI),
    191: Counter(Rate.POWER, _MILLI),
    192: lambda look: int(look.enforced_limit_w() * _MILLI),
    193: -8,
    194: -2,
    195: 0,
    196: 0,
    197: Counter(Rate.PCIE_TX, 1.0),
    198: Counter(Rate.PCIE_RX, 1.0),
    230: lambda look: look.hardware.recovery_action,
}
