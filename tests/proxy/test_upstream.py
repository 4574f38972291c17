"""Which connections to the server are used again, and when."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gpumon.proxy.upstream import REST_NS, Pool, UpstreamConnection
from tests.proxy.rig import DONE, LAST, SSE_HEAD, chunked, event, post, read_request, rig, run

KEEP_NS = 4 * REST_NS
ASK = b'{"stream":true}'


class Connection:
    """What a pool sees of one."""

    def __init__(self, *, rests: bool = False) -> None:
        self.rests = rests
        self.usable = True
        self.idle_since_ns = 0
        self.aborted = False

    def abort(self) -> None:
        self.aborted, self.usable = True, False


def given(pool: Pool, at_ns: int, *, rests: bool = False) -> Connection:
    connection = Connection(rests=rests)
    pool.give(cast(UpstreamConnection, connection), at_ns)
    return connection


def taken(pool: Pool, at_ns: int) -> Connection | None:
    return cast(Connection | None, pool.take(at_ns))


def test_a_connection_is_used_again_at_once_but_behind_an_answer_in_chunks() -> None:
    pool = Pool(8, KEEP_NS)
    ready, resting = given(pool, 0), given(pool, 0, rests=True)
    assert taken(pool, 0) is ready
    assert taken(pool, REST_NS - 1) is None
    assert taken(pool, REST_NS) is resting
    assert len(pool) == 0


def test_one_that_the_server_closed_while_it_rested_is_not_used() -> None:
    pool = Pool(8, KEEP_NS)
    closed, kept = given(pool, 0, rests=True), given(pool, 0, rests=True)
    closed.usable = False
    assert taken(pool, REST_NS) is kept
    assert taken(pool, REST_NS) is None
    assert closed.aborted


def test_those_that_rest_are_bounded_swept_and_closed_as_others_are() -> None:
    pool = Pool(2, KEEP_NS)
    first, second, third = (given(pool, at_ns, rests=True) for at_ns in range(3))
    assert (first.aborted, second.aborted, third.aborted) == (True, False, False)
    other = given(pool, 3)
    assert (second.aborted, third.aborted, other.aborted) == (True, False, False)  # the oldest one goes
    pool.sweep(KEEP_NS + 2)
    assert (third.aborted, other.aborted) == (True, False)
    last = given(pool, KEEP_NS + 2, rests=True)
    pool.close()
    assert last.aborted
    assert len(pool) == 0


@pytest.mark.parametrize("keep_alive", [b"", b"Keep-Alive: timeout=5, max=100\r\n"])
def test_no_request_is_lost_where_the_server_closes_behind_each_stream_without_a_word(keep_alive: bytes) -> None:
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\n" + keep_alive + b"\r\n")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head + chunked(event("a"), DONE) + LAST)
        try:
            await asyncio.wait_for(reader.read(1), 0.1)  # time enough for another request, which it does not answer
        except TimeoutError:
            pass
        writer.close()

    async def through() -> None:
        async with rig(handle) as one:
            for _ in range(10):
                assert (await one.ask(post(ASK))).startswith(b"HTTP/1.1 200 OK")
            assert one.counted("gpumon_proxy_upstream_errors_total", "closed") == 0

    run(through())
