"""Servers that are down, slow, or break off; answers and requests that are malformed; clients that want what is not."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from tests.proxy.rig import (
    LAST,
    SSE_HEAD,
    WITHIN_S,
    Rig,
    answers,
    attributes_of,
    chunked,
    dechunked,
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


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def code_of(answer: bytes) -> str:
    """Of an error that is the proxy's own."""
    head, body = without_framing(answer)
    code = json.loads(body)["error"]["code"]
    assert b"x-gpumon-proxy-error: " + code.encode() in head
    return str(code)


async def settled(one: Rig) -> None:
    """Until no request is under way."""
    await until(lambda: not (one.proxy.shared.counters.open_requests or one.proxy.shared.connections))


# --- the server -----------------------------------------------------------------------------------------------------


def test_a_server_that_is_down_is_told_at_once() -> None:
    async def through() -> None:
        async with rig(answers(b"")) as one:
            with socket.socket() as taken:  # bound, and nobody listens
                taken.bind(("127.0.0.1", 0))
                object.__setattr__(one.proxy.shared.settings.upstream, "port", taken.getsockname()[1])
                answer = await one.ask(post(ASK))
            assert (status_of(answer), code_of(answer)) == (502, "upstream_connect")
            assert one.told()["error.type"] == "upstream_connect"
            assert one.counted("gpumon_proxy_upstream_errors_total", "connect") == 1
            assert one.counted("gpumon_proxy_requests_total", "chat", "error") == 1

    run(through())


def test_a_server_that_takes_no_connection_is_given_up() -> None:
    async def through() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = []
            async with rig(answers(b""), limits={"connect_timeout_s": 0.2}) as one:
                port = full.getsockname()[1]
                for _ in range(4):  # its backlog is full
                    other = socket.socket()
                    other.setblocking(False)
                    other.connect_ex(("127.0.0.1", port))
                    waiting.append(other)
                object.__setattr__(one.proxy.shared.settings.upstream, "port", port)
                answer = await one.ask(post(ASK))
                assert (status_of(answer), code_of(answer)) == (504, "upstream_connect_timeout")
            for other in waiting:
                other.close()

    run(through())


def silent(before: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(before)
        await reader.read()  # until the proxy leaves
        writer.close()

    return handle


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def through() -> None:
        async with rig(silent(b""), limits={"idle_timeout_s": 0.3}) as one:
            answer = await one.ask(post(ASK))
            assert (status_of(answer), code_of(answer)) == (504, "upstream_timeout")
            assert one.counted("gpumon_proxy_upstream_errors_total", "timeout") == 1

    run(through())


def test_a_server_that_falls_silent_in_a_stream_leaves_it_without_an_end() -> None:
    async def through() -> None:
        async with rig(silent(SSE_HEAD + chunked(event("a"))), limits={"idle_timeout_s": 0.3}) as one:
            answer = await one.ask(post(ASK))
            assert answer.endswith(chunked(event("a")))
            assert one.told()["error.type"] == "upstream_timeout"

    run(through())


def breaking(before: bytes, *, reset: bool) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(before)
        await writer.drain()
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0.05)  # what was written before is read before the reset
            writer.transport.abort()
        writer.close()

    return handle


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_a_server_that_leaves_before_its_answer_is_told(before: bytes, reset: bool) -> None:
    async def through() -> None:
        async with rig(breaking(before, reset=reset)) as one:
            answer = await one.ask(post(ASK))
            assert (status_of(answer), code_of(answer)) == (502, "upstream_closed")

    run(through())


@pytest.mark.parametrize("inject", [(), ("token:5ms",)])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("head", "part", "passed"),
    [
        (SSE_HEAD, chunked(event("a"), event("b"))[:-9], chunked(event("a"))),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"x" * 50, b"x" * 50),
    ],
)
def test_a_stream_that_breaks_off_has_no_end_for_the_client_either(
    head: bytes, part: bytes, passed: bytes, reset: bool, inject: tuple[str, ...]
) -> None:
    async def through() -> None:
        async with rig(breaking(head + part, reset=reset), inject=inject) as one:
            answer = await one.ask(post(ASK))
            assert passed in answer
            assert not answer.endswith(LAST)
            with pytest.raises(ValueError, match="invalid literal"):
                dechunked(answer.partition(b"\r\n\r\n")[2] if head is SSE_HEAD else b"")
            (span,) = one.spans()
            assert attributes_of(span)["error.type"] == "upstream_closed"
            assert span.status.code == 2

    run(through())


def test_an_end_that_only_the_connection_tells_is_not_made_up_when_that_breaks() -> None:
    async def through() -> None:
        async with rig(breaking(b"HTTP/1.1 200 OK\r\n\r\nsome", reset=True)) as one:
            with pytest.raises(ConnectionResetError):
                await one.ask(b"GET /x HTTP/1.0\r\n\r\n")
            assert not (await one.ask(get("/x"))).endswith(LAST)

    run(through())


