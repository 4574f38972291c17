"""The newest explained requests as columns: what ``gpumon diagnose`` and the API's pictures are made of.

A ring of fixed rows (``request_rows``), about half a kilobyte each, the oldest overwritten. Names (groups, tenants,
prompt hashes, …) are held in small tables as long as a row uses them; a name that finds its table full is ``other``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX
from gpumon.explain.explained import Account, Explained
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
_CODES: Final = {"f4": "f", "f8": "d", "i4": "i", "u1": "B", "u2": "H"}
_UNIT_INDEX: Final = {unit: position for position, unit in enumerate(UNITS)}
_OUTCOME_INDEX: Final = {outcome: position for position, outcome in enumerate(OUTCOMES)}

Name = TypeVar("Name", bound=Hashable)


class RequestLog:
    """See the module. One thread appends; any thread may ask."""

    def __init__(self, size: int = 16_384, *, n_signals: int) -> None:
        """size: rows kept. n_signals: length of ``Explained.signals``."""
        form = row_type(n_signals)
        self._table = np.zeros(size, dtype=form)
        self._bytes = self._table.view(np.uint8).data
        self._pack = struct.Struct(_struct_format(form))
        self._n_signals = n_signals
        self._next = 0
        """Rows appended ever."""
        self._dropped_s: float | None = None
        self._lock = Lock()
        self._groups: _Interned[Group] = _Interned(GROUPS)
        self._tenants: _Interned[str] = _Interned(TENANTS)
        self._prompts: _Interned[str] = _Interned(PROMPTS)
        self._parameters: _Interned[str] = _Interned(PARAMETERS)
        self._scores: _Interned[str] = _Interned(SCORE_NAMES)
        self._facts: _Interned[str] = _Interned(FACT_NAMES)

    def __len__(self) -> int:
        return min(self._next, len(self._table))

    @property
    def dropped_until_s(self) -> float | None:
        """The latest end of a row that was overwritten; None where none was."""
        return self._dropped_s

    def append(self, explained: Explained) -> None:
        """One that ended."""
        figures, signals = _figures(explained), _signals(explained.signals, self._n_signals)
        position = self._next % len(self._table)
        with self._lock:
            if self._next >= len(self._table):
                self._forget(position)
            names = self._names(explained)
            self._pack.pack_into(self._bytes, position * self._pack.size, *figures, *names, signals)
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

    def _names(self, explained: Explained) -> list[float]:
        """What is held in tables, from ``group`` to ``fact_usual``."""
        record = explained.record
        parameters = [math.nan] * PARAMETERS
        for name, value in record.parameters.items():
            place = self._parameters.take(name) if math.isfinite(value) else PARAMETERS
            if place < PARAMETERS:
                parameters[place] = _figure(value)
        score_names, scores = [NONE] * SCORES, [math.nan] * SCORES
        finite = [(name, value) for name, value in record.evaluations.items() if math.isfinite(value)]
        for column, (name, value) in enumerate(finite[:SCORES]):
            place = self._scores.take(name)
            if place < SCORE_NAMES:
                score_names[column], scores[column] = place, _figure(value)
        causes, names, units = [NONE] * FACTS, [NONE] * FACTS, [NONE] * FACTS
        seen, usual = [math.nan] * FACTS, [math.nan] * FACTS
        for column, (cause, fact) in enumerate(_facts_of(explained)[:FACTS]):
            causes[column], names[column] = INDEX[cause], self._facts.take(fact.name)
            units[column] = _UNIT_INDEX[fact.unit]
            seen[column], usual[column] = _figure(fact.observed), _figure(fact.usual)
        group, tenant = self._groups.take(explained.group), self._tenants.take(record.tenant)
        prompt = self._prompts.take(record.prompt_hash)
        return [group, tenant, prompt, *parameters, *score_names, *scores, *causes, *names, *units, *seen, *usual]

    def _forget(self, position: int) -> None:
        """Lets go of the names of a row that is overwritten."""
        row = self._table[position]
        end_s = float(row["end_s"])
        self._dropped_s = end_s if self._dropped_s is None else max(self._dropped_s, end_s)
        self._groups.give(int(row["group"]))
        self._tenants.give(int(row["tenant"]))
        self._prompts.give(int(row["prompt"]))
        for place, value in enumerate(row["parameters"].tolist()):
            if not math.isnan(value):
                self._parameters.give(place)
        for place in row["score_name"].tolist():
            if place != NONE:
                self._scores.give(place)
        for place in row["fact_name"].tolist():
            if place != NONE:
                self._facts.give(place)


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


def _struct_format(form: np.dtype[np.void]) -> str:
    """The same as a dtype, but the signals are one string of bytes. Packing is far faster than assigning columns."""
    parts = []
    for name in form.names or ():
        field = form[name]
        count = math.prod(field.shape)
        code = _CODES.get(field.base.str[1:])
        parts.append(f"{field.itemsize}s" if name == "signals" or code is None else f"{count}{code}")
    return "=" + "".join(parts)


def _figures(explained: Explained) -> list[Any]:
    """What a row says in numbers of its own, from ``trace_id`` to ``outcome``."""
    record = explained.record
    first_s, decode_s = record.time_to_first_token_s, record.decode_s
    if first_s is None and record.first_token_ns is not None:
        first_s = max(0, record.first_token_ns - record.start_ns) / 1e9
    if decode_s is None and record.first_token_ns is not None:
        decode_s = max(0, record.end_ns - record.first_token_ns) / 1e9
    accounts = explained.first_token, explained.decode
    tokens = tokens_made(record)
    return [
        record.trace_id[:16],
        record.span_id[:8],
        record.request_id.encode("utf-8", "replace")[:REQUEST_ID],
        explained.start_s,
        explained.end_s,
        *(_figure(value) for value in (first_s, record.queue_s, record.prefill_s, decode_s)),
        *(n if possible(n) else -1 for n in (record.prompt_tokens, tokens, record.cached_tokens)),
        _tokens_per_s(record, tokens),
        *_gaps(explained),
        *(_figure(account.expected_s) for account in accounts),
        *(max(0.0, _figure(account.excess_s, missing=0.0)) for account in accounts),
        *_by_cause(explained.first_token),
        *_by_cause(explained.decode),
        min(max(record.concurrency, 0), 2**31 - 1),
        _OUTCOME_INDEX.get(record.outcome, len(OUTCOMES) - 1),
    ]


def _figure(value: float | None, *, missing: float = math.nan) -> float:
    """One that a 32-bit float holds."""
    if value is None or not math.isfinite(value):
        return missing
    return float(value) if -_LARGEST < value < _LARGEST else math.copysign(_LARGEST, value)


def _by_cause(account: Account) -> list[float]:
    seconds = [0.0] * len(CAUSES)
    for share in account.shares:
        cause = INDEX[share.cause]
        seconds[cause] = min(seconds[cause] + max(0.0, _figure(share.seconds, missing=0.0)), _LARGEST)
    return seconds


def _facts_of(explained: Explained) -> list[tuple[str, Fact]]:
    """Causes with a figure, by seconds; of each the figure of its larger share."""
    shares = [*explained.first_token.shares, *explained.decode.shares]
    if all(share.fact is None for share in shares):
        return []
    lost_s = explained.by_cause()
    found: dict[str, Fact] = {}
    for share in sorted(shares, key=lambda share: -share.seconds):
        if share.fact is not None and math.isfinite(share.fact.observed):
            found.setdefault(share.cause, share.fact)
    return sorted(found.items(), key=lambda item: -lost_s[item[0]])


def _gaps(explained: Explained) -> tuple[float, float, float]:
    """Mean, P95 and largest of the times between its steps; the P95 of n is the one of rank ceil(0.95 n)."""
    steps_s = explained.token_s
    if steps_s is None or len(steps_s) < 2:
        return math.nan, math.nan, math.nan
    count = len(steps_s) - 1
    ordered_s = np.subtract(steps_s[1:], steps_s[:-1])
    ordered_s.sort()
    mean_s, p95_s = (steps_s[-1] - steps_s[0]) / count, ordered_s[math.ceil(0.95 * count) - 1]
    return _figure(float(mean_s)), _figure(float(p95_s)), _figure(float(ordered_s[-1]))


def _tokens_per_s(record: RequestRecord, tokens: int | None) -> float:
    """After the first token; of requests that do not tell when that was, over all their time."""
    begun_ns = record.first_token_ns if record.first_token_ns is not None else record.start_ns
    seconds = (record.end_ns - begun_ns) / 1e9
    return _figure((tokens - 1) / seconds) if possible(tokens) and tokens > 1 and seconds > 0 else math.nan


def _signals(told: NDArray[np.float32], size: int) -> bytes:
    """Only finite ones, as many as there are columns."""
    known = np.full(size, np.nan, dtype=np.float32)
    np.copyto(known[: len(told)], told[:size], where=np.isfinite(told[:size]))
    return known.tobytes()
