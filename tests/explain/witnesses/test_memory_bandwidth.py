"""Signs of DRAM bandwidth that somebody else takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.memory_bandwidth import MemoryBandwidth
from gpumon.model import RequestRecord, Unit
from tests.detect.requests import request
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

UUIDS = [gpu(index)[1] for index in range(4)]


class Serving:
    """A server on some GPUs; one of its requests ends each second."""

    def __init__(self, gpus: int = 4) -> None:
        self.gpus = gpus
        self.stage = Stage()
        self.looks = Looks(MemoryBandwidth())

    def run(
        self,
        seconds: int,
        drams: Sequence[float],
        *,
        step_s: float = 0.012,
        kv: float | None = 0.05,
        bound: bool = True,
        busy: float | None = 0.98,
        pages: int = 1,
    ) -> None:
        """drams: DRAM activity of each GPU. step_s: of decoding. kv: part of the KV cache in use. busy: of all GPUs."""
        self.stage.drop(c.SERVER_KV_USAGE)
        for page in range(pages if kv is not None else 0):
            self.stage.put({(c.SERVER_KV_USAGE, ("vllm", "m", f"127.0.0.1:800{page}")): kv or 0.0})
        for _ in range(seconds):
            for index, dram in enumerate(drams):
                self.stage.grow({(c.GPU_DRAM_ACTIVE_SECONDS, gpu(index)): dram})
                if busy is not None:
                    self.stage.grow({(c.GPU_BUSY_SECONDS, gpu(index)): busy})
            requests = [self._ended(step_s)] if bound else []
            self.looks.step(self.stage.step(requests=requests))

    def _ended(self, step_s: float) -> RequestRecord:
        """A request that ends in the coming second."""
        end_s = self.stage.at_s + 0.9
        begin_s = end_s - 0.1 - 100 * step_s
        return request(begin_s, gap_s=step_s, tokens=100, gpus=UUIDS[: self.gpus])


def healthy(gpus: int = 4) -> Serving:
    serving = Serving(gpus)
    serving.run(30, [0.65] * gpus)
    assert serving.looks.take() == []
    return serving


def test_a_gpu_with_more_dram_than_its_peers_is_one() -> None:
    serving = healthy()
    began_s = serving.stage.at_s
    serving.run(5, [0.35, 0.35, 0.94, 0.35], step_s=0.03)
    signs = serving.looks.take()
    assert {(sign.key, sign.evidence) for sign in signs} == {(("gpu", UUIDS[2]), 1.0)}
    assert signs[0].cap == pytest.approx(0.59)
    assert signs[0].fact is not None
    assert (signs[0].fact.name, signs[0].fact.unit) == ("dram_active", Unit.RATIO)
    assert signs[0].fact.observed == pytest.approx(0.94)
    assert signs[0].fact.usual == pytest.approx(0.35)
    assert (signs[0].start_s, signs[0].end_s) == (began_s, began_s + 1.0)
    serving.run(5, [0.65] * 4)
    assert serving.looks.take() == []


def test_high_load_on_all_ranks_is_none() -> None:
    serving = Serving()
    serving.run(60, [0.4] * 4, busy=0.42)  # some of the time
    serving.run(20, [0.96] * 4)
    assert serving.looks.take() == []


def test_a_rank_that_always_has_more_is_usual() -> None:
    serving = Serving()
    serving.run(60, [0.9, 0.5, 0.5, 0.5])
    assert serving.looks.take() == []


def test_what_lasts_does_not_become_usual() -> None:
    serving = healthy()
    serving.run(300, [0.94, 0.35, 0.35, 0.35], step_s=0.03)
    serving.looks.take()
    serving.run(1, [0.94, 0.35, 0.35, 0.35], step_s=0.03)
    assert [sign.evidence for sign in serving.looks.take()] == [1.0]


def test_ranks_that_serve_by_themselves_differ_as_they_do() -> None:
    serving = Serving()
    for second in range(120):
        serving.run(1, [0.9 if (second // 3 + index) % 4 == 0 else 0.4 for index in range(4)])
    assert serving.looks.take() == []


def test_dram_with_room_left_slows_nobody() -> None:
    serving = healthy()
    serving.run(10, [0.55, 0.2, 0.2, 0.2])
    assert serving.looks.take() == []


@pytest.mark.parametrize("gpus", [1, 4])
def test_more_bytes_for_each_step_are_one_where_all_gpus_have_them(gpus: int) -> None:
    serving = healthy(gpus)
    serving.run(10, [0.96] * gpus, step_s=0.03)
    signs = serving.looks.take()
    assert {sign.key for sign in signs} == {("gpu", uuid) for uuid in UUIDS[:gpus]}
    assert signs[-1].evidence == 1.0
    # Of each step's bytes, so many are not the server's.
    assert signs[-1].cap == pytest.approx(1 - 0.65 * 0.012 / (0.96 * 0.03), rel=0.05)
    assert signs[0].start_s >= serving.stage.at_s - 10.0
    serving.run(5, [0.65] * gpus)
    assert serving.looks.take() == []


def test_a_longer_step_at_the_same_bytes_is_none() -> None:
    serving = healthy(1)
    serving.run(20, [0.65 * 0.012 / 0.03], step_s=0.03)  # a slow clock, a slow host
    assert serving.looks.take() == []


def test_more_kv_cache_explains_more_bytes() -> None:
    serving = healthy(1)
    serving.run(20, [0.96], step_s=0.03, kv=0.7)
    assert serving.looks.take() == []


def test_without_a_page_or_with_two_the_step_says_nothing() -> None:
    serving = healthy(1)
    serving.run(10, [0.96], step_s=0.03, kv=None)
    assert serving.looks.take() == []
    serving.run(10, [0.96], step_s=0.03, pages=2)
    assert serving.looks.take() == []
    serving.run(10, [0.96], step_s=0.03, busy=None)
    assert serving.looks.take() == []


def test_steps_of_long_ago_say_nothing() -> None:
    serving = healthy(1)
    serving.run(3, [0.65], step_s=0.03)
    serving.run(4, [0.65], bound=False)
    serving.looks.take()
    serving.run(10, [0.96], bound=False)
    assert serving.looks.take() == []


def test_another_process_that_computes_is_not_meant() -> None:
    serving = healthy()
    for pid, used, sm in (("41403", 120e9, 0.4), ("61000", 6e9, 0.3)):
        labels = (*gpu(2), pid, f"p{pid}", "ns", f"pod-{pid}", "")
        serving.stage.put({(c.PROCESS_GPU_MEMORY, labels): used, (c.PROCESS_GPU_SM, labels): sm})
    serving.run(5, [0.35, 0.35, 0.94, 0.35])
    assert {sign.evidence for sign in serving.looks.take()} == {0.2}


def test_an_open_incident_makes_a_weak_sign_sure() -> None:
    serving = healthy()
    weak = [0.75, 0.53, 0.53, 0.53]
    serving.run(3, weak)
    assert 0.1 < max(sign.evidence for sign in serving.looks.take()) < 0.5
    serving.looks.incidents = [gpu_incident("memory_bound")]
    serving.run(3, weak)
    assert max(sign.evidence for sign in serving.looks.take()) == 0.8
    serving.run(10, [0.7] * 4)  # the incident alone is none
    assert serving.looks.take() == []


def test_gpus_that_no_request_is_bound_to_have_no_signs() -> None:
    serving = Serving()
    serving.run(30, [0.6] * 4, bound=False)
    serving.run(30, [0.98, 0.1, 0.1, 0.1], bound=False)
    assert serving.looks.take() == []


@pytest.mark.parametrize("dram", [0.0, 1e300, 50.0])
def test_impossible_figures_do_no_harm(dram: float) -> None:
    serving = healthy()
    serving.run(5, [dram, 0.1, 0.1, 0.1], kv=dram)
    serving.run(5, [dram] * 4, kv=-1.0)
    serving = Serving(1)
    serving.run(30, [dram], step_s=0.0001)
    serving.run(10, [1.0], step_s=0.03)


def test_requests_with_strange_times_are_passed_over() -> None:
    serving = healthy(1)
    at_s = serving.stage.at_s
    for record in (
        request(at_s + 1e6, gap_s=0.01, tokens=50, gpus=UUIDS[:1]),
        request(at_s, gap_s=[0.0] * 50, gpus=UUIDS[:1]),
        request(at_s, gap_s=0.01, tokens=3, gpus=UUIDS[:1]),
        request(at_s, gpus=UUIDS[:1]),
    ):
        serving.stage.grow({(c.GPU_DRAM_ACTIVE_SECONDS, gpu()): 0.99})
        serving.looks.step(serving.stage.step(requests=[record]))
    assert serving.looks.take() == []


def test_servers_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), MemoryBandwidth()
    for index in range(200):
        stage.drop(c.GPU_DRAM_ACTIVE_SECONDS)
        pair = [gpu(2 * index), gpu(2 * index + 1)]
        for _ in range(2):
            for labels in pair:
                stage.grow({(c.GPU_DRAM_ACTIVE_SECONDS, labels): 0.5})
            ended = request(stage.at_s, gpus=[labels[1] for labels in pair])
            list(witness.look(stage.step(requests=[ended]), ()))
    assert len(witness._servers) <= 64
    assert len(witness._gpus) <= 64