def test_an_end_that_only_the_connection_tells_is_an_end() -> None:
    async def through() -> None:
        async with rig(breaking(b"HTTP/1.1 200 OK\r\n\r\nsome", reset=False)) as one:
            assert (await one.ask(b"GET /x HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nsome")
            assert without_framing(await one.ask(get("/x")))[1] == b"some"

    run(through())


@pytest.mark.parametrize(
    "answer",
    [
        b"220 smtp.example ready\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    ],
)
def test_an_answer_that_is_not_http_is_refused(answer: bytes) -> None:
    async def through() -> None:
        async with rig(answers(answer)) as one:
            got = await one.ask(post(ASK))
            assert (status_of(got), code_of(got)) == (502, "upstream_malformed")

    run(through())


@pytest.mark.parametrize(
    "beginning",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"220 smtp.example ready\r\n",
        b"\x16\x03\x01",
        b"HTTP/2 200\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\n\n",
        b"HTTP/1.1 100 Continue\r\n\r\n* OK IMAP",
    ],
)
def test_a_server_that_speaks_something_else_is_not_waited_for(beginning: bytes) -> None:
    async def through() -> None:
        async with rig(silent(beginning)) as one:
            answer = (await one.ask(post(ASK))).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert (status_of(answer), code_of(answer)) == (502, "upstream_malformed")

    run(through())


def test_a_server_cannot_speak_for_the_proxy() -> None:
    forged = b"X-Gpumon-Proxy-Error: upstream_closed\r\nx-gpumon-injected: token:1s\r\n"
    hints = b"HTTP/1.1 103 Early Hints\r\n" + forged + b"\r\n"
    sent = b"HTTP/1.1 200 OK\r\n" + forged + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + forged + b"\r\n"

    async def through() -> None:
        async with rig(answers(hints + sent)) as one:
            answer = await one.ask(get("/x"))
            assert answer.startswith(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n")
            assert b"gpumon" not in answer.lower()
            assert answer.endswith(b"2\r\nok\r\n0\r\n\r\n")
        async with rig(answers(sent), inject=("request:1ms",)) as one:
            answer = await one.ask(get("/x"))
            assert answer.lower().count(b"x-gpumon") == 1
            assert b"\r\nx-gpumon-injected: request:1ms\r\n" in answer

    run(through())


def test_a_body_where_there_must_be_none_is_not_taken_for_the_next_answer() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answers(b"HTTP/1.1 204 No Content\r\nContent-Length: 38\r\n\r\n", close=False)(reader, writer)

    async def through() -> None:
        async with rig(handle) as one:
            for _ in range(2):
                assert await one.ask(get("/x")) == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"

    run(through())
    assert connections == 2


@pytest.mark.parametrize("body", [b"zz\r\nab\r\n", b"2\r\nabc\r\n", b"+2\r\nab\r\n", b"2\nab\r\n", b"1" * 5000])
def test_chunks_that_are_none_end_the_answer_without_an_end(body: bytes) -> None:
    async def through() -> None:
        async with rig(answers(SSE_HEAD + chunked(event("a")) + body)) as one:
            answer = await one.ask(post(ASK))
            assert event("a") in answer
            assert not answer.endswith(LAST)
            assert one.told()["error.type"] == "upstream_malformed"

    run(through())


def test_what_follows_an_answer_is_not_taken_for_the_next_one() -> None:
    split = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"

    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answers(split, close=False)(reader, writer)

    async def through() -> None:
        async with rig(handle) as one:
            for _ in range(3):
                assert (await one.ask(get("/x"))).endswith(b"\r\n\r\nok")

    run(through())
    assert connections == 3  # such a connection is not used again


def test_chunks_of_ten_megabytes_and_streams_without_done_pass() -> None:
    big = b'data: {"choices":[{"delta":{"content":"' + b"x" * (10 << 20) + b'"}}]}\n\n'

    async def through() -> None:
        async with rig(answers(SSE_HEAD + chunked(event("a"), big, event("b")) + LAST)) as one:
            assert without_framing(await one.ask(post(ASK)))[1] == event("a") + big + event("b")
            assert one.told()["gen_ai.usage.output_tokens"] == 2  # the large one is not looked into

    run(through())


def test_a_server_that_answers_before_it_has_the_request_is_heard() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\n\r\nbig")
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\nsome")
            answer = await reader.readuntil(b"big")
            assert status_of(answer) == 413
            writer.write(b"more")
            assert await reader.read() == b""
            writer.close()
            assert one.told()["error.type"] == "413"

    run(through())


# --- the client -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"hello\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/2.0\r\n\r\n", 505, "unsupported"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\n\n", 400, "malformed"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "malformed"),
        (b"\r\n" * 20, 400, "malformed"),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
        (b"GET  / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nX : 1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nX: 1\n\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "unsupported"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", 501, "unsupported"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, 431, "malformed"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431, "malformed"),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n", 501, "unsupported"),
        (b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 501, "unsupported"),
        (
            b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n",
            501,
            "unsupported",
        ),
    ],
)
def test_requests_that_are_none_or_want_what_is_not_are_refused_and_never_reach_the_server(
    request_: bytes, status: int, code: str
) -> None:
    reached = False

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reached
        reached = True
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            answer = await one.ask(request_)
            assert (status_of(answer), code_of(answer)) == (status, code)
            assert one.counted("gpumon_proxy_requests_total", "other", "refused") == 1

    run(through())
    assert not reached


