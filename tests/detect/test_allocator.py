"""Memory that an allocator holds and does not use, more by the minute."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpumon import catalogue
from gpumon.detect.allocator import AllocatorGap
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.model import Unit
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence

SERVER = ("vllm", "llama-70b", "127.0.0.1:8000")
GIB = float(1 << 30)
ALLOCATED = 60 * GIB


def test_what_is_told_of_it_is_complete() -> None:
    check_described(AllocatorGap)


def test_the_window_is_above_zero() -> None:
    with pytest.raises(ValueError, match="window_s"):
        AllocatorGap(window_s=0.0)


def play(
    seconds: int,
    gap: Callable[[float], float],
    *,
    allocated: Callable[[float], float] = lambda _: ALLOCATED,
    step_s: float = 1.0,
) -> list[tuple[float, Finding]]:
    """gap, allocated: bytes by seconds since the beginning. Findings with the seconds at which they came."""
    stage, detector = Stage(), AllocatorGap()
    found: list[tuple[float, Finding]] = []
    for _ in range(round(seconds / step_s)):
        at_s = stage.at_s - BEGIN_S
        for state, value in (("allocated", allocated(at_s)), ("reserved", allocated(at_s) + gap(at_s))):
            stage.put({(catalogue.SERVER_ALLOCATOR, (*SERVER, state)): value})
        found += [(stage.at_s - BEGIN_S, finding) for finding in detector.step(stage.step(step_s))]
    return found


@pytest.mark.parametrize("step_s", [1.0, 2.0, 10.0])
def test_a_gap_that_keeps_growing_is_found_with_its_figures(step_s: float) -> None:
    noise = random.Random(1)

    def gap(at_s: float) -> float:
        leak = 0.03 * GIB * max(0.0, at_s - 300.0)
        return GIB + leak + noise.random() * (2 * GIB if step_s < 5 else 0.2 * GIB)

    found = play(700, gap, step_s=step_s)
    began_s, finding = found[0]
    assert 350 < began_s < 440
    assert finding.entity == Entity("server", "vllm/llama-70b at 127.0.0.1:8000")
    assert finding.severity is Severity.WARNING
    assert 250 <= finding.since_s - BEGIN_S <= 320
    unused, growth = (evidence(found[-1][1], name) for name in ("unused", "unused_growth_per_minute"))
    assert unused.baseline is not None
    assert unused.observed - unused.baseline == pytest.approx(0.03 * GIB * 110, rel=0.3)
    assert growth.observed == pytest.approx(0.03 * GIB * 60, rel=0.3)
    assert unused.unit is Unit.BYTES
    assert evidence(finding, "allocated").observed == ALLOCATED


def test_it_is_over_when_it_no_longer_grows() -> None:
    found = play(700, lambda at_s: GIB + 0.05 * GIB * min(max(0.0, at_s - 100.0), 200.0))
    assert 150 < found[0][0] < 240
    assert 290 < found[-1][0] < 360


def _noisy(floor: float, swing: float) -> Callable[[float], float]:
    noise = random.Random(3)
    return lambda _: floor + swing * noise.random()


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("level", lambda _: 2 * GIB),
        ("up and down with the load", _noisy(GIB, 20 * GIB)),
        ("growth of a few hundred MiB", lambda at_s: GIB + 0.004 * GIB * at_s),
        ("one step up", lambda at_s: GIB if at_s < 300 else 9 * GIB),
        ("a wave of ten minutes", lambda at_s: 10 * GIB - abs(at_s % 600 - 300) * 0.002 * GIB),
        ("only while it warms up", lambda at_s: GIB + 0.1 * GIB * min(at_s, 70.0)),
    ],
)
def test_what_is_no_growing_gap(name: str, gap: Callable[[float], float]) -> None:
    assert play(900, gap) == []


def test_growth_of_what_is_allocated_is_none() -> None:
    assert play(600, lambda _: GIB, allocated=lambda at_s: ALLOCATED + 0.05 * GIB * at_s) == []


def test_a_restart_begins_anew_with_a_time_to_warm_up() -> None:
    def gap(at_s: float) -> float:
        return GIB + 0.05 * GIB * (at_s % 300)

    def allocated(at_s: float) -> float:
        return ALLOCATED if at_s % 300 > 10 else GIB

    times = [at_s for at_s, _ in play(1200, gap, allocated=allocated)]
    assert times
    assert all((at_s - 1) % 300 > 170 for at_s in times)


def test_without_one_of_the_two_nothing_is_said_and_a_gone_server_is_forgotten() -> None:
    stage, detector = Stage(), AllocatorGap()
    stage.put({(catalogue.SERVER_ALLOCATOR, (*SERVER, "reserved")): 9 * GIB})
    assert stage.run(detector, 100) == []
    stage.put({(catalogue.SERVER_ALLOCATOR, (*SERVER, "allocated")): 8 * GIB})
    assert stage.run(detector, 10) == []
    assert len(detector._allocators) == 1
    stage.drop(catalogue.SERVER_ALLOCATOR)
    assert stage.run(detector, 100) == []
    assert len(detector._allocators) == 0
