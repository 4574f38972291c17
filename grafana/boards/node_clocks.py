"""Rows of gpumon-node: clocks against what held them down, power and energy, heat."""

from __future__ import annotations

from typing import Final

from gpumon import catalogue as c
from grafana import panels
from grafana.boards.node_activity import BY_GPU, GPU
from grafana.columns import WARN_ABOVE_ZERO, colored
from grafana.kit import Board
from grafana.queries import Query, increase, rate, select, where

HELD: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "power limit": (("sw_power_cap",), "blue"),
    "other limit": (("sync_boost", "board_limit", "reliability"), "yellow"),
    "heat": (("sw_thermal",), "orange"),
    "hardware slowdown": (("hw_slowdown", "hw_power_brake"), "red"),
    "heat, by hardware": (("hw_thermal",), "dark-red"),
}
"""What held clocks down, the gravest last. Idleness (low_utilization) is not among them, and base_clocks is a part of
the others."""
_HELD_SHARE = 0.05
_NOT_IDLE = 'reason!="low_utilization"'


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("Clocks and throttling", (12, _clocks()), (12, _held_by_gpu()))
    board.add((12, _throttled()), (12, _performance_state()))
    board.row("Power and energy", (12, _power()), (12, _power_share()))
    board.add((8, _power_samples()), (8, _limits()), (8, _energy()))
    board.row("Heat", (12, _margin()), (12, _temperature()))


def _clocks() -> panels.Panel:
    return panels.graph(
        "SM clock over the board's highest",
        "1 is full speed. Below it while the timeline at the right is coloured, something holds the clock down. Below "
        "it with nothing there, the GPU is idle, or somebody locked the clocks (nvidia-smi -q -d CLOCK).",
        Query(
            f"{select(c.GPU_CLOCK, where('domain', 'sm'))} / {select(c.GPU_CLOCK_MAX, where('domain', 'sm'))}",
            GPU,
        ),
        unit="percentunit",
        most=1,
    )


def _held_by_gpu() -> panels.Panel:
    arms = []
    for number, (reasons, _) in enumerate(HELD.values(), 1):
        held = rate(c.GPU_THROTTLED_SECONDS, where("reason", *reasons))
        arms.append(f"{number} * ({held} > bool {_HELD_SHARE})")
    words = {str(number): (name, color) for number, (name, (_, color)) in enumerate(HELD.items(), 1)}
    steps = [(None, "green"), *((number, color) for number, (_, color) in enumerate(HELD.values(), 1))]
    return panels.states(
        "What held the clock of each GPU down",
        "The gravest reason that held it down for more than 5 % of a step. Blue is the power limit: normal for a GPU at "
        "full work. Orange and dark red: fans, inlet temperature, air flow of the slot. Red: power supply, cables, or "
        "the rack's power brake.",
        Query(f"max {BY_GPU} ({' or '.join(arms)})", GPU),
        mappings=panels.values({"0": ("nothing", "green")} | words),
        steps=steps,
    )


def _throttled() -> panels.Panel:
    return panels.graph(
        "Throttled time by reason, of the worst GPU",
        "Share of time in which the reason held the clock down, of the GPU that it held down most. The GPU counts this "
        "itself, so nothing between two scrapes is missed. Reasons overlap: hw_slowdown is also set for heat and for "
        "the power brake, base_clocks for any of them. Clocks that are low because the GPU is idle are left out.",
        Query(f"max by (cluster, node, reason) ({rate(c.GPU_THROTTLED_SECONDS, _NOT_IDLE)})", "{{node}} {{reason}}"),
        unit="percentunit",
        most=1,
        steps=((None, "green"), (_HELD_SHARE, "orange")),
    )


def _performance_state() -> panels.Panel:
    return panels.states(
        "P-state",
        "0 is fastest. A GPU under load is in 0 to 2; a higher number under load means a driver without persistence "
        "mode, or a GPU that fell back.",
        Query(select(c.GPU_PERFORMANCE_STATE), GPU),
        steps=((None, "green"), (3, "yellow"), (8, "super-light-blue")),
    )


