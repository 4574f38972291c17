"""A proxy whose upstream is the proxy: refused before it listens, or found out at the first request."""

from __future__ import annotations

import pytest

from gpumon.config_proxy import ProxyConfig
from gpumon.config_types import Address, parse_listen
from gpumon.host.http import SCRAPE_HEADER
from gpumon.proxy.loops import end_of, leads_back
from gpumon.proxy.run import make_settings
from gpumon.proxy.settings import UpstreamError
from tests.proxy.rig import answers, get, rig, run, until


@pytest.mark.parametrize(
    ("host", "listen"),
    [
        ("127.0.0.1", "127.0.0.1:9460"),
        ("0.0.0.0", "127.0.0.1:9460"),
        ("localhost", "127.0.0.1:9460"),
        ("127.0.0.1", "localhost:9460"),
        ("127.1", "127.0.0.1:9460"),
        ("::ffff:127.0.0.1", "127.0.0.1:9460"),
        ("127.0.0.1", ":9460"),
        ("127.0.0.2", "0.0.0.0:9460"),
        ("0.0.0.0", "0.0.0.0:9460"),
        ("localhost", "0.0.0.0:9460"),
        ("::1", "[::1]:9460"),
        ("::", "[::1]:9460"),
        ("0:0:0:0:0:0:0:1", "[::1]:9460"),
        ("::", "[::]:9460"),
    ],
)
def test_every_way_of_writing_its_own_address_is_seen(host: str, listen: str) -> None:
    assert leads_back(host, 9460, parse_listen(listen))


@pytest.mark.parametrize(
    ("host", "port", "listen"),
    [
        ("127.0.0.1", 8000, "127.0.0.1:9460"),
        ("127.0.0.2", 9460, "127.0.0.1:9460"),
        ("::1", 9460, "127.0.0.1:9460"),
        ("203.0.113.7", 9460, "0.0.0.0:9460"),
        ("2001:db8::7", 9460, "[::]:9460"),
        ("no-such-host.invalid", 9460, "0.0.0.0:9460"),
        ("x" * 300, 9460, "0.0.0.0:9460"),
    ],
)
def test_other_servers_are_other_servers(host: str, port: int, listen: str) -> None:
    assert not leads_back(host, port, parse_listen(listen))


def test_port_0_of_a_listener_is_nobodys() -> None:
    assert not leads_back("127.0.0.1", 80, Address("127.0.0.1", 0))


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://localhost:9460", "proxy.listen"),
        ("https://127.0.0.1:9460/v1", "proxy.listen"),
        ("http://0.0.0.0:9461", "proxy.admin"),
    ],
)
def test_an_upstream_that_is_the_proxy_is_refused(url: str, key: str) -> None:
    with pytest.raises(UpstreamError, match=f"proxy.upstream: {key} is there itself: expected the server behind"):
        make_settings(ProxyConfig(upstream=url))


def test_without_an_admin_port_its_address_is_anothers() -> None:
    assert make_settings(ProxyConfig(upstream="http://127.0.0.1:9461", admin=None)).upstream.port == 9461


def test_a_loop_that_only_shows_at_work_ends_at_its_first_turn() -> None:
    async def through() -> None:
        async with rig(answers(b"")) as one:
            object.__setattr__(one.proxy.shared.settings.upstream, "port", one.port)
            for _ in range(3):
                answer = await one.ask(get("/v1/models"))
                assert answer.startswith(b"HTTP/1.1 508 Loop Detected\r\n")
                assert b'"code": "loop"' in answer
            assert one.counted("gpumon_proxy_requests_total", "other", "refused") == 3
            assert one.counted("gpumon_proxy_requests_total", "models", "error") == 3

    run(through())


@pytest.mark.parametrize("path", ["/metrics", "/prometheus/metrics", "/v1/models"])
def test_gpumon_is_not_given_the_servers_page_and_everybody_else_is(path: str) -> None:
    async def through() -> None:
        async with rig(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as one:
            answer = await one.ask(get(path, SCRAPE_HEADER.title().encode() + b": 1"))
            assert answer.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
            assert b"\r\nx-gpumon-proxy-error: scrape\r\n" in answer
            assert one.counted("gpumon_proxy_requests_total", "other", "refused") == 1
            assert not one.proxy.shared.upstream_ends, "the server was not asked"
            assert (await one.ask(get(path, b"X-Gpumon-Scraped: 1"))).endswith(b"\r\n\r\nok")

    run(through())


def test_ends_that_are_gone_are_forgotten() -> None:
    async def through() -> None:
        async with rig(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", close=False)) as one:
            await one.ask(get("/x"))
            assert len(one.proxy.shared.upstream_ends) == 1
            one.proxy.shared.pool.close()
            await until(lambda: not one.proxy.shared.upstream_ends)

    run(through())


def test_an_end_is_the_same_in_either_family_of_addresses() -> None:
    assert end_of(("::ffff:10.0.0.1", 5, 0, 0)) == end_of(("10.0.0.1", 5)) == ("10.0.0.1", 5)
    assert end_of(("fe80::1%eth0", 5, 0, 2)) == ("fe80::1", 5)
    assert end_of("") is end_of(None) is None
