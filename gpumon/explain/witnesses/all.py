"""All witnesses, in the order in which they look. (The class of every file of this folder goes into the list.)"""

from __future__ import annotations

from gpumon.explain.signs import Witness


def make_witnesses() -> list[Witness]:
    """New ones: they remember."""
    return []
