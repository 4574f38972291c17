"""Answers and rungs with known times, for what is worked out of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from gpumon.probe.asking import OK, Answer
from gpumon.probe.climbing import Climbed, State
from gpumon.probe.ladder import Cell
from gpumon.probe.measured import rung
from gpumon.probe.model import Conditions, GpuConditions, Rung


def answered(
    first_s: float, gaps_s: Sequence[float] = (), *, prompt: int | None = None, trace: str = "a" * 32
) -> Answer:
    """One that succeeded."""
    at, times = first_s, array("q", [round(first_s * 1e9)])
    for gap_s in gaps_s:
        at += gap_s
        times.append(round(at * 1e9))
    return Answer(trace, 10, OK, "", times, times[-1], prompt, len(times) if prompt else None, sent=True)


def failed(outcome: str, said: str = "") -> Answer:
    return Answer("f" * 32, 10, outcome, said, sent=True)


def climbed(aim: int, answers: Sequence[Answer], *, concurrency: int = 1, state: State = State.MEASURED) -> Climbed:
    """A rung that took ten seconds."""
    return Climbed(Cell(concurrency, aim, len(answers)), state, list(answers), [], 10**9, 11 * 10**9)


def rungs(*each: Climbed) -> list[Rung]:
    return [rung(one, None, ()) for one in each]


def conditions(**changed: object) -> Conditions:
    """All that gpumon can tell."""
    gpu = GpuConditions(
        gpu="0",
        uuid="GPU-1",
        sm_active=0.9,
        dram_active=0.4,
        utilization=1.0,
        clock_hertz=1.98e9,
        clock_least_hertz=1.4e9,
        throttled_seconds={"sw_power": 2.5},
    )
    known = Conditions(
        seconds=10.0,
        looks=11,
        gpus=[gpu],
        process_major_faults=250.0,
        host_major_faults=300.0,
        kv_usage=0.97,
        waiting=3.0,
        preemptions=20.0,
    )
    return known.model_copy(update=changed)
