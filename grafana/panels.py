"""Panels: what all of them have (datasource, description, unit, what to say when empty), once for each kind.

Every function takes ``title``, ``description``, queries and a Grafana unit id, and returns a panel without a place;
``kit.Board`` gives it an id and a place. What a panel needs beyond these options is set on the builder that comes back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    piechart,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import xychart as xychart_model

from grafana.queries import NOT_SUPPORTED, SOURCE_DOWN, Query

DATASOURCE = common_model.DataSourceRef(type_val="prometheus", uid="${datasource}")
NO_DATA = "no data: see What is missing"
"""For graphs of the node dashboard, whose first row says which sources are down and what a GPU does not support."""

_BARE = re.compile(r"gpumon_\w+\{[^}]*\}(\s*[=<>!]=?.*)?$")
"""A selector, compared or not, that nothing aggregates."""

Panel = Builder[model.Panel]
"""A panel of any kind, as the functions below make it."""
Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from which value on which colour; the first from nothing (``None``)."""


class _Series(Builder[xychart_model.XYSeriesConfig]):
    """What ``series`` asks for: a builder of what is already made."""

    def __init__(self, made: xychart_model.XYSeriesConfig) -> None:
        self._made = made

    def build(self) -> xychart_model.XYSeriesConfig:
        return self._made


_P = TypeVar(
    "_P",
    timeseries.Panel,
    stat.Panel,
    table.Panel,
    heatmap.Panel,
    xychart.Panel,
    statetimeline.Panel,
    bargauge.Panel,
    piechart.Panel,
)


def values(texts: Mapping[str, tuple[str, str]]) -> list[model.ValueMapping]:
    """Mapping of values to text and colour."""
    options = {
        value: model.ValueMappingResult(text=words, color=color, index=index)
        for index, (value, (words, color)) in enumerate(texts.items())
    }
    return [model.ValueMap(options=options)]


WHY = values(
    {str(NOT_SUPPORTED): ("not supported by this GPU", "text"), str(SOURCE_DOWN): ("gpumon's source is down", "orange")}
)
"""The mappings of a panel that shows ``queries.or_why``."""


