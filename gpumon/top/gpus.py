"""The GPUs of ``gpumon top``: a line each, with their MIG instances under them.

What limits a GPU: reasons that hold its clocks down, now or in the last minute, and what its time went into in the last
minute. SM and DRAM activity need GPM (Hopper and newer); without it there is the share of time in which any kernel ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rich.text import Text

from gpumon.shown import percent, shown
from gpumon.terminal import bar, printable
from gpumon.top.answers import Gpu, GpuProcess, Mig
from gpumon.top.table import Column, table

WIDE: Final = 110
"""From so many columns on shares have bars."""
BAR: Final = 8
HOT_MARGIN_CELSIUS: Final = 5.0
NEAR_LIMIT: Final = 0.97
"""Of the power limit."""
LITTLE: Final = 0.01
"""Of a minute: less is not told."""
_HELD: Final = {
    "sw_power_cap": "power cap",
    "sw_thermal": "heat",
    "hw_thermal": "heat",
    "hw_slowdown": "hardware slowdown",
    "hw_power_brake": "power brake",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
}
_NO_LIMIT: Final = "low_utilization"
"""There is nothing to do, so the clocks are low: nothing is held back."""
_KINDS_OF_SLOWDOWN: Final = {"hw_thermal", "hw_power_brake"}
"""With these the driver sets hw_slowdown as well."""
_NAMES: Final = 8
"""Of processes and pods, looked at."""
_DASH: Final = "-"


class Order(NamedTuple):
    """How GPUs are sorted: by name of the order, and by what. GPUs that do not tell come last."""

    name: str
    key: Callable[[Gpu], float | None]


ORDERS: Final = (
    Order("index", lambda _: 0.0),
    Order("SM", lambda gpu: gpu.sm_active if gpu.sm_active is not None else gpu.utilization),
    Order("DRAM", lambda gpu: gpu.dram_active),
    Order("power", lambda gpu: gpu.power_watts),
    Order("heat", lambda gpu: gpu.temperature_celsius),
    Order("memory", lambda gpu: gpu.memory_used_bytes),
    Order("held down", lambda gpu: _held_share(gpu)),
)


def ordered(gpus: Sequence[Gpu], order: Order) -> list[Gpu]:
    """The most first; alike as they came, which is by index."""

    def key(gpu: Gpu) -> float:
        value = order.key(gpu)
        return float("inf") if value is None else -value

    return sorted(gpus, key=key)


def gpu_lines(gpus: Sequence[Gpu], width: int, order: Order) -> list[Text]:
    """All GPUs."""
    has_sm = any(gpu.sm_active is not None for gpu in gpus) or any(gpu.mig for gpu in gpus)
    is_wide = width >= WIDE
    columns = [Column("GPU", is_text=True, least=4)]
    columns += [Column("SM"), Column("DRAM")] if has_sm else [Column("busy")]
    columns += [
        Column("W/limit"),
        Column("MHz"),
        Column("°C"),
        Column("GB used"),
        Column("limited by", is_text=True, least=14),
        Column("on it", is_text=True, least=8, rank=1),
    ]
    rows = []
    for gpu in ordered(gpus, order):
        rows.append(_row(gpu, has_sm, is_wide))
        rows += [_mig_row(gpu, mig, is_wide) for mig in gpu.mig]
    return table(columns, rows, width)


def _row(gpu: Gpu, has_sm: bool, is_wide: bool) -> list[Text]:
    name = Text(printable(gpu.gpu, 8))
    if gpu.incidents:
        is_critical = any(each.severity == "critical" for each in gpu.incidents)
        name.append("!", style="bold red" if is_critical else "bold yellow")
    shares = (gpu.sm_active, gpu.dram_active) if has_sm else (gpu.utilization,)
    if not gpu.present:
        return [name, *(Text(_DASH) for _ in shares), *_dashes(4), Text("lost or hung", style="bold red"), Text()]
    return [
        name,
        *(_share(share, is_wide) for share in shares),
        _power(gpu),
        Text(shown(_scaled(gpu.sm_clock_hertz, 1e6), "")),
        _temperature(gpu),
        _memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        _limits(gpu),
        Text(_on_it(gpu.processes, gpu.processes_left_out)),
    ]


def _mig_row(gpu: Gpu, mig: Mig, is_wide: bool) -> list[Text]:
    name = f" {printable(gpu.gpu, 4)}.{printable(mig.gpu_instance, 3)}"
    shares = _share(mig.sm_active, is_wide), _share(mig.dram_active, is_wide)
    memory = _memory(mig.memory_used_bytes, mig.memory_total_bytes)
    profile = Text(f"MIG {printable(mig.profile, 24)}", style="dim")
    return [Text(name), *shares, *_dashes(3), memory, profile, Text()]


def _dashes(count: int) -> list[Text]:
    return [Text(_DASH) for _ in range(count)]


def _share(share: float | None, is_wide: bool) -> Text:
    if share is None:
        return Text(_DASH)
    figure = percent(share)
    return Text.assemble((f"{bar(min(share, 1.0), BAR):<{BAR}}", "cyan"), f" {figure:>5}") if is_wide else Text(figure)


def _power(gpu: Gpu) -> Text:
    watts, limit = gpu.power_watts, gpu.power_limit_watts
    is_near = watts is not None and limit is not None and limit > 0.0 and watts >= NEAR_LIMIT * limit
    return Text(f"{shown(watts, '')}/{shown(limit, '')}", style="yellow" if is_near else "")


def _temperature(gpu: Gpu) -> Text:
    margin = gpu.temperature_margin_celsius
    is_hot = margin is not None and margin <= HOT_MARGIN_CELSIUS
    return Text(shown(gpu.temperature_celsius, ""), style="bold red" if is_hot else "")


def _memory(used: float | None, total: float | None) -> Text:
    return Text(f"{shown(_scaled(used, 1e9), '')}/{shown(_scaled(total, 1e9), '')}")


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _limits(gpu: Gpu) -> Text:
    parts = [Text(f"{reason} now", style=_colour(reason)) for reason in _reasons(gpu.throttled_by or ())]
    now = {part.plain.removesuffix(" now") for part in parts}
    shares: dict[str, float] = {}
    for reason, share in gpu.throttled.items():
        for name in _reasons([reason] if reason != "hw_slowdown" or not _KINDS_OF_SLOWDOWN & {*gpu.throttled} else []):
            shares[name] = max(share, shares.get(name, 0.0))
    parts += [
        Text(f"{name} {percent(share)}", style=_colour(name))
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= LITTLE and name not in now
    ]
    if gpu.bound:
        state = max(gpu.bound, key=lambda each: (gpu.bound or {})[each])
        parts.append(Text(f"{printable(state, 20)} {percent(gpu.bound[state])}"))
    if not parts and gpu.throttled_by is None:
        return Text(_DASH)
    return Text(", ").join(parts)


def _reasons(names: Sequence[str]) -> list[str]:
    """In words, each once."""
    told = [name for name in names if name != _NO_LIMIT]
    if _KINDS_OF_SLOWDOWN & {*told}:
        told = [name for name in told if name != "hw_slowdown"]
    return list(dict.fromkeys(_HELD.get(name) or printable(name, 24).replace("_", " ") for name in told))


def _colour(reason: str) -> str:
    return "yellow" if reason in ("power cap", "sync boost", "board limit") else "bold red"


def _held_share(gpu: Gpu) -> float:
    """For the order: held down now before held down lately."""
    now = [reason for reason in gpu.throttled_by or () if reason != _NO_LIMIT]
    lately = [share for reason, share in gpu.throttled.items() if reason != _NO_LIMIT]
    return (2.0 if now else 0.0) + max(lately, default=0.0)


def _on_it(processes: Sequence[GpuProcess], left_out: int) -> str:
    """Pods, where there are any, else processes; the one with most memory first."""
    names = [f"{each.namespace}/{each.pod}" if each.pod else each.process for each in processes]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    told = [printable(name) + (f" x{count}" if count > 1 else "") for name, count in counts.items() if name]
    more = len(told) - _NAMES + left_out if len(told) > _NAMES else left_out
    return ", ".join(told[:_NAMES]) + (f" +{more}" if more else "")
