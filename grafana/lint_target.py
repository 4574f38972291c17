"""Rules for the queries of panels, which PromQL can be read as. Each yields what is wrong.

What is wrong with the PromQL itself is in ``promql_checks``; here is what is wrong with it in its panel. Names are
those of grafana/dashboard-linter where it has such a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import promql_parser as ast

from grafana.lint_model import Dashboard, Panel, Target, labels_in
from grafana.lint_units import SHOWS, shows, unit_for, unit_of_column
from grafana.promql_labels import labels, labels_of_name
from grafana.promql_names import Recorded
from grafana.promql_tree import INTERVAL, RANGE, RATE_INTERVAL, bare, matchers_of, name_of, places, selectors
from grafana.promql_units import COUNT, NEUTRAL, Unit, unit, unit_of_buckets


class Asked(NamedTuple):
    """A query where it stands."""

    target: Target
    panel: Panel
    board: Dashboard
    recorded: Recorded
    tree: ast.Expr


Rule = Callable[[Asked], Iterator[str]]


def target_rate_interval(asked: Asked) -> Iterator[str]:
    """A rate over time is of ``$__rate_interval``, never less than two scrapes; over all of it, of ``$__range``."""
    allowed = (RATE_INTERVAL, RANGE) if asked.target.instant else (RATE_INTERVAL,)
    for place in places(asked.tree):
        node = place.node
        if not isinstance(node, ast.Call) or node.func.name not in ("rate", "irate", "increase"):
            continue
        ranged = bare(node.args[0])
        assert isinstance(ranged, ast.MatrixSelector | ast.SubqueryExpr)
        length = ranged.range
        if node.func.name == "increase" and length == INTERVAL:
            yield "increase() over $__interval, which may be less than two scrapes: take $__rate_interval"
        if node.func.name != "increase" and length not in allowed:
            yield f"{node.func.name}() over another time than $__rate_interval"


def target_job(asked: Asked) -> Iterator[str]:
    """Every selector has the job that was chosen."""
    yield from _unfiltered(asked, "job")


def target_instance(asked: Asked) -> Iterator[str]:
    """Every selector has the instance that was chosen."""
    yield from _unfiltered(asked, "instance")


def target_node(asked: Asked) -> Iterator[str]:
    """Every selector has the cluster and the node that were chosen."""
    for name in ("cluster", "node"):
        if asked.board.variable(name) is not None:
            yield from _unfiltered(asked, name)


def target_unit(asked: Asked) -> Iterator[str]:
    """A figure is shown in the unit that it has."""
    made = unit_of_buckets(asked.tree, asked.recorded) if asked.target.heatmap else unit(asked.tree, asked.recorded)
    of = COUNT if made == NEUTRAL else made
    shown = unit_for(asked.panel, asked.target)
    if of is not None and shown and not shows(shown, of):
        yield f"query {asked.target.ref} gives {of}, shown as {shown!r}: expected is {_expected(of)}"


def target_label_text(asked: Asked) -> Iterator[str]:
    """Labels in a table are texts. In a unit for figures, process 41213 is 41.2 K, and so is a node of that name."""
    if asked.panel.type != "table":
        return
    fields = asked.panel.fields
    for name in sorted(labels(asked.tree, asked.recorded).names or ()):
        heading = asked.panel.heading(name)
        shown = unit_of_column(asked.panel, heading)
        if (fields is None or name in fields) and shown not in ("", "string"):
            yield f"column {heading!r} is of the label {name}, shown as {shown!r}: expected is 'string'"


def target_legend(asked: Asked) -> Iterator[str]:
    """A legend shows labels that the series have, and tells several series apart."""
    has, legend = labels(asked.tree, asked.recorded), asked.target.legend
    if has.names is None:
        return
    shown = labels_in(legend)
    yield from (f"legend {legend!r}: the series have no label {name}" for name in shown if name not in has.names)
    several = has.names - set(has.fixed)
    if legend and not shown and several and asked.target.raw.get("format") != "table":
        yield f"legend {legend!r} is the same for all series: they differ in {', '.join(sorted(several))}"


def target_heatmap(asked: Asked) -> Iterator[str]:
    """Format heatmap takes each series from the next by ``le``: it is for buckets, and for nothing else."""
    has = labels(asked.tree, asked.recorded).names
    if not asked.target.heatmap:
        if asked.panel.type == "heatmap" and has is not None and "le" in has:
            yield "buckets that are not asked in format heatmap: each row has all those below it, too"
        return
    if asked.panel.type != "heatmap":
        yield f"format heatmap in a panel of type {asked.panel.type}"
    if has is None or set(has) != {"le"}:
        yield f"format heatmap of series by {', '.join(sorted(has or ())) or 'no label'}: expected is le alone"
    if unit_of_buckets(asked.tree, asked.recorded) is None:
        yield "format heatmap of what are no buckets of one histogram"
    if asked.target.legend != "{{le}}":
        yield f"legend {asked.target.legend!r}: expected is {{{{le}}}}"


TARGET_RULES: tuple[tuple[str, Rule], ...] = (
    ("target-rate-interval", target_rate_interval),
    ("target-job", target_job),
    ("target-instance", target_instance),
    ("target-node", target_node),
    ("target-unit", target_unit),
    ("target-label-text", target_label_text),
    ("target-legend", target_legend),
    ("target-heatmap", target_heatmap),
)


def _unfiltered(asked: Asked, label: str) -> Iterator[str]:
    """Selectors whose series have a label, and that do not match it with the variable of its name."""
    for selector, _ in selectors(asked.tree):
        has = labels_of_name(name_of(selector), asked.recorded).names
        if has is not None and label in has and label not in {matcher.name for matcher in matchers_of(selector)}:
            yield f'{name_of(selector)} without {label}=~"${label}"'


def _expected(of: Unit) -> str:
    return " or ".join(SHOWS[of]) or "1000 times it, as a date"
