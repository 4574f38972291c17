"""Which form of a page a client gets, from its Accept and Accept-Encoding headers (RFC 9110, 12.5.1 and 12.5.3).

A scrape never fails for its headers: what cannot be read is ignored, and where nothing that is asked for exists, the
answer is text 0.0.4, uncompressed. Names here are plain ASCII, so every escaping scheme that keeps them asks for the
same page, and ``underscores`` describes it; it is named only to clients that ask for one (Prometheus 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gpumon.export.text import Format


class Choice(NamedTuple):
    """What to send."""

    form: Format
    compressed: bool
    """gzip."""
    content_type: str


class _Offer(NamedTuple):
    form: Format
    type: str
    versions: tuple[str, ...]
    """Versions that may be asked for; "" stands for none."""
    content_type: str


_TEXT = _Offer(Format.TEXT, "text/plain", ("", "0.0.4"), "text/plain; version=0.0.4; charset=utf-8")
_TEXT_1 = _Offer(Format.TEXT, "text/plain", ("1.0.0",), "text/plain; version=1.0.0; charset=utf-8")
_OPENMETRICS = _Offer(
    Format.OPENMETRICS,
    "application/openmetrics-text",
    ("", "1.0.0"),
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
)
_OFFERS = (_TEXT, _OPENMETRICS, _TEXT_1)
"""In the order in which ties are settled: a browser's ``*/*`` gets text."""


class _Range(NamedTuple):
    name: str
    parameters: dict[str, str]
    weight: float
    position: int


@lru_cache(maxsize=64)
def choose(accept: str | None, accept_encoding: str | None, *, text_only: bool = False) -> Choice:
    """Best form for the headers, None for an absent one. text_only: where the names do not fit OpenMetrics."""
    ranges = list(_ranges(accept or "*/*"))
    best, best_rank = _TEXT.content_type, (0.0, 0)
    form = Format.TEXT
    for offer in _OFFERS[:1] + _OFFERS[2:] if text_only else _OFFERS:
        matches = [(_specificity(asked, offer), asked) for asked in ranges]
        level, asked = max(matches, key=lambda match: match[0], default=(0, None))
        if asked is None or level == 0:
            continue
        rank = (asked.weight, -asked.position)
        if asked.weight > 0 and rank > best_rank:
            escaping = "; escaping=underscores" if "escaping" in asked.parameters else ""
            form, best, best_rank = offer.form, offer.content_type + escaping, rank
    return Choice(form, _gzip(accept_encoding or ""), best)


def _specificity(asked: _Range, offer: _Offer) -> int:
    """0: does not match; the more exact the range, the more."""
    if asked.name == "*/*":
        # The one offer that exists for a version only is for those who name it.
        return 1 if "" in offer.versions else 0
    if asked.name == f"{offer.type.partition('/')[0]}/*":
        return 2 if "" in offer.versions else 0
    version = asked.parameters.get("version", "")
    if asked.name != offer.type or version not in offer.versions:
        return 0
    return 4 if version else 3


def _gzip(accept_encoding: str) -> bool:
    weights = {asked.name: asked.weight for asked in _ranges(accept_encoding)}
    packed = max(weights.get("gzip", -1.0), weights.get("x-gzip", -1.0))
    if packed < 0:
        packed = weights.get("*", 0.0)
    # Identity that is not named is what remains when nothing else is wanted.
    return packed > 0 and packed >= weights.get("identity", 0.0)


def _ranges(header: str) -> Iterator[_Range]:
    for position, part in enumerate(header.split(",")):
        name, *rest = (piece.strip() for piece in part.split(";"))
        parameters = {}
        for piece in rest:
            key, _, value = piece.partition("=")
            parameters[key.strip().lower()] = value.strip().strip('"')
        try:
            weight = float(parameters.pop("q", "1"))
        except ValueError:
            continue
        if name and 0 <= weight <= 1:
            yield _Range(name.lower(), parameters, weight, position)
