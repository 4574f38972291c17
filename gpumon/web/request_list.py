"""Requests one by one, as the JSON API lists them: filtered, sorted, in pages. Reads ``explain.request_log``.

A page is found again by the last row of the one before (``cursor``): what ended meanwhile changes no page but the
first. The cursor says where, not what was asked: the question must be asked again with it, and with the same order.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpumon.catalogue import CAUSES, TITLES
from gpumon.explain.request_log import RequestLog
from gpumon.explain.request_rows import OUTCOMES, Rows
from gpumon.requests.buckets import concurrency_buckets, context_buckets
from gpumon.requests.windows import WIDTH_S
from gpumon.web.heatmap import CellId
from gpumon.web.questions import UnreadableError
from gpumon.web.said import Said, rounded

Sort = Literal["slowest", "newest"]
_CURSOR: Final = struct.Struct(">cdd24s")
_PERIOD_S: Final = 1.0
"""A cell's minute and a request's times are told by different clocks: some more are offered rather than some less."""


class RequestRow(Said):
    """A request that ended. Null where its server did not tell."""

    trace_id: str
    span_id: str | None
    request_id: str = Field(description="As its server calls it, its first 44 bytes.")
    server: str
    model: str
    tenant: str
    outcome: str = Field(description="ok, error, aborted or incomplete.")
    start: float = Field(description="Unix seconds.")
    end: float = Field(description="Unix seconds.")
    duration_seconds: float
    time_to_first_token_seconds: float | None
    queue_seconds: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    tokens_per_second: float | None = Field(description="After the first one.")
    gap_p95_seconds: float | None = Field(description="Between its tokens, or steps.")
    gap_max_seconds: float | None
    concurrency: int = Field(description="Requests open on that server when this one arrived.")
    late_seconds: float = Field(description="Over what it usually takes; of what was slow.")
    late_first_token_seconds: float
    late_decode_seconds: float
    cause: str | None = Field(description="The main one; null where it was on time.")
    title: str | None = Field(description="Of that cause, as people call it.")
    causes: dict[str, float] = Field(description="Seconds by cause, the largest first.")
    gpus: list[str] = Field(description="UUIDs; empty where it is not known.")
    detailed: bool = Field(description="/api/v1/explain knows it: its gaps and tokens.")


class Requests(Said):
    """A page of them."""

    requests: list[RequestRow]
    matched: int = Field(description="How many there are, of all pages.")
    cursor: str | None = Field(description="For the next page; null on the last one.")
    kept_from: float | None = Field(
        description="Requests that ended before this unix second may be forgotten; null: none was."
    )


class Wish(NamedTuple):
    """Which requests, in which order."""

    server: str = ""
    model: str = ""
    tenant: str = ""
    outcome: str = ""
    cause: str = ""
    uuid: str = ""
    since_s: float = -np.inf
    """Steady seconds at which they ended at the earliest."""
    min_ttft_s: float = 0.0
    min_gap_s: float = 0.0
    min_late_s: float = 0.0
    cell: CellId | None = None
    sort: Sort = "slowest"
    limit: int = 50
    cursor: str = ""


class _Place(NamedTuple):
    """Of a row in an order: of what follows, all are smaller."""

    key: float
    end_s: float
    ids: bytes
    """Trace and span id."""


def request_list(
    log: RequestLog, wish: Wish, to_unix: Callable[[float], float], is_detailed: Callable[[str, str], bool]
) -> Requests:
    """is_detailed: by trace and span id. Raises UnreadableError for a cursor."""
    page = _Page(wish)
    rows = log.select(page.choose)
    kept_from_s = log.dropped_until_s
    return Requests(
        requests=[_row(rows, row, to_unix, is_detailed) for row in range(len(rows))],
        matched=page.matched,
        cursor=_cursor(wish.sort, page.last) if page.last is not None else None,
        kept_from=to_unix(kept_from_s) if kept_from_s is not None else None,
    )


class _Page:
    """Finds the rows of a page, and what is to be said of it."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._after = _read_cursor(wish.cursor, wish.sort) if wish.cursor else None
        self.matched = 0
        self.last: _Place | None = None
        """Of the last row, where there is a further page."""

    def choose(self, rows: Rows) -> NDArray[np.intp]:
        """For ``RequestLog.select``."""
        chosen = np.flatnonzero(_chosen(rows, self._wish))
        keys, ends_s = _keys(rows, self._wish)[chosen], rows.end_s[chosen]
        order = np.lexsort((-ends_s, -keys))
        chosen, keys, ends_s = chosen[order], keys[order], ends_s[order]
        first = _first(rows, chosen, keys, ends_s, self._after) if self._after is not None else 0
        end = first + self._wish.limit
        self.matched = len(chosen)
        if first < end < len(chosen):
            self.last = _Place(float(keys[end - 1]), float(ends_s[end - 1]), _ids(rows, int(chosen[end - 1])))
        return chosen[first:end]


def _chosen(rows: Rows, wish: Wish) -> NDArray[np.bool_]:
    chosen: NDArray[np.bool_] = rows.end_s >= wish.since_s
    if wish.server or wish.model:
        named = [wish.server in ("", group.server) and wish.model in ("", group.model) for group in rows.groups]
        chosen &= np.array(named)[rows.index("group")]
    if wish.uuid:
        on_gpu = np.array([wish.uuid in group.gpus for group in rows.groups])
        chosen &= on_gpu[rows.index("group")]
    if wish.tenant:
        chosen &= np.array([tenant == wish.tenant for tenant in rows.tenants])[rows.index("tenant")]
    if wish.outcome:
        chosen &= rows.index("outcome") == OUTCOMES.index(wish.outcome)
    if wish.min_ttft_s > 0.0:
        chosen &= rows.column("first_token_s") >= wish.min_ttft_s
    if wish.min_gap_s > 0.0:
        chosen &= rows.column("gap_max_s") >= wish.min_gap_s
    if wish.min_late_s > 0.0:
        chosen &= _late(rows) >= wish.min_late_s
    if wish.cause:
        by_cause = rows.table["cause_s"].sum(axis=1)
        chosen &= (by_cause.max(axis=1) > 0.0) & (by_cause.argmax(axis=1) == CAUSES.index(wish.cause))
    if wish.cell is not None:
        chosen &= _in_cell(rows, wish.cell)
    return chosen


