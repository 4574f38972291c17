"""In which bucket a request or a token is counted: by open requests, and by length of context.

Both ladders double, so the bucket is the binary exponent of the count: exact, and one vector operation. Their labels
and the bounds of the latency histograms are in the catalogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CONCURRENCY_BUCKETS, CONTEXT_BUCKETS

CONTEXT_UNKNOWN = -1
"""Context of a request whose prompt nobody counted."""
_LAST_CONCURRENCY = len(CONCURRENCY_BUCKETS) - 1
_LAST_CONTEXT = len(CONTEXT_BUCKETS) - 1
_FIRST_CONTEXT_BITS = 10  # "<1k" holds what fits ten bits


def concurrency_buckets(open_requests: NDArray[Any]) -> NDArray[np.intp]:
    """Positions in CONCURRENCY_BUCKETS. Counts below 1 are 1: whoever is counted was open itself."""
    _, exponents = np.frexp(np.maximum(open_requests, 1).astype(np.float64))
    positions: NDArray[np.intp] = np.minimum(exponents - 1, _LAST_CONCURRENCY).astype(np.intp)
    return positions


def context_buckets(tokens: NDArray[Any]) -> NDArray[np.intp]:
    """Positions in CONTEXT_BUCKETS of counts of tokens >= 0."""
    _, exponents = np.frexp(tokens.astype(np.float64))
    positions: NDArray[np.intp] = np.clip(exponents - _FIRST_CONTEXT_BITS, 0, _LAST_CONTEXT).astype(np.intp)
    return positions
