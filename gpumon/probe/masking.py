"""Texts of a server, made fit to be shown: without the key, on one line, cut. Pure.

A server may send the key back wherever it sends a text: in an error, in the name of a model, in part. Every piece of
it of PART characters or more is masked, upper and lower case alike; of a shorter key the whole of it.
"""

from __future__ import annotations

from typing import Final

from gpumon.terminal import printable

PART: Final = 8
MASK: Final = "***"


def masked(text: str, key: str) -> str:
    """The text without any such piece of the key."""
    if not key:
        return text
    part = min(PART, len(key))
    folded = key.lower()
    pieces = {folded[at : at + part] for at in range(len(folded) - part + 1)}
    # Letter by letter: of some, the lower case is longer than the letter.
    lower = "".join(low if len(low := each.lower()) == 1 else each for each in text)
    kept: list[str] = []
    hidden_to = 0
    for at, each in enumerate(text):
        if lower[at : at + part] in pieces:
            if at >= hidden_to:
                kept.append(MASK)
            hidden_to = at + part
        if at >= hidden_to:
            kept.append(each)
    return "".join(kept)


def shown(text: str, key: str, most: int) -> str:
    """The same on one line, harmless, and no longer than that."""
    return printable(masked(text, key), most)
