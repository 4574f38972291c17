"""The HTTP surface, as clients good and bad use it."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gpumon.export.dcgm_names import DCGM
from tests.e2e import nodes
from tests.e2e.daemon import Daemon
from tests.e2e.page import Page, promtool_complaints
from tests.e2e.waiting import eventually


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """gpumon on eight H200 at work."""
    with nodes.running(tmp_path_factory.mktemp("http"), "h200") as (_, running):
        yield running


def test_head_has_the_headers_of_get_and_no_body(daemon: Daemon) -> None:
    head, get = daemon.ask("/metrics", "HEAD"), daemon.ask("/metrics")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(head.headers["content-length"]) > 100_000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/metrics", 405),
        ("GET", "/metrics?names=nvitop", 400),
        ("GET", "/metrics?names=", 200),
        ("GET", "/metrics?" + "a=b&" * 40, 400),
        ("GET", "/metrics?names=%ff%fe", 400),
        ("GET", "/-/healthy", 200),
        ("HEAD", "/-/healthy", 200),
        ("POST", "/-/healthy", 405),
        ("GET", "/-/nothing", 404),
        ("GET", "/nothing", 404),
        ("POST", "/-/reload", 403),
        ("POST", "/-/release-nvml", 403),
        ("PUT", "/-/acquire-nvml", 403),
        ("GET", "/api/v1/gpus", 200),
        ("GET", "/docs", 200),
        ("GET", "/", 200),
    ],
)
def test_every_request_gets_the_status_it_deserves(daemon: Daemon, method: str, path: str, status: int) -> None:
    assert daemon.ask(path, method).status == status


def test_every_page_that_the_first_page_links_to_is_there_with_detection_on_and_off(
    daemon: Daemon, tmp_path: Path
) -> None:
    off = {"GPUMON_DETECT__ENABLED": "false", "GPUMON_NVML__ENABLED": "false"}
    with Daemon(tmp_path, options=off) as blind:
        for running in (daemon, blind):
            links = ["/" + link for link in re.findall(r'(?:href|src)="([^"#]+)"', running.ask("/").text)]
            assert "/api/v1/incidents" in links
            assert {link: running.ask(link).status for link in links} == dict.fromkeys(links, 200)
        assert blind.ask("/api/v1/incidents").body == b"[]"
        assert blind.ask("/api/v1/incidents/20261129T171047Z-xid-gpu-3").status == 404


def test_an_unknown_set_of_names_is_told_what_is_known(daemon: Daemon) -> None:
    assert daemon.ask("/metrics?names=nvitop").text == "unknown names; one of: dcgm, dcgm-next, or none\n"


@pytest.mark.parametrize("names", ["dcgm", "dcgm-next"])
def test_old_names_are_a_page_that_promtool_reads(daemon: Daemon, names: str) -> None:
    reply = daemon.ask(f"/metrics?names={names}", headers={"Accept": "application/openmetrics-text"})
    assert reply.headers["content-type"].startswith("text/plain")
    # Its complaints are about dcgm-exporter's own names (counters without _total); no line of them is of a page
    # that cannot be parsed.
    assert "error while linting" not in promtool_complaints(reply.body)
    series = Counter(line.split(b"{")[0].decode() for line in reply.body.splitlines() if not line.startswith(b"#"))
    assert len(series) > 15
    assert series == dict.fromkeys(Page(reply.body).names(), 8)


def test_dcgm_names_are_exactly_those_of_the_table(daemon: Daemon) -> None:
    expected = {field.name for field in DCGM.fields}

    def told() -> bool:
        return daemon.page("?names=dcgm").names() == expected

    eventually(told, "all of dcgm-exporter's default fields, rates too")
    page = daemon.page("?names=dcgm")
    labels, _ = page.select("DCGM_FI_DEV_GPU_UTIL", gpu="3")[0]
    assert set(labels) == {
        "gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION",
    }  # fmt: skip
    assert labels["device"] == "nvidia3"
    assert page.value("DCGM_FI_DEV_POWER_USAGE", gpu="3") == pytest.approx(76.4)


def test_a_hundred_scrapers_at_once_all_get_a_whole_page(daemon: Daemon) -> None:
    headers = [{}, {"Accept-Encoding": "gzip"}, {"Accept": "application/openmetrics-text"}]
    begin = threading.Barrier(100, timeout=30)

    def scrape(number: int) -> tuple[int, int]:
        begin.wait()
        reply = daemon.ask("/metrics", headers=headers[number % 3], timeout_s=30)
        return reply.status, len(reply.body)

    with ThreadPoolExecutor(100) as pool:
        replies = list(pool.map(scrape, range(100)))
    assert {status for status, _ in replies} == {200}
    assert min(size for _, size in replies) > 10_000


def test_a_kept_connection_serves_many_scrapes(daemon: Daemon) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    for _ in range(20):
        connection.request("GET", "/metrics")
        assert len(connection.getresponse().read()) > 100_000
    connection.close()


def test_slow_and_oversized_clients_disturb_nobody(daemon: Daemon) -> None:
    with ExitStack() as stack:
        for _ in range(100):  # each has begun a request and will never end it
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port), 10))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for _ in range(3):
            assert daemon.ask("/metrics").status == 200
        for request in (
            b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nX: " + b"b" * 1_000_000 + b"\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
            b"\r\n" * 1000,
        ):
            answer = _raw(daemon, request)
            assert not answer or answer.split(b" ")[1] in (b"400", b"404", b"414", b"431"), answer[:100]
        for _ in range(3):
            assert daemon.ask("/metrics").status == 200
    assert "Traceback" not in daemon.log
    assert "Invalid HTTP" not in daemon.log


@pytest.mark.slow
def test_whoever_does_not_finish_a_request_is_hung_up_on(daemon: Daemon) -> None:
    silent, slow = (socket.create_connection(("127.0.0.1", daemon.port), 10) for _ in range(2))
    with silent, slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        began_s = time.monotonic()
        for connection in (silent, slow):
            connection.settimeout(15)
            with suppress(ConnectionResetError):  # another way to be hung up on
                assert connection.recv(1) == b""
        assert time.monotonic() - began_s < 14


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(daemon: Daemon) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", daemon.port), 10) as gone:
            gone.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            gone.recv(10)
    assert daemon.ask("/metrics").status == 200
    assert "Traceback" not in daemon.log


def _raw(daemon: Daemon, request: bytes) -> bytes:
    """What the server answers, or nothing where it hangs up or waits for more."""
    with socket.create_connection(("127.0.0.1", daemon.port), 10) as connection:
        connection.settimeout(2)
        try:
            connection.sendall(request)
            return connection.recv(1000)
        except (TimeoutError, ConnectionError):
            return b""
