"""/api/v1/stream: news for all who listen, bounded, and a word before hanging up; and what the news is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gpumon import catalogue
from gpumon.detect.concerned import Concerned, Served
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.web import stream as module
from gpumon.web.stream import LISTENERS_MAX, QUEUE, Stream, event
from tests.web.known import Known, gpu_sample, present

LIMIT_S = 10.0


class Peer:
    """A browser: what it was sent, and whether it reads."""

    def __init__(self, *, until: int = 10**9, mark: int = 2) -> None:
        """until: it leaves after so many messages. mark: after so many ``marked`` is set; 2: the first events."""
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()
        self.marked = asyncio.Event()
        self._until = until
        self._mark = mark

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Names and data, in order."""
        parts = [part for part in self.text.split("\n\n") if part.startswith("event: ")]
        pairs = [part.removeprefix("event: ").split("\ndata: ") for part in parts]
        return [(name, json.loads(data)) for name, data in pairs]

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.sent.append(message)
        if len(self.sent) >= self._mark:
            self.marked.set()
        if len(self.sent) >= self._until:
            self.gone.set()


class News:
    """Counts up; after the last number it ends the stream."""

    def __init__(self, last: int = 10**9) -> None:
        self.stream = Stream(self.tell, every_s=0.0, keep_alive_s=LIMIT_S)
        self.made = 0
        self._last = last
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self, is_first: bool) -> Sequence[bytes]:
        if is_first:
            return [event("first", "0")]
        self.made += 1
        if self.made > self._last:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.stream.end)
            return []
        return [event("n", str(self.made))]

    def run(self, play: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            self._loop = asyncio.get_running_loop()
            async with asyncio.timeout(LIMIT_S):
                await play()

        asyncio.run(limited())

    async def listen(self, peer: Peer) -> None:
        await self.stream.serve({"type": "http", "method": "GET"}, peer.receive, peer.send)


def test_who_comes_is_told_everything_then_the_news_then_that_it_ends() -> None:
    news = News(last=5)
    peers: list[Peer] = []

    async def play() -> None:
        peers.append(Peer())
        await news.listen(peers[0])

    news.run(play)
    assert peers[0].sent[0]["status"] == 200
    assert dict(peers[0].sent[0]["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert peers[0].text.startswith("retry: 3000\n\nevent: first\n")
    assert peers[0].events == [("first", 0), *(("n", n) for n in range(1, 6)), ("bye", {"reason": "ending"})]
    assert peers[0].sent[-1]["more_body"] is False
    assert news.stream.listeners == 0


def test_news_are_made_once_for_all_who_listen_and_not_at_all_for_nobody() -> None:
    news = News(last=20)
    peers: list[Peer] = []

    async def play() -> None:
        assert news.made == 0
        peers.extend(Peer() for _ in range(5))
        await asyncio.gather(*map(news.listen, peers))

    news.run(play)
    assert news.made == 21
    for peer in peers:
        told = [data for name, data in peer.events if name == "n"]
        assert told == list(range(told[0], 21))


def test_who_leaves_is_forgotten_and_the_news_end_with_the_last() -> None:
    news = News()

    async def play() -> None:
        await news.listen(Peer(until=6))
        assert news.stream.listeners == 0
        made = news.made
        await news.listen(Peer(until=3))
        assert news.made >= made

    news.run(play)


def test_who_does_not_read_is_told_so_and_the_others_lose_nothing() -> None:
    news = News(last=5 * QUEUE)
    peers: list[Peer] = []

    async def play() -> None:
        slow, quick = Peer(), Peer(mark=3 * QUEUE)
        peers.extend([slow, quick])

        async def stop_reading() -> None:
            await slow.marked.wait()
            slow.reads.clear()
            await quick.marked.wait()
            slow.reads.set()

        await asyncio.gather(news.listen(slow), news.listen(quick), stop_reading())

    news.run(play)
    slow, quick = peers
    assert slow.events[-1] == ("bye", {"reason": "slow"})
    assert len(slow.events) <= QUEUE
    told = [data for name, data in quick.events if name == "n"]
    assert told == list(range(told[0], 5 * QUEUE + 1))


def test_who_takes_nothing_at_all_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.01)
    news = News()
    peers: list[Peer] = []

    async def play() -> None:
        peers.append(Peer())

        async def stop_reading() -> None:
            await peers[0].marked.wait()
            peers[0].reads.clear()

        await asyncio.gather(news.listen(peers[0]), stop_reading())

    news.run(play)
    assert peers[0].sent[-1]["more_body"] is True
    assert news.stream.listeners == 0


def test_silence_is_broken_by_comments() -> None:
    async def play() -> str:
        stream = Stream(lambda is_first: [], every_s=LIMIT_S, keep_alive_s=0.001)
        peer = Peer(until=5)
        async with asyncio.timeout(LIMIT_S):
            await stream.serve({"type": "http", "method": "GET"}, peer.receive, peer.send)
        return peer.text

    assert asyncio.run(play()).endswith("\n\n:\n\n:\n\n:\n\n")


def test_one_too_many_is_refused_and_so_is_everybody_while_gpumon_ends() -> None:
    news = News()
    refused: list[Peer] = []

    async def play() -> None:
        peers = [Peer() for _ in range(LISTENERS_MAX)]
        listening = [asyncio.ensure_future(news.listen(peer)) for peer in peers]
        await asyncio.gather(*(peer.marked.wait() for peer in peers))
        refused.append(Peer())
        await news.listen(refused[0])
        news.stream.end()
        refused.append(Peer())
        await news.listen(refused[1])
        await asyncio.gather(*listening)
        assert {peer.events[-1] for peer in peers if peer.events[-1][0] != "bye"} == set()

    news.run(play)
    for peer, why in zip(refused, (f"{LISTENERS_MAX} listen already", "gpumon ends"), strict=True):
        assert peer.sent[0]["status"] == 503
        assert dict(peer.sent[0]["headers"])[b"retry-after"] == b"10"
        assert why in json.loads(peer.text)["detail"]


def test_where_news_cannot_be_made_listeners_are_told_to_come_again() -> None:
    def news(is_first: bool) -> list[bytes]:
        if not is_first:
            raise RuntimeError
        return []

    async def play() -> list[tuple[str, Any]]:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        stream, peer = Stream(news, every_s=0.0), Peer()
        async with asyncio.timeout(LIMIT_S):
            await stream.serve({"type": "http", "method": "GET"}, peer.receive, peer.send)
        return peer.events

    assert asyncio.run(play()) == [("bye", {"reason": "failed"})]


# --- what the news is -------------------------------------------------------------------------------------------------


def incident(name: str, *, severity: Severity = Severity.INFO, closed_s: float | None = None) -> Incident:
    return Incident(name, "ecc", Entity("gpu", "gpu 3"), severity, 1.0, 2.0, 3.0, "s", (), "a", closed_s)


def read(parts: Sequence[bytes]) -> list[tuple[str, Any]]:
    pairs = [part.decode().removeprefix("event: ").removesuffix("\n\n").split("\ndata: ") for part in parts]
    return [(name, json.loads(data)) for name, data in pairs]


def changes(known: Known) -> list[tuple[str, str]]:
    known.clock.step(1.0)
    return [(told["id"], told["state"]) for name, told in read(known.live.news(False)) if name == "incident"]


def test_a_snapshot_has_gpus_and_servers_without_what_is_long() -> None:
    known = Known()
    held = gpu_sample(catalogue.PROCESS_GPU_MEMORY, 1.0, "7", "python", "", "", "")
    known.put("gpus", *present(), gpu_sample(catalogue.GPU_SM_ACTIVE, 0.5), held)
    known.found = [incident("a"), incident("b", closed_s=3.0)]
    (name, told), *_ = read(known.live.news(True))
    assert (name, told["incidents"], told["servers"], told["nvml"]["state"]) == ("node", 1, [], "off")
    (gpu,) = told["gpus"]
    assert gpu["sm_active"] == 0.5
    assert not {"history", "readings", "processes", "info"} & set(gpu)


def test_who_comes_is_told_of_open_incidents_and_then_of_what_changes() -> None:
    known = Known()
    known.found = [incident("new"), incident("old"), incident("over", closed_s=3.0)]
    assert [told["id"] for name, told in read(known.live.news(True)) if name == "incident"] == ["old", "new"]
    assert changes(known) == []
    known.found = [incident("newer"), incident("new", closed_s=3.0), incident("old", severity=Severity.CRITICAL)]
    assert changes(known) == [("old", "open"), ("new", "closed"), ("newer", "open")]
    assert changes(known) == []


def test_another_who_comes_takes_no_news_from_those_who_listen() -> None:
    known = Known()
    known.live.news(True)
    known.found = [incident("a")]
    known.live.news(True)
    assert changes(known) == [("a", "open")]


def test_what_changed_while_nobody_listened_is_no_news() -> None:
    known = Known()
    known.live.news(True)
    known.clock.step(60.0)
    known.found = [incident("a")]
    assert [name for name, _ in read(known.live.news(True))] == ["node", "incident"]
    assert changes(known) == []


def test_an_incident_comes_again_when_it_is_known_whom_it_concerns() -> None:
    known = Known()
    known.found = [incident("a")]
    known.live.news(True)
    assert changes(known) == []
    known.found[0].concerned = Concerned(servers=(Served("vllm", "m", 1, ()),))
    assert changes(known) == [("a", "open")]
    known.found[0].concerned = Concerned(servers=(Served("vllm", "m", 9, ()),))
    assert changes(known) == []
    known.found[0].concerned = Concerned(("3",), servers=(Served("vllm", "m", 9, ()),))
    assert changes(known) == [("a", "open")]
