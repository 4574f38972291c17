"""Many streams at once, sides that do not read, sides that leave; and what is held meanwhile."""

from __future__ import annotations

import asyncio
import resource
import statistics
import time

import pytest

from tests.proxy.rig import (
    DONE,
    LAST,
    SSE_HEAD,
    Rig,
    answers,
    attributes_of,
    chunked,
    event,
    get,
    post,
    read_request,
    rig,
    run,
    until,
    without_framing,
)

ASK = b'{"model":"llama","stream":true}'
STREAMS = 1000
MIB = 1 << 20


def test_a_thousand_streams_at_once_all_come_through() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 8192:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    everybody = asyncio.Event()
    waiting = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        await read_request(reader)
        writer.write(SSE_HEAD + chunked(event("a")))
        waiting += 1
        if waiting == STREAMS:
            everybody.set()
        await everybody.wait()
        for text in "bcd":
            writer.write(chunked(event(text)))
            await asyncio.sleep(0)
        writer.write(chunked(DONE) + LAST)
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            asking = [asyncio.create_task(one.ask(post(ASK))) for _ in range(STREAMS)]
            await everybody.wait()
            assert one.counted("gpumon_proxy_streams_open") == STREAMS
            found = {without_framing(answer)[1] for answer in await asyncio.gather(*asking)}
            assert found == {b"".join(event(text) for text in "abcd") + DONE}
            assert len(one.spans()) == STREAMS
            assert one.counted("gpumon_proxy_chunks_total") == 4 * STREAMS
            assert one.counted("gpumon_proxy_streams_open") == one.counted("gpumon_proxy_requests_open") == 0

    run(through())


async def still(read: list[int]) -> int:
    """Until this number has stopped growing; what it is then."""
    for _ in range(1000):
        before = read[0]
        await asyncio.sleep(0.05)
        if before and read[0] == before:
            return before
    raise AssertionError(read)


