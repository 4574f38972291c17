"""A dashboard: variables, links, annotations, and panels laid out in rows of 24 columns.

A board of ``grafana/boards/`` makes a ``Board``, adds rows and panels, and returns it; ``build.py`` writes its JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from gpumon import catalogue
from grafana.panels import DATASOURCE
from grafana.queries import TARGET, Query, select

WIDTH = 24
TAG = "gpumon"
ALL = ".*"
"""Of variables that may be absent from a series: a target without the label ``cluster`` is part of all clusters."""

_LABELS = {
    "cluster": ("Cluster", f"label_values({catalogue.BUILD_INFO.name}, cluster)"),
    "node": ("Node", f'label_values({catalogue.BUILD_INFO.name}{{cluster=~"$cluster"}}, node)'),
    "gpu": ("GPU", f"label_values({catalogue.GPU_INFO.name}{{{','.join(TARGET)}}}, gpu)"),
    "model": ("Model", f"label_values({catalogue.REQUESTS.name}{{{','.join(TARGET)}}}, model)"),
    "server": ("Server", f"label_values({catalogue.REQUESTS.name}{{{','.join(TARGET)}}}, server)"),
}
VARIABLES = tuple(_LABELS)
INCIDENTS = Query(
    f"max by (cluster, node, kind, gpu) ({select(catalogue.INCIDENT_ACTIVE, without=('gpu',))} > 0)", "{{node}} {{gpu}}"
)
"""What is open on the chosen nodes, and what is said of it beside its kind."""


class Board:
    """One dashboard under construction. Panels go left to right, and below when a row is full."""

    def __init__(
        self,
        uid: str,
        title: str,
        description: str,
        *,
        variables: Sequence[str],
        since: str = "now-1h",
        incidents: Query = INCIDENTS,
    ) -> None:
        """``uid`` is stable: links and alerts name it. ``variables`` of ``VARIABLES``, in that order. ``incidents``:
        what is marked in all graphs; of many nodes it has to come from a recording rule."""
        self.uid = uid
        self._ids = 0
        self._x = self._y = self._row_height = 0
        self._made = (
            dashboard.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags([TAG])
            .readonly()
            .timezone("browser")
            .time(since, "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .link(
                dashboard.DashboardLink("gpumon")
                .type(model.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .icon("external link")
                .tooltip("The other dashboards of gpumon, with these variables and this time")
                .as_dropdown(False)
                .include_vars(True)
                .keep_time(True)
            )
            .annotation(_incidents(incidents))
        )
        self._made.with_variable(
            dashboard.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
            .hide(model.VariableHide.DONT_HIDE)
        )
        for name in VARIABLES:
            if name in variables:
                self._made.with_variable(_variable(name))

    def row(
        self, title: str, *panels: tuple[int, Builder[model.Panel]], height: int = 8, collapsed: bool = False
    ) -> None:
        """A heading, then panels of (width of 24, panel), of one height. ``collapsed`` ones are asked when opened."""
        self._break()
        heading = dashboard.Row(title).id(self._id()).collapsed(collapsed)
        heading.grid_pos(model.GridPos(h=1, w=WIDTH, x=0, y=self._y))
        self._y += 1
        placed = [self._place(width, height, panel) for width, panel in panels]
        if collapsed:
            for panel in placed:
                heading.with_panel(panel)
        self._made.with_row(heading)
        if not collapsed:
            for panel in placed:
                self._made.with_panel(panel)

    def add(self, *panels: tuple[int, Builder[model.Panel]], height: int = 8) -> None:
        """More panels below the last ones, of another height."""
        self._break()
        for width, panel in panels:
            self._made.with_panel(self._place(width, height, panel))

    def text(self) -> str:
        """The dashboard's JSON: stable, so that it can be compared byte for byte."""
        plain = json.loads(json.dumps(self._made.build(), cls=JSONEncoder))
        for shown in (*plain["links"], *plain["annotations"]["list"]):
            del shown["placement"]  # the SDK's only value hides it in a menu
        return json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def _id(self) -> int:
        self._ids += 1
        return self._ids

    def _break(self) -> None:
        self._y += self._row_height
        self._x = self._row_height = 0

    def _place(self, width: int, height: int, panel: Builder[model.Panel]) -> Builder[model.Panel]:
        if self._x + width > WIDTH:
            self._break()
        made = panel.build()
        made.id_val = self._id()
        made.grid_pos = model.GridPos(h=height, w=width, x=self._x, y=self._y)
        self._x += width
        self._row_height = max(self._row_height, height)
        return panel


def _variable(name: str) -> dashboard.QueryVariable:
    label, query = _LABELS[name]
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .definition(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(ALL)
        .current(model.VariableOption(text=["All"], value=["$__all"], selected=True))
    )


def _incidents(opened: Query) -> dashboard.AnnotationQuery:
    """Incidents as marks: every moment at which one was open, joined by Grafana to regions."""
    return (
        dashboard.AnnotationQuery()
        .name("Incidents")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("red")
        .expr(opened.expr)
        .step("15s")
        .title_format("{{kind}}")
        .text_format(opened.legend)
        .tag_keys(",".join(["kind", *re.findall(r"\w+", opened.legend)]))
    )