def _targets(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    made = []
    for number, query in enumerate(queries):
        target = (
            prometheus.Dataquery()
            .datasource(DATASOURCE)
            .ref_id(chr(ord("A") + number))
            .expr(query.expr)
            .editor_mode(prometheus_model.QueryEditorMode.CODE)
        )
        if query.legend:
            target.legend_format(query.legend)
        if query.instant:
            target.instant()
        else:
            target.range()
        if query.table:
            target.format(prometheus_model.PromQueryFormat.TABLE)
        elif query.heatmap:
            target.format(prometheus_model.PromQueryFormat.HEATMAP)
        else:
            target.format(prometheus_model.PromQueryFormat.TIME_SERIES)
        if query.exemplar:
            target.exemplar(True)
        made.append(target)
    return made


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
    )


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Absolute thresholds."""
    made = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _common(panel: _P, title: str, description: str, queries: Sequence[Query], unit: str, empty: str) -> _P:
    panel.title(title).description(description).datasource(DATASOURCE).unit(unit).targets(list(_targets(queries)))
    if empty:
        panel.no_value(empty)
    return panel


def graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    stacked: bool = False,
    steps: Steps = (),
    empty: str = NO_DATA,
    least: float | None = 0,
    most: float | None = None,
) -> timeseries.Panel:
    """Lines over time; ``stacked`` areas where the series add up to something. ``steps`` are drawn as lines."""
    panel = _common(timeseries.Panel(), title, description, queries, unit, empty)
    panel.line_width(1).fill_opacity(40 if stacked else 8).show_points(common_model.VisibilityMode.NEVER)
    panel.tooltip(
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI).sort(common_model.SortOrder.DESCENDING)
    )
    panel.legend(_legend())
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    if steps:
        panel.thresholds(thresholds(steps)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode.DASHED)
        )
    return panel


def right_axis(panel: timeseries.Panel, regexp: str, unit: str, label: str) -> timeseries.Panel:
    """Draws the series whose names match on an axis of their own, at the right, in their unit."""
    return panel.override_by_regexp(
        regexp,
        [
            model.DynamicConfigValue(id_val="unit", value=unit),
            model.DynamicConfigValue(id_val="custom.axisPlacement", value="right"),
            model.DynamicConfigValue(id_val="custom.axisLabel", value=label),
        ],
    )


def number(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    steps: Steps = ((None, "text"),),
    mappings: list[model.ValueMapping] | None = None,
    empty: str = "no data",
    spark: bool = True,
) -> stat.Panel:
    """The last value of each series, large. With ``queries.or_why`` pass ``mappings=WHY`` and ``empty=""``."""
    panel = _common(stat.Panel(), title, description, queries, unit, empty)
    panel.thresholds(thresholds(steps)).color_mode(common_model.BigValueColorMode.VALUE)
    panel.graph_mode(common_model.BigValueGraphMode.AREA if spark else common_model.BigValueGraphMode.NONE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    if mappings is not None:
        panel.mappings(mappings)
    return panel


def bars(
    title: str, description: str, *queries: Query, unit: str, steps: Steps = ((None, "blue"),), empty: str = NO_DATA
) -> bargauge.Panel:
    """The last value of each series as a bar: for ranking."""
    panel = _common(bargauge.Panel(), title, description, queries, unit, empty)
    panel.thresholds(thresholds(steps)).orientation(common_model.VizOrientation.HORIZONTAL).min(0)
    panel.display_mode(common_model.BarGaugeDisplayMode.BASIC).show_unfilled(False)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return panel


def states(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    mappings: list[model.ValueMapping] | None = None,
    steps: Steps = ((None, "transparent"), (1, "red")),
    empty: str = NO_DATA,
) -> statetimeline.Panel:
    """One row for each series, coloured by its value over time."""
    panel = _common(statetimeline.Panel(), title, description, queries, unit, empty)
    panel.thresholds(thresholds(steps)).show_value(common_model.VisibilityMode.NEVER).row_height(0.85)
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel.fill_opacity(85).line_width(0).merge_values(True)
    if mappings is not None:
        panel.mappings(mappings)
    return panel


def bucket_heatmap(
    title: str, description: str, query: Query, *, unit: str, exemplars: bool = True, empty: str = NO_DATA
) -> heatmap.Panel:
    """How a classic histogram's observations are spread over time: ``sum by (le) (increase(x_bucket[…]))``.

    Grafana takes each bucket from the next (format ``heatmap``), and draws exemplars that open the trace.
    """
    query = query._replace(heatmap=True, exemplar=exemplars, legend="{{le}}")
    panel = _common(heatmap.Panel(), title, description, [query], "short", empty)
    panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common_model.AxisPlacement.LEFT))
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common_model.HeatmapCellLayout.AUTO))
    panel.cell_values(heatmap.CellValues().unit("short")).filter_values(heatmap.FilterValueRange().le(1e-9))
    return _heat(panel)


def row_heatmap(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    value: str,
    label: str,
    cell: str = "1m",
    empty: str = NO_DATA,
) -> heatmap.Panel:
    """One row for each series, one cell for each ``cell`` of time, coloured by the value: P99 by concurrency.

    The series are values and no buckets, so the format is time series. ``value`` names what a cell shows and ``label``
    the rows; the legend must begin with a number wherever rows are to stand in order.
    """
    panel = _common(heatmap.Panel(), title, description, [query], unit, empty)
    panel.calculate(False).interval(cell)
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common_model.HeatmapCellLayout.UNKNOWN).value(value))
    panel.cell_values(heatmap.CellValues().unit(unit))
    panel.y_axis(heatmap.YAxisConfig().unit("none").axis_placement(common_model.AxisPlacement.LEFT).axis_label(label))
    return _heat(panel)


def _heat(panel: heatmap.Panel) -> heatmap.Panel:
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme("Turbo")
        .steps(64)
        .exponent(0.5)
        .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
        .fill("dark-orange")
    )
    panel.tooltip(heatmap.HeatmapTooltip().mode(common_model.TooltipDisplayMode.SINGLE).show_color_scale(True))
    return panel


def scatter(
    title: str,
    description: str,
    x: Query,
    y: Query,
    *,
    unit: str,
    labels: tuple[str, str],
    most: float | None = None,
    by: Sequence[str] = ("node", "gpu"),
    empty: str = NO_DATA,
) -> xychart.Panel:
    """Points of one query (x) against another (y), both in one unit, a colour for each combination of ``by``.

    ``labels`` are of the two axes. The queries are asked as tables, merged on time and labels, so that they must have
    the same labels, and divided again. Grafana's mapping is ``auto``, which takes x and y from each of the frames; a
    ``manual`` one is of one frame, and without a matcher of a frame shows nothing.
    """
    asked = [query._replace(table=True) for query in (x, y)]
    panel = _common(xychart.Panel(), title, description, asked, unit, empty)
    values_of = ("Value #A", "Value #B")
    renamed = dict(zip(values_of, labels, strict=True))
    naming = {"asLabels": False, "append": False, "withNames": True, "separator1": " ", "separator2": " "}
    panel.transformations(
        [
            model.DataTransformerConfig(id_val="merge", options={}),
            model.DataTransformerConfig(id_val="organize", options={"renameByName": renamed}),
            model.DataTransformerConfig(
                id_val="partitionByValues", options={"fields": list(by), "keepFields": False, "naming": naming}
            ),
        ]
    )
    panel.mapping(xychart_model.SeriesMapping.AUTO).show(xychart_model.XYShowMode.POINTS).min(0)
    panel.point_size(xychart.XychartFieldConfigPointSize().fixed(4)).fill_opacity(50)
    panel.legend(_legend())
    panel.tooltip(
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE).sort(common_model.SortOrder.NONE)
    )
    if most is not None:
        panel.max(most)
    for label in labels:  # the names of the divided frames' fields end with it
        panel.override_by_regexp(f"/{label}$/", [model.DynamicConfigValue(id_val="custom.axisLabel", value=label)])
    by_name = [xychart_model.MatcherConfig(id_val="byName", options=value) for value in values_of]
    series = xychart_model.XYSeriesConfig(
        x=xychart_model.XychartXYSeriesConfigX(matcher=by_name[0]),
        y=xychart_model.XychartXYSeriesConfigY(matcher=by_name[1]),
    )
    return panel.series([_Series(series)])


def rows(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    rename: Mapping[str, str],
    order: Sequence[str],
    units: Mapping[str, str] | None = None,
    sort_by: str = "",
    ranked_by: str = "",
    empty: str = "nothing",
) -> table.Panel:
    """A table: instant queries merged on their labels.

    ``order`` names the columns to show, left to right, by label or ``Value #A``; ``rename`` gives them their headings;
    ``units`` is by heading. Columns that are not named are hidden. ``sort_by`` is a heading; ``ranked_by`` is a label
    or ``Value #A``, which need not be shown: the largest first. Rows are merged where all labels are the same, the
    metric's name among them: queries must have taken it off.

    ``empty`` is of the table as a whole. Grafana would write it into every cell without a value as well, so all columns
    take it back. Labels are texts: a unit for figures would make 41.2 K of a process id.
    """
    if len(queries) > 1 and any(_BARE.match(query.expr) for query in queries):
        raise ValueError(f"{title}: a bare selector keeps its __name__, by which its rows do not merge with others")
    asked = [query._replace(instant=True, table=True) for query in queries]
    panel = _common(table.Panel(), title, description, asked, unit, empty)
    names = list(order) if len(asked) > 1 else ["Value" if name == "Value #A" else name for name in order]
    renamed = {("Value" if len(asked) == 1 and old == "Value #A" else old): new for old, new in rename.items()}
    ranking = []
    if ranked_by:
        field = "Value" if len(asked) == 1 and ranked_by == "Value #A" else ranked_by
        ranking.append({"field": field, "desc": True})
    panel.transformations(
        [
            model.DataTransformerConfig(id_val="merge", options={}),
            *(model.DataTransformerConfig(id_val="sortBy", options={"sort": [each]}) for each in ranking),
            model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": names}}),
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "indexByName": {name: index for index, name in enumerate(names)},
                    "renameByName": renamed,
                    "excludeByName": {},
                },
            ),
        ]
    )
    if empty:
        panel.override_by_regexp("/.*/", [model.DynamicConfigValue(id_val="noValue", value="")])
    texts = [_verbatim(rename.get(name, name)) for name in order if not name.startswith("Value")]
    if texts:
        panel.override_by_regexp(f"/^({'|'.join(texts)})$/", [model.DynamicConfigValue(id_val="unit", value="string")])
    for heading, column_unit in (units or {}).items():
        panel.override_by_name(heading, [model.DynamicConfigValue(id_val="unit", value=column_unit)])
    if sort_by:
        panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(True)])
    return panel


def _verbatim(heading: str) -> str:
    """In a regular expression. A space is none of its signs."""
    return re.escape(heading).replace("\\ ", " ")


def words(title: str, content: str) -> text.Panel:
    """Text in markdown."""
    return text.Panel().title(title).description(title).content(content)
