"""What a simulated H200 answers to each NVML question: data for ``sim.nvml``.

Three kinds of answer: a fixed number, a function of the GPU's moment, and NOT_SUPPORTED where an H200 SXM says so
(no fans, no page retirement, limits only relative to the margin). Units are NVML's own.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumon.host.nvml import NVLINK_STATES, Code, Field
from gpumon.sim import noise
from gpumon.sim.story import Kind, events
from gpumon.sim.timeline import Moment
from gpumon.sim.workload import LIMIT_W, MAX_CLOCK_MHZ, SLOWDOWN_C, Rate
from gpumon.sim.world import MIB, NVLINKS, World

Answer = Callable[[Moment, float], int]
"""Number from a GPU's moment and the steady time."""

MEMORY_CLOCK_MHZ = 3_201
MAX_VIDEO_CLOCK_MHZ = 1_545
_MEMORY_BELOW_DIE_C = 11  # between the two sensors in the capture under load
_ARCHITECTURE_HOPPER = 9
_NS, _MILLI, _KIB = 1_000_000_000, 1_000, 1_024
_GB = 1_000_000_000

FIXED: dict[str, tuple[int, ...]] = {
    "max_clock_graphics": (MAX_CLOCK_MHZ,),
    "max_clock_sm": (MAX_CLOCK_MHZ,),
    "max_clock_memory": (MEMORY_CLOCK_MHZ,),
    "max_clock_video": (MAX_VIDEO_CLOCK_MHZ,),
    "clock_memory": (MEMORY_CLOCK_MHZ,),
    "supported_reasons": (0x1FF,),
    "power_enforced": (int(LIMIT_W * _MILLI),),
    "power_requested": (int(LIMIT_W * _MILLI),),
    "power_default": (int(LIMIT_W * _MILLI),),
    "power_constraints": (200 * _MILLI, int(LIMIT_W * _MILLI)),
    "pcie_generation": (5,),
    "pcie_max_generation": (5,),
    "pcie_width": (16,),
    "pcie_max_width": (16,),
    "performance_state": (0,),
    "encoder": (0, 167_000),
    "decoder": (0, 167_000),
    "jpeg": (0, 167_000),
    "ofa": (0, 167_000),
    "architecture": (_ARCHITECTURE_HOPPER,),
    "compute_capability": (9, 0),
    "ecc_mode": (1, 1),
    "mig_mode": (0, 0),
    "max_mig": (7,),
    "remapped_rows": (0, 0, 0, 0),
    **{f"nvlink_state_{link}": (1,) for link in range(NVLINKS)},
}
"""Calls by name whose answer never changes."""

CODES: dict[str, Code] = {
    **{f"nvlink_state_{link}": Code.INVALID_ARGUMENT for link in range(NVLINKS, len(NVLINK_STATES))}
}
"""Calls by name that fail in another way than NOT_SUPPORTED: a link the board lacks."""

TEXTS = {"name": "NVIDIA H200", "vbios": "96.00.D0.00.03"}

_GPM_SCALE: dict[int, tuple[tuple[Rate, float], ...]] = {
    1: ((Rate.BUSY, 100.0),),
    2: ((Rate.SM, 100.0),),
    3: ((Rate.OCCUPANCY, 100.0),),
    4: ((Rate.SM, 24.0),),  # integer pipe: addressing goes with every kernel
    5: ((Rate.TENSOR, 100.0),),
    6: ((Rate.TENSOR, 0.0),),
    7: ((Rate.TENSOR, 100.0),),
    8: ((Rate.TENSOR, 0.0),),
    9: ((Rate.TENSOR, 0.0),),
    10: ((Rate.DRAM, 100.0),),
    11: ((Rate.SM, 0.0),),
    12: ((Rate.SM, 12.0),),  # softmax and norms
    13: ((Rate.SM, 7.0), (Rate.TENSOR, 6.0)),
    20: ((Rate.PCIE_TX, 1 / MIB),),
    21: ((Rate.PCIE_RX, 1 / MIB),),
    60: ((Rate.NVLINK, 1 / MIB),),
    61: ((Rate.NVLINK, 1 / MIB),),
}


def gpm_total(metric: int, moment: Moment) -> float | None:
    """Integral of a GPM metric in its own unit (percent or MiB/s, times seconds); None where there is none."""
    terms = _GPM_SCALE.get(metric)
    return None if terms is None else sum([factor * moment.total(rate) for rate, factor in terms])