def fountain(sent: list[int], total: int) -> object:
    """A server that sends as fast as it is read."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        piece = chunked(event("x" * 60_000))
        try:
            while sent[0] < total:
                writer.write(piece)
                sent[0] += len(piece)
                await writer.drain()
            writer.write(LAST)
        except ConnectionError:
            pass
        writer.close()

    return handle


@pytest.mark.parametrize("inject", [(), ("token:1us",)])
def test_a_client_that_does_not_read_holds_the_server_up_and_not_memory(inject: tuple[str, ...]) -> None:
    sent = [0]

    async def through() -> None:
        async with rig(fountain(sent, 64 * MIB), inject=inject) as one:  # type: ignore[arg-type]
            reader, writer = await one.open(limit=4096)
            writer.write(post(ASK))
            assert await still(sent) < 32 * MIB  # kernel buffers of four sockets; the rest stays where it is
            total = 0
            while piece := await reader.read(MIB):
                total += len(piece)
            assert total >= 64 * MIB
            writer.close()

    run(through())


def test_a_server_that_does_not_read_holds_the_client_up_and_not_memory() -> None:
    go_on = asyncio.Event()
    size = 64 * MIB

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await go_on.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            sent = [0]

            async def send() -> None:
                piece = bytes(MIB)
                while sent[0] < size:
                    writer.write(piece)
                    await writer.drain()
                    sent[0] += MIB

            sending = asyncio.create_task(send())
            assert await still(sent) < 40 * MIB
            go_on.set()
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK")
            await sending
            writer.close()

    run(through())


@pytest.mark.parametrize("inject", [(), ("request:10s",), ("first:10s",)])
@pytest.mark.parametrize("when", ["before the answer", "in the answer"])
def test_a_client_that_leaves_takes_the_request_along_at_once(when: str, inject: tuple[str, ...]) -> None:
    began, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if when == "in the answer":
            writer.write(SSE_HEAD + chunked(event("a")))
        began.set()
        assert await reader.read() == b""
        left.set()
        writer.close()

    async def through() -> None:
        async with rig(handle, inject=inject) as one:
            _, writer = await one.open()
            writer.write(post(ASK))
            if inject != ("request:10s",):
                await began.wait()
                await until(lambda: when == "before the answer" or one.counted("gpumon_proxy_streams_open"))
            else:
                await until(lambda: one.counted("gpumon_proxy_requests_open"))
            writer.close()
            if began.is_set():
                await left.wait()
            await until(lambda: not one.counted("gpumon_proxy_requests_open"))
            assert one.told()["gen_ai.response.finish_reasons"] == ["cancelled"]
            assert one.counted("gpumon_proxy_requests_total", "chat", "aborted") == 1
            assert one.counted("gpumon_proxy_streams_open") == 0

    run(through())


def test_a_client_that_leaves_while_the_server_is_looked_for_leaves_nothing_behind() -> None:
    opened = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        assert await reader.read() == b""
        opened -= 1
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            for _ in range(50):
                _, writer = await one.open()
                writer.write(post(ASK))
                await writer.drain()
                writer.transport.abort()
            await until(
                lambda: not (one.counted("gpumon_proxy_connections") or one.counted("gpumon_proxy_requests_open"))
            )
            await until(lambda: not opened)

    run(through())


def test_a_client_that_leaves_with_the_last_event_has_its_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunked(event("a"), DONE))
        await reader.read()  # the last chunk never comes
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            writer.write(post(ASK))
            await reader.readuntil(b"[DONE]\n\n\r\n")
            writer.close()
            await until(lambda: not one.counted("gpumon_proxy_requests_open"))
            assert "gen_ai.response.finish_reasons" not in one.told()
            assert one.counted("gpumon_proxy_requests_total", "chat", "ok") == 1

    run(through())


def test_a_kept_connection_that_the_server_closed_is_not_used() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")  # says nothing of closing
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            for _ in range(20):
                assert (await one.ask(get("/x"))).endswith(b"ok")
                await until(lambda: not any(connection.usable for connection in one.proxy.shared.pool._idle))
            assert one.counted("gpumon_proxy_upstream_errors_total", "closed") == 0

    run(through())


def test_kept_connections_are_bounded_and_closed_when_nobody_needs_them() -> None:
    async def through() -> None:
        limits = {"idle_upstreams": 3, "upstream_keep_alive_s": 0.2}
        async with rig(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", close=False), limits=limits) as one:
            await asyncio.gather(*(one.ask(get("/x")) for _ in range(20)))
            assert len(one.proxy.shared.pool) <= 3
            await until(lambda: not len(one.proxy.shared.pool))

    run(through())


def test_requests_under_way_may_end_when_the_proxy_does() -> None:
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunked(event("a")))
        await go_on.wait()
        writer.write(chunked(DONE) + LAST)
        writer.close()

    async def through() -> None:
        async with rig(handle, limits={"drain_s": 10.0}) as one:
            asking = asyncio.create_task(one.ask(post(ASK)))
            _, idle = await one.open()
            await until(lambda: one.counted("gpumon_proxy_streams_open"))
            stopping = asyncio.create_task(one.proxy.stop())
            await asyncio.sleep(0)
            go_on.set()
            await stopping
            assert without_framing(await asking)[1] == event("a") + DONE
            idle.close()

    run(through())


def test_requests_that_do_not_end_are_cut_when_the_proxy_ends() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunked(event("a")))
        assert await reader.read() == b""
        writer.close()

    async def through() -> Rig:
        async with rig(handle, limits={"drain_s": 0.1}) as one:
            asking = asyncio.create_task(one.ask(post(ASK)))
            await until(lambda: one.counted("gpumon_proxy_streams_open"))
            await one.proxy.stop()
            assert not (await asking).endswith(LAST)
        return one

    one = run(through())
    assert attributes_of(one.spans()[0])["gen_ai.response.finish_reasons"] == ["cancelled"]


def test_the_times_of_tokens_are_those_at_which_a_client_sees_them() -> None:
    late_ns: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for _ in range(50):
            await asyncio.sleep(0.005)
            writer.write(chunked(event("a")))
        writer.write(LAST)
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            writer.write(post(ASK))
            seen = []
            while (line := await reader.readline()) != b"0\r\n":
                if line.startswith(b"data:"):
                    seen.append(time.time_ns())
            writer.close()
            await until(lambda: not one.counted("gpumon_proxy_requests_open"))
            (span,) = one.spans()
            times = attributes_of(span)["gen_ai.token.times_ns"]
            late_ns.extend(at - span.start_time_unix_nano - since for at, since in zip(seen, times, strict=True))

    run(through())
    assert min(late_ns) > -100_000  # nobody sees a token before it is passed on
    assert statistics.median(late_ns) < 1_000_000
