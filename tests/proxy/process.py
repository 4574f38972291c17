"""`gpumon proxy` as its users run it: a process of its own, on ports that the system picks. Ends with ``with``."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.e2e.daemon import ROOT
from tests.e2e.waiting import eventually
from tests.proxy.rig import DONE, LAST, SSE_HEAD, chunked, event

_URL = re.compile(r"proxy=listening url=https?://127\.0\.0\.1:(\d+)")
_ADMIN = re.compile(r"proxy=admin url=https?://127\.0\.0\.1:(\d+)")


class ProxyProcess:
    """A proxy to this port."""

    def __init__(self, folder: Path, upstream_port: int, *arguments: str) -> None:
        self.log_path = folder / "proxy.log"
        base = {name: value for name, value in os.environ.items() if not name.startswith("GPUMON_")}
        upstream = f"http://127.0.0.1:{upstream_port}"
        listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpumon", "proxy", "--upstream", upstream, *listen, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=base | {"PYTHONPATH": str(ROOT)},
                cwd=folder,
            )
        self.port = eventually(lambda: self._port(_URL), "the port")
        self.admin_port = eventually(lambda: self._port(_ADMIN), "the admin port")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def end(self) -> int:
        """Asked to by a signal; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)

    def page(self, path: str = "/metrics") -> str:
        """Of the admin port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            assert reply.status == 200, reply.status
            return reply.read().decode()
        finally:
            connection.close()

    def _port(self, pattern: re.Pattern[str]) -> int:
        assert self.process.poll() is None, self.log
        found = pattern.search(self.log)
        return int(found[1]) if found else 0


class PacedServer:
    """Streams a chat answer of ``tokens`` tokens to whoever asks, ``every_s`` apart. Ends with ``with``."""

    def __init__(self, tokens: int, every_s: float) -> None:
        self._tokens = tokens
        self._every_s = every_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._stop = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = connection.makefile("rb")
        try:
            while file.readline():
                length = 0
                while (line := file.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                file.read(length)
                self._answer(connection)
        except OSError:
            pass
        finally:
            file.close()
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.sendall(SSE_HEAD + chunked(event("")))
        begun_s = time.monotonic()
        for number in range(self._tokens):
            self._stop.wait(max(0.0, begun_s + (number + 1) * self._every_s - time.monotonic()))
            connection.sendall(chunked(event(f"t{number}")))
        usage = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}' % self._tokens
        connection.sendall(chunked(b"data: " + usage + b"\n\n", DONE) + LAST)


class Seen(NamedTuple):
    """One answer, as its client saw it; unix nanoseconds."""

    trace_id: str
    begun_ns: int
    token_ns: list[int]


def ask(port: int, *headers: tuple[str, str]) -> Seen:
    """One streamed chat answer."""
    trace_id = os.urandom(16).hex()
    sent = {
        "Content-Type": "application/json",
        "traceparent": f"00-{trace_id}-{os.urandom(8).hex()}-01",
        **dict(headers),
    }
    body = json.dumps({"model": "llama", "stream": True, "messages": [{"role": "user", "content": "hello"}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        zero_ns = time.time_ns() - time.monotonic_ns()
        begun_ns = time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", body, sent)
        reply = connection.getresponse()
        assert reply.status == 200, reply.status
        token_ns = []
        for line in reply:
            at_ns = time.monotonic_ns()
            if line.startswith(b'data: {"id"') and b'"content":""' not in line:
                token_ns.append(at_ns + zero_ns)
        return Seen(trace_id, begun_ns + zero_ns, token_ns)
    finally:
        connection.close()
