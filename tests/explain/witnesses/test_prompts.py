"""Evidence of more prompts than usual being computed, from the server's page."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.prompts import Prompts
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks

SERVER = ("vllm", "dense-70b", "127.0.0.1:8000")


class Page:
    """Read every five seconds, here at every step."""

    def __init__(self, *servers: tuple[str, str, str]) -> None:
        self.stage = Stage()
        self.looks = Looks(Prompts())
        self.servers = servers or (SERVER,)

    def run(self, readings: int, tokens: float, *, kind: str = "prompt") -> None:
        for _ in range(readings):
            self.stage.grow({(catalogue.SERVER_TOKENS, (*server, kind)): tokens for server in self.servers})
            self.looks.step(self.stage.step())


def test_four_times_the_usual_prompt_tokens_are_evidence_until_they_are_over() -> None:
    page = Page()
    page.run(30, 2000.0)
    assert page.looks.signs == []
    page.run(10, 8000.0)
    assert page.looks.keys() == [("server", "dense-70b")]
    sign = page.looks.take()[-1]
    assert sign.evidence == 1.0
    assert sign.fact is not None
    assert sign.fact.observed == pytest.approx(8000.0, rel=0.01)
    assert sign.fact.usual == pytest.approx(2000.0, rel=0.01)
    page.run(10, 2000.0)
    page.looks.take()
    page.run(5, 2000.0)
    assert page.looks.signs == []


def test_one_long_prompt_among_readings_is_none() -> None:
    page = Page()
    page.run(30, 2000.0)
    page.run(1, 5000.0)
    page.run(5, 2000.0)
    assert page.looks.signs == []


@pytest.mark.parametrize("tokens", [8000.0, 20.0])
def test_what_was_always_so_or_is_next_to_nothing_is_none(tokens: float) -> None:
    page = Page()
    page.run(60, tokens)
    assert page.looks.signs == []
    idle = Page()
    idle.run(30, 2.0)
    idle.run(10, 60.0)
    assert idle.looks.signs == []


def test_tokens_that_are_made_say_nothing() -> None:
    page = Page()
    page.run(30, 100.0, kind="generation")
    page.run(30, 9000.0, kind="generation")
    assert page.looks.signs == []


def test_of_many_servers_only_so_many_are_remembered() -> None:
    page = Page(*(("vllm", f"model-{number}", "127.0.0.1:8000") for number in range(200)))
    page.run(40, 2000.0)
    page.run(10, 9000.0)
    assert len(page.looks.keys()) <= 64
