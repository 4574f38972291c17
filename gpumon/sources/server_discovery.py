"""Which ports of this node's GPU processes have the metrics page of an inference server: found out by asking, seldom.

Which sockets listen for processes on GPUs, and under which addresses they are reached, is handed in (``Door``). One
that is asked gets a GET of ``/metrics`` and, where it answers as an HTTP server that has no metrics there, of the other
path that servers use. Of a process one page is enough: once it is found, its other ports are left alone, and what the
configuration names is not asked at all. A gpumon proxy gives no page away (host.http.SCRAPE_HEADER), so that the
server behind it is found once, at its own port. A port that was no server's is asked at most once a minute, again after
1, 2, 4, … and then every 16 minutes, for as long as its socket is there. Nothing here reads a clock or a file.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from gpumon.catalogue import SERVER_PORTS, SERVERS
from gpumon.host.http import HttpError
from gpumon.model import Miss, Pid, Reason, Sample

log = logging.getLogger(__name__)

PATHS = ("/metrics", "/prometheus/metrics")
"""trtllm-serve has JSON under the first, and hands out each of its figures there once: so it is asked once only."""
LOOK_S = 5.0
"""Least time between two looks for sockets, each of which costs milliseconds; twice as long after each that shows
nothing new, until the processes on GPUs are others or a page that was read cannot be had."""
LOOK_MAX_S = 60.0
ASK_S = 60.0
"""Least time between two questions to a port that is no server's, and the first wait after such an answer."""
ASK_MAX_S = 960.0
PER_PASS = 4
"""Ports asked in one pass; the first that does not answer in time ends it."""
DOORS = 64
"""Ports looked at."""
REMEMBERED = 256
"""Ports whose answers are remembered, those that are gone among them."""
NO_METRICS = "no metrics of a known server on the page"
_OTHER_PATH = ("HTTP 404", "not text", NO_METRICS)


class Door(NamedTuple):
    """A socket that listens for a process on a GPU, or for one that belongs to such."""

    pid: Pid
    """Of the process that has it open."""
    port: int
    socket: int
    """Tells it from a later one on the same port."""
    host: str
    """Address under which it can be reached from here; empty where there is none."""
    why: str = ""
    """Why there is none."""
    names: frozenset[str] = frozenset()
    """Addresses and names under which it answers, as a configuration may spell them."""


class Look(NamedTuple):
    """What is there now."""

    doors: Sequence[Door] = ()
    """In the order in which they are to be asked."""
    misses: Sequence[Miss] = ()


class Doors(Protocol):
    """Who knows which sockets there are."""

    def stamp(self) -> object:
        """Equal for as long as the processes on GPUs are the same. Cheap."""
        ...

    def look(self) -> Look:
        """See which sockets there are now."""
        ...


class Port(NamedTuple):
    """A door and what is known of it."""

    door: Door
    state: str
    """One of ``SERVER_PORTS.values``."""
    detail: str
    """What it answered, or why it cannot be reached."""


@dataclass(slots=True)
class _Known:
    """What the port of an address answered."""

    socket: int
    asked_s: float | None = None
    wait_s: float = ASK_S
    """From then to the next question."""
    url: str = ""
    """The page, once it is found."""
    state: str = "waiting"
    detail: str = ""


