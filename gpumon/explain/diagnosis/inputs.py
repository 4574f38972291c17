"""What a diagnosis is made from, and the little that it asks of what others make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.incident import Incident
from gpumon.explain.group import Group
from gpumon.explain.request_rows import Rows

_SLACK_S: Final = 5.0
"""By which less may be known of a period than was asked for without a word: a step, or a second reading."""


class DimensionLike(Protocol):
    """One column of ``Rows.signals``."""

    @property
    def name(self) -> str:
        """Snake case."""

    @property
    def title(self) -> str:
        """For people."""

    @property
    def unit(self) -> str:
        """As people write it: ``ratio``, ``bytes/s``."""

    @property
    def healthy(self) -> str:
        """What it should be, as text; empty where there is no bound."""

    @property
    def bound(self) -> float | None:
        """Where healthy ends, in ``unit``."""

    @property
    def high_is_bad(self) -> bool:
        """Whether unhealthy is above the bound, rather than below."""


class Track(NamedTuple):
    """A group's dimensions over time."""

    seconds: NDArray[np.int64] | NDArray[np.float64]
    """(n,), steady, ascending: the begin of each value's second. Need not reach over the whole period."""
    values: NDArray[np.floating]
    """(dimensions, n); NaN where not known."""


class CorrelationLike(Protocol):
    """A strong pair of signals of a group."""

    @property
    def x(self) -> str: ...

    @property
    def y(self) -> str: ...

    @property
    def r(self) -> float: ...

    @property
    def lag_s(self) -> float:
        """By which y follows x."""

    @property
    def n_eff(self) -> float: ...

    @property
    def p(self) -> float: ...


class Inputs(NamedTuple):
    """See the module. Times are steady seconds."""

    rows: Rows
    """That ended in the period; others are left out."""
    from_s: float
    to_s: float
    to_unix: Callable[[float], float]
    version: str = ""
    node: str = ""
    dimensions: Sequence[DimensionLike] = ()
    """In the order of ``rows.signals``."""
    tracks: Mapping[Group, Track] = {}
    correlations: Mapping[Group, Sequence[tuple[float, CorrelationLike]]] = {}
    """Strong pairs, each with the seconds between its samples."""
    incidents: Sequence[Incident] = ()
    gpu_names: Mapping[str, str] = {}
    """Index by UUID, as NVML counts them."""
    kept_from_s: float | None = None
    """Requests that ended before this are not kept any more; None where none had to go."""
    began_s: float | None = None
    """Of requests that ended before this nothing was ever known; None where it is not known when that began."""
    is_live: bool = False
    """Whether requests of the last seconds may still have to be explained."""
    dropped: int = 0
    """Requests of the period that were not explained for want of room, of all engines."""
    surface_x: str = ""
    """Attribute of the response surface; empty: that with which latency varies most."""
    surface_y: str = ""
    quantile: float = 0.95
    """Of the response surface."""
    of_others: Set[str] = frozenset()
    """Ids of incidents of engines that were not asked for: they are left out."""

    held: Mapping[str, Set[str]] = {}
    """UUIDs of the GPUs that a process holds now, by pid."""

    @property
    def known_s(self) -> float:
        """From here on all requests are known: the begin of the period, or later."""
        first_s = max([self.from_s, *(each for each in (self.kept_from_s, self.began_s) if each is not None)])
        return min(first_s, self.to_s) if first_s > self.from_s + _SLACK_S else self.from_s
