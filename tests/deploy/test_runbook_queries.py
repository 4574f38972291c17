"""Queries that docs/RUNBOOKS.md tells people to ask at night: they are PromQL, of families and labels that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grafana.promql import check
from grafana.promql_names import load_recorded

RUNBOOKS = (Path(__file__).parents[2] / "docs/RUNBOOKS.md").read_text()
RECORDED = load_recorded()
_BLOCK = re.compile(r"^ *```promql\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_ANY_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]*gpumon_[^`]*)`")
_CONTINUES = ("-", "+", "/", "*", "and ", "or ", "unless ", ">", "<", "(", ")")


def queries() -> list[tuple[str, str]]:
    """The queries, with the alerts whose sections they are in."""
    sections = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1:]
    return [(section.split("\n", 1)[0], query) for section in sections for query in queries_of(section)]


def queries_of(section: str) -> list[str]:
    """Of blocks, where a query may take several lines; and of spans of code that are more than a name."""
    found: list[str] = []
    for block in _BLOCK.findall(section):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
        for number, line in enumerate(lines):
            if number and (found[-1].count("(") > found[-1].count(")") or line.startswith(_CONTINUES)):
                found[-1] += f" {line}"
            else:
                found.append(line)
    spans = _SPAN.findall(_ANY_BLOCK.sub("", section))
    return found + [" ".join(span.split()) for span in spans if "{" in span or "(" in span]


def test_a_query_over_several_lines_is_one() -> None:
    block = "```promql\n# how much\nsum by (x) (\n  a\n)\n  / b\nc\n```\n`gpumon_d` and `sum(\ngpumon_e)`"
    assert queries_of(block) == ["sum by (x) ( a ) / b", "c", "sum( gpumon_e)"]


@pytest.mark.parametrize(("alert", "query"), queries())
def test_a_query_can_be_answered(alert: str, query: str) -> None:
    assert check(query, RECORDED) == [], alert
