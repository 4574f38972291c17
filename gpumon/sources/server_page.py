"""Parser of metrics pages in Prometheus' text format 0.0.4 (also the lines of OpenMetrics), for a few families only.

A server's page has thousands of lines, nearly all of them histogram buckets; what is not asked for is not looked at
beyond its first bytes. What is asked for is parsed strictly: a line that is not in the format is skipped and counted,
and never half read. NaN and infinities say that there is no value: dropped and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple

MAX_LINES = 4096
"""Lines of wanted families read of a page; a server has tens."""
MAX_LINE = 16_384
"""Bytes of a line; vLLM's longest, its cache configuration, has about 1,000."""

# No two neighbours of these patterns can take the same character: a hostile line costs no more than a long one.
_PAIR = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    rf"(?:\{{[ \t]*(?:({_PAIR}(?:[ \t]*,[ \t]*{_PAIR})*)(?:[ \t]*,)?[ \t]*)?\}})?"
    r"[ \t]+([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?[Ii]nf|[Nn]a[Nn])"
    r"(?:[ \t]+-?[0-9.]+)?"  # a timestamp
    r"(?:[ \t]+#.*)?"  # OpenMetrics: an exemplar
    r"[ \t]*\r?"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class Series(NamedTuple):
    """One line."""

    labels: dict[str, str]
    value: float
    """Finite."""


class Page(NamedTuple):
    """What a page says of the families asked for."""

    families: dict[str, list[Series]]
    """Each in the order of the page; only those that were found."""
    malformed: int
    """Lines of those families that are not in the format."""
    not_finite: int
    dropped: int
    """Lines past ``MAX_LINES``, not looked at."""


class Parser:
    """Parses pages for a set of families."""

    def __init__(self, families: Collection[str]) -> None:
        """families: names as written on the page, ``_total`` and ``_sum`` included."""
        self._families = frozenset(families)
        self._length = min(map(len, self._families))
        self._heads = frozenset(name[: self._length].encode() for name in self._families)

    def parse(self, page: bytes) -> Page:
        """Raises nothing."""
        length, heads = self._length, self._heads
        # The one loop over every line: a page of 2,000 lines costs 0.1 ms here.
        lines = [line for line in page.split(b"\n") if line[:length] in heads]
        families: dict[str, list[Series]] = {}
        malformed = not_finite = taken = dropped = 0
        for line in lines:
            if not self._is_wanted(line):
                continue
            if taken == MAX_LINES:
                dropped += 1
                continue
            taken += 1
            parsed = _parse_line(line)
            if parsed is None:
                malformed += 1
            elif not math.isfinite(parsed[1].value):
                not_finite += 1
            else:
                families.setdefault(parsed[0], []).append(parsed[1])
        return Page(families, malformed, not_finite, dropped)

    def _is_wanted(self, line: bytes) -> bool:
        # Names end at a brace or a blank; with neither the line cannot be one of ours.
        name = line.partition(b"{")[0].split(None, 1)[0]
        return name.decode("latin-1") in self._families


def _parse_line(line: bytes) -> tuple[str, Series] | None:
    if len(line) > MAX_LINE:
        return None
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    name, pairs, value = match.groups()
    found = _LABEL.findall(pairs) if pairs else []
    labels = {label: _unescaped(escaped) for label, escaped in found}
    if len(labels) != len(found):
        return None  # a label that is there twice
    return name, Series(labels, float(value))


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)
