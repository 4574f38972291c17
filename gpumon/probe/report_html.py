"""``gpumon probe --html``: one file that shows a run in any browser, without network and without a server.

What is told is ``probe.model.Report``. Every text is escaped, and what plots show is in tables as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpumon.markup import Html, begin, escaped, items, table
from gpumon.probe.ladder import length_text
from gpumon.probe.model import Report, Rung
from gpumon.probe.words import MEANWHILE, TITLES, cells, change, meanwhile, refusals, setting, sides, verdict, watched
from gpumon.report_page import document
from gpumon.shown import shown_seconds, shown_time
from gpumon.terminal import LONG

Figure = dict[str, Any]
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
"""Of the palettes of Okabe and Ito and of Tol, which those who see red and green alike tell apart."""
_PLACES: Final = (
    ("plot-first", "time_to_first_token", "Time to first token", "s"),
    ("plot-gaps", "inter_token", "Inter-token latency", "s"),
    ("plot-rate", "", "Tokens made per second", "tokens/s"),
)


def page(said: Report, command: str, script: str | None = None) -> str:
    """The document. command: what a trace id completes; empty where nobody can be asked.

    script: plotly's; None: that of its package, empty: there are no plots then.
    """
    return document(
        f"{said.model or said.endpoint}: the ladder of prompt lengths",
        lambda plots: _sections(said, command, plots),
        lambda: figures(said),
        said.version,
        script=script,
    )


def figures(said: Report) -> dict[str, Figure]:
    """Plots by the id of their place, as plain data for plotly; one line for each concurrency and quantile."""
    levels = sorted({rung.concurrency for rung in said.rungs if rung.requests})
    found: dict[str, Figure] = {}
    for place, measure, _, unit in _PLACES:
        traces = []
        for number, level in enumerate(levels):
            rungs = [rung for rung in said.rungs if rung.concurrency == level and rung.requests]
            colour = _COLOURS[number % len(_COLOURS)]
            for quantile, dash in (("p50", "solid"), ("p95", "dash"), ("p99", "dot")) if measure else (("", "solid"),):
                name = " ".join(part for part in (f"{level} at a time", quantile.upper()) if part)
                traces.append(_line(rungs, measure, quantile, name) | {"line": {"color": colour, "dash": dash}})
        if any(value is not None for trace in traces for value in trace["y"]):
            found[place] = {"data": traces, "layout": _layout(unit, is_log=bool(measure))}
    return found


def _line(rungs: list[Rung], measure: str, quantile: str, name: str) -> Figure:
    values: list[float | None] = []
    for rung in rungs:
        told = getattr(rung, measure) if measure else None
        values.append(getattr(told, quantile) if told is not None else None if measure else rung.tokens_per_second)
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": [rung.tokens for rung in rungs], "y": values}


def _layout(unit: str, *, is_log: bool) -> Figure:
    return {
        "xaxis": {"type": "log", "title": {"text": "tokens of the prompt"}, "automargin": True},
        "yaxis": {"title": {"text": unit}, "automargin": True}
        | ({"type": "log"} if is_log else {"rangemode": "tozero"}),
        "autosize": True,
        "height": 340,
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#fafafa",
        "legend": {"orientation": "h", "y": -0.25},
        "showlegend": True,
    }


def _sections(said: Report, command: str, plots: dict[str, Figure]) -> Iterable[str]:
    yield f'<p class="dim">{escaped(shown_time(said.started))}. {escaped(setting(said), LONG)}</p>'
    yield f'<div class="verdict">{"".join(f"<p>{escaped(each, LONG)}</p>" for each in verdict(said))}</div>'
    marked = {(each.concurrency, each.beyond_tokens) for each in said.collapses}
    marks = [number for number, rung in enumerate(said.rungs) if (rung.concurrency, rung.aim_tokens) in marked]
    yield begin("The ladder", "TTFT: time to first token; ITL: gap between tokens")
    yield table(TITLES, [cells(rung) for rung in said.rungs], left=(0, len(TITLES) - 1), marked=marks)
    if said_of := refusals(said.rungs):
        yield items(said_of)
    for place, _, title, _ in _PLACES:
        if place in plots:
            yield begin(title) + f'<div class="plot" id="{place}"></div>'
    if rungs := watched(said):
        yield begin("Meanwhile", f"as {said.gpumon} tells it; of the GPU that worked most")
        yield table(MEANWHILE, list(map(meanwhile, rungs)), left=(0, len(MEANWHILE) - 1))
    for each in said.collapses:
        if each.changes:
            titles = "Signal", length_text(each.before_tokens), length_text(each.beyond_tokens)
            yield begin(sides(each)) + table(titles, list(map(change, each.changes)))
    if said.slowest:
        yield begin("The slowest requests") + _slowest(said, command)
    if said.notes:
        yield begin("Notes") + items(said.notes)


def _slowest(said: Report, command: str) -> str:
    rows = []
    for slow in said.slowest:
        asked = f"{command} {slow.trace_id}" if command else slow.trace_id
        rows.append(
            (
                length_text(slow.aim_tokens),
                str(slow.concurrency),
                shown_seconds(slow.time_to_first_token),
                shown_seconds(slow.response_time),
                Html(f"<code>{escaped(asked, LONG)}</code>"),
            )
        )
    return table(("Prompt", "at a time", "first token", "in all", "more"), rows, left=(0, 4))
