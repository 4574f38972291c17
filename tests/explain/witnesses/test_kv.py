"""Evidence of a KV cache that is too small: preemptions, waits for blocks, and what looks like it."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.kv import KvPressure
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks, incident

SERVER = ("vllm", "llama-70b", "127.0.0.1:8000")
KEY = ("server", "llama-70b")
PAGE_S = 2.0


class Page:
    """Of one server, read every two seconds."""

    def __init__(self, server: tuple[str, ...] = SERVER) -> None:
        self.stage = Stage()
        self.witness = KvPressure()
        self.looks = Looks(self.witness)
        self.server = server

    @property
    def at_s(self) -> float:
        return self.stage.at_s

    def run(self, seconds: float, usage: float = 0.3, *, waiting: float | None = 0.0, preempted: float = 0.0) -> None:
        """preempted: per second."""
        for _ in range(round(seconds / PAGE_S)):
            self.stage.put({(catalogue.SERVER_KV_USAGE, self.server): usage})
            if waiting is not None:
                self.stage.put({(catalogue.SERVER_WAITING, self.server): waiting})
            self.stage.grow({(catalogue.SERVER_PREEMPTIONS, self.server): preempted * PAGE_S})
            self.stage.silent = set()
            self.looks.step(self.stage.step(1.0))
            self.stage.silent = {"stage"}
            self.looks.step(self.stage.step(1.0))


def test_preemptions_are_evidence_whatever_the_page_says_of_usage() -> None:
    page = Page()
    page.run(30.0)
    assert page.looks.signs == []
    page.run(10.0, 0.97, preempted=0.5)
    assert page.looks.keys() == [KEY]
    assert page.looks.at(page.at_s - 3.5) == (1.0, 1.0)
    page.looks.take()
    page.run(2.0)
    page.run(20.0)
    assert page.looks.signs == []


def test_who_waits_while_the_cache_is_full_waits_for_it_and_those_that_run_lose_nothing() -> None:
    page = Page()
    page.run(30.0)
    page.run(10.0, 0.93, waiting=5.0)
    assert page.looks.at(page.at_s - 3.5) == (1.0, 0.0)


def test_one_that_was_thrown_out_stands_still_until_nobody_waits() -> None:
    page = Page()
    page.run(30.0)
    page.run(2.0, 0.95, waiting=1.0, preempted=0.5)
    page.run(6.0, 0.95, waiting=1.0)
    assert page.looks.at(page.at_s - 2.5) == (1.0, 1.0)
    page.run(4.0, 0.95)
    page.run(6.0, 0.95, waiting=1.0)
    assert page.looks.at(page.at_s - 1.5) == (1.0, 0.0)


@pytest.mark.parametrize(("usage", "low", "high"), [(0.6, 0.0, 0.0), (0.75, 0.1, 0.4), (0.85, 0.6, 0.9)])
def test_how_full_it_is_says_how_sure_it_is(usage: float, low: float, high: float) -> None:
    page = Page()
    page.run(30.0)
    page.run(10.0, usage, waiting=3.0)
    assert low <= page.looks.at(page.at_s - 3.5)[0] <= high


def test_a_full_cache_at_which_nobody_waits_costs_nothing() -> None:
    page = Page()
    page.run(30.0)
    page.run(30.0, 0.99)
    page.run(30.0, 0.99, waiting=None)
    assert page.looks.signs == []


def test_a_server_that_is_always_full_is_none() -> None:
    page = Page()
    page.run(120.0, 0.99, waiting=4.0, preempted=0.5)
    assert page.looks.signs == []


def test_an_incident_confirms() -> None:
    page = Page()
    page.run(30.0)
    page.looks.incidents = [incident("kv_pressure", "server", "vllm/llama-70b at 127.0.0.1:8000")]
    page.run(10.0)
    assert page.looks.signs == []
    page.run(10.0, 0.75, waiting=3.0)
    assert page.looks.at(page.at_s - 3.5)[0] == 0.8


def test_of_a_page_without_a_model_it_is_told_by_its_kind() -> None:
    page = Page(("tgi", "", "127.0.0.1:8080"))
    page.run(30.0)
    page.run(10.0, 0.97, preempted=0.5)
    assert page.looks.keys() == [("server", "tgi/")]


def test_a_page_that_is_gone_and_a_server_that_began_anew() -> None:
    page = Page()
    page.run(30.0, preempted=0.1)
    page.looks.take()
    page.stage.put({(catalogue.SERVER_PREEMPTIONS, SERVER): 0.0})
    page.run(6.0, preempted=0.0)
    page.stage.drop_owner("stage")
    for _ in range(70):
        page.looks.step(page.stage.step())
    assert page.looks.signs == []
    assert len(page.witness._caches) == 0


def test_many_servers_are_bounded() -> None:
    stage, witness = Stage(), KvPressure()
    looks = Looks(witness)
    for first in range(0, 200, 20):
        stage.drop(catalogue.SERVER_KV_USAGE)
        stage.put({(catalogue.SERVER_KV_USAGE, ("vllm", f"m{n}", "e")): 1.0 for n in range(first, first + 20)})
        stage.run(looks, 2.0)
    assert len(witness._caches) <= 64


def test_nothing_is_known() -> None:
    looks = Looks(KvPressure())
    Stage().run(looks, 30.0)
    assert looks.signs == []
