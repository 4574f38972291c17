"""A real server in processes of its own, as gpumon meets them: an API server that listens, and a child on the GPU.

``python server_process.py KIND…`` opens a port for each kind and prints one line of JSON: its own pid, that of the
child and the ports. With ``--address A`` it first gives the one network device beside loopback that address and waits
for it, for a network namespace of its own. It ends with its standard input. What each kind does is in ``KINDS``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

PAGES = Path(__file__).parent / "fixtures" / "servers"
_REQUEST = "GET {} HTTP/1.1\r\n"


def _http(status: str, headers: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Handler(socketserver.BaseRequestHandler):
    server: Listener

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.server.asked += 1
            KINDS[self.server.kind](self)

    def path(self) -> str:
        """Of the request; empty at the end."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.request.recv(4096)
            if not part:
                return ""
            data += part
        return data.split()[1].decode()


class Listener(socketserver.ThreadingTCPServer):
    """One port. ``asked`` counts connections."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, kind: str, others: Sequence[Listener]) -> None:
        self.kind, self.others, self.asked = kind, others, 0
        super().__init__((address, port), _Handler)


def _page(name: str) -> bytes:
    return _http("200 OK", "Content-Type: text/plain; version=0.0.4\r\n", (PAGES / f"{name}.prom").read_bytes())


def _vllm(handler: _Handler) -> None:
    """vLLM's page, over a kept connection; nothing under other paths."""
    while path := handler.path():
        handler.request.sendall(_page("vllm") if path == "/metrics" else _http("404 Not Found", ""))


def _trtllm(handler: _Handler) -> None:
    """JSON under /metrics, the page below /prometheus."""
    while path := handler.path():
        json_ = _http("200 OK", "Content-Type: application/json\r\n", b"[]")
        handler.request.sendall(_page("trtllm") if path == "/prometheus/metrics" else json_)


def _ssh(handler: _Handler) -> None:
    """Speaks first, and another protocol."""
    handler.request.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
    handler.request.recv(4096)
    handler.request.sendall(b"Invalid SSH identification string.\r\n")


def _silent(handler: _Handler) -> None:
    """Accepts and never answers."""
    while handler.request.recv(4096):
        pass


def _endless(handler: _Handler) -> None:
    """A page that never ends."""
    handler.path()
    handler.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    lines = b"vllm:num_requests_running 1\n" * 1000
    while True:
        handler.request.sendall(b"%x\r\n%s\r\n" % (len(lines), lines))


def _dripping(handler: _Handler) -> None:
    """A byte of a header now and then, for ever."""
    handler.path()
    for byte in b"HTTP/1.1 200 OK\r\nX-" + b"a" * 10_000:
        handler.request.sendall(bytes([byte]))
        time.sleep(0.05)


def _redirect(handler: _Handler) -> None:
    """Sends whoever asks to another host, which is the first listener by another address."""
    handler.path()
    port = handler.server.others[0].server_address[1]
    handler.request.sendall(_http("302 Found", f"Location: http://127.0.0.2:{port}/metrics\r\n"))


def _count(handler: _Handler) -> None:
    """JSON of how often each port was asked."""
    handler.path()
    counts = [each.asked for each in handler.server.others]
    handler.request.sendall(_http("200 OK", "Content-Type: application/json\r\n", json.dumps(counts).encode()))


KINDS = {
    "vllm": _vllm,
    "trtllm": _trtllm,
    "ssh": _ssh,
    "silent": _silent,
    "endless": _endless,
    "dripping": _dripping,
    "redirect": _redirect,
    "count": _count,
}


class Address(NamedTuple):
    """Where a listener is."""

    kind: str
    port: int


class ServerProcess:
    """The processes. Ends with ``with``. Kinds may be ``KIND``, ``KIND:PORT`` or ``KIND:PORT@ADDRESS``."""

    def __init__(self, *kinds: str, before: Sequence[str] = (), address: str = "") -> None:
        """before: of the command line. address: that it is to give itself."""
        command = [*before, sys.executable, "-P", __file__, *(["--address", address] if address else []), *kinds]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        self.pid = self.process.pid
        self.child = 0
        self.addresses: list[Address] = []
        if not address:
            self.await_start()

    def await_start(self) -> Self:
        """Until it says what it is."""
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.pid, self.child = told["pid"], told["child"]
        self.addresses = [Address(*each) for each in told["listening"]]
        return self

    def port(self, kind: str) -> int:
        """Of the first listener of the kind."""
        return next(each.port for each in self.addresses if each.kind == kind)

    @property
    def ports(self) -> list[int]:
        return [each.port for each in self.addresses]

    def asked(self) -> list[int]:
        """How often each port was asked; needs one of kind ``count``."""
        with socket.create_connection(("127.0.0.1", self.port("count")), timeout=5) as connection:
            connection.sendall(_REQUEST.format("/").encode() + b"\r\n")
            data = b""
            while b"]" not in data:
                data += connection.recv(65_536)
        counts: list[int] = json.loads(data.partition(b"\r\n\r\n")[2])
        return counts

    def end(self) -> None:
        """And its child with it."""
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _configure(address: str) -> None:
    """Give the device ``gpumon-test`` of this namespace an address, up, once it is there."""
    device = b"gpumon-test"
    packed = struct.pack("16sH2x4s8x", device, socket.AF_INET, socket.inet_aton(address))
    mask = struct.pack("16sH2x4s8x", device, socket.AF_INET, socket.inet_aton("255.255.255.252"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        while True:
            try:
                fcntl.ioctl(control, 0x8916, packed)  # SIOCSIFADDR
                break
            except OSError:  # not there yet
                time.sleep(0.01)
        fcntl.ioctl(control, 0x891C, mask)  # SIOCSIFNETMASK
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", device, 0x41))  # SIOCSIFFLAGS: up, running


def _listeners(kinds: Sequence[str]) -> Iterator[Listener]:
    listeners: list[Listener] = []
    for kind in kinds:
        name, _, where = kind.partition(":")
        port, _, address = where.partition("@")
        listeners.append(Listener(address or "0.0.0.0", int(port or 0), name, listeners))
    yield from listeners


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--address", default="")
    options = parser.parse_args()
    if options.address:
        _configure(options.address)
    child = subprocess.Popen([sys.executable, "-S", "-E", "-c", "input()"], stdin=subprocess.PIPE)
    listeners = list(_listeners(options.kinds))
    for listener in listeners:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
    listening = [(each.kind, each.server_address[1]) for each in listeners]
    print(json.dumps({"pid": os.getpid(), "child": child.pid, "listening": listening}), flush=True)
    sys.stdin.read()
    child.kill()
    child.wait()
    os._exit(0)


if __name__ == "__main__":
    main()
