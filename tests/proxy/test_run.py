"""Setting a proxy up: what is taken, what is refused before anything listens, TLS on both sides, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from gpumon import cli
from gpumon.config_keys import PROXY_FLAGS
from gpumon.config_proxy import ProxyConfig
from gpumon.proxy.run import make_settings
from gpumon.proxy.settings import Upstream, UpstreamError, parse_upstream, shown_address
from tests.e2e.waiting import eventually
from tests.proxy.process import PacedServer, ProxyProcess, ask
from tests.proxy.rig import answers, get, read_request, rig, run

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "authority"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, b"", b"127.0.0.1:8000"),
        ("http://server/", "server", 80, b"", b"server"),
        ("http://[::1]:8000/base/v2/", "::1", 8000, b"/base/v2", b"[::1]:8000"),
        ("https://api.example", "api.example", 443, b"", b"api.example"),
        ("https://api.example:8443/x", "api.example", 8443, b"/x", b"api.example:8443"),
    ],
)
def test_an_upstream_is_read(url: str, host: str, port: int, prefix: bytes, authority: bytes) -> None:
    found = parse_upstream(url, ssl.create_default_context())
    assert (found.host, found.port, found.prefix, found.authority) == (host, port, prefix, authority)
    assert (found.tls is not None) is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        *("", "server:8000", "ftp://server", "http://", "http://server:x", "http://server:99999", "http://server:0"),
        *("http://user:secret@server", "http://server?a=b", "http://server/#x", "http://server/ä", "http://ser ver"),
    ],
)
def test_what_cannot_be_an_upstream_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_upstream(url, None)
    assert "secret" not in str(caught.value)


def test_addresses_are_shown_as_gpumon_reads_them() -> None:
    assert shown_address("::1", 80) == "[::1]:80"
    assert shown_address("fe80::1%eth0", 80) == "[fe80::1]:80"
    assert shown_address("127.0.0.1", 80) == "127.0.0.1:80"
    assert shown_address("/run/socket", 0) == "/run/socket:0"


Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command, and what it says on standard error."""
    monkeypatch.setattr("os.environ", {"PATH": "/usr/bin"})

    def call(*arguments: str) -> tuple[int, str]:
        code = cli.main(["proxy", *arguments])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "proxy.upstream is missing: expected --upstream http(s)://HOST:PORT"),
        (["--upstream", "server"], 'proxy.upstream = "server" (--upstream): expected http(s)://HOST:PORT'),
        (["--upstream", "http://a:b@server"], "proxy.upstream: a URL has no credentials"),
        (["--upstream", "http://server", "--inject", "x"], "proxy.inject[0]: 'x': expected request:, first: or token:"),
        (["--upstream", "http://server", "--inject", "token:1ms", "--inject", "y"], "proxy.inject[1]: 'y'"),
        (["--upstream", "http://server", "--inject-seed", "x"], 'proxy.inject_seed = "x" (--inject-seed): expected'),
        (["--upstream", "http://server", "--listen", "x"], 'proxy.listen = "x" (--listen): expected HOST:PORT'),
    ],
)
def test_what_is_wrong_is_said_with_its_key_and_ends_in_2(invoke: Invoke, arguments: list[str], words: str) -> None:
    code, said = invoke(*arguments)
    assert code == 2
    assert said.startswith(f"gpumon: {words}")


def test_a_port_that_is_taken_is_said(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = invoke("--upstream", "http://127.0.0.1:1", "--listen", listen)
    assert (code, said) == (1, f"gpumon: proxy.listen: cannot listen on {listen}: Address already in use\n")


def test_every_flag_of_the_proxy_is_an_option() -> None:
    options = {option for item in cli.commands.commands["proxy"].params for option in item.opts}
    assert set(PROXY_FLAGS) | {"--config"} == options


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_a_salt_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "salt").write_bytes(content)
    with pytest.raises(OSError, match="expected 16 to 4096 bytes"):
        make_settings(ProxyConfig(upstream="http://server", prompt_salt_file=tmp_path / "salt"))


def test_authorities_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificates")
    with pytest.raises(OSError, match="not certificates"):
        make_settings(ProxyConfig(upstream="https://server", upstream_ca=tmp_path / "ca"))


def test_headers_are_looked_for_in_lower_case() -> None:
    settings = make_settings(ProxyConfig(upstream="http://server", tenant_header="X-Team"))
    assert settings.tenant_header == b"x-team"
    assert isinstance(settings.upstream, Upstream)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_side(authority: trustme.CA, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_a_server_behind_tls_is_asked_by_its_own_name(authority: trustme.CA) -> None:
    hosts: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        hosts.append(next(line for line in head.split(b"\r\n") if line.startswith(b"Host")))
        writer.write(OK)
        writer.close()

    async def through() -> None:
        tls = {"tls": client_side(authority), "server_tls": server_side(authority), "host": "localhost"}
        async with rig(handle, **tls) as one:  # type: ignore[arg-type]
            assert (await one.ask(get("/x"))).endswith(b"ok")
            assert hosts == [b"Host: localhost:%d" % one.upstream_port]

    run(through())


def test_a_server_whose_certificate_is_anothers_is_not_talked_to(authority: trustme.CA) -> None:
    async def through() -> None:
        tls = {
            "tls": client_side(authority),
            "server_tls": server_side(authority, "other.example"),
            "host": "localhost",
        }
        async with rig(answers(OK), **tls) as one:  # type: ignore[arg-type]
            answer = await one.ask(get("/x"))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "upstream_connect"

    run(through())


def test_clients_may_come_by_tls(authority: trustme.CA) -> None:
    async def through() -> None:
        async with rig(answers(OK), client_tls=server_side(authority)) as one:
            reader, writer = await one.open(ssl=client_side(authority), server_hostname="localhost")
            writer.write(get("/x"))
            assert (await reader.read()).endswith(b"ok")
            writer.close()

    run(through())


def test_it_ends_in_order_at_a_signal_and_at_once_at_a_second_one(tmp_path: Path) -> None:
    with PacedServer(5, 0.01) as server, ProxyProcess(tmp_path, server.port) as proxy:
        assert len(ask(proxy.port).token_ns) == 5
        assert proxy.end() == 0
        assert "proxy=stopped" in proxy.log
        assert "Traceback" not in proxy.log
    with PacedServer(10_000, 0.1) as server, ProxyProcess(tmp_path, server.port) as proxy:
        held = socket.create_connection(("127.0.0.1", proxy.port))
        held.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        held.recv(10)
        proxy.process.send_signal(signal.SIGTERM)
        eventually(lambda: "proxy=ending" in proxy.log, "the end to begin")
        assert held.recv(10)  # it goes on
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(10) == 1
        held.close()
