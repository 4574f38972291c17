"""What goes through the proxy is what goes past it: bodies, heads, ends, in both directions."""

from __future__ import annotations

import asyncio
import gzip
import re
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proxy.rig import (
    DONE,
    LAST,
    SSE_HEAD,
    Rig,
    answers,
    chunked,
    event,
    get,
    post,
    read_request,
    rig,
    run,
    without_framing,
)

STREAM = b"".join(
    [
        event(""),
        event("Grüße, "),
        b": ping\r\n\r\n",
        event("日本語 🚀").replace(b"\n\n", b"\r\n\r\n"),
        b'event: x\ndata: {"choices":[{"index":0,\ndata: "delta":{"content":"two lines"}}]}\n\n',
        b"data: {not json\n\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n',
        DONE,
    ]
)
ASK = b'{"model":"llama","stream":true,"messages":[{"role":"user","content":"hello"}]}'


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(set(at)), len(data)]
    return [data[low:high] for low, high in pairwise(places) if low < high]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(st.integers(1, len(STREAM) - 1), max_size=30),
    writes=st.lists(st.integers(1, 3000), max_size=30),
    ending=st.sampled_from(["chunked", "length", "eof"]),
    inject=st.sampled_from([(), ("token:100us",), ("first:1ms", "token:0us..200us")]),
)
def test_every_way_of_cutting_a_stream_gives_the_client_the_same_bytes(
    chunks: list[int], writes: list[int], ending: str, inject: tuple[str, ...]
) -> None:
    if ending == "chunked":
        answer = SSE_HEAD + chunked(*cut(STREAM, chunks)) + LAST
    elif ending == "length":
        answer = SSE_HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(STREAM)) + STREAM
    else:
        answer = SSE_HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"") + STREAM
    parts = cut(answer, [place for place in writes if place < len(answer)])

    async def through() -> None:
        async with rig(answers(*parts), inject=inject) as one:
            direct = await one.ask(post(ASK), direct=True)
            passed = await one.ask(post(ASK))
            assert without_framing(passed)[1] == without_framing(direct)[1] == STREAM
            told = one.told()
            assert told["gen_ai.usage.output_tokens"] == 3
            assert told["gpumon.proxy.malformed_events"] == 1
            assert len(told["gen_ai.token.times_ns"]) == 3

    run(through())


def test_a_head_is_passed_on_in_its_order_and_case_but_for_what_is_of_one_connection() -> None:
    answer = (
        b"HTTP/1.1 200 Fine, thanks\r\nX-b: 1\r\nx-A:  two words \r\n"
        b"Connection: close, x-mine\r\nKeep-Alive: timeout=5\r\n"
        b"X-Mine: gone\r\nSet-Cookie: a\r\nset-cookie: b\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nok"
    )

    async def through() -> None:
        async with rig(answers(answer)) as one:
            head = (await one.ask(get())).partition(b"\r\n\r\n")[0].split(b"\r\n")
            assert head == [
                b"HTTP/1.1 200 Fine, thanks",
                b"X-b: 1",
                b"x-A: two words",
                b"Set-Cookie: a",
                b"set-cookie: b",
                b"X-Empty: ",
                b"Content-Length: 2",
                b"Connection: close",
            ]

    run(through())


def heard(request: bytes, **more: object) -> list[bytes]:
    """Lines of the head that the server gets, and behind an empty one the body."""
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        seen.extend([*head[:-4].split(b"\r\n"), b"", body])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def through() -> None:
        async with rig(handle, **more) as one:  # type: ignore[arg-type]
            await one.ask(request)

    run(through())
    return seen


def test_a_request_is_passed_on_in_its_order_and_case_but_for_what_is_of_one_connection() -> None:
    lines = heard(
        b"POST /v1/chat/completions?a=%20b HTTP/1.1\r\nHost: chat.example\r\n"
        b"authorization: Bearer sk-1\r\nX-Weird:  v \r\n"
        b"Connection: close, X-Drop\r\nX-Drop: 1\r\nTE: gzip, trailers\r\nContent-Length: 2\r\nTRACEPARENT: "
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n{}"
    )
    assert lines == [
        b"POST /v1/chat/completions?a=%20b HTTP/1.1",
        b"Host: chat.example",
        b"authorization: Bearer sk-1",
        b"X-Weird: v",
        b"Content-Length: 2",
        b"TRACEPARENT: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"TE: trailers",
        b"",
        b"{}",
    ]


def test_a_request_without_a_trace_gets_one() -> None:
    lines = heard(post(b"{}"))
    assert re.fullmatch(rb"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01", lines[-3])


