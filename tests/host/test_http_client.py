"""The HTTP client against servers of every manner, over real sockets: slow, huge, lying, gone."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumon.host.http import HttpError
from gpumon.host.http_client import KEPT, HttpClient
from gpumon.model import Reason

LIMIT = 100_000
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: 5\r\n\r\na 1\nb"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """Answers each request with the next of its answers; after the last one it says no more.

    An answer is bytes, or a function that is given the connection. ``b""`` closes the connection instead.
    """

    def __init__(self) -> None:
        self.answers: list[bytes | Callable[[socket.socket], None]] = []
        self.requests: list[bytes] = []
        self.connections: list[socket.socket] = []
        self.tls: ssl.SSLContext | None = None
        self.stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}/metrics"

    def stop(self) -> None:
        self.stopping.set()
        for connection in (self._listener, *self.connections):
            self.cut(connection)
        for thread in self._threads:
            thread.join(10)

    @staticmethod
    def cut(connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it ended before
        connection.close()

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
                self.connections.append(connection)
            while request := self._request(connection):
                self.requests.append(request)
                if not self.answers:
                    self.stopping.wait(30)
                    return
                answer = self.answers.pop(0)
                if answer == b"":
                    return
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                else:
                    answer(connection)
        except OSError:
            pass  # the client went away
        finally:
            self.cut(connection)

    @staticmethod
    def _request(connection: socket.socket) -> bytes:
        taken = b""
        while not taken.endswith(b"\r\n\r\n"):
            more = connection.recv(4096)
            if not more:
                return b""
            taken += more
        return taken


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.stop()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient()
    yield made
    made.close()


def failure(client: HttpClient, url: str, *, timeout_s: float = 5.0, limit: int = LIMIT) -> HttpError:
    with pytest.raises(HttpError) as caught:
        client.get(url, timeout_s=timeout_s, limit=limit)
    return caught.value


def until_cut(peer: Peer, piece: bytes) -> Callable[[socket.socket], None]:
    """Send a piece again and again, until the peer is stopped or the client hangs up."""

    def answer(connection: socket.socket) -> None:
        while not peer.stopping.is_set():
            connection.sendall(piece)

    return answer


def test_a_page_comes_whole_and_the_connection_is_kept(peer: Peer, client: HttpClient) -> None:
    peer.answers = [PAGE, PAGE]
    assert [client.get(peer.url, timeout_s=5, limit=LIMIT) for _ in range(2)] == [b"a 1\nb"] * 2
    assert len(peer.connections) == 1
    first = peer.requests[0].decode()
    assert first.startswith("GET /metrics HTTP/1.1\r\n")
    assert "Accept-Encoding: identity" in first
    assert "Accept: text/plain;version=0.0.4" in first
    assert "x-gpumon-scrape: 1\r\n" in first


def test_a_query_is_part_of_the_address(peer: Peer, client: HttpClient) -> None:
    peer.answers = [PAGE]
    client.get(f"{peer.url}?model=a%20b", timeout_s=5, limit=LIMIT)
    assert peer.requests[0].startswith(b"GET /metrics?model=a%20b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"3\r\na 1\r\n2\r\n\nb\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Type: application/openmetrics-text\r\nContent-Length: 5\r\n\r\na 1\nb",
        b"HTTP/1.1 100 Continue\r\n\r\n" + PAGE,
    ],
)
def test_other_ways_to_send_a_page(peer: Peer, client: HttpClient, answer: bytes) -> None:
    peer.answers = [answer]
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"


def test_a_page_may_end_with_the_connection(peer: Peer, client: HttpClient) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na 1\nb")
        connection.close()

    peer.answers = [answer, PAGE]
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"
    assert len(peer.connections) == 2


def test_a_kept_connection_that_the_server_closed_is_replaced(peer: Peer, client: HttpClient) -> None:
    peer.answers = [PAGE, b"", PAGE]
    for _ in range(2):
        assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"
    assert len(peer.connections) == 2


def test_a_new_connection_that_is_closed_without_an_answer_is_unavailable(peer: Peer, client: HttpClient) -> None:
    peer.answers = [b"", PAGE]
    assert failure(client, peer.url).reason is Reason.UNAVAILABLE
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"


def test_nobody_listening_is_unavailable(peer: Peer, client: HttpClient) -> None:
    url = peer.url
    peer.stop()
    error = failure(client, url)
    assert (error.reason, error.detail) == (Reason.UNAVAILABLE, "Connection refused")


@pytest.mark.parametrize("status", [b"421 Misdirected Request", b"503 Service Unavailable"])
def test_a_gpumon_proxy_is_told_from_a_server_whatever_it_answers(
    peer: Peer, client: HttpClient, status: bytes
) -> None:
    peer.answers = [b"HTTP/1.1 " + status + b"\r\nX-Gpumon-Proxy-Error: scrape\r\nContent-Length: 0\r\n\r\n"]
    error = failure(client, peer.url)
    assert (error.reason, error.detail) == (Reason.UNAVAILABLE, "a gpumon proxy, not a server")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (b"204 No Content", Reason.UNAVAILABLE),
        (b"302 Found\r\nLocation: /elsewhere", Reason.UNAVAILABLE),
        (b"401 Unauthorized", Reason.DENIED),
        (b"403 Forbidden", Reason.DENIED),
        (b"404 Not Found", Reason.UNAVAILABLE),
        (b"503 Service Unavailable", Reason.UNAVAILABLE),
    ],
)
def test_only_200_is_a_page_and_redirects_are_not_followed(
    peer: Peer, client: HttpClient, status: bytes, reason: Reason
) -> None:
    peer.answers = [b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n", PAGE]
    error = failure(client, peer.url)
    assert (error.reason, error.detail) == (reason, f"HTTP {status[:3].decode()}")
    assert len(peer.requests) == 1
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.google.protobuf\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 25\r\n\r\n" + gzip.compress(b"a 1\nb", mtime=0),
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\x00\r\n",
        CHUNKED + b"-5\r\nabcdefgh",
        CHUNKED + b"xyz\r\nabcdefgh",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_text_over_http_is_malformed(peer: Peer, client: HttpClient, answer: bytes) -> None:
    peer.answers = [answer, PAGE]
    assert failure(client, peer.url).reason is Reason.MALFORMED
    assert client.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\na 1\n",
        CHUNKED + b"32\r\na 1\n",
        CHUNKED + b"4\r\na 1\n\r\n",
    ],
)
def test_a_page_that_is_cut_short_is_malformed(peer: Peer, client: HttpClient, answer: bytes) -> None:
    def cut(connection: socket.socket) -> None:
        connection.sendall(answer)
        Peer.cut(connection)

    peer.answers = [cut]
    error = failure(client, peer.url)
    assert (error.reason, error.detail) == (Reason.MALFORMED, "IncompleteRead")


def test_a_length_over_the_limit_is_refused_before_it_is_read(peer: Peer, client: HttpClient) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n"]
    assert failure(client, peer.url).detail == "larger than 100000 bytes"


def test_a_page_of_just_the_limit_is_taken(peer: Peer, client: HttpClient) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * LIMIT]
    assert len(client.get(peer.url, timeout_s=5, limit=LIMIT)) == LIMIT


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000),
        (CHUNKED, b"1\r\nx\r\n" * 100),
        (CHUNKED + b"-1\r\n", b"x" * 1000),
        (CHUNKED + b"0\r\n", b"X: y\r\n" * 100),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    ],
)
def test_a_page_without_end_is_given_up_at_the_limit(peer: Peer, client: HttpClient, head: bytes, piece: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        until_cut(peer, piece)(connection)

    peer.answers = [answer]
    error = failure(client, peer.url, timeout_s=30)
    assert (error.reason, error.detail) == (Reason.MALFORMED, "larger than 100000 bytes")


def test_no_answer_ends_at_the_deadline(peer: Peer, client: HttpClient) -> None:
    error = failure(client, peer.url, timeout_s=0.05)
    assert (error.reason, error.detail) == (Reason.TIMEOUT, "no page within 0.05 s")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n"])
def test_one_byte_at_a_time_ends_at_the_deadline_of_the_whole(peer: Peer, head: bytes) -> None:
    now_s = 0.0
    received = threading.Semaphore(0)

    def tick() -> float:
        nonlocal now_s
        now_s += 0.5  # each look at the clock, one before every read, costs half a second
        received.release()
        return now_s

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while not peer.stopping.is_set():
            received.acquire(timeout=1)
            connection.sendall(b"H")

    peer.answers = [answer]
    slow = HttpClient(tick)
    assert failure(slow, peer.url, timeout_s=20).reason is Reason.TIMEOUT
    assert 20 <= now_s <= 22
    slow.close()


def test_a_server_that_takes_no_connections_ends_at_the_deadline(client: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        assert failure(client, url, timeout_s=0.05).reason is Reason.TIMEOUT
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000/metrics",
        "ftp://127.0.0.1/metrics",
        "file:///etc/passwd",
        "http:///metrics",
        "http://127.0.0.1:notaport/metrics",
        "http://127.0.0.1:99999/metrics",
        "http://[::1/metrics",
        "http://user:secret@127.0.0.1/metrics",
        "http://127.0.0.1:1/a b",
    ],
)
def test_what_is_no_address_is_malformed_or_leads_nowhere(client: HttpClient, url: str) -> None:
    error = failure(client, url, timeout_s=1)
    assert error.reason is Reason.MALFORMED or url.endswith("a b")
    assert "secret" not in str(error)


def test_a_host_without_a_name_is_unavailable(client: HttpClient) -> None:
    assert failure(client, "http://localhost.invalid./").reason in (Reason.UNAVAILABLE, Reason.MALFORMED)


def test_https_is_read_where_the_certificate_is_trusted_and_refused_where_not(
    peer: Peer, client: HttpClient, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = trustme.CA()
    peer.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(peer.tls)
    peer.answers = [PAGE, PAGE]
    error = failure(client, peer.url)
    assert error.reason is Reason.UNAVAILABLE
    assert "certificate verify failed" in error.detail

    pem = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(pem))
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    trusting = HttpClient()
    for _ in range(2):
        assert trusting.get(peer.url, timeout_s=5, limit=LIMIT) == b"a 1\nb"
    trusting.close()


def test_plain_http_to_a_server_of_tls_is_no_page(peer: Peer, client: HttpClient) -> None:
    peer.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(peer.tls)
    url = peer.url.replace("https", "http")
    assert failure(client, url).reason in (Reason.UNAVAILABLE, Reason.MALFORMED)


def test_no_more_connections_are_kept_than_there_may_be(client: HttpClient) -> None:
    peers = [Peer() for _ in range(KEPT + 1)]
    for each in peers:
        each.answers = [PAGE, PAGE]
        client.get(each.url, timeout_s=5, limit=LIMIT)
    client.get(peers[-1].url, timeout_s=5, limit=LIMIT)
    client.get(peers[0].url, timeout_s=5, limit=LIMIT)  # the one that gave way
    assert [len(each.connections) for each in (peers[0], peers[1], peers[-1])] == [2, 1, 1]
    for each in peers:
        each.stop()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.one_of(st.binary(max_size=300), st.binary(max_size=100).map(lambda tail: CHUNKED + tail)))
def test_any_bytes_are_a_page_or_an_http_error(peer: Peer, answer: bytes) -> None:
    def say(connection: socket.socket) -> None:
        connection.sendall(answer)
        Peer.cut(connection)

    peer.answers = [say]
    client = HttpClient()
    try:
        assert len(client.get(peer.url, timeout_s=5, limit=LIMIT)) <= LIMIT
    except HttpError as error:
        assert error.reason in (Reason.MALFORMED, Reason.UNAVAILABLE, Reason.DENIED)  # noqa: PT017 - either is right
    finally:
        client.close()
