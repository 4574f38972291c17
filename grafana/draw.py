"""Pictures of the dashboards as a reader sees them, where there is no Grafana: the queries' results, drawn.

``python -m grafana.draw --prometheus http://127.0.0.1:9090 --minutes 5 docs/pictures/dashboards``

Asks a real Prometheus every query of every panel and draws each panel at its place with matplotlib. What it shows is
what was asked and what came back; colours and fonts are not Grafana's. Of the panels that say "no data", the text too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

mpl.use("agg")
from matplotlib import pyplot as plt

from grafana.asking import Asker, Span
from grafana.drawing import draw

FOLDER = Path(__file__).parent / "dashboards"
UNIT_INCHES = (0.72, 0.36)
"""A column and a row of Grafana's grid."""
DPI = 80


def picture(dashboard: dict[str, Any], asker: Asker, path: Path) -> None:
    """Draws one dashboard. Collapsed rows are drawn opened."""
    placed = list(_places(dashboard["panels"]))
    height = max(y + h for _, _, y, _, h in placed)
    figure = plt.figure(figsize=(24 * UNIT_INCHES[0], (height + 1.2) * UNIT_INCHES[1]), dpi=DPI, facecolor="#f4f5f5")
    total = height + 1.2
    figure.text(0.008, 1 - 0.75 / total, dashboard["title"], fontsize=15, weight="bold")
    for panel, x, y, width, h in placed:
        top = y + 1.2
        if panel["type"] == "row":
            figure.text(0.008, 1 - (top + 0.75) / total, f"▾ {panel['title']}", fontsize=11, weight="bold")
            continue
        box = ((x + 0.12) / 24, 1 - (top + h - 0.12) / total, (width - 0.24) / 24, (h - 0.24) / total)
        draw(figure, box, panel, asker)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(
        path
    )
    plt.close(figure)


def _places(panels: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int, int, int, int]]:
    """Panels with x, y, width and height; those of collapsed rows moved in below their heading."""
    found = []
    moved = 0
    for panel in panels:
        place = panel["gridPos"]
        found.append((panel, place["x"], place["y"] + moved, place["w"], place["h"]))
        inside = panel.get("panels") or []
        for inner in inside:
            at = inner["gridPos"]
            found.append((inner, at["x"], at["y"] + moved, at["w"], at["h"]))
        if inside:
            moved += max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in inside) - (place["y"] + place["h"])
    return found


def main() -> int:
    """Returns 1 if Prometheus does not answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--scrape", type=int, default=5, help="scrape interval, seconds")
    parser.add_argument("--board", action="append", help="uid; default: all")
    parser.add_argument("folder", type=Path)
    wish = parser.parse_args()
    end = time.time()
    asker = Asker(wish.prometheus, Span(end - wish.minutes * 60, end, wish.scrape))
    wish.folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(FOLDER.glob("*.json")):
        if wish.board and file.stem not in wish.board:
            continue
        try:
            picture(json.loads(file.read_text(encoding="utf-8")), asker, wish.folder / f"{file.stem}.png")
        except urllib.error.URLError as error:
            print(f"{wish.prometheus} does not answer: {error.reason}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