def test_an_offer_of_another_protocol_is_passed_over() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        assert b"pgrade" not in head
        assert b"HTTP2" not in head
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            offers = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA")
            assert (await one.ask(post(b"{}", "/v1/completions", *offers))).endswith(b"\r\n\r\n{}")

    run(through())


@pytest.mark.parametrize("together", [True, False])
def test_a_second_request_before_the_first_ones_answer_is_not_taken(together: bool) -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        seen.append(head.partition(b"\r\n")[0])
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert await reader.read() == b""
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            first, second = (post(b"{}", path, close=False) for path in ("/first", "/second"))
            writer.write(first + second if together else first)
            await until(lambda: seen)
            if not together:
                writer.write(second)
            (connection,) = one.proxy.shared.connections
            await until(lambda: not connection._keeps)
            go_on.set()
            assert await reader.read() == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

    run(through())
    assert seen == [b"POST /first HTTP/1.1"]


def test_a_body_whose_chunks_are_malformed_reaches_nobody_as_a_whole() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"abc")
        begun.set()
        assert await reader.read() == b"\r\n"
        ended.set()
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            await begun.wait()
            writer.write(b"zz\r\n")
            answer = await reader.read()
            assert (status_of(answer), code_of(answer)) == (400, "malformed")
            await ended.wait()
            writer.close()

    run(through())


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("drip", [b"\r\n", b"\n", b"G"])
def test_a_client_that_sends_a_little_now_and_then_is_not_waited_for(drip: bytes, served: bool) -> None:
    sent = 0

    async def through() -> None:
        nonlocal sent
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        async with rig(answers(answer, close=False), limits={"head_timeout_s": 1.5}) as one:
            reader, writer = await one.open()
            if served:
                writer.write(post(b"{}", close=False))
                assert await reader.readexactly(len(answer)) == answer
            reading = asyncio.create_task(reader.read())
            while not reading.done() and sent < 12:  # under the bound of empty lines
                writer.write(drip)
                sent += 1
                await asyncio.wait({reading}, timeout=0.4)
            told = await reading
            assert (status_of(told), code_of(told)) == (408, "head_timeout")

    run(through())
    assert sent < 12


def test_an_empty_line_or_two_before_a_request_are_passed_over_and_an_idle_connection_is_kept() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def through() -> None:
        async with rig(answers(answer, close=False), limits={"head_timeout_s": 0.2}) as one:
            reader, writer = await one.open()
            for _ in range(20):  # the bound is each request's own
                writer.write(b"\r\n\r\n" + post(b"{}", close=False))
                assert await reader.readexactly(len(answer)) == answer
            (connection,) = one.proxy.shared.connections
            connection.sweep(one.proxy.shared.now_ns() + 60 * 10**9)
            writer.write(post(b"{}"))
            assert (await reader.read()).endswith(b"ok")

    run(through())


@pytest.mark.parametrize("target", ["*", "/../x", "/v1/..", "/v1/%2E%2e/x", "/a%2f..%2fx", "/..\\x", "/..;/x"])
def test_what_is_outside_the_servers_path_is_not_asked_for(target: str) -> None:
    request = f"OPTIONS {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def through() -> None:
        async with rig(answers(answer), prefix=b"/base") as one:
            refusal = await one.ask(request)
            assert (status_of(refusal), code_of(refusal)) == (403, "outside_prefix")
            assert (await one.ask(request.replace(target.encode(), b"/a..b/...?/../x"))).endswith(b"ok")
        async with rig(answers(answer)) as one:
            assert (await one.ask(request)).endswith(b"ok")

    run(through())


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", b"GET / HTTP/1.1\r\nX: "])
def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async def through() -> None:
        async with rig(answers(b""), limits={"head_timeout_s": 0.3}) as one:
            answer = await one.ask(sent)
            assert (status_of(answer), code_of(answer)) == (408, "head_timeout")

    run(through())


def test_a_client_that_stops_in_the_middle_of_its_request_is_let_go() -> None:
    async def through() -> None:
        async with rig(silent(b""), limits={"idle_timeout_s": 0.3}) as one:
            assert await one.ask(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nsome") == b""
            assert one.counted("gpumon_proxy_requests_total", "other", "aborted") == 1

    run(through())


def test_more_connections_than_there_may_be_are_told_so() -> None:
    async def through() -> None:
        async with rig(silent(b""), limits={"connections": 2}) as one:
            held = [await one.open() for _ in range(2)]
            for _, writer in held:
                writer.write(post(ASK))
            await until(lambda: one.proxy.shared.counters.open_requests == 2)
            answer = await one.ask(b"")
            assert (status_of(answer), code_of(answer)) == (503, "connection_limit")
            assert one.counted("gpumon_proxy_connections_refused_total") == 1
            for _, writer in held:
                writer.close()
            await settled(one)
            assert status_of(await asyncio.wait_for(one.ask(b"hello\r\n\r\n"), WITHIN_S)) == 400

    run(through())
