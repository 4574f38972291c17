"""Asks a Prometheus what a dashboard's panel asks: variables filled in as Grafana does with "All" selected."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

_VARIABLE = re.compile(r"\$\{?(?P<name>[a-z]\w*)(?::\w+)?\}?")
POINTS = 300
"""About as many as a panel of half a screen's width asks for."""


class Span(NamedTuple):
    """The time that is looked at, unix seconds, and the scrape interval."""

    begin_s: float
    end_s: float
    scrape_s: int

    @property
    def step_s(self) -> int:
        """Grafana's ``$__interval``: by width, and never below the scrape interval."""
        return max(self.scrape_s, math.ceil((self.end_s - self.begin_s) / POINTS))


class Series(NamedTuple):
    """One series of an answer."""

    labels: dict[str, str]
    points: list[tuple[float, float]]
    """Unix seconds and value; NaN left out."""


class QueryError(Exception):
    """Prometheus refused the query; says why."""


def fill(expr: str, span: Span, least_step_s: int = 0) -> str:
    """``$__rate_interval`` is four scrapes at least, and a step more than one; other variables match everything."""
    step = max(span.step_s, least_step_s)
    builtin = {
        "__rate_interval": f"{max(step + span.scrape_s, 4 * span.scrape_s)}s",
        "__interval": f"{step}s",
        "__range_s": f"{max(1, round(span.end_s - span.begin_s))}",  # before the name that it begins with
        "__range": f"{max(1, round(span.end_s - span.begin_s))}s",
    }
    for name, value in builtin.items():
        expr = expr.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return _VARIABLE.sub(".*", expr)


class Asker:
    """Asks one Prometheus about one span of time."""

    def __init__(self, url: str, span: Span) -> None:
        self._url = url.rstrip("/")
        self.span = span

    def ask(self, target: dict[str, Any], least_step_s: int = 0) -> list[Series]:
        """The series of a panel's query. Raises QueryError, and URLError where nobody answers."""
        expr = fill(target["expr"], self.span, least_step_s)
        if target.get("instant"):
            answer = self._get("query", {"query": expr, "time": self.span.end_s})
        else:
            step = max(self.span.step_s, least_step_s)
            begin = math.ceil(self.span.begin_s / step) * step  # Grafana aligns to the step
            answer = self._get("query_range", {"query": expr, "start": begin, "end": self.span.end_s, "step": step})
        if answer["resultType"] == "scalar":
            return [Series({}, _points([answer["result"]]))]
        found = (Series(one["metric"], _points(one.get("values") or [one["value"]])) for one in answer["result"])
        return [series for series in found if series.points]

    def _get(self, path: str, parameters: dict[str, object]) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=60) as reply:  # noqa: S310
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise QueryError(error.read().decode(errors="replace")[:300]) from error
        data = answer["data"]
        if not isinstance(data, dict):
            raise QueryError("no data in the answer")
        return data


def _points(raw: list[list[Any]]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in raw if not math.isnan(float(value))]
