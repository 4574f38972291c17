"""Evidence of page faults: bursts of half a second, usual rates, pages from swap, and what they can have cost."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.page_faults import PageFaults
from gpumon.store import Store
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks, incident

HALF_S = 0.5
PIDS = (41_403, 41_404)


def labels(pid: int) -> tuple[str, ...]:
    return (str(pid), "VLLM::Worker_TP", "llm", "vllm-0", "server")


class Faults:
    """Two processes, read each half second; a look each second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(PageFaults())

    def run(
        self,
        seconds: float,
        rate: float = 0.2,
        *,
        other: float = 0.2,
        kind: str = "major",
        swapped_per_s: float | None = None,
        stalled: float | None = None,
        step_s: float = 1.0,
    ) -> None:
        """rate: of the first process. swapped_per_s: pages, host. stalled: share, host, for a disk."""
        for sample in range(1, round(seconds / HALF_S) + 1):
            for pid, per_s in zip(PIDS, (rate, other), strict=True):
                self.stage.grow({(catalogue.PROCESS_PAGE_FAULTS, (*labels(pid), kind)): per_s * HALF_S})
            self.stage.grow({(catalogue.HOST_PAGE_FAULTS, ("major",)): (rate + other) * HALF_S})
            if swapped_per_s is not None:
                self.stage.grow({(catalogue.HOST_SWAP_PAGES, ("in",)): swapped_per_s * HALF_S})
            if stalled is not None:
                self.stage.grow({(catalogue.HOST_PRESSURE, ("io", "some")): stalled * HALF_S})
            scene = self.stage.step(HALF_S)
            if sample % round(step_s / HALF_S) == 0:
                self.looks.step(scene)

    @property
    def at_s(self) -> float:
        return self.stage.at_s


@pytest.mark.parametrize("before", [20.0, 20.5])
def test_a_burst_of_half_a_second_is_found_to_the_half_second(before: float) -> None:
    node = Faults()
    node.run(before)
    node.run(HALF_S, 500.0, step_s=0.5)
    start_s = node.at_s - HALF_S
    node.run(5.0)
    assert node.looks.keys() == [("process", "41403")]
    assert node.looks.at(start_s + 0.25)[0] == 1.0
    assert node.looks.at(start_s - 0.25)[0] == 0.0
    assert node.looks.at(start_s + 0.75)[0] == 0.0
    (sign,) = node.looks.signs
    assert sign.fact is not None
    assert sign.fact.name == "major_faults_per_second"
    assert sign.fact.observed == pytest.approx(500.0)
    assert sign.fact.usual == pytest.approx(0.2)


def test_evidence_grows_with_the_rate() -> None:
    node = Faults()
    node.run(20.0)
    found = []
    for rate in (5.0, 20.0, 35.0, 80.0):
        node.run(1.0, rate)
        found.append(node.looks.at(node.at_s - 0.25)[0])
        node.run(2.0)
    assert found[0] == 0.0
    assert 0 < found[1] < 0.3 < found[2] < 0.7
    assert found[3] == 1.0


def test_a_server_that_faults_as_it_always_did_is_none() -> None:
    node = Faults()
    node.run(60.0, 400.0)
    assert node.looks.signs == []
    node.run(2.0, 4_000.0)
    assert node.looks.at(node.at_s - 0.25)[0] == 1.0


def test_what_is_usual_does_not_follow_the_bursts() -> None:
    node = Faults()
    node.run(20.0)
    node.run(60.0, 300.0)
    assert node.looks.at(node.at_s - 0.25)[0] == 1.0
    node.looks.take()
    node.run(10.0)
    assert node.looks.signs == []


def test_minor_faults_are_none() -> None:
    node = Faults()
    node.run(20.0, kind="minor")
    node.run(5.0, 1e6, kind="minor")
    assert node.looks.signs == []


def test_at_first_nothing_is_known() -> None:
    node = Faults()
    node.run(8.0, 1_000.0)
    assert node.looks.signs == []


def test_pages_from_swap_are_memory_pressure() -> None:
    node = Faults()
    node.run(20.0, swapped_per_s=0.0)
    node.run(5.0, 100.0, swapped_per_s=2_000.0)
    assert node.looks.signs == []
    node.run(5.0, swapped_per_s=0.0)
    node.run(5.0, 100.0, swapped_per_s=0.0)
    assert node.looks.at(node.at_s - 2.0)[0] == 1.0


