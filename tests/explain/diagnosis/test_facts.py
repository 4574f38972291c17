"""Facts as text: every name that a fact can have is told as people say it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpumon.explain
from gpumon.explain.causes import INDEX
from gpumon.explain.diagnosis.facts import GONE, PHRASES, fact_text
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.diagnosis.requests import request, rows_of

EXPLAIN = Path(gpumon.explain.__file__).parent
PASSED_ON = {
    "cpu.py": {"throttled_seconds_per_second", "cpu_pressure"},
    "numa.py": {"local_pages", "local_cpus"},
}
"""Names that a file hands to a fact through a variable."""


def names_in(path: Path) -> set[str]:
    """Of the facts that a file makes; those through a variable are looked for as texts."""
    tree = ast.parse(path.read_text("utf-8"))
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fact":
            first = node.args[0]
            if isinstance(first, ast.Constant):
                named.add(str(first.value))
            else:
                texts = {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)}
                assert PASSED_ON[path.name] <= texts, path.name
                named |= PASSED_ON[path.name]
    return named


def test_every_name_has_one_phrase_and_no_phrase_is_of_no_name() -> None:
    files = [*(EXPLAIN / "witnesses").glob("*.py"), EXPLAIN / "group_state.py"]
    names = set().union(*map(names_in, files))
    assert len(names) > 20
    assert names == {*PHRASES}
    assert not any("_" in phrase for phrase in PHRASES.values())
    assert len({*PHRASES.values()}) == len(PHRASES)


def test_a_fact_is_told_with_what_is_usual() -> None:
    fact = Fact("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9)
    assert fact_text(fact) == "SM clock 1,005 MHz, usually 1,410 MHz"
    assert fact_text(fact._replace(usual=None)) == "SM clock 1,005 MHz"
    assert fact_text(fact._replace(name="of_a_later_version")) == "of a later version 1,005 MHz, usually 1,410 MHz"
    assert fact_text(None) == ""


@pytest.mark.parametrize(
    "fact",
    [
        Fact("requests_waiting", 0.0, Unit.NONE, 0.0),
        Fact("requests_decoding", 9.071, Unit.NONE, 9.0712),
        Fact("sm_clock", 1.9801e9, Unit.HERTZ, 1.98e9),
    ],
)
def test_a_figure_that_reads_the_same_as_what_is_usual_explains_nothing(fact: Fact) -> None:
    assert fact_text(fact) == ""
    assert fact_text(fact._replace(usual=None)) != ""


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_said_to_be(name: str) -> None:
    assert fact_text(Fact(name, 0.0, Unit.NONE, 1.0)) == GONE[name]
    assert fact_text(Fact(name, 1.0, Unit.NONE, 2.0)) == f"{PHRASES[name]} 1, usually 2"


def test_of_a_cause_the_figure_of_the_row_that_lost_most_counts_unless_it_is_as_usual() -> None:
    same, told = Fact("requests_waiting", 0.0, Unit.NONE, 0.0), Fact("requests_waiting", 40.0, Unit.NONE, 0.0)
    rows = rows_of([request(slow={"queueing": 9.0}, fact=same), request(slow={"queueing": 1.0}, fact=told)])
    assert rows.fact(INDEX["queueing"]) == told
    assert rows_of([request(slow={"queueing": 9.0}, fact=same)]).fact(INDEX["queueing"]) is None
    unknown = same._replace(usual=None)
    assert rows_of([request(slow={"queueing": 9.0}, fact=unknown)]).fact(INDEX["queueing"]) == unknown
