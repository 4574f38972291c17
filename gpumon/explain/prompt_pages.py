"""Prompt tokens that a server's page counts and no request that ended tells of: those of requests that still run.

While answers take longer than the wait for an explanation, prompts were computed between a request's tokens of which
nothing is known yet. The page knows how many tokens, though not when within its few seconds. What of them the known
prompts do not account for is what is left to explain slow steps of that time. Pages count prompts whole, cached tokens
included; the part that was computed is taken to be that of the known ones.

Only where one page names the model: of two replicas nobody can say whose prompts they were.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.load import Others

KEPT: Final = 128
"""Readings: ten minutes of them."""

Array = NDArray[np.float64]


class PromptPages:
    """Of one group. Not thread-safe."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float, float]] = deque(maxlen=KEPT)
        """From, to, tokens."""

    def add(self, start_s: float, end_s: float, tokens: float) -> None:
        """What a page counted between two readings, steady seconds."""
        self._readings.append((start_s, end_s, tokens))

    def unknown(self, moments_s: Array, others: Others, computed_share: float) -> tuple[Array, NDArray[np.intp]]:
        """For each moment: prompt tokens, of the reading that it lies in, that are not accounted for, and its number.

        others: the prompts that are known. computed_share: of prompt tokens, those that were not cached.
        """
        if not self._readings:
            return np.zeros(len(moments_s)), np.zeros(len(moments_s), dtype=np.intp)
        table = np.array(self._readings)
        known, _ = others.between(table[:, 0], table[:, 1])
        left = np.maximum(table[:, 2] * computed_share - known, 0.0)
        places = np.searchsorted(table[:, 0], moments_s, "right") - 1
        inside = (places >= 0) & (moments_s <= table[places, 1])
        return np.where(inside, left[places], 0.0), np.asarray(places, dtype=np.intp)
