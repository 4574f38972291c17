"""Arrays over the newest stretch of time, cut into cells of one width: a cell is emptied when its turn comes again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class TimeCells:
    """Which cell of an array holds which stretch of time. Add the arrays to ``arrays``: their cells are emptied."""

    def __init__(self, width_s: float, cells: int) -> None:
        """width_s: of a cell. cells: how many there are, the newest ones."""
        self._width_s = width_s
        self._cells = cells
        self.newest = -1
        """Number of the newest cell's stretch: n is [n width, (n + 1) width). -1 for none."""
        self.arrays: list[NDArray[np.generic]] = []

    def place(self, at_s: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Cells of moments >= 0, and which of these are not too old. The newest moment becomes the newest there was."""
        numbers = np.floor(at_s / self._width_s).astype(np.intp)
        self.advance(int(numbers.max(initial=-1)))
        return numbers % self._cells, numbers > self.newest - self._cells

    def advance(self, number: int) -> None:
        """Begin a stretch; nothing happens if it has begun."""
        if number <= self.newest:
            return
        fresh = [n % self._cells for n in range(max(self.newest + 1, number - self._cells + 1), number + 1)]
        for array in self.arrays:
            array[fresh] = 0
        self.newest = number
