"""What the simulated kernel counts, asked of the world once per moment however many files tell of it.

The running averages of pressure files are renewed every two seconds, as the kernel's are. The world looks half a
minute back at most, so the averages over one and five minutes are those of the last twenty seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gpumon.sim.state import CgroupTimes, HostTotals, Stalled
from gpumon.sim.world import World

T = TypeVar("T")

_RENEWED_S = 2.0  # PSI_FREQ of kernel/sched/psi.c
_SHORT_S, _LONG_S = 10.0, 20.0


class _Latest(Generic[T]):
    """Answers of a function of a key and a time; remembers the last one of each key. May be shared by threads."""

    def __init__(self, ask: Callable[[str, float], T]) -> None:
        self._ask = ask
        self._known: dict[str, tuple[float, T]] = {}

    def __call__(self, key: str, at_s: float) -> T:
        known = self._known.get(key)
        if known is None or known[0] != at_s:
            known = self._known[key] = (at_s, self._ask(key, at_s))
        return known[1]


class Counters:
    """Totals of the host and of the pods' cgroups, and the averages in their pressure files."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._host = _Latest(lambda _, at_s: world.host(at_s))
        self._cgroups = _Latest(world.cgroup)
        self._averages = _Latest(self._average)

    def host(self, at_s: float) -> HostTotals:
        """Of the host."""
        return self._host("", at_s)

    def cgroup(self, pod: str, at_s: float) -> CgroupTimes:
        """Of a pod, by its key."""
        return self._cgroups(pod, at_s)

    def stalled(self, pod: str, resource: str, at_s: float) -> Stalled:
        """Pressure totals of ``cpu``, ``memory`` or ``io``. pod: its key; empty for the host."""
        return _stalled(self.cgroup(pod, at_s) if pod else self.host(at_s), resource)

    def averages(self, pod: str, resource: str, at_s: float) -> tuple[str, str]:
        """Running averages of ``some`` and of ``full``, as the kernel writes them."""
        return self._averages(f"{resource} {pod}", at_s // _RENEWED_S * _RENEWED_S)

    def _average(self, key: str, at_s: float) -> tuple[str, str]:
        resource, _, pod = key.partition(" ")
        # Not by way of the remembered: these times lie beside those that the files ask for.
        moments = [
            _stalled(self._world.cgroup(pod, moment_s) if pod else self._world.host(moment_s), resource)
            for moment_s in (at_s, at_s - _SHORT_S, at_s - _LONG_S)
        ]
        now, short, long = moments
        return _written(now.some_s, short.some_s, long.some_s), _written(now.full_s, short.full_s, long.full_s)


def _stalled(totals: HostTotals | CgroupTimes, resource: str) -> Stalled:
    return totals.cpu if resource == "cpu" else totals.memory if resource == "memory" else totals.io


def _written(now_s: float, short_s: float, long_s: float) -> str:
    short = min(100.0, max(0.0, 100 * (now_s - short_s) / _SHORT_S))
    long = min(100.0, max(0.0, 100 * (now_s - long_s) / _LONG_S))
    return f"avg10={short:.2f} avg60={long:.2f} avg300={long:.2f}"
