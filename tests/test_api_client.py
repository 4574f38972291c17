"""The client of the JSON API against a gpumon, and against servers of every other manner: one clear line each."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from gpumon.api_client import PASSWORD, TOKEN, USER, Api, ApiError, QuestionError, error_detail
from gpumon.commands.loading import API_VARIABLES
from tests.host.test_http_client import Peer

LIMIT = 100_000


class Answer(BaseModel):
    """What is asked for here."""

    model_config = ConfigDict(allow_inf_nan=False)
    value: float


def reply(status: int = 200, body: bytes = b'{"value": 1.5}', *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d Whatever" % status, b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *headers, b"", body])


def detail(status: int, said: object) -> bytes:
    return reply(status, json.dumps({"detail": said}).encode())


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.stop()


def address(peer: Peer) -> str:
    return peer.url.removesuffix("/metrics")


def api(peer: Peer, ca: Path | None = None, *, timeout_s: float = 5.0, environ: Mapping[str, str] | None = None) -> Api:
    return Api(address(peer), environ or {}, ca, timeout_s=timeout_s, limit_bytes=LIMIT)


def ask(
    peer: Peer,
    *answers: bytes | Callable[[socket.socket], None],
    timeout_s: float = 5.0,
    environ: Mapping[str, str] | None = None,
) -> float:
    peer.answers += answers
    return (
        api(peer, timeout_s=timeout_s, environ=environ).get("explain", Answer, {"trace_id": "ab", "x": "a b&c"}).value
    )


def failure(peer: Peer, *answers: bytes | Callable[[socket.socket], None], timeout_s: float = 5.0) -> str:
    with pytest.raises(ApiError) as caught:
        ask(peer, *answers, timeout_s=timeout_s)
    assert not isinstance(caught.value, QuestionError)
    return one_line(caught.value)


def one_line(error: ApiError) -> str:
    text = str(error)
    assert text.isprintable()
    assert len(text) < 700
    return text


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_read_and_the_question_asked_as_it_was_put(peer: Peer) -> None:
    assert ask(peer, reply()) == 1.5
    request = peer.requests[0].decode().split("\r\n")
    assert request[0] == "GET /api/v1/explain?trace_id=ab&x=a+b%26c HTTP/1.1"
    assert f"Host: {address(peer).removeprefix('http://')}" in request
    assert not [line for line in request if line.lower().startswith("authorization")]


def test_an_address_may_have_a_path_before_the_api(peer: Peer) -> None:
    peer.answers.append(reply())
    Api(address(peer) + "/nodes/gpu-1/", {}).get("diagnose", Answer)
    assert peer.requests[0].startswith(b"GET /nodes/gpu-1/api/v1/diagnose HTTP/1.1")


def test_an_answer_in_chunks_is_read(peer: Peer) -> None:
    chunks = b'9\r\n{"value":\r\n5\r\n 1.5}\r\n0\r\n\r\n'
    assert ask(peer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks) == 1.5


def test_nobody_there_says_where_it_was_looked_for(peer: Peer) -> None:
    url = address(peer)
    peer.stop()
    with pytest.raises(ApiError) as caught:
        Api(url, {}).get("explain", Answer)
    assert one_line(caught.value) == f"no gpumon answers at {url}: Connection refused; --url says where it listens"


def test_a_host_that_there_is_not_is_said() -> None:
    with pytest.raises(ApiError, match=r"no gpumon answers at http://no\.such\.host\.invalid:9450: "):
        Api("http://no.such.host.invalid:9450", {}).get("explain", Answer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(body=b"gpumon_build_info 1\n"), "answers what this gpumon does not understand: another version, or"),
        (reply(body=b"\xff\xfe\x00"), "does not understand"),
        (reply(body=b""), "does not understand"),
        (reply(body=b"[" * 50_000), "does not understand"),
        (reply(body=b'{"value": NaN}'), "does not understand, in value"),
        (reply(body=b'{"value": 1e999}'), "does not understand, in value"),
        (reply(body=b'{"value": "much"}'), "does not understand, in value"),
        (reply(body=b'{"other": 1}'), "does not understand, in value"),
        (reply(500, b"boom"), "answers HTTP 500"),
        (detail(503, "starting"), "answers HTTP 503: starting"),
        (reply(204, b""), "answers HTTP 204"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP, or hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", "does not speak HTTP, or hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "does not"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not speak HTTP"),
        (reply(body=b'"' + b"x" * LIMIT + b'"'), f"answers more than {LIMIT} bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n", "does not speak HTTP"),
    ],
)
def test_what_is_no_answer_is_one_line(peer: Peer, answer: bytes, said: str) -> None:
    def send_and_leave(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)

    text = failure(peer, send_and_leave if answer else b"")
    assert text.startswith(f"{address(peer)} ")
    assert said in text


def test_an_answer_without_end_is_given_up_by_its_size(peer: Peer) -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.stopping.is_set():
            connection.sendall(b" " * 65_536)

    assert f"answers more than {LIMIT} bytes" in failure(peer, pour)


def test_an_answer_that_drips_is_given_up_by_its_time(peer: Peer) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.stopping.wait(0.02):
            connection.sendall(b" ")

    assert failure(peer, drip, timeout_s=0.3) == f"{address(peer)}: no answer within 0.3 s"


def test_silence_is_given_up_by_its_time(peer: Peer) -> None:
    assert failure(peer, timeout_s=0.2) == f"{address(peer)}: no answer within 0.2 s"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(peer: Peer, status: int) -> None:
    text = failure(peer, reply(status, b"", b"Location: http://127.0.0.1:1/"))
    assert f"sends elsewhere (HTTP {status}), which is not followed" in text
    assert len(peer.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_where_credentials_are_wanted_it_says_how_to_give_them(peer: Peer, status: int) -> None:
    text = failure(peer, reply(status, b"", b"WWW-Authenticate: Basic"))
    assert f"wants to know who asks (HTTP {status}): {USER} and {PASSWORD}, or {TOKEN}" in text


def test_credentials_that_are_refused_are_not_repeated(peer: Peer) -> None:
    with pytest.raises(ApiError) as caught:
        ask(peer, reply(401), environ={TOKEN: "s3cret"})
    assert one_line(caught.value) == f"{address(peer)} does not accept these credentials (HTTP 401)"


def test_what_is_not_found_is_said_in_gpumons_words(peer: Peer) -> None:
    assert failure(peer, detail(404, "nothing is known\nof this \x1b[31mtrace")) == (
        f"{address(peer)}: nothing is known of this  [31mtrace"
    )


@pytest.mark.parametrize("body", [b"not found\n", b'{"detail":"Not Found"}'])
def test_a_page_that_there_is_not_may_be_switched_off(peer: Peer, body: bytes) -> None:
    assert "an older gpumon, one with http.ui off, or another" in failure(peer, reply(404, body))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no attribute 'colour'", "no attribute 'colour'"),
        ([{"loc": ["query", "x"], "msg": "too long"}, {"loc": [], "msg": "wrong"}], "x: too long; : wrong"),
    ],
)
def test_a_question_that_gpumon_refuses_is_the_askers_mistake(peer: Peer, said: object, told: str) -> None:
    with pytest.raises(QuestionError) as caught:
        ask(peer, detail(422, said))
    assert one_line(caught.value) == told


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | json_values.map(lambda value: json.dumps({"detail": value}).encode()))
@settings(max_examples=200)
def test_any_body_of_an_error_is_a_printable_line(body: bytes) -> None:
    said = error_detail(body)
    assert said == "" or said.isprintable()
    assert len(said) <= 400


# --- credentials, addresses, TLS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "header"),
    [
        ({TOKEN: "abc.def-123"}, "Bearer abc.def-123"),
        ({USER: "me", PASSWORD: "pä:ss"}, "Basic " + base64.b64encode("me:pä:ss".encode()).decode()),
        ({USER: "me"}, "Basic " + base64.b64encode(b"me:").decode()),
    ],
)
def test_credentials_of_the_environment_are_sent(peer: Peer, environ: dict[str, str], header: str) -> None:
    ask(peer, reply(), environ=environ)
    assert f"Authorization: {header}" in peer.requests[0].decode().split("\r\n")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({TOKEN: "a", USER: "b"}, f"expected either {TOKEN}, or {USER} and {PASSWORD}"),
        ({TOKEN: "a\r\nX: y"}, f"{TOKEN}: expected printable ASCII"),
        ({TOKEN: "ä"}, f"{TOKEN}: expected printable ASCII"),
        ({PASSWORD: "b"}, f"{USER}: expected a name"),
        ({USER: "a:b", PASSWORD: "c"}, f"{USER}: expected a name without a colon"),
    ],
)
def test_credentials_that_cannot_be_sent_are_the_askers_mistake(environ: dict[str, str], said: str) -> None:
    with pytest.raises(QuestionError) as caught:
        Api("http://127.0.0.1:1", environ)
    assert said in one_line(caught.value)


def test_the_variables_of_credentials_are_no_part_of_the_configuration() -> None:
    assert {USER, PASSWORD, TOKEN} == API_VARIABLES


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:9450", "expected such as http://127.0.0.1:9450"),
        ("localhost:9450", "expected such as"),
        ("", "expected such as"),
        ("ftp://host", "expected such as"),
        ("http://", "expected such as"),
        ("http://host:99999", "Port out of range"),
        ("http://host:port", "Port could not be cast"),
        ("http://[::1", "Invalid IPv6"),
        ("http://me:secret@host", f"expected them in {USER} and {PASSWORD}"),
        ("http://host/?a=b", "expected an address alone"),
        ("http://host/#a", "expected an address alone"),
        ("http://host/a b", "expected an address alone"),
        ("http://host/\x1b[31m", "expected an address alone"),
        ("http://host/ä", "expected an address alone"),
    ],
)
def test_an_address_that_cannot_be_one_is_the_askers_mistake(url: str, said: str) -> None:
    with pytest.raises(QuestionError) as caught:
        Api(url, {})
    text = one_line(caught.value)
    assert said in text
    assert "secret" not in text


@pytest.mark.parametrize("host", ["a..b", "x" * 70, ".", "\N{SOFT HYPHEN}"])
def test_a_name_that_no_host_can_have_is_one_line(host: str) -> None:
    with pytest.raises(ApiError) as caught:
        Api(f"http://{host}:9450", {}).get("explain", Answer)
    one_line(caught.value)


@given(st.text(max_size=40) | st.text(max_size=30).map("http://".__add__))
@settings(max_examples=200)
def test_any_text_is_an_address_or_one_line(url: str) -> None:
    try:
        Api(url, {})
    except QuestionError as error:
        one_line(error)


def test_tls_is_verified_by_the_authority_that_is_named(peer: Peer, tmp_path: Path) -> None:
    authority = trustme.CA()
    peer.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(peer.tls)
    peer.answers.append(reply())
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    assert api(peer, ca).get("explain", Answer).value == 1.5
    with pytest.raises(ApiError) as caught:
        api(peer).get("explain", Answer)
    assert "--ca names whom to trust" in one_line(caught.value)


def test_a_server_without_tls_is_told_from_one_with(peer: Peer) -> None:
    peer.answers += [b"HTTP/1.1 400 Bad Request\r\n\r\n"] * 2
    with pytest.raises(ApiError) as caught:
        Api(address(peer).replace("http", "https"), {}, timeout_s=1.0).get("explain", Answer)
    one_line(caught.value)


def test_an_authority_that_cannot_be_read_is_the_askers_mistake(peer: Peer, tmp_path: Path) -> None:
    peer.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "empty.pem").touch()
    for name, said in (("none.pem", "No such file or directory"), ("empty.pem", "no certificates in it")):
        with pytest.raises(QuestionError) as caught:
            api(peer, tmp_path / name).get("explain", Answer)
        assert said in one_line(caught.value)


def test_an_authority_without_tls_is_the_askers_mistake(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="expected an https:// address with it"):
        Api("http://127.0.0.1:1", {}, tmp_path / "ca.pem")
