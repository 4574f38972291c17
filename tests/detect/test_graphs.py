"""Decode passes that fall out of CUDA graphs."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.detect.graphs import GraphFallback
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence

SERVER = ("sglang", "qwen", "127.0.0.1:30000")


def test_what_is_told_of_it_is_complete() -> None:
    check_described(GraphFallback)


class Server:
    """Decode passes of one server, second by second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.detector = GraphFallback()

    def play(self, seconds: int, eager: float, *, passes: float = 40.0, step_s: float = 1.0) -> list[Finding]:
        """eager: share of the passes per second. Findings of the last step."""
        found: list[Finding] = []
        for _ in range(round(seconds / step_s)):
            self.stage.grow(
                {
                    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "graph")): (1 - eager) * passes * step_s,
                    (catalogue.SERVER_GRAPH_PASSES, (*SERVER, "eager")): eager * passes * step_s,
                }
            )
            found = list(self.detector.step(self.stage.step(step_s)))
        return found


@pytest.mark.parametrize("step_s", [1.0, 2.0, 5.0])
def test_a_fallback_is_found_with_its_figures(step_s: float) -> None:
    server = Server()
    assert server.play(60, 0.01, step_s=step_s) == []
    (finding,) = server.play(10, 0.4, step_s=step_s)
    assert finding.entity == Entity("server", "sglang/qwen at 127.0.0.1:30000")
    assert finding.severity is Severity.WARNING
    assert finding.since_s == pytest.approx(BEGIN_S + 60, abs=2 * step_s)
    share = evidence(finding, "eager_share")
    assert share.observed == pytest.approx(0.4)
    assert share.baseline == pytest.approx(0.01)
    assert finding.summary == "40 % of decode passes outside CUDA graphs, 1 % before"


def test_it_lasts_as_long_as_the_fallback_and_ends_with_it() -> None:
    server = Server()
    server.play(60, 0.0)
    assert server.play(3600, 1.0, step_s=5.0), "an hour of it does not become usual"
    assert server.play(15, 0.0) == []


def test_a_server_that_never_used_graphs_falls_back_to_nothing() -> None:
    assert Server().play(300, 1.0) == []


@pytest.mark.parametrize("usual", [0.06, 0.3])
def test_a_server_that_uses_them_in_part_is_left_alone(usual: float) -> None:
    server = Server()
    server.play(60, usual)
    assert server.play(60, 0.8) == []


def test_a_moment_of_it_is_none() -> None:
    server = Server()
    server.play(60, 0.0)
    found = [server.play(1, 1.0) for _ in range(2)] + [server.play(1, 0.0) for _ in range(2)]
    assert found == [[], [], [], []]


def test_so_few_passes_are_no_share() -> None:
    server = Server()
    server.play(60, 0.0)
    assert server.play(60, 1.0, passes=1.0) == []


def test_an_idle_server_is_judged_by_nothing() -> None:
    server = Server()
    server.play(60, 0.0)
    assert server.play(120, 0.0, passes=0.0) == []
    assert server.play(10, 0.5)


def test_eager_passes_alone_count_and_a_gone_server_is_forgotten() -> None:
    stage, detector = Stage(), GraphFallback()
    stage.grow({(catalogue.SERVER_GRAPH_PASSES, (*SERVER, "eager")): 0.0})
    assert stage.run(detector, 30) == []
    stage.drop(catalogue.SERVER_GRAPH_PASSES)
    assert stage.run(detector, 400) == []
    assert len(detector._servers) == 0
