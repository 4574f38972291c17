"""The newest explained requests as columns: what ``gpumon diagnose`` and the API's pictures are made of.

A ring of fixed rows (``request_rows``), about half a kilobyte each, the oldest overwritten. Names (groups, tenants,
prompt hashes, …) are held in small tables as long as a row uses them; a name that finds its table full is ``other``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX
from gpumon.explain.explained import Account, Explained, Share
from gpumon.explain.group import Group
from gpumon.explain.request_rows import (
    FACTS,
    NONE,
    OTHER_GROUP,
    OUTCOMES,
    PARAMETERS,
    REQUEST_ID,
    SCORES,
    UNITS,
    Rows,
    row_type,
)
from gpumon.explain.signs import Fact
from gpumon.requests.gaps import possible, tokens_made
from gpumon.requests.tenants import OTHER

if TYPE_CHECKING:
    from gpumon.model import RequestRecord

GROUPS: Final = 64
TENANTS: Final = 256
PROMPTS: Final = 4096
SCORE_NAMES: Final = 64
FACT_NAMES: Final = 250
_LARGEST: Final = 3e38
_UNIT_INDEX: Final = {unit: position for position, unit in enumerate(UNITS)}
_OUTCOME_INDEX: Final = {outcome: position for position, outcome in enumerate(OUTCOMES)}

Name = TypeVar("Name", bound=Hashable)


class RequestLog:
    """See the module. One thread appends; any thread may ask."""

    def __init__(self, size: int = 16_384, *, n_signals: int) -> None:
        """size: rows kept. n_signals: length of ``Explained.signals``."""
        self._table = np.zeros(size, dtype=row_type(n_signals))
        self._next = 0
        """Rows appended ever."""
        self._lock = Lock()
        self._groups: _Interned[Group] = _Interned(GROUPS)
        self._tenants: _Interned[str] = _Interned(TENANTS)
        self._prompts: _Interned[str] = _Interned(PROMPTS)
        self._parameters: _Interned[str] = _Interned(PARAMETERS)
        self._scores: _Interned[str] = _Interned(SCORE_NAMES)
        self._facts: _Interned[str] = _Interned(FACT_NAMES)

    def __len__(self) -> int:
        return min(self._next, len(self._table))

    def append(self, explained: Explained) -> None:
        """One that ended."""
        figures = _figures(explained)
        position = self._next % len(self._table)
        with self._lock:
            if self._next >= len(self._table):
                self._forget(self._table[position])
            self._table[position] = (*figures, *self._names(explained), _signals(explained, self._table))
            self._next += 1

    def since(self, start_s: float, *, server: str = "", model: str = "") -> Rows:
        """Those that ended at this steady second or later. server, model: of these only, where not empty."""
        with self._lock:
            first = self._next % len(self._table) if self._next >= len(self._table) else 0
            order = (first + np.arange(len(self))) % len(self._table)
            order = order[self._table["end_s"][order] >= start_s]
            rows = Rows(
                self._table[order],
                [OTHER_GROUP if group is None else group for group in self._groups.names],
                [OTHER if tenant is None else tenant for tenant in self._tenants.names],
                [OTHER if prompt is None else prompt for prompt in self._prompts.names],
                self._parameters.names[:PARAMETERS],
                self._scores.names[:SCORE_NAMES],
                [OTHER if fact is None else fact for fact in self._facts.names],
            )
        if not server and not model:
            return rows
        wanted = np.array([server in ("", group.server) and model in ("", group.model) for group in rows.groups])
        return rows[wanted[rows.index("group")]]

    def _names(self, explained: Explained) -> tuple[Any, ...]:
        """What is held in tables, from ``group`` to ``fact_usual``."""
        record = explained.record
        parameters = np.full(PARAMETERS, np.nan, dtype=np.float32)
        for name, value in record.parameters.items():
            place = self._parameters.take(name) if not math.isnan(told := _figure(value)) else PARAMETERS
            if place < PARAMETERS:
                parameters[place] = told
        score_names, scores = np.full(SCORES, NONE, dtype=np.uint8), np.full(SCORES, np.nan, dtype=np.float32)
        finite = [(name, value) for name, value in record.evaluations.items() if math.isfinite(value)]
        for column, (name, value) in enumerate(finite[:SCORES]):
            place = self._scores.take(name)
            if place < SCORE_NAMES:
                score_names[column], scores[column] = place, _figure(value)
        return (
            self._groups.take(explained.group),
            self._tenants.take(record.tenant),
            self._prompts.take(record.prompt_hash),
            parameters,
            score_names,
            scores,
            *self._fact_columns(explained),
        )

    def _fact_columns(self, explained: Explained) -> tuple[NDArray[Any], ...]:
        causes, names, units = (np.full(FACTS, NONE, dtype=np.uint8) for _ in range(3))
        seen, usual = (np.full(FACTS, np.nan, dtype=np.float32) for _ in range(2))
        for column, (cause, fact) in enumerate(_facts_of(explained)[:FACTS]):
            causes[column], names[column] = INDEX[cause], self._facts.take(fact.name)
            units[column] = _UNIT_INDEX[fact.unit]
            seen[column], usual[column] = _figure(fact.observed), _figure(fact.usual)
        return causes, names, units, seen, usual

    def _forget(self, row: np.void) -> None:
        """Lets go of the names of a row that is overwritten."""
        self._groups.give(int(row["group"]))
        self._tenants.give(int(row["tenant"]))
        self._prompts.give(int(row["prompt"]))
        for place in np.flatnonzero(~np.isnan(row["parameters"])):
            self._parameters.give(int(place))
        for place in row["score_name"][row["score_name"] != NONE]:
            self._scores.give(int(place))
        for place in row["fact_name"][row["fact_cause"] != NONE]:
            self._facts.give(int(place))


class _Interned(Generic[Name]):
    """Numbers for names, as long as they are used. All that find no place share the last number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[Name, int] = {}
        self._uses: list[int] = []
        self._free: list[int] = []
        self._names: list[Name | None] = []

    @property
    def names(self) -> list[Name | None]:
        """By number, limit + 1 of them; None for the last one and for those of no name."""
        return self._names + [None] * (self._limit + 1 - len(self._names))

    def take(self, name: Name) -> int:
        """Its number, for one more use."""
        place = self._places.get(name)
        if place is None:
            if self._free:
                place = self._free.pop()
            elif len(self._names) < self._limit:
                place = len(self._names)
                self._names.append(None)
                self._uses.append(0)
            else:
                return self._limit
            self._places[name] = place
            self._names[place] = name
        self._uses[place] += 1
        return place

    def give(self, place: int) -> None:
        """One use less."""
        if place == self._limit:
            return
        self._uses[place] -= 1
        name = self._names[place]
        if not self._uses[place] and name is not None:
            del self._places[name]
            self._names[place] = None
            self._free.append(place)