def _in_cell(rows: Rows, cell: CellId) -> NDArray[np.bool_]:
    """Those that can have been in it."""
    first_s, end_s = cell.start_s - _PERIOD_S, cell.start_s + WIDTH_S + _PERIOD_S
    during: NDArray[np.bool_]
    if cell.of == "ttft":
        made_s = rows.start_s + rows.column("first_token_s")
        during = (made_s >= first_s) & (made_s < end_s)
    else:
        made = rows.column("completion_tokens")
        during = (rows.start_s < end_s) & (rows.end_s >= first_s) & ~(made < 2)
    if cell.by == "concurrency":
        during &= concurrency_buckets(rows.column("concurrency")) == cell.position
        return during
    prompts = rows.column("prompt_tokens")
    told = ~np.isnan(prompts)
    shortest = np.where(told, prompts, 0.0)
    longest = shortest if cell.of == "ttft" else shortest + np.nan_to_num(rows.column("completion_tokens"))
    fits = (context_buckets(shortest) <= cell.position) & (context_buckets(longest) >= cell.position)
    during &= told & fits
    return during


def _late(rows: Rows) -> NDArray[np.float64]:
    total: NDArray[np.float64] = rows.column("excess_s").sum(axis=1)
    return total


def _keys(rows: Rows, wish: Wish) -> NDArray[np.float64]:
    """What they are sorted by, descending."""
    if wish.sort == "newest":
        return rows.end_s
    if wish.cell is None:
        return _late(rows)
    return np.nan_to_num(rows.column("first_token_s" if wish.cell.of == "ttft" else "gap_max_s"), nan=-1.0)


def _ids(rows: Rows, row: int) -> bytes:
    return bytes(rows.table["trace_id"][row]) + bytes(rows.table["span_id"][row])


def _first(
    rows: Rows, chosen: NDArray[np.intp], keys: NDArray[np.float64], ends_s: NDArray[np.float64], after: _Place
) -> int:
    """Position among the chosen, which are in order, of the first row after a place."""
    before = (keys > after.key) | ((keys == after.key) & (ends_s > after.end_s))
    first = int(before.sum())
    # Of rows at the same place, those up to the one with these ids have been shown.
    same = int(((keys == after.key) & (ends_s == after.end_s)).sum())
    for position in range(first, first + same):
        if _ids(rows, int(chosen[position])) == after.ids:
            return position + 1
    return first


def _cursor(sort: Sort, place: _Place) -> str:
    packed = _CURSOR.pack(sort[:1].encode(), place.key, place.end_s, place.ids)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _read_cursor(text: str, sort: Sort) -> _Place:
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        mark, key, end_s, ids = _CURSOR.unpack(packed)
    except (binascii.Error, ValueError, struct.error) as error:
        raise UnreadableError("no cursor: expected that of the page before") from error
    if mark != sort[:1].encode() or not np.isfinite([key, end_s]).all():
        raise UnreadableError(f"a cursor of another order: expected that of a page with sort={sort}")
    return _Place(key, end_s, ids)


def _row(
    rows: Rows, row: int, to_unix: Callable[[float], float], is_detailed: Callable[[str, str], bool]
) -> RequestRow:
    of = rows.table[row]
    group = rows.groups[of["group"]]
    first_s, decode_s = (float(seconds) for seconds in of["excess_s"])
    by_cause = of["cause_s"].sum(axis=0)
    causes = {CAUSES[place]: round(float(by_cause[place]), 6) for place in np.argsort(-by_cause, kind="stable")}
    causes = {cause: seconds for cause, seconds in causes.items() if seconds > 0.0}
    main = next(iter(causes), None)
    trace_id, span_id = rows.trace_id(row), rows.span_id(row)
    return RequestRow(
        trace_id=trace_id,
        span_id=span_id or None,
        request_id=rows.request_id(row),
        server=group.server,
        model=group.model,
        tenant=rows.tenants[of["tenant"]],
        outcome=OUTCOMES[of["outcome"]],
        start=to_unix(float(of["start_s"])),
        end=to_unix(float(of["end_s"])),
        duration_seconds=round(float(of["end_s"] - of["start_s"]), 6),
        time_to_first_token_seconds=rounded(float(of["first_token_s"]), 6),
        queue_seconds=rounded(float(of["queue_s"]), 6),
        prompt_tokens=_count(of["prompt_tokens"]),
        cached_tokens=_count(of["cached_tokens"]),
        completion_tokens=_count(of["completion_tokens"]),
        tokens_per_second=rounded(float(of["tokens_per_s"]), 3),
        gap_p95_seconds=rounded(float(of["gap_p95_s"]), 6),
        gap_max_seconds=rounded(float(of["gap_max_s"]), 6),
        concurrency=int(of["concurrency"]),
        late_seconds=round(first_s + decode_s, 6),
        late_first_token_seconds=round(first_s, 6),
        late_decode_seconds=round(decode_s, 6),
        cause=main,
        title=TITLES[main] if main else None,
        causes=causes,
        gpus=[*group.gpus],
        detailed=is_detailed(trace_id, span_id),
    )


def _count(value: int) -> int | None:
    return int(value) if value >= 0 else None