def test_what_is_no_inference_is_left_as_it_is() -> None:
    assert heard(get("/v1/models")) == [b"GET /v1/models HTTP/1.1", b"Host: server", b"", b""]


def test_an_http_1_0_client_without_host_is_served_and_the_end_is_the_connections() -> None:
    async def through() -> None:
        async with rig(answers(SSE_HEAD + chunked(b"data: a\n\n", b"data: b\n\n") + LAST)) as one:
            answer = await one.ask(b"GET /x HTTP/1.0\r\n\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head.lower()
            assert b"Connection: close" in head
            assert body == b"data: a\n\ndata: b\n\n"

    run(through())
    assert heard(b"GET /x HTTP/1.0\r\n\r\n")[1].startswith(b"Host: 127.0.0.1:")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        (b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 204 No Content\r\nX: 1\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\nContent-Length: 99\r\n\r\n'),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body_end_with_their_head_and_leave_the_connection_usable(
    request_: bytes, answer: bytes
) -> None:
    async def through() -> None:
        async with rig(answers(answer, close=False)) as one:
            reader, writer = await one.open()
            for _ in range(3):
                writer.write(request_)
                assert await reader.readexactly(len(answer)) == answer
            writer.close()

    run(through())


def test_connections_are_kept_on_both_sides() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", close=False)(reader, writer)

    async def through() -> None:
        async with rig(handle) as one:
            reader, writer = await one.open()
            for _ in range(5):
                writer.write(post(b"{}", close=False))
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK")
            writer.close()

    run(through())
    assert connections == 1


def test_leave_to_send_a_body_is_asked_of_the_server_and_given_by_it() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)
        writer.close()

    async def through() -> None:
        async with rig(handle, ask_for_usage=True) as one:
            reader, writer = await one.open()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"body")
            assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()

    run(through())


def test_chunks_and_trailers_pass_both_ways() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        body = await reader.readuntil(b"0\r\nX-Sum: 1\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n" + body.replace(b": 1", b": 2")
        )
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            answer = await one.ask(
                b"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n"
            )
            assert answer.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 2\r\n\r\n")

    run(through())


def test_a_redirect_is_passed_on_and_not_followed() -> None:
    answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://198.51.100.1/v1\r\nContent-Length: 0\r\n\r\n"

    async def through() -> None:
        async with rig(answers(answer, close=False)) as one:
            assert await one.ask(post(b"{}")) == answer[:-2] + b"Connection: close\r\n\r\n"

    run(through())


def test_a_compressed_stream_is_not_touched_and_its_tokens_are_counted_by_piece() -> None:
    packed = gzip.compress(STREAM)
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")

    async def through() -> dict[str, object]:
        async with rig(answers(head + chunked(packed) + LAST)) as one:
            assert gzip.decompress(without_framing(await one.ask(post(ASK)))[1]) == STREAM
            return one.told()

    told = run(through())
    assert told["gen_ai.token.source"] == "chunk"
    assert told["gen_ai.usage.output_tokens"] == 1


def test_a_body_of_megabytes_passes_both_ways() -> None:
    body = bytes(range(256)) * 40_000

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, told = await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(told) + LAST)
        await writer.drain()
        writer.close()

    async def through() -> Rig:
        async with rig(handle) as one:
            assert without_framing(await one.ask(post(body)))[1] == body
            assert one.counted("gpumon_proxy_unread_bodies_total") == 1
            assert one.counted("gpumon_proxy_transferred_bytes_total", "response") == len(body)
            return one

    run(through())


def test_usage_is_asked_for_where_it_was_asked_to_be() -> None:
    lines = heard(post(ASK), ask_for_usage=True)
    assert lines[-1] == ASK[:-1] + b',"stream_options":{"include_usage":true}}'
    assert b"Content-Length: %d" % len(lines[-1]) in lines


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":false}',
        b'{"stream":true,"stream_options":{"include_usage":false}}',
        b'{"stream":true',
        b"",
        b"[]",
        b'{"stream":true,"x":"' + b"y" * (2 << 20) + b'"}',
    ],
)
def test_usage_is_not_asked_for_where_that_would_change_anything_else(body: bytes) -> None:
    assert heard(post(body), ask_for_usage=True)[-1] == body


def test_a_path_before_the_servers_own_is_put_before_every_path() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        line = head.partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(line), line))
        writer.close()

    async def through() -> None:
        async with rig(handle, prefix=b"/base") as one:
            assert (await one.ask(get("/v1/models?x=1"))).endswith(b"GET /base/v1/models?x=1 HTTP/1.1")

    run(through())
