"""The newest explained requests as columns: what ``gpumon diagnose`` and the API's pictures are made of.

A ring of fixed rows (``request_rows``), about half a kilobyte each, the oldest overwritten. Of those, the wanted ones
(whose details are held) are put aside, the newest 4,096 of them: for lists, not for what counts requests. Names
(groups, tenants, prompt hashes, …) are held in small tables as long as a row uses them; a name that finds its table
full is ``other``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.causes import INDEX
from gpumon.explain.explained import Explained
from gpumon.explain.group import Group
from gpumon.explain.request_columns import figure, rows_of
from gpumon.explain.request_rows import FACTS, NONE, OTHER_GROUP, PARAMETERS, SCORES, UNITS, Rows, row_type
from gpumon.explain.signs import Fact
from gpumon.requests.tenants import OTHER

ASIDE: Final = 4096
"""Rows that the ring has no more, and somebody wants."""
GROUPS: Final = 64
TENANTS: Final = 256
PROMPTS: Final = 4096
SCORE_NAMES: Final = 64
FACT_NAMES: Final = 250
_FACT_COLUMNS: Final = ("fact_cause", "fact_name", "fact_unit", "fact_seen", "fact_usual")
_UNIT_INDEX: Final = {unit: position for position, unit in enumerate(UNITS)}

Name = TypeVar("Name", bound=Hashable)


class RequestLog:
    """See the module. One thread appends; any thread may ask."""

    def __init__(
        self,
        size: int = 16_384,
        *,
        n_signals: int,
        is_wanted: Callable[[str, str], bool] | None = None,
        aside: int = ASIDE,
    ) -> None:
        """size: rows kept. n_signals: length of ``Explained.signals``. is_wanted: whether a row is to be put aside when
        the ring needs its place, by trace and span id in hex digits; None: none is. aside: most of those."""
        self._size = size
        self._table = np.zeros(size + aside, dtype=row_type(n_signals))
        """The ring, and behind it what is put aside."""
        self._next = 0
        """Rows appended ever."""
        self._is_wanted = is_wanted
        self._aside = 0
        """Rows put aside ever."""
        self._dropped_s: float | None = None
        self._lock = Lock()
        self._groups: _Interned[Group] = _Interned(GROUPS)
        self._tenants: _Interned[str] = _Interned(TENANTS)
        self._prompts: _Interned[str] = _Interned(PROMPTS)
        self._parameters: _Interned[str] = _Interned(PARAMETERS)
        self._scores: _Interned[str] = _Interned(SCORE_NAMES)
        self._facts: _Interned[str] = _Interned(FACT_NAMES)

    def __len__(self) -> int:
        return min(self._next, self._size)

    @property
    def dropped_until_s(self) -> float | None:
        """The latest end of a row that the ring has no more; None where there is none."""
        return self._dropped_s

    def append(self, explained: Explained) -> None:
        """One that ended."""
        self.extend([explained])

    def extend(self, explained: Sequence[Explained]) -> None:
        """Those that ended, in the order in which they are kept."""
        size = self._size
        for first in range(0, len(explained), size):
            part = explained[first : first + size]
            rows = rows_of(part, self._table.dtype)
            with self._lock:
                positions = np.arange(self._next, self._next + len(part)) % size
                if self._next + len(part) > size:
                    self._drop(self._table[positions[max(0, size - self._next) :]])
                self._name(rows, part)
                self._table[positions] = rows
                self._next += len(part)

    def since(self, start_s: float, *, server: str = "", model: str = "") -> Rows:
        """Those that ended at this steady second or later. server, model: of these only, where not empty."""
        with self._lock:
            first = self._next % self._size if self._next >= self._size else 0
            order = (first + np.arange(len(self))) % self._size
            order = order[self._table["end_s"][order] >= start_s]
            rows = self._rows(self._table[order])
        if not server and not model:
            return rows
        wanted = np.array([server in ("", group.server) and model in ("", group.model) for group in rows.groups])
        return rows[wanted[rows.index("group")]]

    def select(self, choose: Callable[[Rows], NDArray[np.intp]]) -> Rows:
        """Copies of a few rows, in the order of the positions that ``choose`` gives; of those put aside, too.

        choose: is shown all rows, in no order and not copied, while nothing can be added: it must keep none of them.
        """
        with self._lock:
            rows = self._rows(self._table[: len(self) + self._n_aside])  # the ring is full before any is put aside
            return rows[choose(rows)]

    @property
    def _n_aside(self) -> int:
        return min(self._aside, len(self._table) - self._size)

    def _rows(self, table: NDArray[np.void]) -> Rows:
        return Rows(
            table,
            [OTHER_GROUP if group is None else group for group in self._groups.names],
            [OTHER if tenant is None else tenant for tenant in self._tenants.names],
            [OTHER if prompt is None else prompt for prompt in self._prompts.names],
            self._parameters.names[:PARAMETERS],
            self._scores.names[:SCORE_NAMES],
            [OTHER if fact is None else fact for fact in self._facts.names],
        )

    def _name(self, rows: NDArray[np.void], explained: Sequence[Explained]) -> None:
        """Fills in what is held in tables."""
        records = [each.record for each in explained]
        rows["group"] = [self._groups.take(each.group) for each in explained]
        rows["tenant"] = [self._tenants.take(record.tenant) for record in records]
        rows["prompt"] = [self._prompts.take(record.prompt_hash) for record in records]
        rows["parameters"] = np.nan
        rows["score_name"], rows["score"] = NONE, np.nan
        rows["fact_cause"] = rows["fact_name"] = rows["fact_unit"] = NONE
        rows["fact_seen"] = rows["fact_usual"] = np.nan
        for row, each in enumerate(explained):
            record = each.record
            if record.parameters:
                self._name_parameters(rows[row], record.parameters)
            if record.evaluations:
                self._name_scores(rows[row], record.evaluations)
        places: list[int] = []
        told: list[tuple[int, int, int, float, float]] = []
        for row, each in enumerate(explained):
            for place, (cause, fact) in enumerate(_facts_of(each)[:FACTS], row * FACTS):
                places.append(place)
                figures = figure(fact.observed), figure(fact.usual)
                told.append((INDEX[cause], self._facts.take(fact.name), _UNIT_INDEX[fact.unit], *figures))
        if told:
            for column, values in zip(_FACT_COLUMNS, zip(*told, strict=True), strict=True):
                spread = rows[column].reshape(-1)  # a copy: the columns of a row are not beside those of the next
                spread[places] = values
                rows[column] = spread.reshape(-1, FACTS)

    def _name_parameters(self, row: np.void, parameters: Mapping[str, float]) -> None:
        for name, value in parameters.items():
            place = self._parameters.take(name) if math.isfinite(value) else PARAMETERS
            if place < PARAMETERS:
                row["parameters"][place] = figure(value)

    def _name_scores(self, row: np.void, evaluations: Mapping[str, float]) -> None:
        finite = [(name, value) for name, value in evaluations.items() if math.isfinite(value)]
        for column, (name, value) in enumerate(finite[:SCORES]):
            place = self._scores.take(name)
            if place < SCORE_NAMES:
                row["score_name"][column], row["score"][column] = place, figure(value)

    def _drop(self, rows: NDArray[np.void]) -> None:
        """Rows that the ring has no place for."""
        end_s = float(rows["end_s"].max())
        self._dropped_s = end_s if self._dropped_s is None else max(self._dropped_s, end_s)
        room = len(self._table) - self._size
        wanted = np.array([room > 0 and self._wants(row) for row in rows], dtype=bool)
        self._forget(rows[~wanted])
        for row in rows[wanted]:
            place = self._size + self._aside % room
            if self._aside >= room:
                self._forget(self._table[place : place + 1])
            self._table[place] = row
            self._aside += 1

    def _wants(self, row: np.void) -> bool:
        if self._is_wanted is None:
            return False
        span_id = bytes(row["span_id"])
        return self._is_wanted(bytes(row["trace_id"]).hex(), span_id.hex() if any(span_id) else "")

    def _forget(self, rows: NDArray[np.void]) -> None:
        """Lets go of the names of rows that are overwritten."""
        for names, column in ((self._groups, "group"), (self._tenants, "tenant"), (self._prompts, "prompt")):
            names.give(rows[column])
        for place, uses in enumerate((~np.isnan(rows["parameters"])).sum(axis=0).tolist()):
            self._parameters.give(np.full(uses, place))
        for names, column in ((self._scores, "score_name"), (self._facts, "fact_name")):
            names.give(rows[column][rows[column] != NONE])


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

    def give(self, places: NDArray[Any]) -> None:
        """One use less of each of these."""
        for place, uses in enumerate(np.bincount(places).tolist()):
            if not uses or place == self._limit:
                continue
            self._uses[place] -= uses
            name = self._names[place]
            if not self._uses[place] and name is not None:
                del self._places[name]
                self._names[place] = None
                self._free.append(place)


def _facts_of(explained: Explained) -> list[tuple[str, Fact]]:
    """Causes with a figure, by seconds; of each the figure of its larger share."""
    shares = (*explained.first_token.shares, *explained.decode.shares)
    found: dict[str, Fact] = {}
    lost_s: dict[str, float] = {}
    for share in sorted(shares, key=_seconds, reverse=True) if len(shares) > 1 else shares:
        lost_s[share.cause] = lost_s.get(share.cause, 0.0) + share.seconds
        if share.fact is not None and math.isfinite(share.fact.observed):
            found.setdefault(share.cause, share.fact)
    return sorted(found.items(), key=lambda item: -lost_s[item[0]]) if len(found) > 1 else [*found.items()]


_seconds = attrgetter("seconds")
