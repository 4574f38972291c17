"""Metrics pages of the simulated servers: ``host.http.Http``, one page per server on ports 8000 and up.

What the servers say is in ``server_pages``; here is what a client meets: a page, no such page, a page larger than it
wants, nobody while the server is not running, and no answer while the process that serves the page is stopped.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from gpumon.host.clock import Clock
from gpumon.host.http import HttpError
from gpumon.model import Reason
from gpumon.sim.server_pages import Page
from gpumon.sim.tasks import Census
from gpumon.sim.world import World

HOST = "127.0.0.1"
FIRST_PORT = 8000
PATH = "/metrics"


def server_urls(world: World) -> tuple[str, ...]:
    """Pages of the world's servers, in their order."""
    return tuple(f"http://{HOST}:{FIRST_PORT + index}{PATH}" for index in range(len(world.servers)))


class SimHttp:
    """The port over a simulated node."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock
        self._census = Census(world)
        self._pages = [Page() for _ in world.servers]

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        index = self._index(url)
        at_s = self._clock.now_s()
        tasks = self._census.at(at_s).by_pod.get(self._world.servers[index].name)
        if tasks is None:
            raise HttpError(Reason.UNAVAILABLE, "connection refused")
        front = next((task for task in tasks if task.parent == 1), tasks[0])
        if self._world.task_stopped(front.pid, at_s):
            raise HttpError(Reason.TIMEOUT, f"no answer within {timeout_s:g} s")
        page = self._pages[index].render(self._world.server_state(index, at_s))
        if len(page) > limit:
            raise HttpError(Reason.MALFORMED, f"larger than {limit} bytes")
        return page

    def _index(self, url: str) -> int:
        """Of the server at an address."""
        try:
            parts = urlsplit(url)
            index = (parts.port or 80) - FIRST_PORT
        except ValueError as error:
            raise HttpError(Reason.MALFORMED, "not an address") from error
        here = parts.scheme == "http" and parts.hostname == HOST
        if not here or not 0 <= index < len(self._pages):
            raise HttpError(Reason.UNAVAILABLE, "connection refused")
        if parts.path != PATH:
            raise HttpError(Reason.UNAVAILABLE, "HTTP 404")
        return index
