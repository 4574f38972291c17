"""Rules for a dashboard as a whole. Each yields where it is wrong, and how.

Names are those of grafana/dashboard-linter where it has such a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from grafana.lint_model import Dashboard, label_values, labels_in, objects, query_of, texts
from grafana.promql import labels_of, problems
from grafana.promql_names import Recorded
from grafana.promql_tree import PromqlError, names_in

SCHEMA = 42
MOST_BYTES = 200 * 1024
"""A ConfigMap's annotation takes 256 KiB, and kubectl apply puts the whole object there."""
COLUMNS = 24
BUILT_IN = ("-- Grafana --", "-- Mixed --", "-- Dashboard --")
_DATASOURCE = {"datasource": "Data source", "prometheus_datasource": "Prometheus data source"}


class Found(NamedTuple):
    """Something wrong: where in the dashboard, and what."""

    where: str
    text: str


Rule = Callable[[Dashboard, Recorded], Iterator[Found]]


def template_datasource(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """One variable chooses the data source, and has the usual name and label."""
    sources = [variable for variable in board.variables if variable.get("type") == "datasource"]
    if len(sources) != 1:
        yield Found("", f"{len(sources)} variables of type datasource: one is expected")
    for source in sources:
        name = str(source.get("name"))
        if source.get("query") != "prometheus":
            yield Found(f"variable {name}", f"data sources of type {source.get('query')}: prometheus is expected")
        if source.get("label") != _DATASOURCE.get(name):
            expected = " or ".join(f"{name} labelled {label!r}" for name, label in _DATASOURCE.items())
            yield Found(f"variable {name}", f"labelled {source.get('label')!r}: expected is {expected}")


def template_job(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """The job can be chosen."""
    yield from _template(board, "job")


def template_instance(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """The instance can be chosen."""
    yield from _template(board, "instance")


def template_label_promql(board: Dashboard, recorded: Recorded) -> Iterator[Found]:
    """Queries of variables are of series and labels that are."""
    for variable in board.variables:
        if variable.get("type") != "query":
            continue
        where, query = f"variable {variable.get('name')}", query_of(variable)
        asked = label_values(query)
        if asked is None or not asked[0]:
            yield Found(where, f"{query!r}: expected is label_values(SERIES, LABEL)")
            continue
        # Which values a label has is no matter of growth.
        found = [problem for problem in problems(asked[0], recorded) if problem.rule != "target-counter-agg"]
        yield from (Found(where, problem.text) for problem in found)
        yield from _lacking(where, asked[0], [asked[1]], recorded)


def template_on_time_change_reload(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """What a variable offers is asked anew when the time range changes."""
    for variable in board.variables:
        if variable.get("type") == "query" and variable.get("refresh") != 2:
            yield Found(f"variable {variable.get('name')}", f"refresh is {variable.get('refresh')}: expected is 2")


def uneditable_dashboard(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """It is provisioned from a file: what is edited in Grafana would be lost."""
    if board.raw.get("editable") is not False:
        yield Found("", "editable is not false")


def schema_version(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """The JSON is of the model that these rules know."""
    if board.raw.get("schemaVersion") != SCHEMA:
        yield Found("", f"schemaVersion is {board.raw.get('schemaVersion')}: expected is {SCHEMA}")


def dashboard_size(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """It fits into a ConfigMap that kubectl applies."""
    if board.size >= MOST_BYTES:
        yield Found("", f"{board.size} bytes: {MOST_BYTES} are too many")


def panel_ids(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """Every panel has an id of its own: links to panels, and shared views, go by it."""
    count = Counter(panel.raw.get("id") for panel in board.panels)
    for panel in board.panels:
        number = panel.raw.get("id")
        if not isinstance(number, int) or count[number] > 1:
            yield Found(panel.name, f"id {number}: expected is a number that no other panel has")


def panel_layout(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """Panels are inside 24 columns and not on each other."""
    placed = [(panel, place) for panel in board.panels if (place := panel.raw.get("gridPos"))]
    for panel in board.panels:
        if not panel.raw.get("gridPos"):
            yield Found(panel.name, "has no gridPos")
    for panel, at in placed:
        if at["x"] < 0 or at["y"] < 0 or at["w"] < 1 or at["h"] < 1 or at["x"] + at["w"] > COLUMNS:
            yield Found(panel.name, f"{_at(at)} is not inside {COLUMNS} columns")
    for position, (panel, at) in enumerate(placed):
        for other, there in placed[:position]:
            if panel.row == other.row and _overlap(at, there):
                yield Found(panel.name, f"{_at(at)} is on {other.name!r}, {_at(there)}")


def datasource_uid(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """No data source of one Grafana: only variables, and those that every Grafana has."""
    allowed = {f"${{{variable.get('name')}}}" for variable in board.variables if variable.get("type") == "datasource"}
    for each in objects(board.raw):
        source = each.get("datasource")
        uid = source.get("uid") if isinstance(source, dict) else source
        if uid is not None and uid not in allowed and uid not in BUILT_IN:
            where = str(each.get("title") or each.get("name") or each.get("refId") or "")
            yield Found(where, f"data source {uid!r}: expected is {' or '.join(sorted(allowed)) or 'a variable'}")
    if "__inputs" in board.raw:
        yield Found("", "__inputs: an export of a dashboard, to be filled in at its import")


def variables_used(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """Every variable is used, and every variable that is used exists."""
    names = {str(variable.get("name")) for variable in board.variables}
    outside = {key: value for key, value in board.raw.items() if key != "templating"}
    used = {name for text in texts(outside) for name in names_in(text)}
    used |= {str(panel.raw["repeat"]) for panel in board.panels if panel.raw.get("repeat")}
    for variable in board.variables:
        used |= {name for text in texts(variable) for name in names_in(text)} - {variable.get("name")}
    used = {name for name in used if not name.startswith("__")}
    yield from (Found(f"variable {name}", "is used nowhere") for name in sorted(names - used))
    yield from (Found("", f"${name} is used, and there is no such variable") for name in sorted(used - names))


def dashboard_links(board: Dashboard, _: Recorded) -> Iterator[Found]:
    """Links of the dashboard keep its variables and its time."""
    for link in board.raw.get("links") or []:
        if link.get("type") == "dashboards" or str(link.get("url", "")).startswith("/d/"):
            for key in ("includeVars", "keepTime"):
                if link.get(key) is not True:
                    yield Found(f"link {link.get('title')}", f"{key} is not true")


def annotation_queries(board: Dashboard, recorded: Recorded) -> Iterator[Found]:
    """Annotations ask what there is, and show labels that the series have."""
    for annotation in board.annotations:
        where, expr = f"annotation {annotation.get('name')}", str(annotation["expr"])
        yield from (Found(where, problem.text) for problem in problems(expr, recorded))
        shown = labels_in(f"{annotation.get('titleFormat', '')} {annotation.get('textFormat', '')}")
        tags = [tag for tag in str(annotation.get("tagKeys", "")).split(",") if tag]
        yield from _lacking(where, expr, [*shown, *tags], recorded)


RULES: tuple[tuple[str, Rule], ...] = (
    ("template-datasource", template_datasource),
    ("template-job", template_job),
    ("template-instance", template_instance),
    ("template-label-promql", template_label_promql),
    ("template-on-time-change-reload", template_on_time_change_reload),
    ("uneditable-dashboard", uneditable_dashboard),
    ("schema-version", schema_version),
    ("dashboard-size", dashboard_size),
    ("panel-ids", panel_ids),
    ("panel-layout", panel_layout),
    ("datasource-uid", datasource_uid),
    ("variables-used", variables_used),
    ("dashboard-links", dashboard_links),
    ("annotation-promql", annotation_queries),
)


def _template(board: Dashboard, name: str) -> Iterator[Found]:
    variable = board.variable(name)
    if variable is None:
        yield Found("", f"there is no variable {name}")
        return
    where = f"variable {name}"
    if variable.get("type") != "query" or (variable.get("datasource") or {}).get("uid") != "${datasource}":
        yield Found(where, "is not a query of ${datasource}")
    if variable.get("label") != name.title():
        yield Found(where, f"labelled {variable.get('label')!r}: expected is {name.title()!r}")
    if not variable.get("multi") or variable.get("allValue") != ".+":
        yield Found(where, "does not take several values, with .+ for all")


def _lacking(where: str, expr: str, labels: list[str], recorded: Recorded) -> Iterator[Found]:
    try:
        has = labels_of(expr, recorded)
    except PromqlError:
        return
    if has is not None:
        yield from (Found(where, f"the series have no label {label}") for label in labels if label not in has)


def _at(place: dict[str, Any]) -> str:
    return f"{place['w']}x{place['h']} at {place['x']},{place['y']}"


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    across: bool = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    down: bool = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    return across and down
