"""The plots of a diagnosis as plain data for plotly's JavaScript: traces and layout by the id of the place.

Texts from outside are escaped here, for plotly takes ``<b>`` and links in a text for its own markup; axes of names are
said to be so, for it would take ``1024`` for a number and ``2026-01`` for a date. Absent values are null: a hole.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpumon.catalogue import CAUSES
from gpumon.diagnosis_tables import measure
from gpumon.diagnosis_words import engine, measured, moved
from gpumon.explain.causes import LOAD, UNEXPLAINED
from gpumon.explain.diagnosis.model import (
    BeforeDuring,
    CauseLost,
    ContextProfile,
    Correlation,
    Diagnosis,
    IncidentBrief,
    Interference,
    Surface,
    Timeline,
)
from gpumon.shown import percent, shown_clock, shown_seconds
from gpumon.terminal import printable, title_of

Figure = dict[str, Any]
"""``data`` and ``layout``, as Plotly.newPlot takes them."""

_GREY: Final = "#9a9a9a"
_WARM: Final = ("#d55e00", "#cc79a7", "#f0e442", "#882255", "#e69f00", "#6e2c00")
_COLD: Final = ("#0072b2", "#56b4e9", "#009e73", "#332288", "#88ccee")
"""Of the palettes of Okabe and Ito and of Tol, which those who see red and green alike tell apart."""
_VERDICTS: Final = {"bad": "#c0392b", "suspect": "#d4ac0d", "ok": "#27ae60", "unknown": _GREY}
_LONGEST: Final = 3.0
"""Change at which a bar ends: of 467 % the figure tells, not the length."""
_ROW_PX: Final = 26
_SECOND: Final = {"overlaying": "y", "side": "right", "rangemode": "tozero", "tickmode": "auto", "showgrid": False}
"""An axis on the right, with ticks of its own."""
_EDGE: Final = {"color": "#444444", "width": 0.5}
_DOTS: Final = {"color": "#333333", "width": 1, "dash": "dot"}
_MARGIN: Final = {"l": 60, "r": 20, "t": 20, "b": 50}


def figures(said: Diagnosis) -> dict[str, Figure]:
    """By id of the place; only what has something to show."""
    found: dict[str, Figure] = {}
    shades = colours([*(each.cause for each in said.causes), *(said.timeline.by_cause if said.timeline else ())])
    if said.causes:
        found["plot-causes"] = _causes(said.causes, shades)
    if said.timeline is not None and any(said.timeline.excess):
        found["plot-timeline"] = _timeline(said.timeline, shades, said.incidents)
    if said.before_during is not None and any(each.change is not None for each in said.before_during.changes):
        found["plot-before-during"] = _before_during(said.before_during)
    if said.correlations:
        found["plot-correlations"] = _correlations(said.correlations)
    for number, tenants in enumerate(said.tenants):
        if tenants.tenants:
            found[f"plot-tenants-{number}"] = _tenants(tenants)
    for number, profile in enumerate(said.contexts):
        if profile.rows:
            found[f"plot-contexts-{number}"] = _contexts(profile)
    if said.surface is not None:
        found["plot-surface"] = _surface(said.surface)
    return found


def colours(causes: Sequence[str]) -> dict[str, str]:
    """Of the causes of one page, those that cost most first: faults are warm, load is cold, what is not known is grey.

    Six faults and all kinds of load differ.
    """
    found: dict[str, str] = {}
    warm, cold = itertools.cycle(_WARM), itertools.cycle(_COLD)
    for cause in causes:
        if cause == UNEXPLAINED or cause not in CAUSES:
            found.setdefault(cause, _GREY)
        elif cause not in found:
            found[cause] = next(cold if cause in LOAD else warm)
    return found


def _causes(causes: Sequence[CauseLost], shades: Mapping[str, str]) -> Figure:
    shown_causes = causes[::-1]  # plotly's first row is the lowest
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [each.seconds for each in shown_causes],
        "y": [_text(each.title) for each in shown_causes],
        "text": [_text(f"{shown_seconds(each.seconds)}, {percent(each.share)}") for each in shown_causes],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "text",
        "marker": {"color": [shades[each.cause] for each in shown_causes], "line": _EDGE},
    }
    # Room for the figures beside the longest bar.
    room = [0.0, 1.3 * max(each.seconds for each in causes)]
    layout = _layout(xaxis={"title": {"text": "seconds lost"}, "range": room}, yaxis=_names())
    return {"data": [bar], "layout": layout | {"height": 110 + _ROW_PX * len(causes)}}


def _timeline(timeline: Timeline, shades: Mapping[str, str], incidents: Sequence[IncidentBrief]) -> Figure:
    # A bar stands on the middle of its cell.
    times = [_moment(timeline.start + (number + 0.5) * timeline.step_seconds) for number in range(len(timeline.excess))]
    left = [*timeline.excess]
    data: list[Figure] = []
    for cause, values in timeline.by_cause.items():
        left = [max(0.0, whole - part) for whole, part in zip(left, values, strict=False)]
        data.append(_stacked(times, values, _text(title_of(cause)), shades[cause]))
    # What the rounding of sums leaves is nothing.
    if sum(left) > 1e-3 * sum(timeline.excess):
        data.append(_stacked(times, left, "the rest", "#d0d0d0"))
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "P95 of response time",
            "x": times,
            "y": [*timeline.response_p95],
            "yaxis": "y2",
            "line": {"color": "#333333", "width": 1.5},
        }
    )
    times_of_day = {"type": "date", "tickformat": "%H:%M:%S", "nticks": 8, "tickangle": 0}
    layout = _layout(xaxis=times_of_day, yaxis={"title": {"text": "seconds lost"}})
    layout["yaxis2"] = _SECOND | {"title": {"text": "P95, s"}}
    more = {"barmode": "stack", "bargap": 0, "height": 380, "legend": {"orientation": "h", "y": -0.3}}
    return {
        "data": data,
        "layout": layout | more | _marks(timeline, incidents) | {"margin": _MARGIN | {"r": 60, "t": 50}},
    }


def _marks(timeline: Timeline, incidents: Sequence[IncidentBrief]) -> Figure:
    """A dotted line where incidents opened, with their kinds; those of one cell together."""
    kinds: dict[int, list[IncidentBrief]] = {}
    for each in sorted(incidents, key=lambda incident: incident.opened):
        cell = math.floor((each.opened - timeline.start) / timeline.step_seconds)
        if 0 <= cell < len(timeline.excess):
            kinds.setdefault(cell, []).append(each)
    shapes, notes = [], []
    for number, together in enumerate(kinds.values()):
        at = _moment(together[0].opened)
        first, *others = dict.fromkeys(each.title for each in together)
        told = f"{first} and {len(others)} more" if others else first
        shapes.append(
            {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": _DOTS}
        )
        # In three rows, for names that stand near one another.
        notes.append(
            {"xref": "x", "yref": "paper", "x": at, "y": 1, "yshift": 8 + 13 * (number % 3), "text": _text(told)}
            | {"showarrow": False, "xanchor": "left", "font": {"size": 11}}
        )
    return {"shapes": shapes, "annotations": notes}


def _stacked(times: Sequence[str], values: Sequence[float], name: str, shade: str) -> Figure:
    return {"type": "bar", "name": name, "x": [*times], "y": [*values], "marker": {"color": shade, "line": _EDGE}}


def _before_during(compared: BeforeDuring) -> Figure:
    changes = [each for each in compared.changes if each.change is not None][:16][::-1]
    told = [
        f"{measured(each.signal, each.before, each.unit)} → {measured(each.signal, each.during, each.unit)} "
        f"({moved(each)})"
        for each in changes
    ]
    lengths = [100 * max(-_LONGEST, min(_LONGEST, each.change or 0.0)) for each in changes]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": lengths,
        "y": [_text(each.title) for each in changes],
        "text": told,
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "text",
        "marker": {"color": ["#c0392b" if (each.change or 0.0) > 0.0 else "#2874a6" for each in changes]},
    }
    # Room for the figures beside the bars, as wide as the bars of both sides.
    least, most = min([0.0, *lengths]), max([0.0, *lengths])
    beside = max(most - least, 1.0)
    room = [least - beside if least < 0.0 else 0.0, most + beside if most > 0.0 else 0.0]
    layout = _layout(xaxis={"title": {"text": "change, %"}, "range": room, "zeroline": True}, yaxis=_names())
    return {"data": [bar], "layout": layout | {"height": 110 + _ROW_PX * len(changes)}}


def _correlations(pairs: Sequence[Correlation]) -> Figure:
    rows = [*dict.fromkeys(_text(each.x.replace("_", " ")) for each in pairs)]
    columns = [*dict.fromkeys(_with(each) for each in pairs)]
    z: list[list[float | None]] = [[None] * len(columns) for _ in rows]
    told = [[""] * len(columns) for _ in rows]
    for each in pairs:
        row, column = rows.index(_text(each.x.replace("_", " "))), columns.index(_with(each))
        if z[row][column] is None:  # the strongest comes first
            z[row][column] = each.r
            told[row][column] = f"{each.r:+.2f}, {each.lag_seconds:+.3g} s"
    heat = {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": z,
        "text": told,
        "texttemplate": "%{text}",
        "hoverinfo": "text",
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, "#2874a6"], [0.5, "#ffffff"], [1, "#c0392b"]],
        "xgap": 2,
        "ygap": 2,
    }
    layout = _layout(xaxis=_names(), yaxis=_names() | {"autorange": "reversed"})
    return {"data": [heat], "layout": layout | {"height": 160 + 30 * len(rows)}}


def _with(each: Correlation) -> str:
    return _text(f"{each.y.replace('_', ' ')} of {engine(each.server, each.model)}")


def _tenants(found: Interference) -> Figure:
    shown_tenants = found.tenants[::-1]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [each.tokens_per_second for each in shown_tenants],
        "y": [_text(each.tenant) or "none named" for each in shown_tenants],
        "text": [f"{each.slope:+.3g} tokens/s by one more" if each.slope is not None else "" for each in shown_tenants],
        "textposition": "auto",
        "marker": {"color": [_VERDICTS[each.verdict] for each in shown_tenants]},
    }
    layout = _layout(xaxis={"title": {"text": "tokens/s"}}, yaxis=_names())
    return {"data": [bar], "layout": layout | {"height": 110 + _ROW_PX * len(found.tenants)}}


def _contexts(profile: ContextProfile) -> Figure:
    buckets = [_text(row.bucket) for row in profile.rows]
    lines = (
        ("P95 of response time", [row.response_p95 for row in profile.rows], "#c0392b", "y"),
        ("mean response time", [row.response_mean for row in profile.rows], "#e67e22", "y"),
        ("decode tokens/s", [row.decode_tokens_per_second for row in profile.rows], "#2874a6", "y2"),
        ("normalised throughput", [row.normalised_throughput for row in profile.rows], "#17a589", "y2"),
    )
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": buckets,
            "y": values,
            "yaxis": axis,
            "line": {"color": shade},
        }
        for name, values, shade, axis in lines
    ]
    layout = _layout(xaxis=_names() | {"title": {"text": "context, tokens"}}, yaxis={"title": {"text": "s"}})
    layout["yaxis"] |= {"type": "log", "dtick": "D2"}
    layout["yaxis2"] = _SECOND | {"title": {"text": "tokens/s"}}
    more = {"height": 380, "legend": {"orientation": "h", "y": -0.25}, "margin": _MARGIN | {"r": 60}}
    return {"data": data, "layout": layout | more}


def _surface(surface: Surface) -> Figure:
    counted = [
        [
            f"{shown_seconds(value)}, of {count:,}" if value is not None else f"of {count:,}: too few"
            for value, count in cells
        ]
        for cells in (zip(*rows, strict=False) for rows in zip(surface.values, surface.counts, strict=False))
    ]
    heat = {
        "type": "heatmap",
        "x": [_text(label) for label in surface.x.labels],
        "y": [_text(label) for label in surface.y.labels],
        "z": [[*row] for row in surface.values],
        "text": counted,
        "hoverinfo": "text",
        "colorscale": [[0, "#fef5e7"], [0.5, "#f0932b"], [1, "#7b241c"]],
        "colorbar": {"title": {"text": _text(f"{measure(surface)}, s")}},
        "xgap": 2,
        "ygap": 2,
    }
    layout = _layout(
        xaxis=_names() | {"title": {"text": _text(surface.x.name.replace("_", " "))}},
        yaxis=_names() | {"title": {"text": _text(surface.y.name.replace("_", " "))}},
    )
    return {"data": [heat], "layout": layout | {"height": 180 + 30 * len(surface.y.labels)}}


def _layout(xaxis: Figure, yaxis: Figure) -> Figure:
    return {
        "xaxis": xaxis | {"automargin": True},
        "yaxis": yaxis | {"automargin": True},
        "autosize": True,
        "margin": _MARGIN,
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#fafafa",
    }


def _names() -> Figure:
    return {"type": "category"}


def _text(text: str) -> str:
    return html.escape(printable(text), quote=False)


def _moment(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return shown_clock(unix_s)
