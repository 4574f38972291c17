"""Checks one PromQL expression of a dashboard or a rule against gpumon's catalogue.

``check`` says what is wrong, ``labels_of`` and ``unit_of`` what the expression gives. Grafana's variables may be in it.
What is checked is in ``promql_checks``; how labels and units follow is in ``promql_labels`` and ``promql_units``.
"""

from __future__ import annotations

from typing import NamedTuple

from grafana import promql_labels, promql_units
from grafana.promql_checks import CHECKS
from grafana.promql_names import Recorded
from grafana.promql_tree import PromqlError, parse
from grafana.promql_units import COUNT, NEUTRAL, Unit


class Problem(NamedTuple):
    """What is wrong with an expression."""

    rule: str
    """Name of the lint's rule."""
    text: str


def problems(expr: str, recorded: Recorded) -> list[Problem]:
    """What is wrong, each thing once, by rule."""
    try:
        root = parse(expr)
        found = [Problem(rule, text) for rule, check_ in CHECKS for text in check_(root, recorded)]
    except PromqlError as error:
        return [Problem("target-promql", str(error))]
    except RecursionError:
        return [Problem("target-promql", "longer or more deeply nested than anybody can read")]
    return list(dict.fromkeys(found))


def check(expr: str, recorded: Recorded) -> list[str]:
    """What is wrong, in plain words; empty is good. Never raises."""
    return [problem.text for problem in problems(expr, recorded)]


def labels_of(expr: str, recorded: Recorded) -> frozenset[str] | None:
    """Labels that the expression's series can have; None where they cannot be known. Raises PromqlError."""
    return promql_labels.labels(parse(expr), recorded).names


def unit_of(expr: str, recorded: Recorded) -> Unit | None:
    """The unit of the expression; None where it is not known. Raises PromqlError."""
    made = promql_units.unit(parse(expr), recorded)
    return COUNT if made == NEUTRAL else made