def _figures(explained: Explained) -> tuple[Any, ...]:
    """What a row says in numbers of its own, from ``trace_id`` to ``outcome``."""
    record = explained.record
    first_s, decode_s = record.time_to_first_token_s, record.decode_s
    if first_s is None and record.first_token_ns is not None:
        first_s = max(0, record.first_token_ns - record.start_ns) / 1e9
    if decode_s is None and record.first_token_ns is not None:
        decode_s = max(0, record.end_ns - record.first_token_ns) / 1e9
    accounts = explained.first_token, explained.decode
    return (
        np.void(record.trace_id[:16].ljust(16, b"\0")),
        np.void(record.span_id[:8].ljust(8, b"\0")),
        record.request_id.encode("utf-8", "replace")[:REQUEST_ID],
        explained.start_s,
        explained.end_s,
        *(_figure(value) for value in (first_s, record.queue_s, record.prefill_s, decode_s)),
        *(n if possible(n) else -1 for n in (record.prompt_tokens, record.completion_tokens, record.cached_tokens)),
        _tokens_per_s(record),
        *_gaps(explained),
        [_figure(account.expected_s) for account in accounts],
        [max(0.0, _figure(account.excess_s, missing=0.0)) for account in accounts],
        [_by_cause(account) for account in accounts],
        min(max(record.concurrency, 0), 2**31 - 1),
        _OUTCOME_INDEX.get(record.outcome, len(OUTCOMES) - 1),
    )


def _figure(value: float | None, *, missing: float = math.nan) -> float:
    """One that a 32-bit float holds."""
    if value is None or not math.isfinite(value):
        return missing
    return min(max(float(value), -_LARGEST), _LARGEST)


def _by_cause(account: Account) -> NDArray[np.float32]:
    seconds = np.zeros(len(CAUSES))
    for share in account.shares:
        seconds[INDEX[share.cause]] += max(0.0, _figure(share.seconds, missing=0.0))
    return np.minimum(seconds, _LARGEST).astype(np.float32)


def _facts_of(explained: Explained) -> list[tuple[str, Fact]]:
    """Causes with a figure, by seconds; of each the figure of its larger share."""
    shares: list[Share] = [*explained.first_token.shares, *explained.decode.shares]
    lost_s = explained.by_cause()
    found: dict[str, Fact] = {}
    for share in sorted(shares, key=lambda share: -share.seconds):
        if share.fact is not None and math.isfinite(share.fact.observed):
            found.setdefault(share.cause, share.fact)
    return sorted(found.items(), key=lambda item: -lost_s[item[0]])


def _gaps(explained: Explained) -> tuple[float, float, float]:
    """Mean, P95 and largest of the times between its steps; the P95 of n is the one of rank ceil(0.95 n)."""
    steps_s = explained.token_s
    if steps_s is not None:
        gaps_s = np.diff(steps_s)
    elif explained.record.token_ns is not None:
        gaps_s = np.diff(explained.record.token_ns) / 1e9
    else:
        return math.nan, math.nan, math.nan
    if not len(gaps_s):
        return math.nan, math.nan, math.nan
    rank = math.ceil(0.95 * len(gaps_s)) - 1
    return _figure(float(gaps_s.mean())), _figure(float(np.partition(gaps_s, rank)[rank])), _figure(float(gaps_s.max()))


def _tokens_per_s(record: RequestRecord) -> float:
    """After the first token; of requests that do not tell when that was, over all their time."""
    tokens = tokens_made(record)
    begun_ns = record.first_token_ns if record.first_token_ns is not None else record.start_ns
    seconds = (record.end_ns - begun_ns) / 1e9
    return _figure((tokens - 1) / seconds) if tokens is not None and tokens > 1 and seconds > 0 else math.nan


def _signals(explained: Explained, table: NDArray[np.void]) -> NDArray[np.float32]:
    """Only finite ones, as many as there are columns."""
    known = np.full(table["signals"].shape[1], np.nan, dtype=np.float32)
    told = explained.signals[: len(known)]
    known[: len(told)] = np.where(np.isfinite(told), told, np.nan)
    return known
