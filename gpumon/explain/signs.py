"""Signs: what was true of a GPU, a process, a server or the host during a stretch of time, and what it can cost.

The contract between those who look (``explain.witnesses``, one file per subject) and attribution. A witness says at
every step what it sees of *its* causes. It does not know of requests, and does not decide who is to blame: it says how
sure it is that the condition held (evidence), and the largest part of the time that the condition can have cost (cap).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain.group import Key
from gpumon.model import Unit


class Fact(NamedTuple):
    """The figure behind a sign, for people."""

    name: str
    """Snake case, without the unit: ``sm_clock``, ``runqueue_wait_share``."""
    observed: float
    unit: Unit
    usual: float | None = None
    """What it was before, or is elsewhere."""


class Sign(NamedTuple):
    """One cause at work on one thing."""

    cause: str
    """One of catalogue.CAUSES."""
    key: Key
    start_s: float
    """Steady seconds: the stretch between two readings."""
    end_s: float
    evidence: float
    """0 to 1: how sure it is that the condition held, against what is usual for this very thing. 0.5: as likely as not.
    A condition that always holds says nothing and has little."""
    cap: float = 1.0
    """0 to 1: the largest share of this time that it can have taken from the server's work: 1 where it can have stopped
    everything; for a clock that fell by 29 %, 0.29. An upper bound that physics or counters give, not an estimate."""
    fact: Fact | None = None


class Witness(Protocol):
    """Looks for one subject. Constructed without arguments or with keyword thresholds only; bounded memory; no clock,
    no randomness, no I/O. Steps come every second, at times later."""

    causes: ClassVar[tuple[str, ...]]
    """What it can tell of."""

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterable[Sign]:
        """Signs of the time since the last look, and no others. incidents: open now, or closed in the last minute.

        Only what has some evidence: a sign with evidence 0 need not be told. Signs of one cause and key may overlap;
        the greatest evidence counts.
        """
        ...
