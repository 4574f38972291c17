"""Draws one panel of a dashboard with matplotlib: ``draw`` chooses by the panel's type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from matplotlib import colormaps, dates
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from grafana.asking import Asker, QueryError, Series

Box = tuple[float, float, float, float]
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_COLORS = [colormaps["tab20"](index) for index in range(20)]
_NAMED = {"text": "#24292e", "transparent": "#e8eaed", "green": "#37872d", "orange": "#ff780a", "red": "#c4162a"}
_NAMED |= {
    "blue": "#1f60c4",
    "yellow": "#e0b400",
    "dark-red": "#8f0f1e",
    "purple": "#8f3bb8",
    "super-light-blue": "#9fc5e8",
}
_SHOWN = 16
_SUFFIX = {"percentunit": "%", "s": " s", "watt": " W", "celsius": " °C", "hertz": " Hz", "bytes": "B", "Bps": "B/s"}
_SUFFIX |= {"joule": " J", "reqps": " req/s", "binBps": "B/s", "decbytes": "B"}
_SCALED = {"bytes", "Bps", "hertz", "short", "binBps", "decbytes", "watt", "joule", "reqps", "cps", "none"}


def figure_text(value: float, unit: str) -> str:
    """A value as people read it."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} µs"
    scale, letter = 1.0, ""
    if unit in _SCALED:
        for limit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
            if abs(value) >= limit:
                scale, letter = (1e3 if name == "k" else limit), f" {name}"
                break
    return f"{value / scale:.4g}{letter}{_SUFFIX.get(unit, '')}"


def draw(figure: Figure, box: Box, panel: dict[str, Any], asker: Asker) -> None:
    """Draws the panel into the box (left, bottom, width, height of the figure)."""
    left, bottom, width, height = box
    background = figure.add_axes(box)
    background.set_xticks([])
    background.set_yticks([])
    for spine in background.spines.values():
        spine.set_color("#d8d9da")
    pixels = figure.get_figheight() * height * figure.dpi
    background.set_title(panel.get("title", ""), fontsize=8.5, loc="left", y=1.0, pad=-11, x=0.01, weight="bold")
    head, foot = 18 / pixels, 30 / pixels
    inner = (left + width * 0.075, bottom + height * foot, width * 0.9, height * (1 - head - foot))
    kind = panel["type"]
    if kind == "text":
        _say(background, panel["options"].get("content", ""))
        return
    least = 60 if panel.get("interval") == "1m" else 0
    try:
        answers = [asker.ask(target, least) for target in panel.get("targets", [])]
    except QueryError as error:
        _say(background, f"query refused: {error}", "red")
        return
    if not any(answers):
        _say(background, panel["fieldConfig"]["defaults"].get("noValue", "No data"), "#7b8087")
        return
    if kind in _WITHOUT_AXES:
        _WITHOUT_AXES[kind](background, panel, answers)
        return
    axes = figure.add_axes(inner)
    axes.tick_params(labelsize=6)
    _WITH_AXES[kind](axes, panel, answers)
    if kind in ("timeseries", "heatmap", "state-timeline"):
        axes.set_xlim(_at(asker.span.begin_s), _at(asker.span.end_s))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
        axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=6))


def _at(unix_s: float) -> float:
    return float(dates.date2num(datetime.fromtimestamp(unix_s, UTC)))


def _say(axes: Axes, words: str, color: str = "#24292e") -> None:
    """Text, which may be markdown: of a link its words. A dollar sign is Grafana's, and begins no formula."""
    plain = _LINK.sub(r"\1", words)[:900]
    axes.text(
        0.02, 0.8, plain, fontsize=7, color=color, va="top", wrap=True, transform=axes.transAxes, parse_math=False
    )


def _unit(panel: dict[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("unit", "short"))


def _name(target: dict[str, Any], series: Series) -> str:
    legend = target.get("legendFormat")
    if not legend:
        return ", ".join(f"{key}={value}" for key, value in series.labels.items() if key != "__name__") or "value"
    return _LABEL.sub(lambda found: series.labels.get(found[1], ""), legend).strip()


def _named(panel: dict[str, Any], answers: Sequence[list[Series]]) -> list[tuple[str, Series]]:
    pairs = zip(panel["targets"], answers, strict=True)
    return [(_name(target, series), series) for target, answer in pairs for series in answer]


def _override(panel: dict[str, Any], name: str, key: str) -> object:
    """What the panel's overrides by regular expression or name set for a series."""
    for override in panel["fieldConfig"].get("overrides", []):
        matcher = override["matcher"]
        pattern = str(matcher.get("options", "")).strip("/")
        if (matcher["id"] == "byRegexp" and re.search(pattern, name)) or matcher.get("options") == name:
            for each in override["properties"]:
                if each["id"] == key:
                    return each["value"]
    return None


def _axis(axes: Axes, unit: str) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: figure_text(value, unit))


