"""The requests that ran in a period, with what its parts ask of them: time per token, excess, who was slow.

Of a period until now those are the ones that ended in it; of one that has passed, also those that ended later.

*Slow* is a request whose excess is at least 30 % of its expected time and 100 ms. While nothing is expected of any
request yet, gpumon having just begun, the slowest 5 % by time per token are taken instead: worth a look, if no proof.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.diagnosis.cells import Cells
from gpumon.explain.diagnosis.figures import Floats, quantile
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.group import Group
from gpumon.explain.request_rows import Rows

SLOW_SHARE: Final = 0.3
SLOW_S: Final = 0.1
COLD_SHARE: Final = 0.05
OUTLIER: Final = 20.0
"""Times the median: a response time above counts as this much in correlations, so that no request makes one alone."""


class Seen:
    """Columns are (requests,)."""

    def __init__(self, inputs: Inputs) -> None:
        inside = (inputs.rows.end_s >= inputs.from_s) & (inputs.rows.start_s <= inputs.to_s)
        self.rows: Rows = inputs.rows if inside.all() else inputs.rows[inside]
        self.to_s = inputs.to_s
        self.start_s = self.rows.start_s
        self.end_s = np.maximum(self.rows.end_s, self.start_s)
        self.duration_s: Floats = self.end_s - self.start_s
        self.group = self.rows.index("group")
        self.tenant = self.rows.index("tenant")
        self.expected_s: Floats = np.nansum(self.rows.column("expected_s"), axis=1)
        """0 where nothing is expected."""
        self.excess_s: Floats = self.rows.column("excess_s").sum(axis=1)
        self.cause_s: Floats = self.rows.column("cause_s")
        """(requests, phases, causes)."""
        self.completion: Floats = self.rows.column("completion_tokens")
        self.prompt: Floats = self.rows.column("prompt_tokens")
        # A cell before the first request, or after the last, would be empty.
        begin_s = max(inputs.from_s, float(self.start_s.min(initial=inputs.to_s)))
        self.cells = Cells(begin_s, inputs.to_s)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def is_cold(self) -> bool:
        """Whether nothing was expected of any request."""
        return not (self.expected_s > 0).any()

    @cached_property
    def per_token_s(self) -> Floats:
        """Time of the whole request per token that it made; NaN where nobody counted."""
        counted = self.completion > 0
        return np.where(counted, self.duration_s / np.where(counted, self.completion, 1.0), np.nan)

    @cached_property
    def tells_tokens(self) -> bool:
        """Whether at least half of the requests tell how many tokens they made."""
        return bool(np.isfinite(self.per_token_s).sum() * 2 >= len(self))

    @cached_property
    def response(self) -> Floats:
        """What signals are correlated with: time per token, or of the whole request where tokens are not told."""
        seconds = self.per_token_s if self.tells_tokens else self.duration_s
        middle = quantile(seconds, 0.5)
        return seconds if not middle else np.minimum(seconds, OUTLIER * middle)

    @cached_property
    def slow(self) -> NDArray[np.bool_]:
        """See the module."""
        if not self.is_cold:
            found: NDArray[np.bool_] = self.excess_s >= np.maximum(SLOW_SHARE * self.expected_s, SLOW_S)
            return found
        seconds = self.per_token_s if self.tells_tokens else self.duration_s
        edge = quantile(seconds, 1.0 - COLD_SHARE)
        return np.zeros(len(self), dtype=np.bool_) if edge is None else seconds > edge

    @cached_property
    def by_cause(self) -> Floats:
        """Seconds of both phases: (requests, causes)."""
        seconds: Floats = self.cause_s.sum(axis=1)
        return seconds

    @cached_property
    def engines(self) -> list[int]:
        """Positions of the groups that have requests, the most requests first."""
        counts = np.bincount(self.group, minlength=len(self.rows.groups))
        return [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]

    def of(self, engine: int) -> Group:
        """The group at a position."""
        return self.rows.groups[engine]

    def members(self, engine: int) -> NDArray[np.bool_]:
        """Its requests."""
        mine: NDArray[np.bool_] = self.group == engine
        return mine
