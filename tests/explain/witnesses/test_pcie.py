"""Signs of PCIe links that are slower than usual, or full."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.pcie import Pcie
from gpumon.model import Unit
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

KEY = ("gpu", gpu()[1])
FULL = 16 * 3.938e9
"""Bytes per second of a link of generation 5 with 16 lanes."""


class Slot:
    """One GPU: its link read every 5 s, its bytes every second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(Pcie())
        self.stage.put({(c.GPU_UTILIZATION, gpu()): 0.9, (c.GPU_PERFORMANCE_STATE, gpu()): 0.0})

    def run(
        self,
        seconds: int,
        *,
        generation: float = 5.0,
        width: float = 16.0,
        sent: float = 0.3e9,
        received: float = 0.05e9,
        most: tuple[float, float] | None = (5.0, 16.0),
    ) -> None:
        links = {"current": (generation, width)} | ({} if most is None else {"max": most})
        for kind, (its_generation, its_width) in links.items():
            self.stage.put({(c.GPU_PCIE_GENERATION, (*gpu(), kind)): its_generation}, owner="slow")
            self.stage.put({(c.GPU_PCIE_WIDTH, (*gpu(), kind)): its_width}, owner="slow")
        for step in range(seconds):
            self.stage.silent = set() if step % 5 == 0 else {"slow"}
            self.stage.grow({(c.GPU_PCIE_BYTES, (*gpu(), "tx")): sent, (c.GPU_PCIE_BYTES, (*gpu(), "rx")): received})
            self.looks.step(self.stage.step())


def sound(sent: float = 0.3e9) -> Slot:
    slot = Slot()
    slot.run(20, sent=sent)
    assert slot.looks.take() == []
    return slot


def test_a_link_that_trained_down_is_a_sign_whose_cap_the_bytes_give() -> None:
    slot = sound()
    began_s = slot.stage.at_s
    slot.run(10, generation=1.0)
    signs = slot.looks.take()
    assert {(sign.key, sign.evidence) for sign in signs} == {(KEY, 1.0)}
    capacity = 16 * 0.25e9
    assert signs[0].cap == pytest.approx(0.35e9 / (0.85 * capacity) * (1 - capacity / FULL))
    assert signs[0].fact == ("pcie_capacity_bytes_per_second", capacity, Unit.BYTES, FULL)
    # Somewhere since the reading before, and then second by second.
    assert (signs[0].start_s, signs[0].end_s) == (began_s - 4.0, began_s + 1.0)
    assert signs[-1].end_s - signs[-1].start_s == 1.0
    slot.run(10)
    assert slot.looks.take() == []


def test_a_narrower_link_is_one_too() -> None:
    slot = sound()
    slot.run(10, width=4.0)
    assert {sign.evidence for sign in slot.looks.take()} == {1.0}


def test_a_slot_that_always_was_slow_is_usual() -> None:
    slot = Slot()
    slot.run(60, generation=3.0, width=8.0)
    assert slot.looks.take() == []


def test_a_slow_link_does_not_become_usual() -> None:
    slot = sound()
    slot.run(600, generation=1.0)
    slot.looks.take()
    slot.run(1, generation=1.0)
    assert [sign.evidence for sign in slot.looks.take()] == [1.0]


def test_an_idle_gpu_may_lower_its_link() -> None:
    slot = sound()
    slot.stage.put({(c.GPU_UTILIZATION, gpu()): 0.0, (c.GPU_PERFORMANCE_STATE, gpu()): 8.0})
    slot.run(30, generation=1.0, sent=0.0, received=0.0)
    assert slot.looks.take() == []


def test_a_full_link_is_a_sign_and_costs_what_the_servers_copies_wait() -> None:
    slot = sound()
    began_s = slot.stage.at_s
    slot.run(5, received=0.9 * FULL)
    signs = slot.looks.take()
    assert {(sign.key, sign.evidence) for sign in signs} == {(KEY, 1.0)}
    assert (signs[0].start_s, signs[0].end_s) == (began_s, began_s + 1.0)
    own = 0.35e9 / (0.85 * FULL)
    taken = 0.9 - 0.05e9 / FULL
    assert signs[0].cap == pytest.approx(own * taken / (1 - taken) / (1 + own * taken / (1 - taken)), rel=1e-6)
    assert signs[0].fact is not None
    assert signs[0].fact.name == "pcie_used"
    slot.run(5)
    assert slot.looks.take() == []


def test_a_link_half_full_is_none_and_one_that_always_was_full_is_usual() -> None:
    slot = sound()
    slot.run(20, received=0.5 * FULL)
    assert slot.looks.take() == []
    slot = Slot()
    slot.run(60, received=0.9 * FULL)
    assert slot.looks.take() == []


def test_open_incidents_make_weak_signs_sure() -> None:
    slot = sound()
    slot.run(4, received=0.66 * FULL)
    assert 0.1 < max(sign.evidence for sign in slot.looks.take()) < 0.5
    slot.looks.incidents = [gpu_incident("pcie_saturated")]
    slot.run(4, received=0.66 * FULL)
    assert max(sign.evidence for sign in slot.looks.take()) == 0.8
    slot.run(4)
    assert slot.looks.take() == []


def test_where_nobody_tells_what_the_link_can_do_nothing_is_said() -> None:
    slot = Slot()
    slot.run(20, most=None)
    slot.run(20, generation=1.0, received=FULL, most=None)
    assert slot.looks.take() == []


def test_without_bytes_nothing_is_said() -> None:
    slot = sound()
    slot.stage.drop(c.GPU_PCIE_BYTES)
    slot.stage.put({(c.GPU_PCIE_GENERATION, (*gpu(), "current")): 1.0}, owner="slow")
    slot.stage.silent = set()
    for _ in range(10):
        slot.looks.step(slot.stage.step())
    assert slot.looks.take() == []


@pytest.mark.parametrize(
    "link", [(0.0, 0.0), (-1.0, 16.0), (5.0, -16.0), (99.0, 16.0), (5.0, 1e300), (1e300, 1.0), (4.5, 0.001)]
)
def test_impossible_links_do_no_harm(link: tuple[float, float]) -> None:
    slot = sound()
    slot.run(10, generation=link[0], width=link[1], received=1e200)
    slot.run(10, most=link)
    slot.run(10)


def test_gpus_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), Pcie()
    for index in range(150):
        stage.drop(c.GPU_PCIE_BYTES, c.GPU_PCIE_WIDTH, c.GPU_PCIE_GENERATION)
        for kind in ("current", "max"):
            stage.put({(c.GPU_PCIE_WIDTH, (*gpu(index), kind)): 16.0})
            stage.put({(c.GPU_PCIE_GENERATION, (*gpu(index), kind)): 5.0})
        for _ in range(2):
            stage.grow({(c.GPU_PCIE_BYTES, (*gpu(index), "tx")): 1e9})
            list(witness.look(stage.step(), ()))
    assert 0 < len(witness._gpus) <= 64