class Discovery:
    """``follow`` at each pass, then ``ask``. ``urls`` are the pages found. Used by one thread."""

    def __init__(self, doors: Doors, configured: Sequence[str] = ()) -> None:
        """configured: pages that are read anyhow."""
        self._source = doors
        self._configured = frozenset(filter(None, map(_place, configured)))
        self._room = max(0, SERVERS - len(configured))
        self._known: dict[tuple[str, int], _Known] = {}
        self._told = Look()
        self._doors: list[Door] = []
        self._looked_s: float | None = None
        self._look_wait_s = LOOK_S
        self._stamp: object = None
        self._reported: dict[tuple[str, int, int], str] = {}

    @property
    def urls(self) -> list[str]:
        """Pages found whose sockets are still there."""
        return list(dict.fromkeys(self._of(door).url for door in self._doors if door.host and self._of(door).url))

    def ports(self) -> list[Port]:
        """All doors there are, up to ``DOORS``."""
        named = [door for door in self._doors if self._is_configured(door)]
        served = {door.pid for door in self._doors if door in named or (door.host and self._of(door).url)}
        is_full = len(self.urls) >= self._room
        return [self._port(door, door in named, door.pid in served, is_full) for door in self._doors]

    def look_soon(self) -> None:
        """Look again at the next pass: a page could not be had, so its socket may be gone."""
        self._look_wait_s = LOOK_S

    def follow(self, at_s: float) -> None:
        """See which sockets there are now, if it is time."""
        stamp = self._source.stamp()
        if stamp != self._stamp:
            self._look_wait_s = LOOK_S
        if self._looked_s is not None and at_s < self._looked_s + self._look_wait_s:
            return
        self._looked_s = at_s
        self._told = self._source.look()
        before, self._doors = self._doors, list(self._told.doors[:DOORS])
        is_new = stamp != self._stamp or {door.socket for door in before} != {door.socket for door in self._doors}
        self._look_wait_s = LOOK_S if is_new else min(LOOK_MAX_S, 2 * self._look_wait_s)
        self._stamp = stamp
        for door in self._doors:
            if door.host:
                self._meet(door)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        self._report()

    def ask(self, at_s: float, is_server: Callable[[str], bool]) -> None:
        """Ask those that are due. ``is_server``: whether the page of an address is one; raises HttpError."""
        asked = 0
        while asked < PER_PASS:
            # Anew after each: what one answers decides whether the others of its process are asked.
            door = next((port.door for port in self.ports() if self._is_due(port, at_s)), None)
            if door is None:
                break
            asked += 1
            known = self._of(door)
            if known.asked_s is not None:
                known.wait_s = min(ASK_MAX_S, 2 * known.wait_s) if known.detail else ASK_S
            known.asked_s = at_s
            try:
                known.url, known.detail = _find(f"http://{door.host}:{door.port}", is_server), ""
            except HttpError as error:
                known.detail = error.detail or error.reason.value
                known.state = "no_answer" if error.reason is Reason.TIMEOUT else "no_server"
                if error.reason is Reason.TIMEOUT:
                    break
        if asked:
            self._report()

    def samples(self) -> Iterator[Sample]:
        """Ports by what is known of them."""
        states = Counter(port.state for port in self.ports())
        states["left_out"] += self._past
        for state in SERVER_PORTS.values:
            yield Sample(SERVER_PORTS, (state,), float(states[state]))

    def misses(self) -> Iterator[Miss]:
        """What could not be looked at, and what cannot be reached. A port that is no server's is no miss."""
        yield from self._told.misses
        for door, state, detail in self.ports():
            if state == "unreachable":
                yield Miss(f"port {door.port} of pid {door.pid.number}", Reason.UNSUPPORTED, detail)
        if self._past:
            yield Miss("listening ports", Reason.OUT_OF_RANGE, f"{self._past} past the first {DOORS}")

    @property
    def _past(self) -> int:
        return len(self._told.doors) - len(self._doors)

    def _meet(self, door: Door) -> None:
        known = self._known.pop((door.host, door.port), None)
        if known is None:
            known = _Known(door.socket)
        elif known.socket != door.socket:
            # Another server's perhaps. That the port was asked just now still counts, unless it was a server's.
            known = _Known(door.socket, None if known.url else known.asked_s)
        self._known[door.host, door.port] = known  # so the dict is in the order of the last meeting

    def _of(self, door: Door) -> _Known:
        return self._known[door.host, door.port]

    def _is_configured(self, door: Door) -> bool:
        return any((name, door.port) in self._configured for name in door.names)

    def _port(self, door: Door, is_named: bool, is_served: bool, is_full: bool) -> Port:
        if is_named:
            return Port(door, "scraped", "configured")
        if not door.host:
            return Port(door, "unreachable", door.why)
        known = self._of(door)
        if known.url:
            return Port(door, "scraped", known.url)
        if is_served:
            return Port(door, "same_process", "another port of the process is scraped")
        if is_full:
            return Port(door, "left_out", f"{SERVERS} servers are scraped")
        return Port(door, known.state, known.detail)

    def _is_due(self, port: Port, at_s: float) -> bool:
        if port.state not in ("waiting", "no_server", "no_answer"):
            return False
        known = self._of(port.door)
        return known.asked_s is None or at_s >= known.asked_s + known.wait_s

    def _report(self) -> None:
        """Log what has changed."""
        reported = {}
        for door, state, detail in self.ports():
            key = (door.host, door.port, door.pid.number)
            reported[key] = state
            if state != "waiting" and self._reported.get(key) != state:
                log.info("server_port=%s host=%s port=%d pid=%d detail=%r", state, *key, detail)
        self._reported = reported


def _find(address: str, is_server: Callable[[str], bool]) -> str:
    """The page of a server. Raises HttpError where there is none."""
    failure = HttpError(Reason.UNAVAILABLE, NO_METRICS)
    for path in PATHS:
        try:
            if is_server(address + path):
                return address + path
            failure = HttpError(Reason.UNAVAILABLE, NO_METRICS)
        except HttpError as error:
            failure = error
            if error.detail not in _OTHER_PATH:
                break
    raise failure


def _place(url: str) -> tuple[str, int] | None:
    """Host and port of a configured page, spelled as ``Door.names`` are."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host, port