def _timeseries(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    named = _named(panel, answers)
    if stacked:
        times = sorted({at for _, series in named for at, _ in series.points})
        rows = [[dict(series.points).get(at, 0.0) for at in times] for _, series in named]
        axes.stackplot([_at(at) for at in times], rows, labels=[name for name, _ in named], colors=_COLORS, alpha=0.8)
    second: Axes | None = None
    for index, (name, series) in enumerate(named if not stacked else []):
        on = axes
        if _override(panel, name, "custom.axisPlacement") == "right":
            if second is None:
                second = axes.twinx()
                second.tick_params(labelsize=6)
                _axis(second, str(_override(panel, name, "unit") or _unit(panel)))
                second.set_ylabel(str(_override(panel, name, "custom.axisLabel") or ""), fontsize=6)
            on = second
        on.plot(
            [_at(at) for at, _ in series.points],
            [value for _, value in series.points],
            label=name,
            linewidth=1,
            color=_COLORS[index % 20],
            linestyle="--" if on is second else "-",
        )
    for step in defaults.get("thresholds", {}).get("steps", []):
        low, high = axes.get_ylim()
        if step.get("value") is not None and low <= step["value"] <= high * 1.5:
            axes.axhline(step["value"], color=_NAMED.get(step["color"], step["color"]), linestyle=":", linewidth=1)
    if defaults.get("min") is not None:
        axes.set_ylim(bottom=defaults["min"])
    if defaults.get("max") is not None:
        axes.set_ylim(top=defaults["max"])
    _axis(axes, _unit(panel))
    lines, texts = axes.get_legend_handles_labels()
    if second is not None:
        more, words = second.get_legend_handles_labels()
        lines, texts = lines + more, texts + words
    if lines:
        axes.legend(lines[:_SHOWN], texts[:_SHOWN], fontsize=5.5, loc="upper left", ncol=2, framealpha=0.6)


def _heatmap(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    named = _named(panel, answers)
    cumulative = panel["targets"][0].get("format") == "heatmap"

    def order(name: str) -> float:
        found = re.match(r"[+-]?(?:Inf|\d+(?:\.\d+)?)", name)
        return float(found[0]) if found else math.inf

    named.sort(key=lambda pair: order(pair[0]))
    times = sorted({at for _, series in named for at, _ in series.points})
    cells = np.array([[dict(series.points).get(at, np.nan) for at in times] for _, series in named])
    if cumulative:
        cells = np.diff(cells, axis=0, prepend=0.0)
    cells[~(cells > 1e-9)] = np.nan
    if not len(times) or np.isnan(cells).all():
        _say(axes, "all cells are empty", "#7b8087")
        return
    step = min(np.diff(times)) if len(times) > 1 else 60.0
    edges = [_at(at - step) for at in times] + [_at(times[-1])]
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    norm = LogNorm(low, high) if high > low * 3 and low > 0 else None
    mesh = axes.pcolormesh(edges, range(len(named) + 1), cells, cmap="turbo", norm=norm)
    used = [index for index in range(len(named)) if not np.isnan(cells[index]).all()]
    axes.set_ylim(max(0, min(used) - 1), min(len(named), max(used) + 2))
    axes.set_yticks([index + (1 if cumulative else 0.5) for index in range(len(named))], [name for name, _ in named])
    unit = panel["options"].get("cellValues", {}).get("unit", "short")
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, format=lambda value, _: figure_text(value, unit))
    bar.ax.tick_params(labelsize=5.5)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _states(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    named = _named(panel, answers)[:40]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    for row, (_, series) in enumerate(named):
        width = min((b[0] - a[0] for a, b in zip(series.points, series.points[1:], strict=False)), default=5.0)
        for at, value in series.points:
            chosen = [step for step in steps if step.get("value") is None or value >= step["value"]][-1]["color"]
            axes.barh(row, width / 86400, left=_at(at), height=0.85, color=_NAMED.get(chosen, chosen), linewidth=0)
    axes.set_yticks(range(len(named)), [name for name, _ in named], fontsize=5.5)
    axes.invert_yaxis()


def _bars(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    named = sorted(_named(panel, answers), key=lambda pair: pair[1].points[-1][1])[-_SHOWN:]
    last = [series.points[-1][1] for _, series in named]
    axes.barh(range(len(named)), last, color="#5794f2")
    axes.set_yticks(range(len(named)), [name for name, _ in named], fontsize=6)
    axes.set_xticks([])
    for row, value in enumerate(last):
        axes.text(0, row, f" {figure_text(value, _unit(panel))}", fontsize=6.5, va="center")
    axes.margins(y=0.1)
    axes.tick_params(axis="y", direction="in", pad=-4)
    for label in axes.get_yticklabels():
        label.set_horizontalalignment("left")
        label.set_x(0.5)


def _scatter(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    def keyed(answer: list[Series]) -> dict[tuple[object, ...], float]:
        return {
            (*sorted((key, value) for key, value in series.labels.items() if key != "__name__"), at): value
            for series in answer
            for at, value in series.points
        }

    x, y = keyed(answers[0]), keyed(answers[1])
    both = sorted(x.keys() & y.keys(), key=str)
    axes.scatter([x[key] for key in both], [y[key] for key in both], s=4, alpha=0.5)
    labels = panel["transformations"][1]["options"]["renameByName"]
    axes.set_xlabel(labels["Value #A"], fontsize=6.5)
    axes.set_ylabel(labels["Value #B"], fontsize=6.5)
    axes.xaxis.set_major_formatter(lambda value, _: figure_text(value, _unit(panel)))
    _axis(axes, _unit(panel))


def _number(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    named = _named(panel, answers)
    texts = {
        value: result["text"]
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", [])
        for value, result in mapping.get("options", {}).items()
    }
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    shown = named[:12]
    columns = 1 if len(shown) == 1 else math.ceil(math.sqrt(len(shown)))
    for index, (name, series) in enumerate(shown):
        value = series.points[-1][1]
        words = texts.get(f"{value:g}", figure_text(value, _unit(panel)))
        chosen = [step for step in steps if step.get("value") is None or value >= step["value"]][-1]["color"]
        x = (index % columns + 0.5) / columns
        y = 0.78 - 0.75 * (index // columns + 0.5) / math.ceil(len(shown) / columns)
        size = 20 if len(shown) == 1 and len(words) < 16 else 8
        axes.text(x, y, words, fontsize=size, ha="center", va="center", color=_NAMED.get(chosen, chosen), wrap=True)
        if len(shown) > 1:
            axes.text(x, y - 0.12, name, fontsize=5, ha="center", va="top")


def _table(axes: Axes, panel: dict[str, Any], answers: Sequence[list[Series]]) -> None:
    order = [each for each in panel["transformations"] if each["id"] == "organize"][-1]["options"]
    names = sorted(order["indexByName"], key=lambda name: int(order["indexByName"][name]))
    heading = {name: str(order["renameByName"].get(name, name)) for name in names}
    merged: dict[tuple[tuple[str, str], ...], dict[str, str | float]] = {}
    for target, answer in zip(panel["targets"], answers, strict=True):
        column = f"Value #{target['refId']}" if len(answers) > 1 else "Value"
        for series in answer:
            labels = {key: value for key, value in series.labels.items() if key != "__name__"}
            merged.setdefault(tuple(sorted(labels.items())), dict(labels))[column] = series.points[-1][1]
    rows = list(merged.values())
    sorts = [each["options"]["sort"][0] for each in panel["transformations"] if each["id"] == "sortBy"]
    for sort in sorts + list(panel["options"].get("sortBy") or []):
        wanted = sort.get("displayName") or sort["field"]
        by = next((name for name in names if wanted in (name, heading[name])), names[0])
        rows.sort(
            key=lambda row: (isinstance(row.get(by), str), row.get(by, -math.inf)), reverse=bool(sort.get("desc"))
        )
    cells = [[heading[name] for name in names]]
    cells += [[_cell(panel, heading[name], row.get(name, "")) for name in names] for row in rows[:14]]
    for line, texts in enumerate(cells):
        for place, text in enumerate(texts):
            axes.text(
                0.01 + place / len(names),
                0.88 - line * 0.06,
                text[: 200 // len(names)],
                fontsize=6,
                weight="bold" if line == 0 else "normal",
                va="top",
                transform=axes.transAxes,
                parse_math=False,
            )


def _cell(panel: dict[str, Any], heading: str, value: str | float) -> str:
    """A value in its column's unit, or what the column's mappings say instead."""
    mappings = _override(panel, heading, "mappings")
    for mapping in mappings if isinstance(mappings, list) else []:
        told = mapping.get("options", {}).get(f"{value:g}" if isinstance(value, float) else value)
        if isinstance(told, dict) and told.get("text"):
            return str(told["text"])
    return (
        value if isinstance(value, str) else figure_text(value, str(_override(panel, heading, "unit") or _unit(panel)))
    )


_Drawing = Callable[[Axes, dict[str, Any], Sequence[list[Series]]], None]
_WITHOUT_AXES: dict[str, _Drawing] = {"stat": _number, "table": _table}
_WITH_AXES: dict[str, _Drawing] = {
    "timeseries": _timeseries,
    "heatmap": _heatmap,
    "state-timeline": _states,
    "bargauge": _bars,
    "xychart": _scatter,
}
