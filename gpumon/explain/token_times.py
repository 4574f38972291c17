"""Token times of many requests as one column, in steady seconds: what a pass over all of them begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenTimes(NamedTuple):
    """Of several requests, one after the other."""

    made_s: NDArray[np.float64]
    """(n,): when each token (or decode step) was made."""
    gaps_ns: NDArray[np.int64]
    """(n - 1,): from each one to the next, by the server's clock."""
    is_gap: NDArray[np.bool_]
    """(n - 1,): False from the last token of a request to the first of the next one."""
    lengths: NDArray[np.intp]
    """Tokens of each request."""


def token_times(
    times_ns: Sequence[NDArray[np.int64]], starts_ns: NDArray[np.int64], starts_s: NDArray[np.float64]
) -> TokenTimes:
    """times_ns: of each request, at least one token and at least one request. starts_ns, starts_s: when it began, by
    the server's clock and in steady seconds."""
    lengths = np.array([len(times) for times in times_ns], dtype=np.intp)
    every_ns = np.concatenate(times_ns)
    made_s = np.asarray((every_ns - np.repeat(starts_ns, lengths)) * 1e-9, dtype=np.float64)
    made_s += np.repeat(starts_s, lengths)
    is_gap = np.ones(len(every_ns) - 1, dtype=bool)
    is_gap[np.cumsum(lengths)[:-1] - 1] = False
    return TokenTimes(made_s, np.diff(every_ns), is_gap, lengths)
