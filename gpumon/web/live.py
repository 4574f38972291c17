"""What the stream tells: a snapshot of the node, and incidents that opened, closed, grew worse or clearer
since the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from pydantic import Field

from gpumon.detect.incident import Incident
from gpumon.web.gpus import Gpu
from gpumon.web.incidents import Telling
from gpumon.web.node_state import Nvml
from gpumon.web.said import Said
from gpumon.web.servers import Server
from gpumon.web.stream import event

IDLE_S: Final = 5.0
"""After so long without a snapshot, what changed meanwhile is no news: who comes gets everything."""
_LEFT_OUT: Final = {
    "gpus": {"__all__": {"history", "readings", "processes", "info"}},
    "servers": {"__all__": {"history"}},
}

State = tuple[bool, str, bool, bool]
"""Of an incident: whether it is open, its severity, whether its GPUs are known, and whose requests it touched."""


class Snapshot(Said):
    """The node at one moment: GPUs and servers without histories, readings, processes and info."""

    at: float = Field(description="Unix seconds.")
    nvml: Nvml
    gpus: list[Gpu]
    servers: list[Server]
    incidents: int = Field(description="That are open.")

    def line(self) -> str:
        """As JSON, in one line."""
        return self.model_dump_json(exclude=_LEFT_OUT)


class Live:
    """Makes the stream's news. Called from worker threads, one lock."""

    def __init__(
        self,
        snapshot: Callable[[float], Snapshot],
        telling: Telling,
        now_s: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._telling = telling
        self._now_s = now_s
        self._lock = threading.Lock()
        self._told: dict[str, State] = {}
        self._told_s: float | None = None

    def news(self, is_first: bool) -> list[bytes]:
        """is_first: for somebody who just came."""
        now_s = self._now_s()
        snapshot = event("node", self._snapshot(now_s).line())
        known = self._telling.incidents()
        state = {each.id: _state(each) for each in known}
        with self._lock:
            is_idle = self._told_s is None or now_s - self._told_s > IDLE_S
            if is_idle or not is_first:
                before = state if is_idle else self._told
                self._told, self._told_s = state, now_s
        if is_first:
            changed = [each for each in known if each.is_open]
        else:
            changed = [each for each in known if before.get(each.id) != state[each.id]]
        told = self._telling.tell(changed[::-1], known)
        return [snapshot, *(event("incident", each.model_dump_json()) for each in told)]


def _state(incident: Incident) -> State:
    concerned = incident.concerned
    return incident.is_open, incident.severity.value, bool(concerned.gpus), bool(concerned.servers)