def _power() -> panels.Panel:
    return panels.graph(
        "Power",
        "Mean power, from the GPU's own energy counter: no reading in between is missed. A GPU that needs less than "
        "others at the same work is slowed down or starved.",
        Query(rate(c.GPU_ENERGY), GPU),
        unit="watt",
    )


def _power_share() -> panels.Panel:
    limit = select(c.GPU_POWER_LIMIT, where("kind", "enforced"))
    return panels.graph(
        "Power over the enforced limit",
        "At 1 the limit holds the clock down: compare throttled time by sw_power_cap. Short peaks are in the samples "
        "below, not here.",
        Query(f"({rate(c.GPU_ENERGY)}) / on (cluster, node, gpu, uuid) group_left () ({limit})", GPU),
        unit="percentunit",
        steps=((None, "green"), (1, "orange")),
        most=1.2,
    )


def _power_samples() -> panels.Panel:
    return panels.bucket_heatmap(
        "Power: samples of 100 ms",
        "How the samples of all GPUs selected were spread. Peaks far above the mean are what power supplies and the "
        "rack's breakers see.",
        Query(f"sum by (le) ({increase(c.GPU_POWER_SAMPLES, suffix='_bucket')})"),
        unit="watt",
        exemplars=False,
    )


def _limits() -> panels.Panel:
    def limit(kind: str) -> str:
        return f"max {BY_GPU} ({select(c.GPU_POWER_LIMIT, where('kind', kind))})"

    panel = panels.rows(
        "Power limits",
        "Enforced is the least of all limits, and the one that acts. Below the default, somebody or something lowered "
        "it: nvidia-smi -q -d POWER says what, nvidia-smi -pl sets it back.",
        Query(limit("enforced")),
        Query(limit("default")),
        Query(f"({limit('default')}) - ({limit('enforced')})"),
        rename={"node": "Node", "gpu": "GPU", "Value #A": "Enforced", "Value #B": "Default", "Value #C": "Lowered by"},
        order=("node", "gpu", "Value #A", "Value #B", "Value #C"),
        unit="watt",
        sort_by="Lowered by",
        empty=panels.NO_DATA,
    )
    return colored(panel, "Lowered by", steps=WARN_ABOVE_ZERO)


def _energy() -> panels.Panel:
    return panels.bars(
        "Energy in this time",
        "By GPU, over the time selected. Energy per token is in gpumon / Fleet.",
        Query(f"sum {BY_GPU} ({increase(c.GPU_ENERGY, window='$__range')})", GPU, instant=True),
        unit="joule",
    )


def _margin() -> panels.Panel:
    slowdown = select(c.GPU_TEMPERATURE_LIMIT, where("limit", "slowdown"))
    now = select(c.GPU_TEMPERATURE, where("sensor", "gpu"))
    computed = f"sum {BY_GPU} ({slowdown}) - sum {BY_GPU} ({now})"
    return panels.graph(
        "Degrees until the GPU slows down for heat",
        "The one figure of heat that means the same on every board: at 0 it slows down. As the GPU states it; of older "
        "ones, the slowdown temperature minus the temperature. One GPU far below its neighbours: its slot's air flow; "
        "all of them: the inlet.",
        Query(f"sum {BY_GPU} ({select(c.GPU_TEMPERATURE_MARGIN)}) or ({computed})", GPU),
        unit="celsius",
        least=None,
        steps=((None, "red"), (0, "orange"), (10, "green")),
    )


def _temperature() -> panels.Panel:
    return panels.graph(
        "Temperature of GPU and memory",
        "What is hot differs between boards: judge by the margin at the left. Memory has a limit of its own, and can "
        "be the cause of throttling while the GPU is cool.",
        Query(select(c.GPU_TEMPERATURE), f"{GPU} {{{{sensor}}}}"),
        unit="celsius",
    )
