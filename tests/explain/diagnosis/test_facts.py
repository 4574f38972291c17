"""Facts as text: every name that a fact can have is told as people say it."""

from __future__ import annotations

import ast
from pathlib import Path

import gpumon.explain
from gpumon.explain.diagnosis.facts import PHRASES, fact_text
from gpumon.explain.signs import Fact
from gpumon.model import Unit

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
