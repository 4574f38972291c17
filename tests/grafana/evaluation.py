"""Evaluates a panel's query over made-up series, with promtool: what a reader sees when this or that is so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grafana.asking import Span, fill
from grafana.kit import Board

SCRAPE_S = 15
MINUTES = 10
STEPS = MINUTES * 60 // SCRAPE_S


def panels(board: Board) -> Iterator[dict[str, Any]]:
    """All panels, those of collapsed rows too."""
    for panel in json.loads(board.text())["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def panel_of(board: Board, title: str) -> dict[str, Any]:
    """The one panel of a title."""
    (found,) = [panel for panel in panels(board) if panel["title"] == title]
    return found


def expr_of(board: Board, title: str, ref: str = "A") -> str:
    """A query of a panel, as Grafana asks it with everything selected, over ten minutes."""
    (expr,) = [target["expr"] for target in panel_of(board, title)["targets"] if target["refId"] == ref]
    return fill(expr, Span(0, MINUTES * 60, SCRAPE_S))


def steady(value: float) -> str:
    """Values of a series that stays as it is."""
    return f"{value}x{STEPS}"


def growing(per_s: float, start: float = 0) -> str:
    """Values of a counter that grows by so much a second."""
    return f"{start}+{per_s * SCRAPE_S}x{STEPS}"


def check(folder: Path, expr: str, series: Mapping[str, str], expected: Mapping[str, float]) -> None:
    """The query gives just these series, by labels, with these values, when all values of the series have come."""
    sample = [{"labels": labels, "value": value} for labels, value in expected.items()]
    test = {
        "interval": f"{SCRAPE_S}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"round({expr}, 0.001)", "eval_time": f"{MINUTES}m", "exp_samples": sample},
        ],
    }
    path = folder / "test.yaml"  # JSON is YAML
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
