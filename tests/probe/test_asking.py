"""One request over a real socket: times of a clock that is stepped, and servers of every other manner.

Server and probe share one event loop, and the server waits until a token has been seen: so which piece has which time
does not depend on how fast anything is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumon.probe.asking import SLACK, Answer, Asker, Wish
from gpumon.probe.endpoint import KEY, Interface, parse_endpoint
from tests.probe.server import STREAM, answer, chunk, event

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
TOKEN = {"choices": [{"text": "word", "finish_reason": None}]}
END = {"choices": [{"text": "", "finish_reason": "length"}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}},
}
DONE = b"data: [DONE]\n\n"


class Clock:
    """Steps only when it is told to."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns


async def _served(
    handler: Handler, wish: Wish, clock: Clock, key: str, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None
) -> Answer:
    ended: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.append(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            await handler(head + await reader.readexactly(int(length[1]) if length else 0), writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the probe went away
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls[0] if tls else None)
    port = server.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    endpoint = parse_endpoint(f"{scheme}://127.0.0.1:{port}", {KEY: key} if key else {})
    asker = Asker(endpoint, wish, tls[1] if tls else None, clock)
    made = asker.start(2)
    try:
        await asker.ask(made, "one two")
    finally:
        server.close()
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
    return made


def ask(
    handler: Handler | bytes,
    *,
    chat: bool = False,
    timeout_s: float = 20.0,
    clock: Clock | None = None,
    key: str = "",
    ignore_eos: bool = False,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
) -> Answer:
    """What became of a request to a server that handles it so, or answers these bytes and hangs up."""
    wish = Wish(Interface.CHAT if chat else Interface.COMPLETIONS, "m", 3, ignore_eos, timeout_s)

    async def says(request: bytes, writer: asyncio.StreamWriter) -> None:
        assert isinstance(handler, bytes)
        writer.write(handler)

    return asyncio.run(_served(says if isinstance(handler, bytes) else handler, wish, clock or Clock(), key, tls))


def stream(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return STREAM + b"".join(parts) + end


WHOLE = stream(event(TOKEN), event(TOKEN), event(TOKEN), event(END), event(USAGE), chunk(DONE))


# --- times ------------------------------------------------------------------------------------------------------------


def test_times_are_those_at_which_pieces_came_to_the_nanosecond() -> None:
    clock = Clock()
    steps = (70_000_001, 20_000_003, 31_000_007)

    async def stepped(request: bytes, writer: asyncio.StreamWriter) -> None:
        for number, step in enumerate(steps):
            clock.ns += step
            writer.write((STREAM if number == 0 else b"") + event(TOKEN))
            await settled()
        clock.ns += 5_000_000_000  # the end and the usage are no token
        writer.write(event(END) + event(USAGE) + chunk(DONE) + b"0\r\n\r\n")

    told = ask(stepped, clock=clock)
    assert told.outcome == "ok"
    assert told.token_ns.tolist() == [70_000_001, 90_000_004, 121_000_011]
    assert told.end_ns == 121_000_011


def test_a_token_counts_when_its_event_is_complete() -> None:
    clock = Clock()
    whole = b"data: " + json.dumps(TOKEN).encode() + b"\n\n"

    async def halves(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(whole[:9]))
        await settled()
        clock.ns += 1000
        writer.write(chunk(whole[9:]) + chunk(DONE) + b"0\r\n\r\n")

    assert ask(halves, clock=clock).token_ns.tolist() == [1000]


async def settled() -> None:
    """Until the other side has read what was written: both are turns of this loop."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_what_is_no_output_has_no_time() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    word = {"choices": [{"delta": {"content": "word"}}]}
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    told = ask(stream(event(role), chunk(b": ping\n\n"), event(thought), event(word), chunk(DONE)), chat=True)
    assert (told.outcome, len(told.token_ns)) == ("ok", 2)


# --- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [False, True])
def test_the_request_is_greedy_streamed_asks_for_usage_and_tells_its_trace(chat: bool) -> None:
    seen: list[bytes] = []

    async def keep(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(WHOLE)

    told = ask(keep, chat=chat, key="sk-1", ignore_eos=chat)
    head, _, body = seen[0].partition(b"\r\n\r\n")
    said = json.loads(body)
    text = said.pop("messages" if chat else "prompt")
    assert text == ([{"role": "user", "content": "one two"}] if chat else "one two")
    expected = {"model": "m", "max_tokens": 3, "temperature": 0, "stream": True}
    expected |= {"stream_options": {"include_usage": True}} | ({"ignore_eos": True} if chat else {})
    assert said == expected
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1" if chat else b"POST /v1/completions HTTP/1.1")
    assert b"\r\nAuthorization: Bearer sk-1" in head
    parent = re.search(rb"\r\ntraceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-01(\r\n|$)", head)
    assert parent is not None
    assert parent[1].decode() == told.trace_id


def test_usage_is_the_servers() -> None:
    told = ask(WHOLE)
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens, told.tokens) == (7, 3, 5, 3)
    silent = ask(stream(event(TOKEN), event(END), chunk(DONE)))
    assert (silent.outcome, silent.prompt_tokens, silent.tokens) == ("ok", None, 1)


# --- servers of every other manner ------------------------------------------------------------------------------------


def test_a_body_of_a_length_or_until_the_end_is_read_too() -> None:
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (TOKEN, END, USAGE)) + DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    assert ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body).outcome == "ok"
    assert ask(head + b"\r\n" + body).outcome == "ok"
    assert ask(b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE).outcome == "ok"


def test_an_end_that_is_told_needs_no_done() -> None:
    assert ask(stream(event(TOKEN))).outcome == "ok"
    assert ask(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event(TOKEN)[3:]).outcome != "ok"


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/ev", "closed"),
        (stream(event(TOKEN), end=b""), "closed"),
        (stream(event(TOKEN), event(TOKEN), end=b"5\r\nab"), "closed"),
        (stream(event(END), chunk(DONE)), "empty"),
        (stream(), "empty"),
        (stream(event(TOKEN), chunk(b"data: {nonsense\n\n")), "malformed"),
        (stream(event(TOKEN), chunk(b"data: [1, 2]\n\n")), "malformed"),
        (stream(event(TOKEN), end=b"zz\r\n"), "malformed"),
        (stream(event({"choices": "none"})), "malformed"),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * (70 << 10), "malformed"),
        (answer(200, b'{"choices": [{"text": "whole"}]}'), "malformed"),
        (answer(302, b"", b"Location: http://127.0.0.1:1/v1/completions"), "redirect"),
        (answer(307, b"", b"Location: https://elsewhere/"), "redirect"),
        (answer(401, b'{"error": {"message": "no key"}}'), "http_401"),
        (answer(404, b""), "http_404"),
        (answer(429, b'{"error": "slow down"}'), "http_429"),
        (answer(503, b"<html>" + b"x" * 100_000), "http_503"),
        (stream(event(TOKEN), event({"error": {"message": "out of memory"}})), "stream_error"),
    ],
)
def test_what_goes_wrong_has_its_reason(said: bytes, outcome: str) -> None:
    told = ask(said)
    assert told.outcome == outcome
    assert told.sent
    assert told.said.isprintable()
    assert len(told.said) <= 300


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "This model's maximum context length is 4096 tokens. However, you asked …"}}),
        (400, {"object": "error", "message": "The input (9000 tokens) is longer than the model's context length"}),
        (400, {"error": {"code": "context_length_exceeded", "message": "too much"}}),
        (400, {"error": {"type": "exceed_context_size_error", "message": "the request exceeds it"}}),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"}),
        (500, {"error": {"message": "the request exceeds the available context size"}}),
        (413, {}),
        (400, {"detail": "prompt is too long"}),
    ],
)
def test_a_context_that_is_too_long_is_known_by_what_servers_say(status: int, body: object) -> None:
    assert ask(answer(status, json.dumps(body).encode())).outcome == "context_too_long"


def test_a_context_that_is_too_long_may_be_told_in_the_stream() -> None:
    assert ask(stream(event({"error": {"message": "exceeds the context window"}}))).outcome == "context_too_long"


@pytest.mark.parametrize(
    "body", [b'{"error": {"message": "no such model"}}', b'{"detail": [{"msg": "bad"}]}', b"[", b"[" * 9999]
)
def test_another_bad_request_is_an_error(body: bytes) -> None:
    assert ask(answer(400, body)).outcome == "http_400"


def test_a_server_that_sends_the_key_back_does_not_get_it_printed() -> None:
    told = ask(answer(401, b'{"error": {"message": "Incorrect key: sk-secret\\u001b[2J"}}'), key="sk-secret")
    assert "secret" not in told.said
    assert told.said.startswith("Incorrect key: ***")
    assert told.said.isprintable()


@pytest.mark.parametrize("said", ["key sk-secret-1 is bad", "key SK-SECRET-1", "sk-secre", "x" * 190 + "sk-secret-1"])
@pytest.mark.parametrize("is_plain", [False, True])
def test_not_even_a_part_of_the_key_is_kept(said: str, is_plain: bool) -> None:
    body = said.encode() if is_plain else json.dumps({"error": {"type": said}}).encode()
    told = ask(answer(401, body), key="sk-secret-1")
    assert "secre" not in told.said.lower()
    assert "***" in told.said


# --- more than was asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_without_an_end_is_cut_soon_after_what_was_asked_for(chat: bool) -> None:
    token = {"choices": [{"delta": {"content": "word"}}]} if chat else TOKEN
    wrote = 0

    async def endless(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal wrote
        writer.write(STREAM)
        while not writer.is_closing():
            writer.write(event(token))
            wrote += 1
            await writer.drain()
            await asyncio.sleep(0)

    told = ask(endless, chat=chat)
    assert (told.outcome, len(told.token_ns)) == ("over_max_tokens", 3 + SLACK + 1)
    assert told.said == "20 tokens came where 3 were asked for: cut off there"
    assert wrote < 10_000


def test_slack_is_no_fault() -> None:
    told = ask(stream(*[event(TOKEN)] * (3 + SLACK), event(END), chunk(DONE)))
    assert (told.outcome, told.most_tokens) == ("ok", 3 + SLACK)


@pytest.mark.parametrize(
    "parts",
    [
        [event(TOKEN), event({"choices": [], "usage": {"completion_tokens": 500}}), event(TOKEN)],
        [event({"choices": [{"text": "word " * 4000}]}), event(TOKEN)],
    ],
)
def test_more_than_was_asked_for_in_few_events_is_found_too(parts: list[bytes]) -> None:
    told = ask(stream(*parts, event(END), chunk(DONE)))
    assert (told.outcome, len(told.token_ns)) == ("over_max_tokens", 1)
    assert told.most_tokens >= 500


# --- what a server counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "7.5", "1e300", "9" * 31, "9" * 5001, "true", '"7"', "null", "[]", "{}", "NaN", "Infinity"],
    ids=lambda text: text[:32],
)
def test_a_count_that_is_none_is_not_told(text: str) -> None:
    usage = b'{"usage": {"prompt_tokens": %b, "completion_tokens": %b}}' % (text.encode(), text.encode())
    told = ask(stream(event(TOKEN), chunk(b"data: " + usage + b"\n\n"), event(END), chunk(DONE)))
    assert (told.prompt_tokens, told.completion_tokens, told.tokens) == (None, None, 1)


def test_whole_counts_are_told_and_no_more_is_cached_than_there_was() -> None:
    def usage(prompt: int, cached: int) -> bytes:
        details = {"cached_tokens": cached}
        return event({"usage": {"prompt_tokens": prompt, "completion_tokens": 2.0, "prompt_tokens_details": details}})

    told = ask(stream(event(TOKEN), usage(7, 0), chunk(DONE)))
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (7, 2, 0)
    assert ask(stream(event(TOKEN), usage(7, 8), chunk(DONE))).cached_tokens is None
    assert ask(stream(event(TOKEN), usage(10**6, 8), chunk(DONE))).prompt_tokens is None  # of two words


def test_silence_ends_with_the_time() -> None:
    async def silent(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + event(TOKEN))
        await asyncio.Event().wait()

    told = ask(silent, timeout_s=0.2)
    assert (told.outcome, len(told.token_ns)) == ("timeout", 1)


def test_nobody_there_is_told() -> None:
    async def refused() -> Answer:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        wish = Wish(Interface.COMPLETIONS, "m", 3, ignore_eos=False, timeout_s=5.0)
        asker = Asker(parse_endpoint(f"http://127.0.0.1:{port}", {}), wish, None, Clock())
        made = asker.start(2)
        await asker.ask(made, "one two")
        return made

    told = asyncio.run(refused())
    assert (told.outcome, told.sent) == ("connect", False)


def test_an_event_larger_than_any_is_refused() -> None:
    assert ask(stream(chunk(b"data: " + b"x" * (600 << 10) + b"\n\n"))).outcome == "malformed"


def test_tls_is_verified() -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    assert ask(WHOLE, tls=(server, client)).outcome == "tls"
    authority.configure_trust(client)
    told = ask(WHOLE, tls=(server, client))
    assert (told.outcome, len(told.token_ns)) == ("ok", 3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400), st.integers(0, len(WHOLE)))
def test_any_bytes_end_with_a_reason(noise: bytes, at: int) -> None:
    told = ask(WHOLE[:at] + noise, timeout_s=10.0)
    assert told.outcome
    assert told.said.isprintable()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=6))
def test_however_it_is_cut_the_same_is_read(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]

    async def pieces(request: bytes, writer: asyncio.StreamWriter) -> None:
        for begin, end in itertools.pairwise(places):
            writer.write(WHOLE[begin:end])
            await writer.drain()
            await asyncio.sleep(0)

    told = ask(pieces)
    assert (told.outcome, len(told.token_ns), told.prompt_tokens) == ("ok", 3, 7)
