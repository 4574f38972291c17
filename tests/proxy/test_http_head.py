"""Heads: what means one thing is taken, and written again so that it still does."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.http_head import (
    ERROR_HEADER,
    INJECTED_HEADER,
    Framing,
    HeadError,
    ResponseHead,
    answer_headers,
    check_request_beginning,
    check_response_beginning,
    end_to_end,
    parse_request,
    parse_response,
    trailers_to_pass,
    wants_trailers,
    wants_websocket,
    write_head,
    write_last_chunk,
)

NAME = st.from_regex(rb"\A[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}\Z")
VALUE = st.from_regex(rb"\A([\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]{0,20}[\x21-\x7e\x80-\xff])?)?\Z")


def request(*headers: bytes, line: bytes = b"POST /v1/x HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers])


def response(*headers: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *headers])


@given(st.lists(st.tuples(NAME, VALUE), max_size=20))
def test_what_is_read_is_what_was_written(headers: list[tuple[bytes, bytes]]) -> None:
    framing = {b"content-length", b"transfer-encoding", b"host"}
    told = [header for header in headers if header[0].lower() not in framing]
    head = write_head(b"GET /a HTTP/1.0", told)
    assert head.endswith(b"\r\n\r\n")
    assert parse_request(head[:-4]).headers == tuple(told)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail_otherwise_than_it_says(data: bytes) -> None:
    for parse in (lambda: parse_request(data), lambda: parse_response(data, b"GET")):
        with contextlib.suppress(HeadError):
            parse()


@given(
    st.lists(st.sampled_from([b"Content-Length: 3", b"content-length: 4", b"Transfer-Encoding: chunked"]), max_size=3)
)
def test_a_length_said_in_two_ways_is_never_taken(headers: list[bytes]) -> None:
    if len(headers) > 1:
        with pytest.raises(HeadError):
            parse_request(request(*headers))
    else:
        parse_request(request(*headers))


@given(NAME, st.text("\r\n\0\x0b\x7f\x1f", min_size=1, max_size=3), VALUE)
def test_no_value_can_become_two_headers(name: bytes, control: str, value: bytes) -> None:
    with pytest.raises(HeadError):
        parse_request(request(name + b": a" + control.encode() + value + b"b"))


@pytest.mark.parametrize(
    ("headers", "framing", "length"),
    [
        ((), Framing.NONE, 0),
        ((b"Content-Length: 0",), Framing.NONE, 0),
        ((b"Content-Length: 7",), Framing.LENGTH, 7),
        ((b"transfer-encoding: CHUNKED",), Framing.CHUNKED, 0),
    ],
)
def test_a_requests_body_is_framed_as_it_says(headers: tuple[bytes, ...], framing: Framing, length: int) -> None:
    head = parse_request(request(*headers))
    assert (head.framing, head.length) == (framing, length)


@pytest.mark.parametrize(
    ("method", "line", "headers", "framing"),
    [
        (b"GET", b"HTTP/1.1 200 OK", (), Framing.EOF),
        (b"GET", b"HTTP/1.1 200", (), Framing.EOF),
        (b"GET", b"HTTP/1.1 200 ", (b"Content-Length: 0",), Framing.NONE),
        (b"HEAD", b"HTTP/1.1 200 OK", (b"Content-Length: 5",), Framing.NONE),
        (b"GET", b"HTTP/1.1 204 No Content", (b"Content-Length: 5",), Framing.NONE),
        (b"GET", b"HTTP/1.1 304 Not Modified", (b"Transfer-Encoding: chunked",), Framing.NONE),
        (b"GET", b"HTTP/1.1 100 Continue", (), Framing.NONE),
        (b"GET", b"HTTP/1.0 200 OK", (b"Content-Length: 5",), Framing.LENGTH),
    ],
)
def test_a_responses_body_is_framed_as_the_standard_says(
    method: bytes, line: bytes, headers: tuple[bytes, ...], framing: Framing
) -> None:
    assert parse_response(response(*headers, line=line), method).framing is framing


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (parse_response(response(b"Content-Length: 1"), b"GET"), True),
        (parse_response(response(b"Content-Length: 1", b"Connection: x, Close"), b"GET"), False),
        (parse_response(response(), b"GET"), False),
        (parse_response(response(b"Content-Length: 1", line=b"HTTP/1.0 200 OK"), b"GET"), False),
        (parse_response(response(line=b"HTTP/1.1 204 No Content"), b"GET"), True),
        (parse_response(response(b"Content-Length: 00", line=b"HTTP/1.1 204 No Content"), b"GET"), True),
        (parse_response(response(b"Content-Length: 5", line=b"HTTP/1.1 204 No Content"), b"GET"), False),
        (parse_response(response(b"Transfer-Encoding: chunked", line=b"HTTP/1.1 204 x"), b"GET"), False),
        (parse_response(response(b"Content-Length: 5", line=b"HTTP/1.1 304 Not Modified"), b"GET"), True),
        (parse_response(response(b"Content-Length: 5"), b"HEAD"), True),
    ],
)
def test_a_servers_connection_is_kept_where_both_agree(head: ResponseHead, keeps: bool) -> None:
    assert head.keeps is keeps


def test_a_clients_connection_is_kept_where_it_says_so() -> None:
    assert parse_request(request()).keeps
    assert not parse_request(request(b"connection: CLOSE")).keeps
    assert not parse_request(request(line=b"GET / HTTP/1.0")).keeps


def test_what_a_connection_header_names_is_left_out_but_never_what_the_body_hangs_on() -> None:
    head = parse_request(request(b"X: 1", b"Connection: X, Content-Length", b"Content-Length: 3", b"Keep-Alive: 5"))
    assert end_to_end(head.headers) == [(b"Host", b"x"), (b"Content-Length", b"3")]


def test_trailers_cannot_change_what_a_message_was() -> None:
    assert trailers_to_pass(((b"Content-Length", b"9"), (b"X-Sum", b"1"), (b"Set-Cookie", b"a=b"))) == [
        (b"X-Sum", b"1")
    ]
    assert write_last_chunk([(b"X-Sum", b"1")]) == b"0\r\nX-Sum: 1\r\n\r\n"
    assert write_last_chunk([]) == b"0\r\n\r\n"


def test_wishes_are_seen() -> None:
    assert wants_websocket(parse_request(request(b"Upgrade: h2c, WebSocket")))
    assert not wants_websocket(parse_request(request(b"Upgrade: h2c")))
    assert wants_trailers(parse_request(request(b"TE: gzip, Trailers")))
    assert not wants_trailers(parse_request(request()))


@pytest.mark.parametrize("host", [b"a b", b"caf\xc3\xa9", b"a\tb"])
def test_a_host_that_is_none_is_refused(host: bytes) -> None:
    with pytest.raises(HeadError, match="the Host header is malformed"):
        parse_request(b"GET / HTTP/1.1\r\nHost: " + host)


def test_a_host_is_missed_where_the_standard_wants_one() -> None:
    with pytest.raises(HeadError, match="there is no Host header"):
        parse_request(b"GET / HTTP/1.1\r\nX-Host: x")
    assert parse_request(b"GET / HTTP/1.0").headers == ()
    assert parse_request(b"GET / HTTP/1.1\r\nHost:").header(b"host") == b""


@given(st.lists(st.tuples(NAME, VALUE), max_size=8), st.integers(0, 1000))
def test_no_part_of_a_head_that_is_taken_is_refused_before_its_end(headers: list[tuple[bytes, bytes]], at: int) -> None:
    check_request_beginning(write_head(b"POST /v1/\xff HTTP/1.0", headers)[:at])
    check_response_beginning(write_head(b"HTTP/1.1 200 Fine,\tthanks", headers)[:at])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"GET / HTTP/1.1\r\nX: 1\n", 400),
        (b"hello\r\n", 400),
        (b"\x16\x03\x01\x02", 400),
        (b"GET / HTTP/3\r\n", 505),
    ],
)
def test_what_cannot_become_a_request_is_seen_before_its_end(data: bytes, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        check_request_beginning(data)
    assert caught.value.status == status


@pytest.mark.parametrize("data", [b"SSH-2.0-x", b"T", b"HTTP/2 ", b"HTTP/1.1 200 OK\n", b"HTTP/1.1 99\r\n", b"\r\n"])
def test_what_cannot_become_an_answer_is_seen_before_its_end(data: bytes) -> None:
    with pytest.raises(HeadError):
        check_response_beginning(data)


@pytest.mark.parametrize(
    ("line", "length_passes"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 304 Not Modified", True),
        (b"HTTP/1.1 204 No Content", False),
        (b"HTTP/1.1 103 Early Hints", False),
    ],
)
def test_an_answer_tells_no_length_where_there_is_no_body_and_nothing_in_the_proxys_name(
    line: bytes, length_passes: bool
) -> None:
    own = [ERROR_HEADER + b": a", INJECTED_HEADER.title() + b": b"]
    head = parse_response(response(*own, b"content-length: 5", b"x-gpumon-other: c", line=line), b"GET")
    length = [(b"content-length", b"5")] if length_passes else []
    assert answer_headers(head) == [*length, (b"x-gpumon-other", b"c")]
    assert trailers_to_pass(((ERROR_HEADER, b"a"), (INJECTED_HEADER.upper(), b"b"), (b"x", b"c"))) == [(b"x", b"c")]
