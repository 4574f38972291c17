"""PCIe links that are slow or full, and links of idle GPUs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Finding, Severity
from gpumon.detect.pcie import LANE_BYTES_S, PcieDegraded, PcieSaturated
from tests.detect.scenes import Series, Stage, check_described, evidence, gpu

X16_GEN5 = 16 * 3.938e9


def link(stage: Stage, width: float = 16.0, generation: float = 5.0, index: int = 0) -> None:
    """What is read of a link whose highest is 16 lanes of generation 5."""
    of = gpu(index)
    stage.put(
        {
            (c.GPU_PCIE_WIDTH, (*of, "current")): width,
            (c.GPU_PCIE_WIDTH, (*of, "max")): 16.0,
            (c.GPU_PCIE_GENERATION, (*of, "current")): generation,
            (c.GPU_PCIE_GENERATION, (*of, "max")): 5.0,
        },
        owner="slow",
    )


def busy(stage: Stage, utilization: float, index: int = 0) -> None:
    stage.put({(c.GPU_UTILIZATION, gpu(index)): utilization})


def run(stage: Stage, detector: PcieDegraded, seconds: int) -> list[Finding]:
    """Steps of a second; the link is read every 5 s."""
    found: list[Finding] = []
    for step in range(seconds):
        stage.silent = set() if step % 5 == 0 else {"slow"}
        found += detector.step(stage.step())
    return found


# --- degraded -------------------------------------------------------------------------------------------------------


def test_a_narrow_link_under_load_is_found_at_its_second_reading() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage)
    busy(stage, 0.9)
    assert run(stage, detector, 20) == []
    link(stage, width=8.0)
    began_s = stage.at_s + 1  # when it is read
    found = run(stage, detector, 10)
    assert len(found) == 5
    assert found[0].since_s == began_s
    assert found[0].severity is Severity.WARNING
    assert evidence(found[0], "pcie_link_width")[1:] == (8.0, c.GPU_PCIE_WIDTH.unit, 16.0)
    assert evidence(found[0], "pcie_capacity_bytes_per_second").observed == X16_GEN5 / 2
    assert evidence(found[0], "pcie_capacity_bytes_per_second").baseline == X16_GEN5
    assert found[0].summary == "PCIe link at 8 of 16 lanes under load"
    link(stage)
    assert run(stage, detector, 10) == []


def test_a_low_generation_under_load_is_found() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, width=8.0, generation=1.0)
    busy(stage, 0.9)
    found = run(stage, detector, 20)
    assert found[0].summary == "PCIe link at 8 of 16 lanes and generation 1 instead of 5 under load"


def test_an_idle_gpu_may_lower_its_link() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, width=8.0, generation=1.0)
    busy(stage, 0.0)
    assert run(stage, detector, 60) == []
    stage.drop(c.GPU_UTILIZATION)  # nobody tells
    assert run(stage, detector, 60) == []


def test_a_reading_taken_while_the_gpu_had_only_just_begun_to_work_is_none() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, generation=1.0)
    for _ in range(10):  # work for a second in every ten
        busy(stage, 1.0)
        assert run(stage, detector, 1) == []
        busy(stage, 0.0)
        assert run(stage, detector, 9) == []


def test_a_low_performance_state_is_by_wish() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, generation=1.0)
    busy(stage, 0.5)
    stage.put({(c.GPU_PERFORMANCE_STATE, gpu()): 8.0})
    assert run(stage, detector, 30) == []
    stage.put({(c.GPU_PERFORMANCE_STATE, gpu()): 0.0})
    assert run(stage, detector, 30)


def test_a_degraded_link_stays_so_while_the_gpu_idles() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, width=4.0)
    busy(stage, 0.9)
    run(stage, detector, 20)
    busy(stage, 0.0)
    assert len(run(stage, detector, 20)) == 20


def test_a_link_whose_highest_is_not_told_and_a_gpu_that_vanished_are_silent() -> None:
    stage, detector = Stage(), PcieDegraded()
    link(stage, width=4.0)
    busy(stage, 0.9)
    stage.drop(c.GPU_PCIE_WIDTH, labels=(*gpu(), "max"))
    assert run(stage, detector, 30) == []
    link(stage, width=4.0)
    assert run(stage, detector, 30)
    stage.drop(c.GPU_PCIE_WIDTH, c.GPU_PCIE_GENERATION)
    assert run(stage, detector, 6) == []
    link(stage, width=4.0)
    assert run(stage, detector, 5) == []  # judged anew


# --- saturated ------------------------------------------------------------------------------------------------------


def flow(rx: float, tx: float = 0.0) -> dict[Series, float]:
    return {(c.GPU_PCIE_BYTES, (*gpu(), "rx")): rx, (c.GPU_PCIE_BYTES, (*gpu(), "tx")): tx}


def saturate(stage: Stage, detector: PcieSaturated, seconds: int, rx: float, tx: float = 0.0) -> list[Finding]:
    return stage.run(detector, seconds, each=lambda: stage.grow(flow(rx, tx)))


def test_a_full_link_is_found_after_three_seconds() -> None:
    stage, detector = Stage(), PcieSaturated()
    link(stage)
    assert saturate(stage, detector, 10, 0.5 * X16_GEN5) == []
    began_s = stage.at_s
    assert saturate(stage, detector, 2, 0.92 * X16_GEN5, 3e9) == []
    (found,) = saturate(stage, detector, 1, 0.92 * X16_GEN5, 3e9)
    assert found.since_s == began_s
    assert found.entity.gpu == "0"
    assert evidence(found, "pcie_used").observed == pytest.approx(0.92)
    assert evidence(found, "pcie_bytes_per_second").observed == pytest.approx(0.92 * X16_GEN5)
    assert found.summary == "PCIe rx 58.0 of 63.0 GB/s"
    assert saturate(stage, detector, 2, 1e9) == []
    (again,) = saturate(stage, detector, 1, 0.9 * X16_GEN5)
    assert again.since_s == began_s  # a short break
    assert saturate(stage, detector, 20, 1e9) == []
    assert saturate(stage, detector, 2, 0.9 * X16_GEN5) == []


def test_a_short_transfer_fills_no_link() -> None:
    stage, detector = Stage(), PcieSaturated()
    link(stage)
    for _ in range(10):
        assert saturate(stage, detector, 2, 0.95 * X16_GEN5) == []
        assert saturate(stage, detector, 3, 1e9) == []


def test_a_narrow_link_is_full_sooner() -> None:
    stage, detector = Stage(), PcieSaturated()
    link(stage, width=4.0)
    found = saturate(stage, detector, 10, 0.9 * X16_GEN5 / 4)
    assert evidence(found[0], "pcie_capacity_bytes_per_second").observed == X16_GEN5 / 4


def test_a_link_read_while_the_gpu_idled_is_no_measure_of_the_flow_after_it() -> None:
    stage, detector = Stage(), PcieSaturated()
    link(stage, generation=1.0)
    saturate(stage, detector, 1, 0.0)
    stage.silent = {"slow"}
    assert saturate(stage, detector, 5, 20e9) == []
    stage.silent = set()
    link(stage)
    assert saturate(stage, detector, 5, 20e9) == []


def test_a_link_that_is_really_slow_is_found_when_it_was_read_again() -> None:
    stage, detector = Stage(), PcieSaturated()
    link(stage, generation=1.0)
    saturate(stage, detector, 1, 0.0)
    began_s = stage.at_s
    stage.silent = {"slow"}
    assert saturate(stage, detector, 5, 3.8e9) == []
    stage.silent = set()
    (found,) = saturate(stage, detector, 1, 3.8e9)
    assert found.since_s == began_s


def test_an_unknown_link_a_reset_and_a_gpu_that_vanished_are_silent() -> None:
    stage, detector = Stage(), PcieSaturated()
    assert saturate(stage, detector, 10, 60e9) == []
    link(stage, generation=9.0)  # one that nobody knows yet
    assert saturate(stage, detector, 10, 60e9) == []
    link(stage)
    assert saturate(stage, detector, 10, 60e9)
    stage.put(flow(0.0))
    assert stage.run(detector, 1) == []
    stage.drop(c.GPU_PCIE_BYTES)
    assert stage.run(detector, 2) == []
    assert saturate(stage, detector, 3, 60e9) == []


def test_a_lane_carries_twice_as_much_from_generation_to_generation() -> None:
    rates = [LANE_BYTES_S[generation] for generation in sorted(LANE_BYTES_S)]
    assert sorted(LANE_BYTES_S) == [1, 2, 3, 4, 5, 6]
    assert all(1.9 < later / earlier < 2.05 for earlier, later in pairwise(rates))
    assert LANE_BYTES_S[3] == pytest.approx(8e9 * 128 / 130 / 8, rel=1e-3)
    assert LANE_BYTES_S[6] == pytest.approx(64e9 * 242 / 256 / 8, rel=1e-3)


def test_all_is_described() -> None:
    check_described(PcieDegraded, PcieSaturated)
