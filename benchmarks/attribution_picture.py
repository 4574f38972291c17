"""The confusion matrix of causes, as a picture and as JSON.

Rows are true causes, columns the answers, both in the order of the catalogue, those only that occur; ``none`` last. A
cell is the share of its row, and says the number of phases. The same matrix gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.attribution_judge import NONE
from gpumon.catalogue import CAUSES

Matrix = Mapping[tuple[str, str], int]
"""Number of phases by true cause and answer."""
_ORDER = (*CAUSES, NONE)


def as_json(matrix: Matrix) -> str:
    """``{"true": [...], "said": [...], "counts": [[...], ...]}``: a row per true cause, a column per answer."""
    rows, columns = _names(matrix)
    counts = [[matrix.get((true, said), 0) for said in columns] for true in rows]
    return json.dumps({"true": rows, "said": columns, "counts": counts}, indent=1) + "\n"


def draw(matrix: Matrix, path: Path) -> None:
    """Write a PNG. An empty matrix gives an empty picture."""
    rows, columns = _names(matrix)
    counts = np.array([[matrix.get((true, said), 0) for said in columns] for true in rows], float)
    shape = (max(len(rows), 1), max(len(columns), 1))
    counts = counts.reshape(shape) if counts.size else np.zeros(shape)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(3.2 + 0.48 * shape[1], 2.0 + 0.4 * shape[0]), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("attributed")
    axes.set_ylabel("true")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.6 else "black"
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_title("Slow phases of requests by true and attributed cause", fontsize=10)
    with mpl.rc_context({"font.family": "DejaVu Sans"}):
        figure.savefig(path, format="png", metadata={"Software": None})


def _names(matrix: Matrix) -> tuple[list[str], list[str]]:
    rows = [cause for cause in _ORDER if any(true == cause and count for (true, _), count in matrix.items())]
    said = {said for (_, said), count in matrix.items() if count}
    return rows, [cause for cause in _ORDER if cause in said or cause in rows]
