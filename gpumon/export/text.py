"""How Prometheus text 0.0.4 and OpenMetrics 1.0 are written: numbers, escapes, family heads, pages.

Knows syntax only, nothing of stores or catalogues. The sample lines of the two formats are the same here (no
timestamps) but for exemplars, which only OpenMetrics has; so a page keeps most lines once and makes each of its four
forms (format x compression) when it is first asked for.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

_EXPONENTS = {digits: f"e+{digits - 1:02d}" for digits in range(7, 17)}
"""By the number of digits before the point."""

EXEMPLAR_CHARACTERS = 128
"""OpenMetrics 1.0: most characters of all names and values of an exemplar's labels."""


class Format(StrEnum):
    """Exposition formats."""

    TEXT = "text/plain; version=0.0.4"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Head(NamedTuple):
    """HELP, TYPE and UNIT lines of a family, per format."""

    text: bytes
    openmetrics: bytes


class Forms(NamedTuple):
    """The same sample lines per format, where they differ."""

    text: bytes
    openmetrics: bytes


Lines = bytes | Forms
"""Any number of whole lines."""


class Page:
    """One rendered exposition: families in order, each written once. Any thread may ask for any form."""

    def __init__(self, families: Sequence[tuple[Head, Sequence[Lines]]]) -> None:
        """families: each with its sample lines, in pieces of any length."""
        self._families = families
        self._forms: dict[tuple[Format, bool], bytes] = {}
        self._lock = threading.Lock()

    def ready(self, form: Format, *, compressed: bool) -> bytes | None:
        """The bytes, if that form was made before."""
        return self._forms.get((form, compressed))

    def body(self, form: Format, *, compressed: bool = False) -> bytes:
        """The bytes, made now if need be: 0.3 ms per megabyte, 2 more when gzip-compressed."""
        with self._lock:
            plain = self._forms.get((form, False))
            if plain is None:
                plain = self._forms[form, False] = self._plain(form)
            if not compressed:
                return plain
            packed = self._forms.get((form, True))
            if packed is None:
                # Level 1: a quarter of the time of the default for 1.3 times the bytes. No time in the header, so
                # that equal pages are equal bytes.
                packed = self._forms[form, True] = gzip.compress(plain, compresslevel=1, mtime=0)
            return packed

    def _plain(self, form: Format) -> bytes:
        parts: list[bytes] = []
        at = 0 if form is Format.TEXT else 1
        for head, lines in self._families:
            parts.append(head[at])
            parts.extend([piece if isinstance(piece, bytes) else piece[at] for piece in lines])
        if form is Format.OPENMETRICS:
            parts.append(b"# EOF\n")
        return b"".join(parts)


def head(name: str, family: str, kind: str, unit: str, help_: str) -> Head:
    """name: as in PromQL; family: without the suffix of its type; kind: OpenMetrics type; unit: "" for none."""
    # Text 0.0.4 has no info type; there it is what it always was, a gauge that is 1.
    text = f"# HELP {name} {_escape_help(help_)}\n# TYPE {name} {'gauge' if kind == 'info' else kind}\n"
    units = f"# UNIT {family} {unit}\n" if unit else ""
    openmetrics = f"# HELP {family} {escape_label(help_)}\n# TYPE {family} {kind}\n{units}"
    return Head(text.encode(), openmetrics.encode())


def series(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """``name{label="value",…} ``, ready for a number to follow."""
    pairs = ",".join([f'{label}="{escape_label(value)}"' for label, value in labels])
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def exemplar(labels: Sequence[tuple[str, str]], value: float, unix_s: float) -> str:
    """What follows a bucket's number in OpenMetrics; "" when its labels have more characters than may be."""
    if sum(len(name) + len(text) for name, text in labels) > EXEMPLAR_CHARACTERS:
        return ""
    return f" # {series('', labels)}{number(value)} {unix_s:.3f}"


def number(value: float) -> str:
    """A finite float the way Go's clients write it: shortest digits, an exponent from a million up."""
    if not 1e6 <= value < 1e16:
        return repr(value)
    whole, _, fraction = repr(value).partition(".")
    digits = whole.rstrip("0") if fraction == "0" else whole + fraction
    return f"{digits[0]}.{digits[1:]}{_EXPONENTS[len(whole)]}" if len(digits) > 1 else digits + _EXPONENTS[len(whole)]


def escape_label(value: str) -> str:
    """A label value (or OpenMetrics help text) between quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(help_: str) -> str:
    return help_.replace("\\", "\\\\").replace("\n", "\\n")