@pytest.mark.parametrize(
    ("rate", "stalled", "cap"),
    [
        (50.0, None, 0.5),  # ten milliseconds each
        (500.0, None, 1.0),
        (500.0, 0.1, 0.3),  # the host waited for a tenth of the time, and pages are mapped as well
        (500.0, 0.9, 1.0),
        (500.0, 0.0, 0.05),  # what waits for a network is not counted as waiting for a disk
    ],
)
def test_the_cap_is_what_so_many_faults_can_cost(rate: float, stalled: float | None, cap: float) -> None:
    node = Faults()
    node.run(20.0, stalled=0.0 if stalled is not None else None)
    node.run(4.0, rate, stalled=stalled)
    assert node.looks.at(node.at_s - 1.25)[1] == pytest.approx(cap)


def test_one_fault_for_which_megabytes_were_read_is_evidence() -> None:
    node = Faults()
    node.run(20.0, 0.0, other=0.0, stalled=0.002)
    node.run(HALF_S, 2.0, other=0.0, stalled=0.06, step_s=HALF_S)
    found_s = node.at_s - 0.25
    node.run(5.0, 0.0, other=0.0, stalled=0.002)
    assert node.looks.keys() == [("process", "41403")]
    assert node.looks.at(found_s) == pytest.approx((0.7, 0.18))


@pytest.mark.parametrize(
    ("usual", "rate", "now"),
    [
        (0.002, 0.0, 0.3),  # others wait for the disk
        (0.3, 2.0, 0.3),  # as always
        (0.002, 2.0, 0.004),
    ],
)
def test_one_fault_and_no_wait_or_a_wait_and_no_fault_is_none(usual: float, rate: float, now: float) -> None:
    node = Faults()
    node.run(20.0, 0.0, other=0.0, stalled=usual)
    node.run(2.0, rate, other=0.0, stalled=now)
    assert node.looks.signs == []


def test_a_stray_fault_beside_a_burst_of_another_process_is_none() -> None:
    node = Faults()
    node.run(20.0, 0.0, other=0.0, stalled=0.002)
    node.run(2.0, 2.0, other=500.0, stalled=0.2)
    assert node.looks.keys() == [("process", "41404")]


def test_an_incident_confirms_and_is_no_evidence_by_itself() -> None:
    node = Faults()
    node.run(20.0)
    node.looks.incidents = [incident("page_fault_burst", "process", "pid 41403 VLLM::Worker_TP")]
    node.run(2.0, 20.0, other=20.0)
    assert node.looks.at(node.at_s - 0.25, "process", "41403")[0] == 0.8
    assert node.looks.at(node.at_s - 0.25, "process", "41404")[0] < 0.3
    node.looks.take()
    node.run(5.0)
    assert node.looks.signs == []


def test_without_history_a_look_is_one_stretch() -> None:
    node = Faults()
    node.stage.store = Store(history_points=4, history_series=0)
    node.run(20.0)
    node.run(1.0, 250.0)
    (sign,) = node.looks.signs
    assert sign.end_s - sign.start_s == pytest.approx(1.0)
    assert sign.evidence == 1.0


def test_a_counter_that_began_anew_and_one_that_is_gone_are_none() -> None:
    node = Faults()
    node.run(20.0, 30.0)
    node.looks.take()
    node.stage.put({(catalogue.PROCESS_PAGE_FAULTS, (*labels(PIDS[0]), "major")): 0.0})
    node.run(3.0)
    node.stage.drop(catalogue.PROCESS_PAGE_FAULTS)
    node.looks.step(node.stage.step())
    assert node.looks.signs == []


def test_processes_that_are_gone_are_forgotten() -> None:
    stage, witness = Stage(), PageFaults()
    looks = Looks(witness)
    for first in range(0, 600, 150):
        stage.drop(catalogue.PROCESS_PAGE_FAULTS)
        stage.put({(catalogue.PROCESS_PAGE_FAULTS, (*labels(pid), "major")): 1e300 for pid in range(first, first + 60)})
        for _ in range(3):
            looks.step(stage.step())
    assert len(witness._usual) <= 256
    stage.drop(catalogue.PROCESS_PAGE_FAULTS)
    for _ in range(70):
        looks.step(stage.step())
    assert len(witness._usual) == 0
