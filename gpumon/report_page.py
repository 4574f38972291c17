"""A report as one file: shown in any browser, without network and without a server.

The page's policy lets no script run but the two that are in it, by their hashes, and nothing be loaded or sent. Plots
are drawn by the JavaScript that comes with the package plotly (4.8 MB); a page without plots has no script. What is
shown of texts from outside is for the sections to escape (``markup``).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from gpumon.markup import escaped
from gpumon.plotly_js import plotly_js
from gpumon.terminal import LONG

Figures = dict[str, dict[str, Any]]
"""Plots by the id of their place, as plain data for plotly."""
_DRAW: Final = """"use strict";
for (const [place, figure] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
  const options = {displayModeBar: false, responsive: true};
  Plotly.newPlot(document.getElementById(place), figure.data, figure.layout, options);
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


def document(
    title: str,
    sections: Callable[[Figures], Iterable[str]],
    figures: Callable[[], Figures],
    version: str,
    *,
    style: str = "",
    script: str | None = None,
) -> str:
    """The page. sections: its markup, given the plots that there are. style: more of it.

    script: plotly's; None: that of its package, empty: there are no plots then.
    """
    plots = figures() if script != "" else {}
    if script is None:
        script = plotly_script() if plots else ""
    scripts = [script, _DRAW] if script and plots else []
    plots = plots if scripts else {}
    sources = " ".join(f"'sha256-{_hash(text)}'" for text in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(title, LONG)}</title><style>{_STYLE}{style}</style></head><body>",
        f"<h1>{escaped(title, LONG)}</h1>",
        *sections(plots),
        f'<p class="dim">gpumon {escaped(version)}</p>',
    ]
    if scripts:
        parts.append(f'<script type="application/json" id="figures">{_data(plots)}</script>')
    parts += [f"<script>{text}</script>" for text in scripts]
    return "\n".join([*parts, "</body></html>\n"])


def plotly_script() -> str:
    """plotly's JavaScript, to be written into a page; empty where there is none, or it would end its own element."""
    text = (plotly_js() or b"").decode()
    # As the browser reads it: what is hashed is what comes out of its parser.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "" if "</script" in text.lower() or "<!--" in text else text


def _data(plots: Figures) -> str:
    """JSON that ends no script: what could is written as an escape, which is the same JSON."""
    text = json.dumps(plots, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
