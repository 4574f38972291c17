"""Which labels the series of an expression can have, and which of them have one value in all of them.

Follows Prometheus: an aggregation keeps what it names, a match one to one keeps what it matches on, ``group_left`` adds
labels of the other side, ``absent`` has those of its matchers. Where a label cannot be known (``ALERTS``, a selector
without a name) nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import promql_parser as ast

from grafana.promql_names import ALERTS, OF_TARGET, TARGET, Recorded, family
from grafana.promql_tree import ANY, PromqlError, bare, name_of, parse, places

SET_OPERATORS = ("and", "or", "unless")
_KEEPING_AGGREGATIONS = ("topk", "bottomk", "limitk", "limit_ratio")
_WITHOUT_SERIES = ("time", "pi")
_OF_MATCHERS = ("absent", "absent_over_time")
_UNIQUE = (
    ({"uuid"}, {"gpu", "instance", "node", "cluster", "job", "parent_uuid", "gpu_instance", "compute_instance"}),
    ({"uuid"}, {"profile", "name", "pci_bus_id", "vbios_version", "architecture", "compute_capability", "numa_node"}),
    ({"uuid"}, {"minor", "mig_mode", "memory_model", "activity_source"}),
    ({"cluster", "node", "gpu"}, {"uuid"}),
    ({"cluster", "node"}, {"instance", "job", "version", "python", "driver_version", "nvml_version", "cuda_version"}),
    ({"instance"}, {"cluster", "node", "job"}),
)
"""Labels of which one value has one value of others. One gpumon runs on each node, and a GPU is in one node."""


class Labels(NamedTuple):
    """Labels of an expression."""

    names: frozenset[str] | None
    """Those that its series can have; None where they cannot be known."""
    fixed: Mapping[str, str] = {}
    """Those that have the same value in all of them; ``ANY`` where a dashboard's variable gives it."""
    scalar: bool = False
    """A number: it has no series, and matches anything."""


_UNKNOWN = Labels(None)
_SCALAR = Labels(frozenset(), scalar=True)


def labels(node: ast.Expr, recorded: Recorded, inside: frozenset[str] = frozenset()) -> Labels:
    """The labels of a tree. ``inside``: recording rules that are being looked into."""
    if isinstance(node, ast.NumberLiteral | ast.StringLiteral):
        return _SCALAR
    if isinstance(node, ast.VectorSelector):
        return _of_selector(node, recorded, inside)
    if isinstance(node, ast.MatrixSelector):
        return _of_selector(node.vector_selector, recorded, inside)
    if isinstance(node, ast.AggregateExpr):
        return _of_aggregation(node, labels(node.expr, recorded, inside))
    if isinstance(node, ast.BinaryExpr):
        return _of_operation(node, labels(node.lhs, recorded, inside), labels(node.rhs, recorded, inside))
    if isinstance(node, ast.Call):
        return _of_call(node, recorded, inside)
    if isinstance(node, ast.ParenExpr | ast.UnaryExpr | ast.SubqueryExpr):
        return labels(node.expr, recorded, inside)
    return _UNKNOWN


def labels_of_name(name: str, recorded: Recorded, inside: frozenset[str] = frozenset()) -> Labels:
    """Labels of all series of a name."""
    known = family(name)
    if known is not None:
        return Labels(known.labels)
    if name in OF_TARGET:
        return Labels(TARGET)
    if name in ALERTS or name not in recorded or name in inside:
        return _UNKNOWN
    recording = recorded[name]
    made = []
    for expr in recording.exprs:
        try:
            made.append(labels(parse(expr), recorded, inside | {name}))
        except PromqlError:
            return _UNKNOWN
    names = frozenset(recording.labels)
    for each in made:
        if each.names is None:
            return _UNKNOWN
        names |= each.names
    one = made[0].fixed if len(made) == 1 else {}
    added = {label: values[0] for label, values in recording.labels.items() if len(made) == 1}
    return Labels(names, {**one, **added})


def values_of_name(name: str, recorded: Recorded, inside: frozenset[str] = frozenset()) -> dict[str, tuple[str, ...]]:
    """Labels of a name whose values are a closed list. Those of a recording rule are its families', and its own."""
    known = family(name)
    if known is not None:
        return known.values
    if name not in recorded or name in inside:
        return {}
    closed: dict[str, tuple[str, ...]] = {}
    free: set[str] = set()
    for expr in recorded[name].exprs:
        try:
            tree = parse(expr)
        except PromqlError:
            return {}
        for place in places(tree):
            if isinstance(place.node, ast.Call) and place.node.func.name in ("label_replace", "label_join"):
                free.add(place.node.args[1].val)
            if isinstance(place.node, ast.VectorSelector):
                inner = name_of(place.node)
                values = values_of_name(inner, recorded, inside | {name})
                free |= (labels_of_name(inner, recorded, inside | {name}).names or frozenset()) - values.keys()
                for label, more in values.items():
                    closed[label] = tuple(dict.fromkeys((*closed.get(label, ()), *more)))
    return {label: values for label, values in closed.items() if label not in free} | dict(recorded[name].labels)


