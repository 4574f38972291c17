"""Parsing PromQL as dashboards write it: Grafana's variables are filled in, and the tree is walked with its parents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import promql_parser as ast

ANY = "any_value"
"""Stands for the value of a dashboard's variable."""
RATE_INTERVAL = timedelta(seconds=253)
INTERVAL = timedelta(seconds=17)
RANGE = timedelta(seconds=3659)
"""Stand for ``$__rate_interval``, ``$__interval`` and ``$__range``: lengths that nobody writes."""
_BUILTIN = {
    "__rate_interval": "253s",
    "__interval": "17s",
    "__interval_ms": "17000",
    "__range": "3659s",
    "__range_s": "3659",
    "__range_ms": "3659000",
}
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)[^}]*\}|(?P<plain>[A-Za-z_]\w*))")
_STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
_OPERATOR = re.compile(r"[-+*/%^=<>!]+|\b(?:and|or|unless|atan2)\b")
MOST_OPERATORS = 400
DEEPEST = 50
"""Beyond these the parser, which recurses, would take the process down."""


class PromqlError(Exception):
    """Not PromQL; says why."""


class Place(NamedTuple):
    """A node of the tree, and how it is reached."""

    node: ast.Expr
    parents: tuple[tuple[ast.Expr, int], ...]
    """From the root down: a node, and which of its children comes next."""

    def above(self) -> Iterator[tuple[ast.Expr, int]]:
        """Its parents, the nearest first, but for parentheses."""
        return ((node, child) for node, child in reversed(self.parents) if not isinstance(node, ast.ParenExpr))


def names_in(text: str) -> list[str]:
    """The variables that a text uses, as often as it does."""
    return [found["braced"] or found["plain"] for found in _VARIABLE.finditer(text)]


def substitute(expr: str) -> str:
    """The expression with Grafana's variables filled in: times by lengths, the dashboard's own by ``ANY``."""
    return _VARIABLE.sub(lambda found: _BUILTIN.get(found["braced"] or found["plain"], ANY), expr)


def parse(expr: str) -> ast.Expr:
    """The tree of an expression, its variables filled in. Raises PromqlError."""
    text = substitute(expr)
    bare = _STRING.sub('""', text)
    if _depth(bare) > DEEPEST or len(_OPERATOR.findall(bare)) > MOST_OPERATORS:
        raise PromqlError("longer or more deeply nested than anybody can read")
    try:
        return ast.parse(text)
    except ValueError as error:
        raise PromqlError(str(error)) from error


def places(root: ast.Expr) -> Iterator[Place]:
    """All nodes, each before what is in it."""
    waiting = [Place(root, ())]
    while waiting:
        place = waiting.pop()
        yield place
        inner = list(enumerate(children(place.node)))
        waiting.extend(Place(child, (*place.parents, (place.node, at))) for at, child in reversed(inner))


def selectors(root: ast.Expr) -> Iterator[tuple[ast.VectorSelector, Place]]:
    """All selectors, and where they are."""
    return ((place.node, place) for place in places(root) if isinstance(place.node, ast.VectorSelector))


def children(node: ast.Expr) -> tuple[ast.Expr, ...]:
    """What a node is made of, in the order in which it is written."""
    if isinstance(node, ast.MatrixSelector):
        return (node.vector_selector,)
    if isinstance(node, ast.BinaryExpr):
        return (node.lhs, node.rhs)
    if isinstance(node, ast.Call):
        return tuple(node.args)
    if isinstance(node, ast.AggregateExpr):
        return (node.expr,) if node.param is None else (node.param, node.expr)
    if isinstance(node, ast.ParenExpr | ast.UnaryExpr | ast.SubqueryExpr):
        return (node.expr,)
    return ()


def bare(node: ast.Expr) -> ast.Expr:
    """A node without the parentheses around it."""
    while isinstance(node, ast.ParenExpr):
        node = node.expr
    return node


def name_of(selector: ast.VectorSelector) -> str:
    """The metric that a selector names; empty where it is not one name."""
    if selector.name is not None:
        return selector.name
    names = [matcher for matcher in matchers_of(selector) if matcher.name == "__name__"]
    return names[0].value if len(names) == 1 and names[0].op == ast.MatchOp.Equal else ""


def matchers_of(selector: ast.VectorSelector) -> list[ast.Matcher]:
    """A selector's matchers, alternatives included."""
    alternatives = (matcher for group in selector.matchers.or_matchers for matcher in group)
    return [*selector.matchers.matchers, *alternatives]


def number_of(node: ast.Expr) -> float | None:
    """The value of a number, signed or in parentheses; None for all else."""
    node = bare(node)
    if isinstance(node, ast.UnaryExpr):
        inner = number_of(node.expr)
        return None if inner is None else -inner
    return node.val if isinstance(node, ast.NumberLiteral) else None


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
