"""Between a browser and a running demo: everything is passed on, but the stream of news, which is the test's.

``hour`` plays the demo's own snapshots and incidents over and over, each a second after the one before, as fast as the
page takes them or at a pace. Whatever else is asked is answered by the demo as if it were the moment that was played
last: moments in its answers (numbers that are unix times near the real one) are moved.
"""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from tests.e2e.daemon import Daemon
from tests.e2e.waiting import settle

STREAM = "/api/v1/stream"
SENT_S = 60.0
"""A page that takes nothing for so long has gone."""
NEAR_S = 7200
"""What is so near to the real time is taken for a moment. Clocks in hertz are of the same size, and rounder."""
_NUMBER = re.compile(rb"(?<![\w.\"-])\d{10}(?:\.\d+)?(?![\w.])")
_HOP = ("connection", "content-length", "date", "server", "transfer-encoding")


class Event(NamedTuple):
    """One of the stream."""

    name: str
    data: bytes

    @property
    def line(self) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (self.name.encode(), self.data)


class Listener:
    """A page that listens."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler, front: Front) -> None:
        self._handler = handler
        self.front = front

    def accept(self) -> None:
        """It is a stream."""
        self._handler.send_response(200)
        self._handler.send_header("content-type", "text/event-stream")
        self._handler.end_headers()

    def refuse(self, status: int) -> None:
        """It is not."""
        self._handler.send_error(status)

    def send(self, part: bytes) -> None:
        """Waits while the page does not read."""
        self._handler.wfile.write(part)
        self._handler.wfile.flush()


Play = Callable[[Listener], None]


class Front(http.server.ThreadingHTTPServer):
    """Ends with ``with``."""

    daemon_threads = True

    def __init__(self, demo: Daemon, play: Play, *, kept_s: float = 0.0) -> None:
        """play: the stream, in a thread for each listener; it ends when this returns. kept_s: for how long an answer of
        the demo is given again, with its moments moved along; infinity: what grows is the page and not what it is told.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.demo = demo
        self.play = play
        self.kept_s = kept_s
        self.ahead_s = 0.0
        """How far the moment that was played last is ahead of the real one."""
        self.listened = 0
        """How often somebody began to."""
        self.asked = 0
        """How often anything else was."""
        self.ended = threading.Event()
        self._kept: dict[str, tuple[float, int, dict[str, str], bytes]] = {}
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """Of the browser's side."""
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """A page that was closed in the middle is nothing to tell of."""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """The demo's, as of the moment that was played last."""
        with self._lock:
            at_s, status, headers, body = self._kept.get(path, (0.0, 0, {}, b""))
        if not status or time.time() - at_s >= self.kept_s:
            at_s = time.time()
            reply = self.demo.ask(path, timeout_s=30.0)
            status, body = reply.status, reply.body
            headers = {name: value for name, value in reply.headers.items() if name not in _HOP}
            with self._lock:
                self._kept[path] = (at_s, status, headers, body)
        if "json" in headers.get("content-type", ""):
            body = moved(body, self.ahead_s + time.time() - at_s)
        return status, headers, body


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Front
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == STREAM:
            self.server.listened += 1
            self.close_connection = True
            self.server.play(Listener(self, self.server))
            return
        self.server.asked += 1
        status, headers, body = self.server.answer(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def moved(text: bytes, by_s: float) -> bytes:
    """JSON whose moments are so much later."""
    now_s = time.time()

    def later(found: re.Match[bytes]) -> bytes:
        number = float(found[0])
        return b"%.3f" % (number + by_s) if abs(number - now_s) < NEAR_S else found[0]

    return _NUMBER.sub(later, text)


def heard(demo: Daemon, snapshots: int) -> list[Event]:
    """What the demo's own stream tells now, so many seconds long."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=30)
    connection.request("GET", STREAM)
    answer = connection.getresponse()
    events = list(_first(_events(answer), snapshots))
    connection.close()
    return events


def _events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    name = ""
    while line := answer.readline():
        kind, _, rest = line.rstrip(b"\n").partition(b": ")
        if kind == b"event":
            name = rest.decode()
        elif kind == b"data":
            yield Event(name, rest)


def _first(events: Iterator[Event], snapshots: int) -> Iterator[Event]:
    for each in events:
        if each.name == "node":
            snapshots -= 1
        if snapshots < 0:
            return
        yield each


class Hour:
    """Plays events again and again, as seconds of one long time. Incidents are others in each round, and end with it.

    For one page: another begins at the beginning.
    """

    def __init__(self, events: list[Event], *, per_s: float | None = None) -> None:
        """events: of two snapshots at least. per_s: seconds in a second; None: as many as the page takes."""
        self._events = [each for each in events if each.name in ("node", "incident")]
        self._per_s = per_s
        self._wanted = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.played = 0
        self._began_s, *_, last_s = [json.loads(each.data)["at"] for each in self._events if each.name == "node"]
        count = sum(each.name == "node" for each in self._events)
        self._step_s = (last_s - self._began_s) / (count - 1)
        self._round_s = self._step_s * count

    def play(self, seconds: int) -> int:
        """So many more. Returns when the last one was sent: how many there were in all."""
        self._wanted.release(seconds)
        for _ in range(seconds):
            assert self._done.acquire(timeout=SENT_S), f"the page has taken nothing for {SENT_S:g} s"
        self.played += seconds
        return self.played

    def __call__(self, listener: Listener) -> None:
        """What a page that listens is told."""
        listener.accept()
        due_s = time.monotonic()
        at_s = self._began_s
        for number in itertools.count():
            incidents: dict[str, dict[str, object]] = {}
            for event in self._events:
                data = moved(event.data, number * self._round_s)
                if event.name == "incident":
                    told = json.loads(data)
                    told["id"] = f"{told['id']}-{number}"
                    incidents[told["id"]] = told
                    data = json.dumps(told).encode()
                elif not self._is_due(listener.front):
                    return
                elif self._per_s is not None:
                    due_s = max(due_s + 1.0 / self._per_s, time.monotonic() - 1.0)
                    settle(max(0.0, due_s - time.monotonic()))
                listener.send(Event(event.name, data).line)
                if event.name == "node":
                    at_s += self._step_s
                    listener.front.ahead_s = at_s - time.time()
                    self._done.release()
            for told in incidents.values():
                listener.send(Event("incident", json.dumps(told | {"state": "closed"}).encode()).line)

    def _is_due(self, front: Front) -> bool:
        while not self._wanted.acquire(timeout=0.1):
            if front.ended.is_set():
                return False
        return True
