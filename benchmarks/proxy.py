"""The claim about the token-timing proxy: what it adds to a first token and to every chunk, and how much it carries.

Three ways to the same server in one run, in turns: direct, through `gpumon proxy`, and through a plain pass-through
written with aiohttp. The server writes the moment of sending into every chunk (CLOCK_MONOTONIC, which all processes
share), the client takes the moment of its arrival. Server, client and both proxies are processes of their own. One
JSON line. Needs aiohttp, a development dependency.
Usage: python -m benchmarks.proxy [--rounds N] [--streams N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import uvloop

from benchmarks.common import cpu_s, memory_bytes, percentiles, report, wait

PACED_STREAMS = 20
PACED_CHUNKS = 100
EVERY_S = 0.02
FLOOD_STREAMS = 8
FLOOD_CHUNKS = 4000
CROWD_CHUNKS = 10
CROWD_EVERY_S = 1.0
BARS = {"first_token_ms": 0.5, "chunk_p50_ms": 0.5, "chunk_p99_ms": 3.0, "chunks_per_core": 5000, "streams": 1000}
_SENT = re.compile(rb'"sent":(\d+)')
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_SERVER = "from benchmarks.proxy import serve; serve({port})"
_PEER = "from benchmarks.proxy import pass_on; pass_on({port}, {upstream})"
Way = tuple[int, int]
"""Process id and port."""


class Server(asyncio.Protocol):
    """Answers a request with as many chunks, so far apart, as its path says: /chunks/every_us."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.held = b""
        self.can_write = asyncio.Event()
        self.can_write.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        self.held += data
        head, end, body = self.held.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.I)
        if end and len(body) >= int(length[1] if length else 0):
            self.held = b""
            _, chunks, every_us = head.split(b" ", 2)[1].split(b"?")[1].split(b"/")
            self.task = asyncio.ensure_future(self.answer(int(chunks), int(every_us) / 1e6))

    async def answer(self, chunks: int, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write(_HEAD)
        begun_s = loop.time()
        for number in range(chunks):
            if every_s:
                await asyncio.sleep(max(0.0, begun_s + number * every_s - loop.time()))
            await self.can_write.wait()
            if self.transport.is_closing():
                return
            event = (
                b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"sent":%d,'
                b'"model":"llama-3.1-8b","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
            ) % time.monotonic_ns()
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            if not every_s:
                await asyncio.sleep(0)  # a write for each, as servers do
        done = b"data: [DONE]\n\n"
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))


class Client(asyncio.Protocol):
    """One request on a kept connection at a time, and the time of every chunk."""

    def __init__(self) -> None:
        self.first_ns = 0
        self.delays_ns: list[int] = []
        self.done: asyncio.Future[None] | None = None
        self.tail = self.end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    async def ask(self, chunks: int, every_s: float) -> None:
        self.first_ns, self.delays_ns, self.tail = 0, [], b""
        self.done = asyncio.get_running_loop().create_future()
        body = b'{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (b"word " * 200)
        path = b"/v1/chat/completions?/%d/%d" % (chunks, round(every_s * 1e6))
        self.begun_ns = time.monotonic_ns()
        self.transport.write(
            b"POST %b HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path, len(body), body)
        )
        await self.done

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.end = (self.end + data)[-5:]
        data = self.tail + data
        lines = data.rfind(b"\n") + 1
        self.tail = data[lines:]
        for sent in _SENT.findall(data, 0, lines):
            if not self.first_ns:
                self.first_ns = now_ns - self.begun_ns
            self.delays_ns.append(now_ns - int(sent))
        if self.end == b"0\r\n\r\n" and self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the connection was lost"))


def serve(port: int) -> None:
    """The server's process."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    _many_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def pass_on(port: int, upstream: int) -> None:
    """The process of the plain pass-through."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

    async def main() -> None:
        session = ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), auto_decompress=False
        )

        async def handle(request: web.Request) -> web.StreamResponse:
            url = f"http://127.0.0.1:{upstream}{request.raw_path}"
            async with session.request(
                request.method, url, headers={"Content-Type": request.content_type}, data=await request.read()
            ) as answer:
                out = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
                await out.prepare(request)
                async for piece in answer.content.iter_any():
                    await out.write(piece)
                await out.write_eof()
            return out

        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()

    _many_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop_runner:
        loop_runner.run(main())


