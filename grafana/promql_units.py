"""The unit of an expression: a small algebra over the catalogue's base units.

A rate takes off a second: seconds become a share of time, joules become watts, bytes become bytes per second. Equal
units divide to a share. Where a number of the query itself scales a unit (x 1000, / 1e6) the outcome is not known, as
nothing says what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import promql_parser as ast

from gpumon import model
from gpumon.model import Kind
from grafana.promql_labels import SET_OPERATORS
from grafana.promql_names import OF_TARGET, Recorded, family
from grafana.promql_tree import PromqlError, bare, name_of, number_of, parse, places


class Sort(Enum):
    """What a number without dimensions, or a time, is."""

    PLAIN = "plain"
    """A count, or a quantity of its dimensions."""
    SHARE = "share"
    """0 to 1, as a rule: of time, of a whole."""
    MOMENT = "moment"
    """Unix time."""
    MOMENT_MS = "moment_ms"
    """Unix time in milliseconds, as Grafana's units of dates want it."""
    NEUTRAL = "neutral"
    """A number of the query itself, or the 1 of an info metric: takes the unit of what it meets."""


class Unit(NamedTuple):
    """Exponents of base units, and what the number is."""

    seconds: int = 0
    bytes: int = 0
    joules: int = 0
    hertz: int = 0
    celsius: int = 0
    sort: Sort = Sort.PLAIN

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The exponents."""
        return (self.seconds, self.bytes, self.joules, self.hertz, self.celsius)

    def __str__(self) -> str:
        """In words, for a finding."""
        if self.sort is not Sort.PLAIN:
            return {Sort.SHARE: "a share", Sort.NEUTRAL: "a number"}.get(self.sort, "a moment")
        parts = [
            name if power == 1 else f"{name}^{power}"
            for name, power in zip(("s", "B", "J", "Hz", "degrees C"), self.dimensions, strict=True)
            if power
        ]
        return " ".join(parts) or "a count"


COUNT = Unit()
SHARE = Unit(sort=Sort.SHARE)
NEUTRAL = Unit(sort=Sort.NEUTRAL)
MOMENT = Unit(sort=Sort.MOMENT)
MOMENT_MS = Unit(sort=Sort.MOMENT_MS)
SECONDS = Unit(seconds=1)
PER_SECOND = Unit(seconds=-1)

_OF_MODEL = {
    model.Unit.NONE: COUNT,
    model.Unit.SECONDS: SECONDS,
    model.Unit.BYTES: Unit(bytes=1),
    model.Unit.WATTS: Unit(seconds=-1, joules=1),
    model.Unit.JOULES: Unit(joules=1),
    model.Unit.HERTZ: Unit(hertz=1),
    model.Unit.CELSIUS: Unit(celsius=1),
    model.Unit.RATIO: SHARE,
    model.Unit.TIMESTAMP: MOMENT,
}
_RATES = ("rate", "irate", "deriv")
_COUNTS = ("count", "group", "count_values")
_COUNTING = ("changes", "resets", "count_over_time", "present_over_time", "absent", "absent_over_time", "sgn")
_SAME = (
    *("increase", "delta", "idelta", "abs", "ceil", "floor", "round", "clamp", "clamp_min", "clamp_max", "sort"),
    *("sort_desc", "sort_by_label", "sort_by_label_desc", "label_replace", "label_join", "scalar", "vector"),
    *("predict_linear", "avg_over_time", "min_over_time", "max_over_time", "last_over_time", "stddev_over_time"),
)
_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")


def unit(node: ast.Expr, recorded: Recorded, inside: frozenset[str] = frozenset()) -> Unit | None:
    """The unit of a tree; None where it is not known. ``inside``: recording rules that are being looked into."""
    if isinstance(node, ast.NumberLiteral):
        return NEUTRAL
    if isinstance(node, ast.VectorSelector):
        return _of_name(name_of(node), recorded, inside)
    if isinstance(node, ast.MatrixSelector):
        return _of_name(name_of(node.vector_selector), recorded, inside)
    if isinstance(node, ast.BinaryExpr):
        return _of_operation(node, unit(node.lhs, recorded, inside), unit(node.rhs, recorded, inside))
    if isinstance(node, ast.AggregateExpr):
        return _of_aggregation(str(node.op), unit(node.expr, recorded, inside))
    if isinstance(node, ast.Call):
        return _of_call(node, recorded, inside)
    if isinstance(node, ast.ParenExpr | ast.UnaryExpr | ast.SubqueryExpr):
        return unit(node.expr, recorded, inside)
    return None


def clashes(root: ast.Expr, recorded: Recorded) -> Iterator[str]:
    """Operations of a tree that add or compare what has different units."""
    for place in places(root):
        node = place.node
        if not isinstance(node, ast.BinaryExpr) or str(node.op) not in ("+", "-", *_COMPARISONS):
            continue
        left, right = unit(node.lhs, recorded), unit(node.rhs, recorded)
        if left is None or right is None or Sort.NEUTRAL in (left.sort, right.sort) or _alike(left, right):
            continue
        if not (str(node.op) in "+-" and _moved(left, right)):
            yield f"{left} {node.op} {right}: these are different units"


def _of_name(name: str, recorded: Recorded, inside: frozenset[str]) -> Unit | None:
    known = family(name)
    if known is not None:
        if known.metric.kind is Kind.INFO:
            return NEUTRAL
        return COUNT if known.part in ("_bucket", "_count") else _OF_MODEL[known.metric.unit]
    if name in OF_TARGET:
        return _OF_MODEL[OF_TARGET[name]]
    if name not in recorded or name in inside:
        return None
    try:
        made = {unit(parse(expr), recorded, inside | {name}) for expr in recorded[name].exprs}
    except PromqlError:
        return None
    return made.pop() if len(made) == 1 else None


def _alike(left: Unit, right: Unit) -> bool:
    counts = {Sort.PLAIN, Sort.SHARE}  # a count over a count is a share, or a mean: it cannot be told
    return left.dimensions == right.dimensions and (left.sort is right.sort or {left.sort, right.sort} <= counts)


def _moved(left: Unit, right: Unit) -> bool:
    return {left, right} == {MOMENT, SECONDS}


def _of_operation(node: ast.BinaryExpr, left: Unit | None, right: Unit | None) -> Unit | None:
    op = str(node.op)
    if op in _COMPARISONS and node.modifier and node.modifier.return_bool:
        return COUNT
    if op in _COMPARISONS or op in SET_OPERATORS:
        return right if left == NEUTRAL else left
    if left is None or right is None:
        return None
    if op in "+-":
        return _sum(op, left, right)
    if op not in "*/":
        return None
    if left == right == NEUTRAL:
        return NEUTRAL
    factors = {number_of(node.lhs), number_of(node.rhs)} - {None}
    if factors:
        return _scaled(op, node, left, right)
    return _product(left, right) if op == "*" else _quotient(left, right)


def _sum(op: str, left: Unit, right: Unit) -> Unit | None:
    if NEUTRAL in (left, right):
        return right if left == NEUTRAL else left
    if left == right:
        return SECONDS if left == MOMENT and op == "-" else left
    if _moved(left, right):
        return MOMENT
    return COUNT if _alike(left, right) else None


def _scaled(op: str, node: ast.BinaryExpr, left: Unit, right: Unit) -> Unit | None:
    factor = number_of(node.lhs) if left == NEUTRAL else number_of(node.rhs)
    of = right if left == NEUTRAL else left
    if op == "*" and factor == 0:  # 0 * x + y: the series of x with the values of y
        return NEUTRAL
    if factor in (1, -1) and (op == "*" or left != NEUTRAL):
        return of
    return MOMENT_MS if (op, factor, of) == ("*", 1000, MOMENT) else None


def _product(left: Unit, right: Unit) -> Unit | None:
    if NEUTRAL in (left, right):
        return right if left == NEUTRAL else left
    if {left, right} & {MOMENT, MOMENT_MS}:
        return None
    if SHARE in (left, right):
        other = right if left == SHARE else left
        return None if other == COUNT else other
    return _combined(left, right, 1)


def _quotient(left: Unit, right: Unit) -> Unit | None:
    if right in (NEUTRAL, SHARE):
        return None if left == SHARE else left
    if left == NEUTRAL or {left, right} & {MOMENT, MOMENT_MS} or (left, right) == (SHARE, COUNT):
        return None
    if left == right and left not in (COUNT, PER_SECOND):  # of counts it may be a mean: tokens for each request
        return SHARE
    return _combined(left, right, -1)


def _combined(left: Unit, right: Unit, sign: int) -> Unit:
    powers = (one + sign * other for one, other in zip(left.dimensions, right.dimensions, strict=True))
    return Unit._make((*powers, Sort.PLAIN))


def _of_aggregation(op: str, of: Unit | None) -> Unit | None:
    if op in _COUNTS:
        return COUNT
    if op == "stdvar":
        return None
    return COUNT if op == "sum" and of == SHARE else of


def _of_call(node: ast.Call, recorded: Recorded, inside: frozenset[str]) -> Unit | None:
    name = node.func.name
    if name in ("time", "timestamp"):
        return MOMENT
    if name in _COUNTING:
        return COUNT
    if name == "histogram_quantile":
        return unit_of_buckets(node.args[1], recorded, inside)
    if name == "quantile_over_time":
        return unit(node.args[1], recorded, inside)
    if name not in (*_SAME, *_RATES, "sum_over_time") or not node.args:
        return None
    of = unit(node.args[0], recorded, inside)
    if name in _RATES:
        return _per_second(of)
    return None if name == "sum_over_time" and of == SHARE else of


def _per_second(of: Unit | None) -> Unit | None:
    if of is None or of.sort is not Sort.PLAIN:
        return None
    return SHARE if of == SECONDS else of._replace(seconds=of.seconds - 1)


def unit_of_buckets(node: ast.Expr, recorded: Recorded, inside: frozenset[str] = frozenset()) -> Unit | None:
    """The unit of what a histogram observes, from the buckets in an expression."""
    found: set[Unit | None] = set()
    for place in places(bare(node)):
        if not isinstance(place.node, ast.VectorSelector):
            continue
        name = name_of(place.node)
        known = family(name)
        if known is not None and known.part == "_bucket":
            found.add(_OF_MODEL[known.metric.unit])
        elif name in recorded and name not in inside:
            try:
                found |= {unit_of_buckets(parse(expr), recorded, inside | {name}) for expr in recorded[name].exprs}
            except PromqlError:
                found.add(None)
    return found.pop() if len(found) == 1 else None
