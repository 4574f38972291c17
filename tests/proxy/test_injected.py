"""Which requests get which delays, and that they come when they should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gpumon.proxy.counters import Counters
from gpumon.proxy.delayed import Delayed
from gpumon.proxy.http_head import parse_request
from gpumon.proxy.inject_rules import Where, parse_rule
from gpumon.proxy.injected import Injection
from tests.proxy.rig import (
    DONE,
    LAST,
    SSE_HEAD,
    answers,
    attributes_of,
    chunked,
    event,
    get,
    post,
    rig,
    run,
    without_framing,
)

MS = 1_000_000
EARLY_NS = 2 * MS
"""Timers round. How much later a busy machine is, is nobody's mistake: that no delay was doubled, the trace says."""
BLUE = parse_request(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Tenant-Id: blue")
ASK = b'{"model":"llama","stream":true}'
STREAM = [SSE_HEAD, chunked(event("")), *[chunked(event(text)) for text in "abc"], chunked(DONE) + LAST]


def injection(*rules: str, seed: int = 7) -> Injection:
    return Injection([parse_rule(rule) for rule in rules], seed, 0, Counters())


def test_without_rules_there_are_no_delays() -> None:
    assert injection().of(BLUE) is None


def test_a_rule_with_a_header_applies_to_requests_that_have_it() -> None:
    one = injection("token:1ms,header=x-tenant-id:blue")
    assert one.of(BLUE) is not None
    assert one.of(parse_request(b"GET / HTTP/1.1\r\nHost: x\r\nX-Tenant-Id: blueish")) is None
    assert one.of(parse_request(b"GET / HTTP/1.1\r\nHost: x")) is None


def test_delays_of_several_rules_add_up_where_they_belong() -> None:
    delays = injection("token:1ms", "token:2ms", "first:10ms", "request:100ms").of(BLUE)
    assert delays is not None
    assert [delays.draw_ns(where, 0) for where in (Where.REQUEST, Where.FIRST, Where.TOKEN)] == [
        100 * MS,
        10 * MS,
        3 * MS,
    ]
    assert delays.total_ns == 113 * MS
    assert delays.header == (b"x-gpumon-injected", b"token:1ms token:2ms first:10ms request:100ms")


def test_the_same_seed_gives_the_same_delays_to_the_same_requests() -> None:
    def drawn(seed: int, tokens: int) -> list[int]:
        one = injection("token:0us..100ms,p=0.5", seed=seed)
        requests = [one.of(BLUE) for _ in range(3)]
        # In another order and number: what runs beside a request does not matter.
        for other in requests[1:]:
            assert other is not None
            for _ in range(tokens):
                other.draw_ns(Where.TOKEN, 0)
        assert requests[0] is not None
        return [requests[0].draw_ns(Where.TOKEN, 0) for _ in range(20)]

    assert drawn(7, 1) == drawn(7, 50)
    assert drawn(7, 1) != drawn(8, 1)
    assert 0 in drawn(7, 1)
    assert any(drawn(7, 1))


def test_a_probability_is_kept_to() -> None:
    one = injection("token:1ms,p=0.25")
    delays = one.of(BLUE)
    assert delays is not None
    assert sum(bool(delays.draw_ns(Where.TOKEN, 0)) for _ in range(4000)) == pytest.approx(1000, abs=100)


def test_bursts_are_by_the_time_since_the_start() -> None:
    delays = injection("token:1ms,every=10s,for=1s").of(BLUE)
    assert delays is not None
    assert [delays.draw_ns(Where.TOKEN, at_s * 10**9) for at_s in (0, 5, 10, 11)] == [MS, 0, MS, 0]


class Stepped:
    """Clock and timers of an event loop, run by hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        self.timers.append((self.now_ns + round(delay_s * 1e9), call))
        return object()

    def run_until(self, end_ns: int) -> None:
        while self.timers and self.timers[0][0] <= end_ns:
            self.now_ns, call = self.timers.pop(0)
            call()
        self.now_ns = end_ns


def test_parts_keep_their_distances_and_add_their_own_delays() -> None:
    """What comes each 30 ms, with 20 ms each, leaves each 50 ms; what has no delay keeps its distance."""
    loop = Stepped()
    delayed = Delayed(loop, lambda: loop.now_ns)  # type: ignore[arg-type]
    left: list[tuple[int, int]] = []
    for number, delay_ms in enumerate([20, 20, 20, 0]):
        loop.run_until(number * 30 * MS)
        delayed.add(10, loop.now_ns, delay_ms * MS, lambda at_ns, number=number: left.append((number, at_ns // MS)))  # type: ignore[misc]
    assert delayed.held_bytes == 20  # the last two
    loop.run_until(10**9)
    assert left == [(0, 20), (1, 70), (2, 120), (3, 150)]
    assert delayed.held_bytes == 0


def test_what_is_cancelled_never_leaves() -> None:
    async def through() -> None:
        left: list[int] = []
        delayed = Delayed(asyncio.get_running_loop(), lambda: 0)
        delayed.add(10, 0, 1000, left.append)
        delayed.cancel()
        await asyncio.sleep(0.01)
        assert (left, delayed.held_bytes) == ([], 0)

    run(through())


def test_each_token_comes_later_by_its_delay_and_the_trace_says_so() -> None:
    async def through() -> None:
        async with rig(answers(*STREAM), inject=["token:100ms", "first:200ms"]) as one:
            answer = await one.ask(post(ASK))
            head, body = without_framing(answer)
            assert body == event("") + b"".join(event(text) for text in "abc") + DONE
            assert b"\r\nx-gpumon-injected: token:100ms first:200ms" in head
            told = one.told()
            times = told["gen_ai.token.times_ns"]
            for at, expected in zip(times, (300 * MS, 400 * MS, 500 * MS), strict=True):
                assert at >= expected - EARLY_NS
            assert told["gpumon.proxy.injected_ns"] == 500 * MS
            assert one.counted("gpumon_proxy_injected_seconds_total", "token") == pytest.approx(0.3)
            assert one.counted("gpumon_proxy_injected_delays_total", "first") == 1
            assert one.counted("gpumon_proxy_injection_rules") == 2

    run(through())


def test_a_request_is_sent_later() -> None:
    async def through() -> None:
        async with rig(answers(*STREAM), inject=["request:200ms"]) as one:
            await one.ask(post(ASK))
            (span,) = one.spans()
            told = attributes_of(span)
            assert told["gen_ai.token.times_ns"][0] >= 200 * MS - EARLY_NS
            assert told["gpumon.proxy.injected_ns"] == 200 * MS

    run(through())


def test_an_answer_that_is_no_stream_is_delayed_once() -> None:
    body = b'{"id":"x","usage":{"completion_tokens":3}}'
    parts = [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 42\r\n\r\n", body[:20], body[20:]]

    async def through() -> None:
        async with rig(answers(*parts), inject=["token:50ms", "first:100ms"]) as one:
            assert without_framing(await one.ask(post(ASK)))[1] == body
            (span,) = one.spans()
            assert span.end_time_unix_nano - span.start_time_unix_nano >= 150 * MS - EARLY_NS
            told = attributes_of(span)
            assert told["gpumon.proxy.injected_ns"] == 150 * MS
            assert told["gen_ai.usage.output_tokens"] == 3

    run(through())


def test_requests_that_no_rule_applies_to_do_not_show_any() -> None:
    async def through() -> None:
        async with rig(answers(*STREAM), inject=["token:50ms,header=x-slow:1"]) as one:
            assert b"x-gpumon-injected" not in await one.ask(get("/v1/models"))
            assert b"x-gpumon-injected" in await one.ask(get("/v1/models", b"X-Slow: 1"))

    run(through())
