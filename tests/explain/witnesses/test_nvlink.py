"""Signs of NVLinks that are down or count errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.nvlink import NvLink
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Unit
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

KINDS = ("crc_flit", "crc_data", "replay", "recovery", "ecc_data")
KEY = ("gpu", gpu()[1])
EVERY_S = 5


class Links:
    """The links of one GPU, read every 5 s."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(NvLink())
        self.sequence = 0

    def run(self, readings: int, active: float = 18.0, *, collective: float | None = None, **errors: float) -> None:
        """errors: per second, by kind. collective: share of the time in all-reduces, where ranks tell."""
        for _ in range(readings):
            self.stage.put({(c.GPU_NVLINKS, (*gpu(), "active")): active}, owner="slow")
            for kind in KINDS:
                self.stage.grow({(c.GPU_NVLINK_ERRORS, (*gpu(), kind)): errors.get(kind, 0.0) * EVERY_S}, owner="slow")
            for step in range(EVERY_S):
                self.stage.silent = set() if step == 0 else {"slow"}
                self.looks.step(self.stage.step(collectives=self._collectives(collective)))

    def _collectives(self, share: float | None) -> list[CollectiveRecord]:
        """Ten in the coming second, of two ranks."""
        found = []
        for operation in range(0 if share is None else 10):
            self.sequence += 1
            stop_ns = self.stage.at_ns + (operation + 1) * 10**8
            exec_s = 0.1 * (share or 0.0)
            for rank in range(2):
                pid = 41_403 + rank
                record = CollectiveRecord("0x1", "tp", rank, 2, "AllReduce", self.sequence, 1024, exec_s, pid=pid)
                found.append(replace(record, start_ns=stop_ns - round(exec_s * 1e9), stop_ns=stop_ns))
        return found


def sound() -> Links:
    links = Links()
    links.run(6)
    assert links.looks.take() == []
    return links


def test_links_that_are_gone_are_a_sign_with_the_first_reading() -> None:
    links = sound()
    began_s = links.stage.at_s
    links.run(3, 9.0)
    signs = links.looks.take()
    assert {(sign.key, sign.evidence) for sign in signs} == {(KEY, 1.0)}
    assert signs[0].cap == pytest.approx(0.5)
    assert (signs[0].start_s, signs[0].end_s) == (began_s - 4.0, began_s + 1.0)
    assert signs[0].fact == ("nvlinks_active", 9.0, Unit.NONE, 18.0)
    links.run(3)
    assert len(links.looks.take()) == 1  # until the next reading


def test_the_cap_is_no_more_than_the_time_in_collectives() -> None:
    links = sound()
    links.stage.put({(c.PROCESS_GPU_MEMORY, (*gpu(), "41403", "w", "", "", "")): 1e9})
    links.run(3, 9.0, collective=0.2)
    assert links.looks.take()[-1].cap == pytest.approx(0.1)
    links.run(4, 9.0)  # they tell no more: it is not known again
    assert links.looks.take()[-1].cap == pytest.approx(0.5)


def test_links_that_always_were_few_are_usual() -> None:
    links = Links()
    links.run(20, 12.0)
    assert links.looks.take() == []


def test_links_that_stay_away_do_not_become_usual() -> None:
    links = sound()
    links.run(100, 16.0)
    links.looks.take()
    links.run(1, 16.0)
    assert [sign.evidence for sign in links.looks.take()] == [1.0]


def test_errors_alone_are_weak_evidence_and_cost_little_where_they_are_mended() -> None:
    links = sound()
    links.run(3, crc_flit=80.0)
    signs = links.looks.take()
    assert {sign.evidence for sign in signs} == {0.5}
    assert signs[-1].cap == pytest.approx(0.008)
    assert signs[-1].fact is not None
    assert signs[-1].fact.name == "nvlink_errors_per_second"
    links.run(6)
    links.looks.take()
    links.run(3, recovery=20.0)
    assert links.looks.take()[-1].cap == 1.0


def test_a_link_that_was_always_noisy_is_usual() -> None:
    links = Links()
    links.run(20, crc_flit=5.0)
    assert links.looks.take() == []


def test_an_open_incident_makes_a_weak_sign_sure() -> None:
    links = sound()
    links.looks.incidents = [gpu_incident("nvlink_degraded")]
    links.run(3, crc_flit=80.0)
    assert {sign.evidence for sign in links.looks.take()} == {0.8}
    links.run(6)
    links.looks.take()
    links.run(2)
    assert links.looks.take() == []


@pytest.mark.parametrize("active", [-3.0, 1e300, 0.0])
def test_impossible_numbers_do_no_harm(active: float) -> None:
    links = sound()
    links.run(3, active, crc_flit=1e250)
    links.run(3)
    links = Links()
    links.run(5, active)
    links.run(3)


def test_gpus_without_nvlink_have_no_signs_and_those_gone_are_forgotten() -> None:
    stage, witness = Stage(), NvLink()
    assert list(witness.look(stage.step(), ())) == []
    for index in range(200):
        stage.drop(c.GPU_NVLINKS)
        stage.put({(c.GPU_NVLINKS, (*gpu(index), "active")): 18.0})
        list(witness.look(stage.step(), ()))
    assert len(witness._gpus) <= 64
