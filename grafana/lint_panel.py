"""Rules for panels, of every type. Each yields what is wrong.

Names are those of grafana/dashboard-linter where it has such a rule; it looks at some types of panels only, and at no
heatmap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grafana.lint_model import Dashboard, Panel, objects
from grafana.lint_units import is_valid, units_set

_LINK = re.compile(r"/d/(?P<uid>[^/?]+)")
"""The address of a dashboard, from the root of Grafana on."""
_GIVEN = re.compile(r"[?&](?:var-(\w+)=|\$\{(\w+):queryparam\})")
"""Variables that an address gives to a dashboard."""
_CLUSTER = re.compile(r"[?&]var-cluster=\$\{__(?:data\.fields\.(\w+)|field\.labels\.cluster)\}")
"""The cluster that an address is given: of a table's row, by a field, or of a series."""
_KEEPS_TIME = ("${__url_time_range}", "from=")
_KEEPS_VARIABLES = ("${__all_variables}", "${datasource:queryparam}", "var-datasource=")

PanelRule = Callable[[Panel, Dashboard], Iterator[str]]


def panel_datasource(panel: Panel, board: Dashboard) -> Iterator[str]:
    """What is asked is asked of the data source that the dashboard's variable names."""
    allowed = {f"${{{each.get('name')}}}" for each in board.variables if each.get("type") == "datasource"}
    if not panel.asks:
        return
    own = _uid(panel.raw)
    if own not in allowed and own not in ("-- Mixed --", "-- Dashboard --"):
        yield f"data source {own!r}: expected is the variable"
    for target in panel.targets:
        if own != "-- Dashboard --" and _uid(target.raw) not in allowed:
            yield f"query {target.ref}: data source {_uid(target.raw)!r}: expected is the variable"


def panel_title_description(panel: Panel, _: Dashboard) -> Iterator[str]:
    """A panel says what it shows; a row has a title."""
    if not panel.title.strip():
        yield "has no title"
    if panel.type != "row" and not str(panel.raw.get("description") or "").strip():
        yield "has no description"


def panel_units(panel: Panel, _: Dashboard) -> Iterator[str]:
    """Every panel that shows figures says of what unit they are."""
    named = units_set(panel)
    if panel.asks and not named:
        yield "names no unit"
    yield from (f"{unit!r} is no unit" for unit in named if not is_valid(unit))


def panel_no_targets(panel: Panel, _: Dashboard) -> Iterator[str]:
    """A panel asks something, and its queries have names of their own."""
    if panel.asks and not any(target.expr.strip() for target in panel.targets):
        yield "asks nothing"
    names = [target.ref for target in panel.targets]
    if "" in names or len(set(names)) < len(names):
        yield f"queries are named {', '.join(names)}: expected are names that differ"


def panel_no_value(panel: Panel, _: Dashboard) -> Iterator[str]:
    """An empty panel says why: by its text, or by an arm of its query whose values are mapped to words. Not by both."""
    if not panel.asks:
        return
    text, arm = str(panel.defaults.get("noValue") or "").strip(), _has_arm(panel)
    if not text and not arm:
        yield "says nothing when it is empty: it has neither a noValue nor a query's arm that tells why"
    if text and arm:
        yield f"says {text!r} when it is empty, though its query tells why"


def panel_blank_cells(panel: Panel, _: Dashboard) -> Iterator[str]:
    """What a table says when it is empty is not said in each cell without a value, where Grafana would put it too."""
    text = str(panel.defaults.get("noValue") or "").strip()
    if panel.type == "table" and text and not any(map(_blanks_all, panel.overrides)):
        yield f"says {text!r} in every cell without a value: expected is an override of /.*/ whose noValue is ''"


def panel_heatmap(panel: Panel, _: Dashboard) -> Iterator[str]:
    """Prometheus has made the buckets or the rows: Grafana must not make others of them."""
    if panel.type == "heatmap" and panel.options.get("calculate") is not False:
        yield "calculate is not false"


def panel_links(panel: Panel, _: Dashboard) -> Iterator[str]:
    """Links to dashboards keep the data source and the time."""
    for url in urls(panel):
        if _LINK.match(url):
            if not any(word in url for word in _KEEPS_TIME):
                yield f"link {url} does not keep the time"
            if not any(word in url for word in _KEEPS_VARIABLES):
                yield f"link {url} does not keep the variables"


def panel_link_cluster(panel: Panel, _: Dashboard) -> Iterator[str]:
    """A link to a node says of which cluster, as two clusters may have nodes of one name."""
    for url in urls(panel):
        if not _LINK.match(url) or "var-node=" not in url:
            continue
        given = _CLUSTER.search(url)
        if given is None:
            yield f"link {url} names a node without its cluster: expected is var-cluster=${{__data.fields.cluster}}"
        elif given[1] and panel.fields is not None and given[1] not in panel.fields:
            yield f"link {url} takes the cluster from {given[1]!r}, which is no column of the table"


PANEL_RULES: tuple[tuple[str, PanelRule], ...] = (
    ("panel-datasource", panel_datasource),
    ("panel-title-description", panel_title_description),
    ("panel-units", panel_units),
    ("panel-no-targets", panel_no_targets),
    ("panel-no-value", panel_no_value),
    ("panel-blank-cells", panel_blank_cells),
    ("panel-heatmap", panel_heatmap),
    ("panel-links", panel_links),
    ("panel-link-cluster", panel_link_cluster),
)


def urls(panel: Panel) -> list[str]:
    """Addresses to which a panel leads, from its corner, its values and its series."""
    panels_own = {key: value for key, value in panel.raw.items() if key != "panels"}
    return [str(each["url"]) for each in objects(panels_own) if each.get("url")]


def leads_wrong(url: str, boards: Sequence[Dashboard]) -> Iterator[str]:
    """What is wrong with an address of a dashboard: it must exist, and have the variables that it is given."""
    link = _LINK.match(url)
    if not link:
        return
    target = next((board for board in boards if board.uid == link["uid"]), None)
    if target is None:
        yield f"there is no dashboard {link['uid']}"
        return
    for given in (plain or queryparam for plain, queryparam in _GIVEN.findall(url)):
        if target.variable(given) is None:
            yield f"dashboard {link['uid']} has no variable {given}"


def _uid(raw: dict[str, Any]) -> str:
    source = raw.get("datasource")
    return str(source.get("uid")) if isinstance(source, dict) else str(source)


def _blanks_all(override: dict[str, Any]) -> bool:
    """Whether it takes the text for what is empty from all columns."""
    blank = {"id": "noValue", "value": ""}
    return override.get("matcher") == {"id": "byRegexp", "options": "/.*/"} and blank in override["properties"]


def _has_arm(panel: Panel) -> bool:
    """Whether a query is followed by reasons, as numbers below zero that are mapped to words."""
    options = [mapping.get("options") or {} for mapping in panel.defaults.get("mappings") or []]
    mapped = any(str(value).startswith("-") for each in options for value in each)
    return mapped and any(" or " in target.expr for target in panel.targets)
