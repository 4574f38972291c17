"""Columns of a table that show more than text: colours by value, words for values, links, widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import dashboard as model

from grafana.panels import Steps, values

BAD_ABOVE_ZERO: Steps = ((None, "transparent"), (1e-9, "red"))
WARN_ABOVE_ZERO: Steps = ((None, "transparent"), (1e-9, "orange"))


def colored(
    panel: table.Panel, heading: str, *, steps: Steps = (), mappings: list[model.ValueMapping] | None = None
) -> table.Panel:
    """Colours the cells of a column by thresholds or by what their values are mapped to."""
    properties: list[model.DynamicConfigValue] = [
        model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-background"})
    ]
    if steps:
        made = [{"value": value, "color": color} for value, color in steps]
        properties.append(model.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": made}))
        properties.append(model.DynamicConfigValue(id_val="color", value={"mode": "thresholds"}))
    if mappings is not None:
        properties.append(model.DynamicConfigValue(id_val="mappings", value=mappings))
    return panel.override_by_name(heading, properties)


def worded(panel: table.Panel, heading: str, mappings: list[model.ValueMapping]) -> table.Panel:
    """Writes words in place of a column's values."""
    return panel.override_by_name(heading, [model.DynamicConfigValue(id_val="mappings", value=mappings)])


def wide(panel: table.Panel, heading: str, pixels: int) -> table.Panel:
    """Gives a column a width; the others share the rest."""
    return panel.override_by_name(heading, [model.DynamicConfigValue(id_val="custom.width", value=pixels)])


def linked(panel: table.Panel, heading: str, uid: str, variable: str, keep: Sequence[str] = ()) -> table.Panel:
    """Lets the cells of a column open a dashboard: ``variable`` is what the cell shows, those to keep are as here.

    The cluster is the row's, as two clusters may have nodes of one name: the table has to show a column of it. Where
    targets have no such label the link says that it is empty, which is what Prometheus takes it for.
    """
    kept = "&".join((*(f"${{{name}:queryparam}}" for name in ("datasource", *keep)), "${__url_time_range}"))
    of_row = f"var-cluster=${{__data.fields.cluster}}&var-{variable}=${{__value.raw}}"
    link = {"title": f"Open {uid}", "url": f"/d/{uid}?{of_row}&{kept}"}
    return panel.override_by_name(heading, [model.DynamicConfigValue(id_val="links", value=[link])])


def telling(panel: table.Panel, heading: str, texts: Mapping[str, str]) -> table.Panel:
    """Writes in a column, over several lines, a text for each value: what to do about an incident, by its kind."""
    return panel.override_by_name(
        heading,
        [
            model.DynamicConfigValue(id_val="mappings", value=values({key: (t, "text") for key, t in texts.items()})),
            model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "auto", "wrapText": True}),
        ],
    )


def inked(panel: table.Panel, heading: str, steps: Steps) -> table.Panel:
    """Writes the figures of a column in the colour of their threshold."""
    made = [{"value": value, "color": color} for value, color in steps]
    return panel.override_by_name(
        heading,
        [
            model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
            model.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": made}),
            model.DynamicConfigValue(id_val="color", value={"mode": "thresholds"}),
        ],
    )
