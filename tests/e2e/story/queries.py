"""The queries of Grafana dashboards: found in their JSON, and asked of a Prometheus as Grafana would ask them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.prometheus import Prometheus, RefusedError

STEP_S = 5
"""Between two points of a graph, unless its panel wants more."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([A-Za-z_]\w*)|\[\[(\w+)\]\]")
_LABEL_VALUES = re.compile(r"\s*label_values\(\s*(?:(?P<selector>.+?)\s*,\s*)?(?P<label>\w+)\s*\)\s*", re.DOTALL)
_QUERY_RESULT = re.compile(r"\s*query_result\((?P<expr>.+)\)\s*", re.DOTALL)
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Span(NamedTuple):
    """The time that a dashboard shows."""

    begin_s: float
    end_s: float
    scrape_s: float


class Target(NamedTuple):
    """One query of a panel, of a variable, or of an annotation."""

    board: str
    """The dashboard's uid."""
    panel: str
    """Its title; ``variable NAME``, ``annotation NAME``."""
    ref: str
    expr: str
    kind: str = "variable"
    """The panel's type, or ``annotation``."""
    format: str = "time_series"
    legend: str = ""
    exemplar: bool = False
    interval_s: float = 0.0
    """The least between two points."""

    @property
    def where(self) -> str:
        return f"{self.board}, {self.panel}, {self.ref}"


class Series(NamedTuple):
    """Labels, and values by time."""

    labels: dict[str, str]
    values: dict[float, float]


class Answer(NamedTuple):
    """What a target got."""

    target: Target
    series: list[Series]
    options: tuple[str, ...] = ()
    """Of a variable."""
    traces: tuple[str, ...] = ()
    """Ids on its exemplars."""
    error: str = ""


def load(path: Path) -> dict[str, Any]:
    """A dashboard's JSON."""
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def ask(prometheus: Prometheus, board: Mapping[str, Any], span: Span) -> list[Answer]:
    """Every variable, annotation and panel of a dashboard, with All chosen wherever there is one."""
    values: dict[str, str] = {}
    told = []
    for variable in board.get("templating", {}).get("list", []):
        name = variable["name"]
        if variable["type"] != "query":
            values[name] = str(variable.get("current", {}).get("value") or "prometheus")
            continue
        answer = _ask_variable(
            prometheus, Target(board["uid"], f"variable {name}", name, _text(variable)), values, span
        )
        values[name] = _chosen(variable, answer.options)
        told.append(answer)
    return told + [_ask_target(prometheus, target, values, span) for target in targets(board)]


def targets(board: Mapping[str, Any]) -> Iterator[Target]:
    """Of annotations and of panels, those in collapsed rows too."""
    for annotation in board.get("annotations", {}).get("list", []):
        if "expr" in annotation:
            yield Target(
                board["uid"],
                f"annotation {annotation['name']}",
                "expr",
                annotation["expr"],
                "annotation",
                legend=annotation.get("titleFormat", ""),
                interval_s=seconds(annotation.get("step", "0s")),
            )
    for panel in panels(board):
        for target in panel.get("targets", []):
            yield Target(
                board["uid"],
                panel["title"],
                target["refId"],
                target["expr"],
                panel["type"],
                target.get("format", "time_series"),
                target.get("legendFormat", ""),
                bool(target.get("exemplar", False)),
                max(seconds(panel.get("interval") or "0s"), seconds(target.get("interval") or "0s")),
            )


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All that are no rows."""
    for panel in board.get("panels", []):
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def substitute(expr: str, values: Mapping[str, str], span: Span, step_s: float) -> str:
    """The expression as Grafana sends it. Raises KeyError for a variable that nobody defines."""
    length_s = span.end_s - span.begin_s
    known = dict(values) | {
        "__interval": f"{step_s:.0f}s",
        "__interval_ms": f"{step_s * 1000:.0f}",
        "__rate_interval": f"{max(step_s + span.scrape_s, 4 * span.scrape_s):.0f}s",
        "__range": f"{length_s:.0f}s",
        "__range_s": f"{length_s:.0f}",
        "__range_ms": f"{length_s * 1000:.0f}",
    }
    return _VARIABLE.sub(lambda found: known[found[1] or found[2] or found[3]], expr)


def seconds(text: str) -> float:
    """Of a duration such as 1m; Grafana's mark for "at least" does not matter."""
    return sum(int(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(text))


def _ask_variable(prometheus: Prometheus, target: Target, values: Mapping[str, str], span: Span) -> Answer:
    times = {"start": span.begin_s, "end": span.end_s}
    try:
        query = substitute(target.expr, values, span, STEP_S)
        if (found := _LABEL_VALUES.fullmatch(query)) is not None:
            only = {"match[]": found["selector"]} if found["selector"] else {}
            options = prometheus.ask(f"label/{found['label']}/values", **times, **only)
            return Answer(target, [], options=tuple(options))
        if (found := _QUERY_RESULT.fullmatch(query)) is not None:
            series = _range(prometheus, found["expr"], span, STEP_S)
            return Answer(target, series, options=tuple(json.dumps(one.labels) for one in series))
    except (RefusedError, KeyError) as error:
        return Answer(target, [], error=str(error))
    return Answer(target, [], error=f"what is {query}?")


def _ask_target(prometheus: Prometheus, target: Target, values: Mapping[str, str], span: Span) -> Answer:
    step_s = max(STEP_S, target.interval_s)
    try:
        expr = substitute(target.expr, values, span, step_s)
        series = _range(prometheus, expr, span, step_s)
        traces = _traces(prometheus, expr, span) if target.exemplar else ()
    except (RefusedError, KeyError) as error:
        return Answer(target, [], error=str(error))
    return Answer(target, series, traces=traces)


def _range(prometheus: Prometheus, expr: str, span: Span, step_s: float) -> list[Series]:
    """Over the whole time, also for what Grafana asks at its end alone: what somebody saw who looked in between."""
    found = prometheus.ask("query_range", query=expr, start=span.begin_s, end=span.end_s, step=step_s)
    return [Series(row["metric"], {at_s: float(value) for at_s, value in row["values"]}) for row in found["result"]]


def _traces(prometheus: Prometheus, expr: str, span: Span) -> tuple[str, ...]:
    found = prometheus.ask("query_exemplars", query=expr, start=span.begin_s, end=span.end_s)
    return tuple(sorted({one["labels"].get("trace_id", "") for series in found for one in series["exemplars"]}))


def _text(variable: Mapping[str, Any]) -> str:
    query = variable["query"]
    return str(query["query"] if isinstance(query, dict) else query)


def _chosen(variable: Mapping[str, Any], options: Sequence[str]) -> str:
    if variable.get("includeAll"):
        return str(variable.get("allValue") or f"({'|'.join(map(re.escape, options))})")
    return options[0] if options else ""