async def load(port: int, streams: int, chunks: int, every_s: float) -> tuple[list[float], list[float]]:
    """Times to first token, and of chunks on their way, in ms."""
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(streams)]
    if streams <= PACED_STREAMS:  # with connections that are there on both sides
        await asyncio.gather(*(client.ask(1, 0.0) for client in clients))

    async def later(client: Client, number: int) -> None:
        await asyncio.sleep(every_s * number / streams)  # not all in the same moment
        await client.ask(chunks, every_s)

    await asyncio.gather(*(later(client, number) for number, client in enumerate(clients)))
    for client in clients:
        assert len(client.delays_ns) == chunks, "chunks were lost"
        client.done = None
        client.transport.close()
    first = [client.first_ns / 1e6 for client in clients]
    return first, [delay / 1e6 for client in clients for delay in client.delays_ns]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def process(port: int, *arguments: str) -> Iterator[int]:
    """A Python process that listens there; its pid."""
    started = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    try:
        while True:
            assert started.poll() is None, arguments
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            wait(0.05)
        yield started.pid
    finally:
        started.terminate()
        started.wait()


def measure(ways: dict[str, Way], rounds: int, streams: int) -> dict[str, object]:
    first: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    chunk: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    cost_s = dict.fromkeys(ways, 0.0)
    flood_s = dict.fromkeys(ways, 0.0)

    async def all_of_it() -> list[float]:
        for _ in range(rounds):  # in turns, so that noise meets all of them
            for name, (pid, port) in ways.items():
                before_s = cpu_s(pid)
                firsts, chunks = await load(port, PACED_STREAMS, PACED_CHUNKS, EVERY_S)
                cost_s[name] += cpu_s(pid) - before_s
                first[name].append(percentiles(firsts))
                chunk[name].append(percentiles(chunks))
        for name, (pid, port) in ways.items():
            before_s = cpu_s(pid)
            await load(port, FLOOD_STREAMS, FLOOD_CHUNKS, 0.0)
            flood_s[name] = cpu_s(pid) - before_s
        return (await load(ways["proxy"][1], streams, CROWD_CHUNKS, CROWD_EVERY_S))[1]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        crowd = runner.run(all_of_it())
    figures: dict[str, object] = {"direct_first_token_ms": typical(first["direct"])}
    figures["direct_chunk_ms"] = typical(chunk["direct"])
    for name in ("proxy", "aiohttp"):
        figures[f"{name}_added_first_token_ms"] = typical(added(first[name], first["direct"]))
        figures[f"{name}_added_chunk_ms"] = typical(added(chunk[name], chunk["direct"]))
        figures[f"{name}_chunks_per_core"] = round(rounds * PACED_STREAMS * PACED_CHUNKS / cost_s[name])
        figures[f"{name}_chunks_per_core_flood"] = round(FLOOD_STREAMS * FLOOD_CHUNKS / flood_s[name])
    figures |= {"streams": streams, "streams_chunk_ms": percentiles(crowd)}
    return figures | {"proxy_pss_mb": round(memory_bytes(ways["proxy"][0])[0] / 1e6, 1)}


def added(rounds: list[dict[str, float]], direct: list[dict[str, float]]) -> list[dict[str, float]]:
    """To each quantile of the direct connection in the same round."""
    return [{name: one[name] - other[name] for name in one} for one, other in zip(rounds, direct, strict=True)]


def typical(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Each quantile of the middle round."""
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    told = parser.parse_args()
    _many_files()
    server_port, proxy_port, peer_port = free_port(), free_port(), free_port()
    proxy = ["-m", "gpumon", "proxy", "--upstream", f"http://127.0.0.1:{server_port}"]
    proxy += [
        "--listen",
        f"127.0.0.1:{proxy_port}",
        "--admin",
        "127.0.0.1:0",
        "--otlp",
        f"http://127.0.0.1:{free_port()}",
    ]
    os.environ["PYTHONPATH"] = os.getcwd()
    with (
        process(server_port, "-c", _SERVER.format(port=server_port)) as server_pid,
        process(proxy_port, *proxy) as proxy_pid,
        process(peer_port, "-c", _PEER.format(port=peer_port, upstream=server_port)) as peer_pid,
    ):
        ways = {
            "direct": (server_pid, server_port),
            "proxy": (proxy_pid, proxy_port),
            "aiohttp": (peer_pid, peer_port),
        }
        report("proxy", **measure(ways, told.rounds, told.streams), bars=BARS)


def _many_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))


if __name__ == "__main__":
    main()