def call_answers(world: World, index: int) -> dict[str, Answer]:
    """Answers by the name of the call that move with the GPU."""
    energy = _energy(world, index)
    return {
        "clock_graphics": lambda moment, _: moment.clock_mhz,
        "clock_sm": lambda moment, _: moment.clock_mhz,
        "clock_video": lambda moment, _: moment.clock_mhz * MAX_VIDEO_CLOCK_MHZ // MAX_CLOCK_MHZ,
        "reasons": lambda moment, _: moment.reasons,
        "temperature": lambda moment, _: int(moment.temperature_c),
        "power_usage": _mean_power(world, index),
        "energy": energy,
        "minor": lambda _moment, _at_s: index,
    }


def margin_c(moment: Moment) -> int:
    """Degrees C until the die slows down; negative past it."""
    return int(SLOWDOWN_C) - int(moment.temperature_c)


def field_answer(world: World, index: int, field: Field) -> Answer | None:
    """How a field is answered; None where an H200 does not have it. Signed fields are signed numbers."""
    fixed = _FIXED_FIELDS.get(field.id)
    if fixed is not None:
        return lambda _moment, _at_s: fixed
    seed = (world.seed, index, field.id)
    match field.id:
        case 3 | 5:  # corrected ECC errors, since the driver loaded and over the board's life
            base = noise.bits(*seed) % 40 if field.id == 5 else 0
            rate = next((row.rate for row in events(Kind.ECC_CORRECTED, index)), 0.0)
            return _trickle(world, index, rate, base)
        case 94:
            rate = next((row.rate for row in events(Kind.PCIE_REPLAYS, index)), 0.0)
            return _trickle(world, index, rate, 2 + noise.bits(*seed) % 9)
        case 74:
            return _counter(Rate.CAPPED, _NS, 41 * _NS + noise.bits(*seed) % (90 * _NS))
        case 269:
            return _counter(Rate.THROTTLED, _NS, noise.bits(*seed) % (5 * _NS))
        case 82:
            return lambda moment, _: int(moment.temperature_c) - _MEMORY_BELOW_DIE_C
        case 83 | 191:
            return _energy(world, index)
        case 185:
            return _mean_power(world, index)
        case 186:
            return lambda moment, _: int(moment.rate(Rate.POWER) * _MILLI)
        case 138 | 139:  # KiB, of one link or of all
            share = 1 if field.scope == _ALL_LINKS else NVLINKS
            return _counter(Rate.NVLINK, 1 / (_KIB * share), (900 + index) * _GB // share)
        case 197:
            return _counter(Rate.PCIE_TX, 1, (310 + index) * _GB)
        case 198:
            return _counter(Rate.PCIE_RX, 1, (2_300 + index) * _GB)
        case _:
            return None


_ALL_LINKS = 0xFFFFFFFF
_FIXED_FIELDS: dict[int, int] = {
    1: 1,  # ECC is on
    4: 0,
    6: 0,
    **dict.fromkeys((38, 45, 52, 59, 160), 0),  # NVLink errors
    **dict.fromkeys((76, 77, 78, 79, 81, 270, 271), 0),  # throttle times that stay at zero
    91: NVLINKS,
    95: 0,
    **dict.fromkeys((142, 143, 144, 145), 0),  # row remapping
    164: 26_562,  # MB/s of one link
    187: 200 * _MILLI,
    **dict.fromkeys((188, 189, 190, 192), int(LIMIT_W * _MILLI)),
    193: -8,
    194: -2,
    195: 0,
    196: 0,
    230: 0,
}


def _counter(rate: Rate, factor: float, base: int) -> Answer:
    # Never below the base by more than it holds: bases outlast any time before the story began.
    return lambda moment, _: max(0, base + int(moment.total(rate) * factor))


def _energy(world: World, index: int) -> Answer:
    # The driver was loaded long before: the servers' uptime at a usual power.
    return _counter(Rate.POWER, _MILLI, 3_200_000_000 + noise.bits(world.seed, index, 83) % 900_000_000)


def _mean_power(world: World, index: int) -> Answer:
    def answer(moment: Moment, at_s: float) -> int:
        # NVML's average is over the last second on Ampere and newer.
        joules = moment.total(Rate.POWER) - world.gpu(index, at_s - 1.0).total(Rate.POWER)
        return int(joules * _MILLI)

    return answer


def _trickle(world: World, index: int, rate: float, base: int) -> Answer:
    if rate == 0.0:
        return lambda _moment, _at_s: base
    period_s = 1 / rate
    return lambda _moment, at_s: base + noise.ticks(max(0.0, world.story_s(at_s)), period_s, world.seed, index, 94)
