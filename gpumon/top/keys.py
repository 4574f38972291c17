"""Keys, from the bytes that a terminal sends for them. What is none of them is no key."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final


class Key(Enum):
    """What a key asks for."""

    QUIT = "quit"
    PAUSE = "pause"
    SORT = "sort"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    HELP = "help"


_KEYS: Final = {
    b"q": Key.QUIT,
    b"Q": Key.QUIT,
    b"p": Key.PAUSE,
    b" ": Key.PAUSE,
    b"s": Key.SORT,
    b"?": Key.HELP,
    b"h": Key.HELP,
    b"k": Key.UP,
    b"j": Key.DOWN,
    b"\x1b[A": Key.UP,
    b"\x1bOA": Key.UP,
    b"\x1b[B": Key.DOWN,
    b"\x1bOB": Key.DOWN,
    b"\x1b[5~": Key.PAGE_UP,
    b"\x1b[6~": Key.PAGE_DOWN,
}
# Escape sequences as a whole (ECMA-48: CSI with parameters, SS3 with one letter), so that no letter in one is a key.
_TOKEN: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b|[^\x1b]", re.DOTALL)


def keys(data: bytes) -> list[Key]:
    """Those in it, in order."""
    return [_KEYS[token] for token in _TOKEN.findall(data) if token in _KEYS]
