"""What can be wrong with a query that Prometheus takes: each check yields problems in plain words.

Such a query is an empty graph, or a wrong figure that nobody sees: a metric or label that is not, a rate of a gauge, a
quantile of buckets without ``le``, two sides that never match, or that match more than once as soon as there are two
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import promql_parser as ast

from gpumon.model import Kind
from gpumon.model import Unit as MetricUnit
from grafana.promql_labels import (
    SET_OPERATORS,
    Labels,
    determined,
    labels,
    labels_of_name,
    matched_on,
    matches_on,
    one_side,
    values_of_name,
)
from grafana.promql_names import OF_OPERATOR, Family, Recorded, family, unknown
from grafana.promql_tree import ANY, Place, bare, children, matchers_of, name_of, places, selectors
from grafana.promql_units import clashes

GROWTH = ("rate", "irate", "increase", "resets")
_OF_ANY = ("changes", "count_over_time", "present_over_time", "absent_over_time")
_SLOPES = ("deriv", "predict_linear", "delta", "idelta", "holt_winters", "double_exponential_smoothing")
_EXISTENCE_CALLS = ("absent", "timestamp")
_EXISTENCE_AGGREGATIONS = ("count", "group")
_WORDS = re.compile(r"[\w.+\-]+(\|[\w.+\-]+)*")
"""Alternatives of a pattern that is nothing else."""

Check = Callable[[ast.Expr, Recorded], Iterator[str]]


def metric_in_catalogue(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """Every name is one that somebody writes."""
    for selector, _ in selectors(root):
        name = name_of(selector)
        why = unknown(name, recorded) if name else "a selector must name one metric"
        if why:
            yield why


def counters_by_growth(root: ast.Expr, _: Recorded) -> Iterator[str]:
    """A counter as such says how long it has been counting; only whether it is there may be asked of it."""
    for selector, place in selectors(root):
        known = family(name_of(selector))
        if known and known.counter and not _range_function(place) and not _asks_existence(selector, place):
            yield f"{name_of(selector)} is a counter: take rate(), increase() or resets() of it"


def functions_fit(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """Growth is of counters, and everything else that looks at a range is of gauges."""
    for place in places(root):
        node = place.node
        if not isinstance(node, ast.Call):
            continue
        ranged = next(
            (each for each in node.args if isinstance(bare(each), ast.MatrixSelector | ast.SubqueryExpr)), None
        )
        if ranged is not None:
            yield from _fits(node.func.name, children(bare(ranged))[0], recorded)


def labels_exist(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """Every label that is named is one that the series can have."""
    for place in places(root):
        node = place.node
        if isinstance(node, ast.VectorSelector):
            has = labels_of_name(name_of(node), recorded)
            read = [matcher.name for matcher in matchers_of(node) if matcher.name != "__name__"]
            yield from _absent(read, has, name_of(node))
        elif isinstance(node, ast.AggregateExpr) and node.modifier is not None:
            named = node.modifier.labels
            if node.modifier.type == ast.AggModifierType.Without:
                named = [label for label in named if label not in OF_OPERATOR]
            yield from _absent(named, labels(node.expr, recorded), f"what {node.op} is of")
        elif isinstance(node, ast.BinaryExpr) and node.modifier is not None:
            yield from _absent_in_match(node, node.modifier, labels(node.lhs, recorded), labels(node.rhs, recorded))
        elif isinstance(node, ast.Call) and node.func.name in ("label_replace", "label_join"):
            sources = node.args[3:4] if node.func.name == "label_replace" else node.args[3:]
            read = [source.val for source in sources if source.val]
            yield from _absent(read, labels(node.args[0], recorded), f"what {node.func.name} is of")


def values_exist(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """A matcher asks for values that the label can have, where these are a closed list."""
    for selector, _ in selectors(root):
        name = name_of(selector)
        closed = values_of_name(name, recorded)
        for matcher in matchers_of(selector):
            for value in _asked(matcher):
                if value and ANY not in value and value not in closed.get(matcher.name, (value,)):
                    yield f"{name} has no {matcher.name}={value!r}: {', '.join(closed[matcher.name])}"


def histograms(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """A quantile is of buckets by ``le``, and buckets that are added up keep it."""
    for place in places(root):
        node = place.node
        if isinstance(node, ast.Call) and node.func.name == "histogram_quantile":
            of = labels(node.args[1], recorded)
            if of.names is not None and "le" not in of.names:
                yield "histogram_quantile() of what has no label le"
            if not any("_bucket" in name_of(selector) for selector, _ in selectors(node.args[1])):
                yield "histogram_quantile() of what are no buckets"
        if isinstance(node, ast.AggregateExpr) and str(node.op) not in _EXISTENCE_AGGREGATIONS:
            of, made = labels(node.expr, recorded), labels(node, recorded)
            lost = of.names is not None and "le" in of.names and made.names is not None and "le" not in made.names
            if lost and "le" not in of.fixed:
                yield f"{node.op} over le: buckets are cumulative, so each observation counts many times"


def sides_match(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """The two sides of an operation have labels by which they match, and match once."""
    for place in places(root):
        node = place.node
        if isinstance(node, ast.BinaryExpr):
            left, right = labels(node.lhs, recorded), labels(node.rhs, recorded)
            if not left.scalar and not right.scalar:
                yield from _match(node, left, right)


def units_fit(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """What is added or compared has one unit."""
    yield from clashes(root, recorded)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("metric-in-catalogue", metric_in_catalogue),
    ("target-counter-agg", counters_by_growth),
    ("promql-function", functions_fit),
    ("promql-labels", labels_exist),
    ("promql-values", values_exist),
    ("promql-histogram", histograms),
    ("promql-match", sides_match),
    ("promql-units", units_fit),
)
"""By the names under which the lint reports them."""


def _range_function(place: Place) -> str:
    """The function of which a selector is the range; empty if it is no range."""
    above = list(place.above())
    if len(above) < 2 or not isinstance(above[0][0], ast.MatrixSelector | ast.SubqueryExpr):
        return ""
    return above[1][0].func.name if isinstance(above[1][0], ast.Call) else ""


def _asks_existence(selector: ast.VectorSelector, place: Place) -> bool:
    """Whether an instant selector is only asked whether there are such series."""
    above, child = next(place.above(), (None, 0))
    if isinstance(above, ast.Call):
        return above.func.name in _EXISTENCE_CALLS
    if isinstance(above, ast.AggregateExpr):
        return str(above.op) in _EXISTENCE_AGGREGATIONS
    if isinstance(above, ast.BinaryExpr) and str(above.op) in ("and", "unless"):
        return child == 1 or _is_new(selector, above)
    return False


def _is_new(selector: ast.VectorSelector, operation: ast.BinaryExpr) -> bool:
    """``x unless x offset 5m``: a series that was not there before, whose first value is growth that no rate sees."""
    before = bare(operation.rhs)
    if str(operation.op) != "unless" or not isinstance(before, ast.VectorSelector):
        return False
    return name_of(before) == name_of(selector) and bool(before.offset)


def _fits(function: str, of: ast.Expr, recorded: Recorded) -> Iterator[str]:
    of = bare(of)
    name = name_of(of) if isinstance(of, ast.VectorSelector) else ""
    known = family(name)
    if function in GROWTH:
        if not name:
            yield f"{function}() of an expression: take it of the counter, then the rest"
        elif name in recorded:
            yield f"{function}() of {name}, which is recorded and no counter"
        elif known is not None and not known.counter:
            yield f"{function}() of {name}, which is no counter"
    elif known is not None and function not in _OF_ANY:
        yield from _fits_gauge(function, known, name)


def _fits_gauge(function: str, known: Family, name: str) -> Iterator[str]:
    if known.counter:
        yield f"{function}() of {name}, which is a counter: take increase() or rate()"
    elif function in _SLOPES and (known.metric.kind is Kind.INFO or known.metric.unit is MetricUnit.TIMESTAMP):
        yield f"{function}() of {name}, which has no slope"


def _absent(read: list[str], has: Labels, where: str) -> Iterator[str]:
    if has.names is not None:
        for label in read:
            if label not in has.names:
                yield f"{where} has no label {label}"


def _absent_in_match(node: ast.BinaryExpr, modifier: ast.BinModifier, left: Labels, right: Labels) -> Iterator[str]:
    matching = modifier.matching
    if matching is not None and matching.type == ast.LabelModifierType.Include:
        yield from _absent(matching.labels, left, f"the left side of {node.op}")
        yield from _absent(matching.labels, right, f"the right side of {node.op}")
    elif matching is not None and left.names is not None and right.names is not None:
        either = Labels(left.names | right.names | OF_OPERATOR)
        yield from _absent(matching.labels, either, f"either side of {node.op}")
    one = right if one_side(node) == "right" else left
    yield from _absent(modifier.group_labels or [], one, f"the one side of {node.op}")


def _asked(matcher: ast.Matcher) -> list[str]:
    """The values that a matcher names: itself, or alternatives that are plain words."""
    if matcher.op in (ast.MatchOp.Equal, ast.MatchOp.NotEqual):
        return [matcher.value]
    return matcher.value.split("|") if _WORDS.fullmatch(matcher.value) else []


def _match(node: ast.BinaryExpr, left: Labels, right: Labels) -> Iterator[str]:
    op = str(node.op)
    on = matched_on(node, left, right)
    if on is None:
        return
    if op == "or":
        if right.names == frozenset() and left.names and not on - left.names:
            yield "or adds a series without labels to series that have some"
        return
    if left.names is not None and right.names is not None:
        lacking = {"left": on - left.names, "right": on - right.names}
        if not matches_on(node) and any(lacking.values()):
            told = "; ".join(
                f"the {side} has no {', '.join(sorted(names))}" for side, names in lacking.items() if names
            )
            yield f"{op} matches by all labels, and {told}: say on() or ignoring()"
            return
    for label in sorted(on):
        values = {side.fixed.get(label, ANY) for side in (left, right)} - {ANY}
        if len(values) == 2:
            yield f"{op} never matches: {label} is {' on one side and '.join(sorted(values))} on the other"
    if op not in SET_OPERATORS:
        yield from _match_once(node, left, right, on)


def _match_once(node: ast.BinaryExpr, left: Labels, right: Labels, on: frozenset[str]) -> Iterator[str]:
    single = one_side(node)
    for side, has in (("left", left), ("right", right)):
        if single in (side, "both") and has.names is not None:
            several = has.names - determined(on, has.fixed)
            if several:
                yield (
                    f"{node.op} may match several series of the {side}: they can differ in {', '.join(sorted(several))}"
                )
