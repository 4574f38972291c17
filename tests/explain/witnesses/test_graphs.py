"""Evidence of decode passes without CUDA graphs, over what is usual of the server."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.graphs import Graphs
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks, incident

SERVER = ("sglang", "moe-235b", "127.0.0.1:8001")


class Passes:
    """Forty a second, on a page that is read at every step."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.witness = Graphs()
        self.looks = Looks(self.witness)

    def run(self, seconds: int, eager: float, *, passes: float = 40.0) -> None:
        for _ in range(seconds):
            self.stage.grow(
                {
                    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "eager")): eager * passes,
                    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "graph")): (1 - eager) * passes,
                }
            )
            self.looks.step(self.stage.step())

    def now(self) -> tuple[float, float]:
        return self.looks.at(self.stage.at_s - 0.5)


@pytest.mark.parametrize(("eager", "low"), [(0.1, 0.5), (0.3, 1.0), (1.0, 1.0)])
def test_more_passes_without_a_graph_than_usual(eager: float, low: float) -> None:
    server = Passes()
    server.run(20, 0.0)
    assert server.looks.signs == []
    server.run(10, eager)
    assert server.looks.keys() == [("server", "moe-235b")]
    evidence, cap = server.now()
    assert evidence >= low
    assert cap == 1.0
    fact = server.looks.signs[-1].fact
    assert fact is not None
    assert fact.observed == pytest.approx(eager)
    assert fact.usual == 0.0
    server.looks.take()
    server.run(10, 0.0)
    assert server.looks.signs == []


@pytest.mark.parametrize("eager", [1.0, 0.4])
def test_a_server_that_always_did_is_none(eager: float) -> None:
    server = Passes()
    server.run(60, eager)
    assert server.looks.signs == []


def test_an_odd_batch_now_and_then_is_none() -> None:
    server = Passes()
    server.run(20, 0.0)
    server.run(20, 0.02)
    assert server.looks.signs == []


def test_a_handful_of_passes_is_no_share() -> None:
    server = Passes()
    server.run(20, 0.0)
    server.run(20, 1.0, passes=3.0)
    assert server.looks.signs == []


def test_an_incident_confirms() -> None:
    server = Passes()
    server.run(20, 0.0)
    server.looks.incidents = [incident("graph_fallback", "server", "sglang/moe-235b at 127.0.0.1:8001")]
    server.run(5, 0.0)
    assert server.looks.signs == []
    server.run(5, 0.06)
    assert server.now()[0] == 0.8


def test_a_page_that_is_gone_is_forgotten() -> None:
    server = Passes()
    server.run(20, 0.0)
    server.stage.drop(catalogue.SERVER_GRAPH_PASSES)
    for _ in range(310):
        server.looks.step(server.stage.step())
    assert server.looks.signs == []
    assert len(server.witness._usual) == 0


def test_only_one_of_the_counters_is_there() -> None:
    server = Passes()
    for _ in range(30):
        server.stage.grow({(catalogue.SERVER_GRAPH_PASSES, (*SERVER, "graph")): 40.0})
        server.looks.step(server.stage.step())
    assert server.looks.signs == []
