"""Latency by minute and bucket, as the JSON API says it: a heatmap's cells, and the ids that lead to their requests.

Reads the windows of ``requests.statistics``: log-bucket counts of the last hour, which merge by addition. The id of a
cell holds what it is of, its bucket's position and its minute in unix milliseconds; it needs no memory here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpumon.requests.logbuckets import quantiles
from gpumon.requests.windows import MINUTES, WIDTH_S, Ladder, Row, Signal
from gpumon.web.questions import UnreadableError
from gpumon.web.said import Said

Of = Literal["ttft", "inter_token"]
By = Literal["concurrency", "context"]
QUANTILES: Final = (0.5, 0.95, 0.99)
SIGNALS: Final[dict[str, Signal]] = {"ttft": Signal.FIRST_TOKEN, "inter_token": Signal.INTER_TOKEN}
LADDERS: Final[dict[str, Ladder]] = {"concurrency": Ladder.CONCURRENCY, "context": Ladder.CONTEXT}
_CELL: Final = re.compile(r"(ttft|inter_token)\.(concurrency|context)\.([0-9]{1,2})\.([0-9]{1,16})")

Pair = tuple[str, str]
"""Kind of server and model."""
Rows = Sequence[tuple[Pair, Row]]


class Cell(Said):
    """Latency of one minute and bucket, in seconds; quantiles are at most 2.2 % off."""

    id: str = Field(description="For /api/v1/requests?cell=.")
    start: float = Field(description="Unix seconds; it is a minute long.")
    bucket: str
    count: int = Field(description="Observations: first tokens, or gaps between tokens.")
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


class Model(Said):
    """What is served."""

    server: str
    model: str


class Heatmap(Said):
    """Cells by time and bucket. Those without observations are left out."""

    of: Of
    by: By
    cell_seconds: float
    start: float = Field(description="Of the first minute asked for, in unix seconds.")
    end: float = Field(description="Of the minute under way.")
    buckets: list[str] = Field(description="All of the ladder, in its order.")
    models: list[Model] = Field(description="Those with observations in this time, whatever was asked for.")
    cells: list[Cell] = Field(description="By time, then bucket.")


class CellId(NamedTuple):
    """What an id says."""

    of: Of
    by: By
    position: int
    """Of the bucket on its ladder."""
    start_s: float
    """Steady seconds."""


def first_minute_s(at_s: float, minutes: int) -> float:
    """Start of the first of so many minutes, the last of which is under way. Steady seconds."""
    return (at_s // WIDTH_S - min(minutes, MINUTES) + 1) * WIDTH_S


def heatmap(
    rows: Rows,
    of: Of,
    by: By,
    at_s: float,
    minutes: int,
    to_unix: Callable[[float], float],
    *,
    server: str = "",
    model: str = "",
) -> Heatmap:
    """rows: of this ladder, from ``first_minute_s`` on. server, model: of these only, where not empty."""
    signal, ladder = SIGNALS[of], LADDERS[by]
    sums: dict[tuple[float, int], NDArray[np.int64]] = {}
    for pair, row in rows:
        if row.signal is signal and server in ("", pair[0]) and model in ("", pair[1]):
            key = (row.start_s, row.position)
            known = sums.get(key)
            sums[key] = row.counts if known is None else known + row.counts
    keys = sorted(sums)
    found = quantiles(np.stack([sums[key] for key in keys]), QUANTILES).tolist() if keys else []
    first_s = first_minute_s(at_s, minutes)
    return Heatmap(
        of=of,
        by=by,
        cell_seconds=WIDTH_S,
        start=_moment(first_s, to_unix),
        end=_moment((at_s // WIDTH_S + 1) * WIDTH_S, to_unix),
        buckets=[*ladder.labels],
        models=[Model(server=pair[0], model=pair[1]) for pair in sorted({pair for pair, _ in rows})],
        cells=[
            Cell(
                id=f"{of}.{by}.{position}.{round(1e3 * _moment(start_s, to_unix))}",
                start=_moment(start_s, to_unix),
                bucket=ladder.labels[position],
                count=int(sums[start_s, position].sum()),
                p50_seconds=round(p50_s, 6),
                p95_seconds=round(p95_s, 6),
                p99_seconds=round(p99_s, 6),
            )
            for (start_s, position), (p50_s, p95_s, p99_s) in zip(keys, found, strict=True)
        ],
    )


def _moment(at_s: float, to_unix: Callable[[float], float]) -> float:
    # In tenths: what is read from two clocks differs by microseconds, and the same cells would not look the same.
    return round(to_unix(at_s), 1)


def cell_id(text: str, to_unix: Callable[[float], float]) -> CellId:
    """What an id says. Raises UnreadableError."""
    found = _CELL.fullmatch(text)
    if found is None:
        raise UnreadableError(
            "no id of a cell; /api/v1/heatmap has them, such as inter_token.concurrency.3.1796000000000"
        )
    of, by, position, unix_ms = found.groups()
    if int(position) >= len(LADDERS[by].labels):
        raise UnreadableError(f"no such bucket of {by}: there are {len(LADDERS[by].labels)}")
    # The wall clock may have been stepped a little since: a minute of ours is the nearest.
    minute = round((int(unix_ms) / 1e3 - to_unix(0.0)) / WIDTH_S)
    return CellId(
        "ttft" if of == "ttft" else "inter_token",
        "context" if by == "context" else "concurrency",
        int(position),
        minute * WIDTH_S,
    )
