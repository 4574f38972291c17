"""What is seen, told: one screen for a terminal, a line for each part in a log of text, one record in a log of JSON.

A person at a terminal wants all of it at a glance. What collects logs wants records that bear their own time and can be
asked for: so there a part is a line like any other, and in JSON all parts are one record, each a field. Pure.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpumon import __version__
from gpumon.sight.look import STATES, Seen

WIDTH: Final = 80
HEIGHT: Final = 23
"""With the empty line before it a terminal as small as they come."""
_PART: Final = 12
_STATE: Final = 8
_INDENT: Final = " " * (_PART + _STATE)
_BRACKETS: Final = re.compile(r" \([^()]*\)")


class Place(NamedTuple):
    """Who tells, and where more is to be had."""

    node: str
    uid: int
    url: str
    """Of the root, with its slash."""
    has_page: bool
    is_demo: bool


def block(seen: Sequence[Seen], place: Place) -> str:
    """One screen of plain text: HEIGHT lines of WIDTH columns at most. The doctor has what is cut off."""
    whose = "simulated" if place.is_demo else f"as uid {place.uid}"
    head = [f"gpumon {__version__} on {place.node}, {whose}, sees:", ""]
    tail = ["", *_more(place)]
    room = HEIGHT - len(head) - len(tail)
    texts = [text for each in seen for text in _texts(each, is_brief=False)]
    if sum(len(_wrapped(text, room)) for text in texts) > room:
        texts = [text for each in seen for text in _texts(each, is_brief=True)]
    rows = [line for text, most in zip(texts, _shares(texts, room), strict=True) for line in _wrapped(text, most)]
    return "\n".join(_plain(line)[:WIDTH] for line in (*head, *rows, *tail)) + "\n"


def _shares(texts: Sequence[str], room: int) -> list[int]:
    """Lines for each text: one for every part, one for every fix, then what they want more; the first ones first."""
    shares = [0] * len(texts)
    parts = [number for number, text in enumerate(texts) if not text.startswith(_INDENT)]
    fixes = [number for number, text in enumerate(texts) if text.startswith(_INDENT)]
    for number in (parts + fixes)[:room]:
        shares[number] = 1
    left = room - sum(shares)
    for number, text in enumerate(texts):
        more = min(len(_wrapped(text, room)) - 1, left)
        shares[number] += more
        left -= more
    return shares


def _more(place: Place) -> list[str]:
    address = "Page" if place.has_page else "Metrics"
    url = place.url if place.has_page else f"{place.url}metrics"
    if place.is_demo:
        return [f"{address}: {url}   In another terminal: gpumon top, gpumon diagnose"]
    return [f"{address}: {url}   More, and what each part gives: gpumon doctor"]


def _texts(seen: Seen, is_brief: bool) -> list[str]:
    """What is told of a part, and below it its fix; brief: less what is in brackets there."""
    fix = _BRACKETS.sub("", seen.fix) if is_brief else seen.fix
    return [f"{seen.part:<{_PART}}{seen.state:<{_STATE}}{seen.detail}", *([f"{_INDENT}fix: {fix}"] if fix else [])]


def _wrapped(text: str, most: int) -> list[str]:
    """At most so many lines of a text behind its first columns."""
    if not most:
        return []
    told = text[len(_INDENT) :]
    lines = textwrap.wrap(told, WIDTH - len(_INDENT), max_lines=most, placeholder=" …", break_on_hyphens=False)
    return [f"{_INDENT if number else text[: len(_INDENT)]}{line}" for number, line in enumerate(lines or [""])]


def _plain(text: str) -> str:
    """What hardware, servers and files say may hold anything, control sequences too."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def fields(seen: Sequence[Seen]) -> dict[str, dict[str, str]]:
    """All parts, by name, for one record."""
    return {
        each.part: {"state": each.state, "detail": each.detail, **({"fix": each.fix} if each.fix else {})}
        for each in seen
    }


def summary(seen: Sequence[Seen]) -> str:
    """How many parts are in which state, as pairs of a log line: ``yes=6 no=2``."""
    counts = Counter(each.state for each in seen)
    return " ".join(f"{state.replace(' ', '_')}={counts[state]}" for state in STATES if counts[state])
