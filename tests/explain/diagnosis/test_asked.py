"""One server or model alone, by the names that people see."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.asked import UnknownNameError, of_named
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.model import Diagnosis
from tests.explain.diagnosis.requests import inputs, request

ENGINES = (("vllm", "a"), ("gpumon", "a"), ("gpumon", "org/b"))


class Node:
    """Requests of a few engines, one of each; notes what is asked."""

    def __init__(self, *engines: tuple[str, str]) -> None:
        self.engines = engines
        self.asked: list[tuple[str, str]] = []

    def __call__(self, server: str, model: str) -> Diagnosis:
        self.asked.append((server, model))
        chosen = [each for each in self.engines if server in ("", each[0]) and model in ("", each[1])]
        return diagnose(inputs([request(server=kind, model=name) for kind, name in chosen]))


@pytest.mark.parametrize(
    ("server", "model", "engines"),
    [
        ("", "", {*ENGINES}),
        ("vllm", "", {("vllm", "a")}),
        ("", "a", {("vllm", "a"), ("gpumon", "a")}),
        ("", "gpumon/a", {("gpumon", "a")}),
        ("gpumon", "gpumon/a", {("gpumon", "a")}),
        ("", "org/b", {("gpumon", "org/b")}),
        ("", "gpumon/org/b", {("gpumon", "org/b")}),
    ],
)
def test_a_model_is_told_by_its_name_or_as_it_is_printed(
    server: str, model: str, engines: set[tuple[str, str]]
) -> None:
    found = of_named(Node(*ENGINES), server, model).engines
    assert {(each.server, each.model) for each in found} == engines


@pytest.mark.parametrize(("server", "model"), [("", "c"), ("vllm", "gpumon/a"), ("sglang", ""), ("", "x" * 999)])
def test_a_name_that_is_not_there_is_refused_with_those_that_are(server: str, model: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        of_named(Node(*ENGINES), server, model)
    told = str(caught.value)
    assert told.startswith("no request of ")
    assert told.endswith(" ended in this time; requests ended of gpumon/a, gpumon/org/b, vllm/a")
    assert (server or model)[:80] in told
    assert len(told) < 300


def test_many_names_are_not_all_told() -> None:
    with pytest.raises(UnknownNameError, match=r"vllm/m19, and 10 more$"):
        of_named(Node(*(("vllm", f"m{number:02}") for number in range(30))), "", "x")


def test_where_no_request_ended_no_name_is_wrong() -> None:
    assert of_named(Node(), "", "x").requests == 0


def test_a_name_that_is_known_is_asked_once() -> None:
    node = Node(*ENGINES)
    of_named(node, "", "a")
    assert node.asked == [("", "a")]
