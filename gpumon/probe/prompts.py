"""Prompts of a wanted length: random words, each prompt with a salt of its own, so that no prefix cache knows it.

How many tokens a word is depends on the server's tokenizer. Two short requests tell: ``Lengths`` is the line through
what the server counted of them, and through the longest prompt since, which a few hundred words cannot foretell to the
last token. Where the server does not count, a word is taken for a token, which is nearly so for the words here.
"""

from __future__ import annotations

import itertools
import random
from typing import Final, NamedTuple

_CALIBRATION: Final = 512
TOKENS_OF_A_WORD: Final = 2
"""The most that is thought, before the server has counted any."""
_TEXT: Final = """
air apple arm art autumn bag ball bank basket bell bird boat book bottle box branch bread bridge brush
building camera card castle chair cheese city class clock cloud coat coffee color corner country cup dance
day desk dinner dog door dream driver ear earth evening eye face farm feather field film finger fire fish
floor flower forest friend game garden gate glass grass group guitar hand hat heart hill home horse hotel
house island jacket key kitchen lake lamp land leaf letter library light line machine map market milk mirror
money moon morning mountain music name night ocean office orange page paper park path pen picture plant
plate pocket radio rain river road rock roof room school sea season shirt shoe silver sky snow song sound
spring star station stone story street summer sun table teacher ticket tower town train tree valley village
wall watch water wheel wind window winter wood world year
"""
WORDS: Final = tuple(_TEXT.split())
"""Common ones: most tokenizers have each as one token."""
_LEAST, _MOST = 0.5, 20.0
"""Tokens that a word may be: some tokenizers know bytes alone."""
_SALT: Final = 16
"""Random words that a prompt begins with: two prompts that share them are less likely than a collision of UUIDs."""
_ROW: Final = 1 << 16


class Lengths(NamedTuple):
    """Tokens of a prompt by its words: a line."""

    per_word: float = 1.0
    beside: float = 0.0
    """The chat template, the begin of the text."""
    counted: bool = False
    """Whether the server counted, or this is taken for granted."""

    def words(self, tokens: int) -> int:
        """For a prompt of so many tokens."""
        return max(1, round((tokens - self.beside) / self.per_word))


def calibration(least: int) -> tuple[int, ...]:
    """Words of the requests before a ladder whose lowest rung is so many tokens: no longer than that."""
    many = max(1, min(_CALIBRATION, least // TOKENS_OF_A_WORD))
    return tuple(dict.fromkeys((max(1, many // 16), many)))


def lengths(counts: tuple[tuple[int, int], ...]) -> Lengths:
    """The line through the shortest and the longest of (words, tokens). Of less than two, or nonsense: the default."""
    if len(counts) < 2:
        return Lengths()
    (few, least), (many, most) = min(counts), max(counts)
    if many <= few or most <= least or not _LEAST <= (most - least) / (many - few) <= _MOST:
        return Lengths()  # whatever it counts, it is not tokens
    per_word = (most - least) / (many - few)
    return Lengths(per_word, max(0.0, least - per_word * few), counted=True)


class Prompts:
    """Makes prompts of a salt and of one long row of random words, from anywhere in it and around it: a prompt of a
    million tokens must not take long to make, for while it is made other answers are timed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        row = rng.choices(WORDS, k=_ROW)
        self._starts = [0, *itertools.accumulate(len(word) + 1 for word in [*row, *row])]
        self._text = " ".join([*row, *row, ""])

    def make(self, words: int) -> str:
        """A prompt of so many words, unlike any other."""
        salt = self._rng.choices(WORDS, k=min(_SALT, words))
        begin = self._rng.randrange(_ROW)
        rounds, left = divmod(words - len(salt), _ROW)
        parts = [*[self._between(begin, begin + _ROW)] * rounds, self._between(begin, begin + left)]
        return " ".join([*salt, *filter(None, parts)])

    def _between(self, begin: int, end: int) -> str:
        """Of the row twice: words from one place to another."""
        return self._text[self._starts[begin] : self._starts[end] - 1] if end > begin else ""
