"""What may be asked of a diagnosis. Apart from the routes, so that commands need not load FastAPI."""

from __future__ import annotations

from typing import Final, NamedTuple

SINCE_S: Final = 1800.0
SINCE_MAX_S: Final = 7200.0
QUANTILE: Final = 0.95
QUANTILE_LEAST: Final = 0.01
QUANTILE_MOST: Final = 0.999
NAME_MAX: Final = 256
"""Characters of a server's, model's or attribute's name."""


class DiagnoseQuery(NamedTuple):
    """What is to be diagnosed."""

    since_s: float = SINCE_S
    """Seconds back from its end; counts where ``from_unix_s`` is None."""
    server: str = ""
    """Kind of server; empty: all."""
    model: str = ""
    """Likewise."""
    x: str = ""
    """Attribute of the response surface; empty: that with which latency varies most."""
    y: str = ""
    quantile: float = QUANTILE
    """Of the response surface."""
    from_unix_s: float | None = None
    """Begin of the period; None: ``since_s`` before its end."""
    to_unix_s: float | None = None
    """Its end; None, or later than now: now."""


class UnreadableError(Exception):
    """A parameter that cannot be read. ``str()``: what was expected."""
