"""Explained requests as columns: the form of a row, and copies of rows with their names.

Times are steady seconds, everything else is in base units. In the columns NaN means not known, as -1 does in counts of
tokens; a figure that is not finite is not known, one too large for its column is the largest that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.group import Group
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from gpumon.requests.tenants import OTHER

OUTCOMES: Final = ("ok", "error", "aborted", "incomplete")
PARAMETERS: Final = 8
SCORES: Final = 4
"""Of one request."""
FACTS: Final = 2
"""Of one request: of its two causes that cost most."""
REQUEST_ID: Final = 44
"""Bytes kept of it: OpenAI's and vLLM's fit."""
OTHER_GROUP: Final = Group(OTHER, OTHER, (), "", "")
NONE: Final = 255
"""In a column of positions: no name."""
UNITS: Final = tuple(Unit)
AS_USUAL: Final = 0.01
"""Of what is usual: a figure that differs by less explains nothing."""


def row_type(n_signals: int) -> np.dtype[np.void]:
    """Of one row."""
    return np.dtype(
        [
            ("trace_id", "V16"),
            ("span_id", "V8"),
            ("request_id", f"S{REQUEST_ID}"),
            ("start_s", "f8"),
            ("end_s", "f8"),
            *((name, "f4") for name in ("first_token_s", "queue_s", "prefill_s", "decode_s")),
            *((name, "i4") for name in ("prompt_tokens", "completion_tokens", "cached_tokens")),
            *((name, "f4") for name in ("tokens_per_s", "gap_mean_s", "gap_p95_s", "gap_max_s")),
            # Of the two phases, in the order of catalogue.PHASES.
            ("expected_s", "f4", (2,)),
            ("excess_s", "f4", (2,)),
            ("cause_s", "f4", (2, len(CAUSES))),
            ("concurrency", "i4"),
            ("outcome", "u1"),
            ("group", "u1"),
            ("tenant", "u2"),
            ("prompt", "u2"),
            ("parameters", "f4", (PARAMETERS,)),
            ("score_name", "u1", (SCORES,)),
            ("score", "f4", (SCORES,)),
            ("fact_cause", "u1", (FACTS,)),
            ("fact_name", "u1", (FACTS,)),
            ("fact_unit", "u1", (FACTS,)),
            ("fact_seen", "f4", (FACTS,)),
            ("fact_usual", "f4", (FACTS,)),
            ("signals", "f4", (n_signals,)),
        ]
    )


class Rows:
    """A copy of some rows, in the order in which they came. Not to be changed: its arrays are read-only."""

    def __init__(
        self,
        table: NDArray[np.void],
        groups: Sequence[Group],
        tenants: Sequence[str],
        prompts: Sequence[str],
        parameters: Sequence[str | None],
        scores: Sequence[str | None],
        facts: Sequence[str],
    ) -> None:
        table.flags.writeable = False
        self.table = table
        """Structured, of ``row_type``."""
        self.groups = tuple(groups)
        """Of ``group``; a position beyond those in use is of no row."""
        self.tenants = tuple(tenants)
        self.prompts = tuple(prompts)
        self._parameters = tuple(parameters)
        self._scores = tuple(scores)
        self._facts = tuple(facts)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Rows:
        """Some of them: by a mask, positions or a slice."""
        names = (self.groups, self.tenants, self.prompts, self._parameters, self._scores, self._facts)
        return Rows(self.table[chosen], *names)

    def column(self, name: str) -> NDArray[np.float64]:
        """A column as floats: (rows,) or (rows, …); NaN where not known."""
        values = self.table[name]
        known: NDArray[np.float64] = values.astype(np.float64)
        if name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            known[values < 0] = np.nan
        return known

    def index(self, name: str) -> NDArray[np.intp]:
        """A column of positions in a table of names: group, tenant, prompt, outcome."""
        positions: NDArray[np.intp] = self.table[name].astype(np.intp)
        return positions

    @property
    def start_s(self) -> NDArray[np.float64]:
        return self.column("start_s")

    @property
    def end_s(self) -> NDArray[np.float64]:
        return self.column("end_s")

    @property
    def signals(self) -> NDArray[np.float32]:
        """(rows, dimensions)."""
        values: NDArray[np.float32] = self.table["signals"]
        return values

    def parameter_names(self) -> tuple[str, ...]:
        """Of requests that are or were here, sorted."""
        return tuple(sorted(name for name in self._parameters if name is not None))

    def parameter(self, name: str) -> NDArray[np.float64]:
        """A request parameter by its name: (rows,)."""
        if name not in self.parameter_names():
            return np.full(len(self), np.nan)
        values: NDArray[np.float64] = self.table["parameters"][:, self._parameters.index(name)].astype(np.float64)
        return values

    def score_names(self) -> tuple[str, ...]:
        """Of the evaluations, sorted."""
        return tuple(sorted(name for name in self._scores if name is not None))

    def score(self, name: str) -> NDArray[np.float64]:
        """An evaluation's scores by its name: (rows,)."""
        found = np.full(len(self), np.nan)
        if name in self.score_names():
            rows, places = np.nonzero(self.table["score_name"] == self._scores.index(name))
            found[rows] = self.table["score"][rows, places]
        return found

    def fact(self, cause: int) -> Fact | None:
        """The figure behind a cause in the row that lost most to it, of those that are not as usual. cause: position in
        CAUSES."""
        rows, places = np.nonzero(self.table["fact_cause"] == cause)
        seen, normal = (self.table[name][rows, places].astype(np.float64) for name in ("fact_seen", "fact_usual"))
        tells = ~(np.abs(seen - normal) <= AS_USUAL * np.abs(normal))
        rows, places = rows[tells], places[tells]
        if not len(rows):
            return None
        lost_s = self.table["cause_s"][rows, :, cause].astype(np.float64).sum(axis=1)
        best = int(np.argmax(lost_s))
        row, place = self.table[rows[best]], places[best]
        usual = float(row["fact_usual"][place])
        return Fact(
            self._facts[row["fact_name"][place]],
            float(row["fact_seen"][place]),
            UNITS[row["fact_unit"][place]],
            None if math.isnan(usual) else usual,
        )

    def trace_id(self, row: int) -> str:
        """32 hex digits."""
        return bytes(self.table["trace_id"][row]).hex()

    def span_id(self, row: int) -> str:
        """16 hex digits; empty where not known."""
        span = bytes(self.table["span_id"][row])
        return span.hex() if any(span) else ""

    def request_id(self, row: int) -> str:
        """As its server calls it, its first bytes."""
        return bytes(self.table["request_id"][row]).decode("utf-8", "ignore")