def determined(by: frozenset[str], fixed: Mapping[str, str]) -> frozenset[str]:
    """Labels of which there is one value for each combination of ``by``."""
    known = by | frozenset(fixed)
    while True:
        more = known.union(*(then for given, then in _UNIQUE if given <= known))
        if more == known:
            return known
        known = more


def matched_on(node: ast.BinaryExpr, left: Labels, right: Labels) -> frozenset[str] | None:
    """The labels by which an operation between two vectors matches; None where they cannot be known."""
    matching = node.modifier.matching if node.modifier else None
    if matching is not None and matches_on(node):
        return frozenset(matching.labels)
    if left.names is None or right.names is None:
        return None
    return (left.names | right.names) - frozenset(matching.labels if matching else ())


def matches_on(node: ast.BinaryExpr) -> bool:
    """Whether an operation names the labels by which it matches: ``on()``."""
    matching = node.modifier.matching if node.modifier else None
    return matching is not None and matching.type == ast.LabelModifierType.Include


def one_side(node: ast.BinaryExpr) -> str:
    """``left`` or ``right``: where an operation's series must be one for each match; ``both`` without ``group_``."""
    card = node.modifier.card if node.modifier else ast.VectorMatchCardinality.OneToOne
    if card == ast.VectorMatchCardinality.ManyToOne:
        return "right"
    return "left" if card == ast.VectorMatchCardinality.OneToMany else "both"


def _of_selector(selector: ast.VectorSelector, recorded: Recorded, inside: frozenset[str]) -> Labels:
    of_name = labels_of_name(name_of(selector), recorded, inside)
    return of_name._replace(fixed={**of_name.fixed, **_equal(selector)})


def _equal(selector: ast.VectorSelector) -> dict[str, str]:
    found = (matcher for matcher in selector.matchers.matchers if matcher.op == ast.MatchOp.Equal)
    return {matcher.name: ANY if ANY in matcher.value else matcher.value for matcher in found}


def _kept(from_: Labels, names: frozenset[str]) -> Labels:
    return Labels(names, {label: value for label, value in from_.fixed.items() if label in names})


def _of_aggregation(node: ast.AggregateExpr, of: Labels) -> Labels:
    op = str(node.op)
    if op in _KEEPING_AGGREGATIONS:
        return of
    named: frozenset[str] = frozenset(node.modifier.labels if node.modifier else ())
    if node.modifier is None or node.modifier.type == ast.AggModifierType.By:
        made = _kept(of, named)
    elif of.names is None:
        return _UNKNOWN
    else:
        made = _kept(of, of.names - named)
    if op == "count_values" and made.names is not None and node.param is not None:
        return made._replace(names=made.names | {node.param.val})
    return made


def _of_operation(node: ast.BinaryExpr, left: Labels, right: Labels) -> Labels:
    op = str(node.op)
    if left.scalar or right.scalar:
        return right if left.scalar else left
    if op == "or":
        if left.names is None or right.names is None:
            return _UNKNOWN
        same = {label: value for label, value in left.fixed.items() if right.fixed.get(label) == value}
        return Labels(left.names | right.names, same)
    if op in SET_OPERATORS:
        return left
    side = one_side(node)
    if side == "both":
        on = matched_on(node, left, right)
        if on is None:
            return _UNKNOWN
        names = on if matches_on(node) or left.names is None else on & left.names
        return _kept(Labels(names, {**left.fixed, **right.fixed}), names)
    many, one = (left, right) if side == "right" else (right, left)
    added = frozenset((node.modifier.group_labels if node.modifier else None) or ())
    if many.names is None:
        return _UNKNOWN
    fixed = {label: value for label, value in many.fixed.items() if label not in added}
    return Labels(many.names | added, {**fixed, **_kept(one, added).fixed})


def _of_call(node: ast.Call, recorded: Recorded, inside: frozenset[str]) -> Labels:
    name = node.func.name
    arguments = list(node.args)
    if name in _WITHOUT_SERIES or name == "scalar":
        return _SCALAR
    if name == "vector" or not arguments:  # hour() and its like, of now
        return Labels(frozenset())
    if name in _OF_MATCHERS:
        selector = bare(arguments[0])
        selector = selector.vector_selector if isinstance(selector, ast.MatrixSelector) else selector
        equal = _equal(selector) if isinstance(selector, ast.VectorSelector) else {}
        return Labels(frozenset(equal), equal)
    if name in ("label_replace", "label_join"):
        return _of_label_function(node, labels(arguments[0], recorded, inside))
    vectors = (labels(argument, recorded, inside) for argument in arguments)
    of = next((vector for vector in vectors if not vector.scalar), _SCALAR)
    if name.startswith("histogram_") and of.names is not None:
        return _kept(of, of.names - {"le"})
    return of


def _of_label_function(node: ast.Call, of: Labels) -> Labels:
    if of.names is None:
        return _UNKNOWN
    target = node.args[1].val
    fixed = {label: value for label, value in of.fixed.items() if label != target}
    if node.func.name == "label_replace" and not node.args[3].val:  # of no label: the replacement is the value
        if not node.args[2].val:
            return Labels(of.names - {target}, fixed)
        fixed[target] = node.args[2].val
    return Labels(of.names | {target}, fixed)
