"""``gpumon probe --html``: one file that shows a run in any browser, without network and without a server.

What is told is ``probe.model.Report``. Every text is escaped; the page's policy lets no script run but the two that are
in it, by their hashes, and nothing be loaded or sent. Plots are drawn by the JavaScript of the package plotly; what
they show is in tables as well.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

from gpumon.diagnosis_html import plotly_script
from gpumon.markup import Html, begin, escaped, items, table
from gpumon.probe.ladder import length_text
from gpumon.probe.model import Report, Rung
from gpumon.probe.words import MEANWHILE, TITLES, cells, change, meanwhile, refusals, setting, sides, verdict, watched
from gpumon.shown import shown_seconds, shown_time
from gpumon.terminal import LONG

Figure = dict[str, Any]
_DRAW: Final = """"use strict";
for (const [place, figure] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
  Plotly.newPlot(document.getElementById(place), figure.data, figure.layout, {displayModeBar: false, responsive: true});
}
"""
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}h2 small{font-weight:normal;color:#666}
.verdict{font-size:1.1rem}.verdict p:first-child{font-weight:600}.dim{color:#666}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0}
th,td{padding:.25rem .8rem .25rem 0;text-align:right;vertical-align:top;border-bottom:1px solid #e4e4e4}
th.t,td.t{text-align:left}td:not(.t){white-space:nowrap}tr.mark td{background:#fdecea}
code{font:13px/1.4 ui-monospace,monospace;background:#f4f4f4;padding:.1rem .3rem}
"""
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
    plots = figures(said) if script != "" else {}
    if script is None:
        script = plotly_script() if plots else ""
    scripts = [script, _DRAW] if script and plots else []
    plots = plots if scripts else {}
    sources = " ".join(f"'sha256-{_hash(text)}'" for text in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{said.model or said.endpoint}: the ladder of prompt lengths"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(title, LONG)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escaped(title, LONG)}</h1>",
        *_sections(said, command, plots),
        f'<p class="dim">gpumon {escaped(said.version)}</p>',
    ]
    if scripts:
        parts.append(f'<script type="application/json" id="figures">{_data(plots)}</script>')
    parts += [f"<script>{text}</script>" for text in scripts]
    return "\n".join([*parts, "</body></html>\n"])


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


def _data(plots: dict[str, Figure]) -> str:
    """JSON that ends no script: what could is written as an escape, which is the same JSON."""
    text = json.dumps(plots, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
