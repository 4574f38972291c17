"""A dashboard's JSON as the lint sees it: panels at every depth, their queries, variables, and every text in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WITHOUT_QUERY = ("row", "text", "dashlist", "annolist", "alertlist", "news")
"""Types of panels that ask nothing."""
_LABEL = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<expr>.*),)?\s*(?P<label>\w+)\s*\)")


class Target(NamedTuple):
    """A query of a panel."""

    raw: dict[str, Any]

    @property
    def expr(self) -> str:
        return str(self.raw.get("expr", ""))

    @property
    def ref(self) -> str:
        return str(self.raw.get("refId", ""))

    @property
    def legend(self) -> str:
        return str(self.raw.get("legendFormat", ""))

    @property
    def heatmap(self) -> bool:
        return self.raw.get("format") == "heatmap"

    @property
    def instant(self) -> bool:
        return bool(self.raw.get("instant")) and not self.raw.get("range")


class Panel(NamedTuple):
    """A panel, or a row's heading."""

    raw: dict[str, Any]
    row: str
    """Title of the collapsed row in which it is; else empty."""

    @property
    def title(self) -> str:
        return str(self.raw.get("title", ""))

    @property
    def type(self) -> str:
        return str(self.raw.get("type", ""))

    @property
    def asks(self) -> bool:
        return self.type not in WITHOUT_QUERY

    @property
    def targets(self) -> list[Target]:
        return [Target(raw) for raw in self.raw.get("targets") or []] if self.asks else []

    @property
    def defaults(self) -> dict[str, Any]:
        found = (self.raw.get("fieldConfig") or {}).get("defaults")
        return found if isinstance(found, dict) else {}

    @property
    def overrides(self) -> list[dict[str, Any]]:
        return list((self.raw.get("fieldConfig") or {}).get("overrides") or [])

    @property
    def options(self) -> dict[str, Any]:
        found = self.raw.get("options")
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        return self.title or f"{self.type} {self.raw.get('id', '')}"

    @property
    def fields(self) -> list[str] | None:
        """Names of the fields that a table's transformations leave; None: all of them."""
        for options in self._transformed("filterFieldsByName"):
            return [str(name) for name in (options.get("include") or {}).get("names") or []]
        return None

    def heading(self, field: str) -> str:
        """What a column of a table is called."""
        names = [str((options.get("renameByName") or {}).get(field) or "") for options in self._transformed("organize")]
        return next((name for name in names if name), field)

    def _transformed(self, how: str) -> list[dict[str, Any]]:
        made = self.raw.get("transformations") or []
        return [each.get("options") or {} for each in made if each.get("id") == how]


class Dashboard(NamedTuple):
    """One file."""

    file: str
    size: int
    raw: dict[str, Any]

    @property
    def title(self) -> str:
        return str(self.raw.get("title", ""))

    @property
    def uid(self) -> str:
        return str(self.raw.get("uid", ""))

    @property
    def panels(self) -> list[Panel]:
        """All of them, rows and what is in collapsed rows included."""
        found = []
        for raw in self.raw.get("panels") or []:
            found.append(Panel(raw, ""))
            found += [Panel(inner, str(raw.get("title", ""))) for inner in raw.get("panels") or []]
        return found

    @property
    def variables(self) -> list[dict[str, Any]]:
        return list((self.raw.get("templating") or {}).get("list") or [])

    @property
    def annotations(self) -> list[dict[str, Any]]:
        return [each for each in (self.raw.get("annotations") or {}).get("list") or [] if each.get("expr")]

    def variable(self, name: str) -> dict[str, Any] | None:
        """The variable of this name."""
        return next((variable for variable in self.variables if variable.get("name") == name), None)


def read(path: Path) -> Dashboard:
    """The dashboard of a file."""
    text = path.read_bytes()
    return Dashboard(path.name, len(text), json.loads(text))


def query_of(variable: dict[str, Any]) -> str:
    """What a query variable asks."""
    query = variable.get("query", "")
    return str(query.get("query", "")) if isinstance(query, dict) else str(query)


def label_values(query: str) -> tuple[str, str] | None:
    """Expression (empty: of all series) and label of a ``label_values()``; None for all else."""
    found = _LABEL_VALUES.fullmatch(query.strip())
    return (found["expr"] or "", found["label"]) if found else None


def labels_in(text: str) -> list[str]:
    """The labels that a legend or an annotation's text shows: ``{{label}}``."""
    return [label for label in _LABEL.findall(text) if label]


def texts(value: object) -> Iterator[str]:
    """Every text in a piece of JSON, keys of objects not included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a piece of JSON."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner)
