"""Why a request's tokens were late, as attributes of its span.

``gpumon.cause``           the main cause of what was slow (docs/EXPLAINING.md); not there where nothing was
``gpumon.excess_ms``       milliseconds by which its tokens came later than expected, the first one included
``gpumon.cause.shares``    ``cause=milliseconds``, the largest first
``gpumon.cause.evidence``  the figures behind, ``cause: sm_clock 1005000000 hertz (usually 1410000000)``
"""

from __future__ import annotations

from gpumon.explain.explained import Explained, Share
from gpumon.export.forward_edit import Attribute

_SHARES = 8


def cause_attributes(explained: Explained) -> list[Attribute]:
    """Of the request's own span. Excess is told where anything was expected, 0 too."""
    if explained.first_token.expected_s is None and explained.decode.expected_s is None:
        return []
    attributes: list[Attribute] = [("gpumon.excess_ms", round(1000 * explained.excess_s, 3))]
    causes = list(explained.by_cause().items())[:_SHARES]
    if causes:
        attributes.append(("gpumon.cause", causes[0][0]))
        attributes.append(("gpumon.cause.shares", tuple(f"{cause}={1000 * seconds:.1f}" for cause, seconds in causes)))
        evidence = [told for cause, _ in causes if (told := _evidence(explained, cause))]
        if evidence:
            attributes.append(("gpumon.cause.evidence", tuple(evidence)))
    return attributes


def _evidence(explained: Explained, cause: str) -> str:
    """The figure behind a cause, of the phase in which it cost more."""
    shares: list[Share] = [
        share
        for account in (explained.first_token, explained.decode)
        for share in account.shares
        if share.cause == cause and share.fact is not None
    ]
    if not shares:
        return ""
    fact = max(shares, key=lambda share: share.seconds).fact
    assert fact is not None
    unit = f" {fact.unit.value}" if fact.unit else ""
    usual = f" (usually {fact.usual:.6g})" if fact.usual is not None else ""
    return f"{cause}: {fact.name} {fact.observed:.6g}{unit}{usual}"
