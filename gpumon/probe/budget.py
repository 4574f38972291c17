"""What a run may take: tokens, prompt and completion together, and time. Nothing starts that might exceed it.

A request holds the most that it can take while it is under way, and is charged what it took: as the server counts, else
as was aimed at. An answer that is longer than was asked for holds what it has beyond, and is cut where that is not to
be had. So the budget is exceeded by no more than the server's tokenizer is off the aim, and the event that told.
"""

from __future__ import annotations


class Budget:
    """tokens: None: no limit. Time is the run's affair."""

    def __init__(self, tokens: int | None, seconds: float | None) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self.spent = 0
        """Tokens."""
        self._held = 0

    def hold(self, most: int) -> bool:
        """Whether so many tokens are left; then they are held."""
        if self.tokens is not None and self.spent + self._held + most > self.tokens:
            return False
        self._held += most
        return True

    def hold_anyway(self, more: int) -> bool:
        """Of what has come already: it is held in any case. Whether so many were left."""
        self._held += more
        return self.tokens is None or self.spent + self._held <= self.tokens

    def settle(self, most: int, took: int) -> None:
        """What was held is over, and took so many."""
        self._held -= most
        self.spent += took
