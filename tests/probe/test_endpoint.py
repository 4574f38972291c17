"""Addresses that are probed: taken apart, checked, and the key in no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.probe.asking import request_bytes
from gpumon.probe.endpoint import KEY, EndpointError, parse_endpoint


@pytest.mark.parametrize(
    ("url", "told", "authority"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://h:8000/v1", "http://h:8000/v1", "h:8000"),
        ("http://h/v1/completions", "http://h/v1", "h"),
        ("https://h/team/v1/chat/completions/", "https://h/team/v1", "h"),
        ("https://h:443/team", "https://h/team/v1", "h"),
        ("http://[::1]:8000", "http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_an_address_with_or_without_the_interface(url: str, told: str, authority: str) -> None:
    endpoint = parse_endpoint(url, {})
    assert (str(endpoint), endpoint.authority) == (told, authority)


@pytest.mark.parametrize(
    ("url", "is_loopback"),
    [
        ("http://127.0.0.1", True),
        ("http://127.9.9.9:1", True),
        ("http://[::1]", True),
        ("http://localhost:8000", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
        ("http://0.0.0.0", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_what_is_this_machine(url: str, is_loopback: bool) -> None:
    assert parse_endpoint(url, {}).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "expected an address such as"),
        ("127.0.0.1:8000", "expected an address such as"),
        ("ftp://h", "expected an address such as"),
        ("http://", "expected an address such as"),
        ("http://h:99999", "Port out of range"),
        ("http://[::1", "Invalid IPv6"),
        ("http://user:secret@h", f"a key in {KEY}"),
        ("http://h/?key=secret", "an address alone"),
        ("http://h/a b", "an address alone"),
        ("http://h/a\r\nX: y", "an address alone"),
        ("http://hé", "an address alone"),
    ],
)
def test_what_is_no_endpoint_is_refused_in_a_line(url: str, said: str) -> None:
    with pytest.raises(EndpointError, match=said) as caught:
        parse_endpoint(url, {})
    assert "secret" not in str(caught.value) or "?key" in url
    assert str(caught.value).isprintable()


@given(st.text(max_size=60))
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
    for url in (text, f"http://{text}"):
        try:
            endpoint = parse_endpoint(url, {})
        except EndpointError:
            continue
        head = request_bytes(endpoint, "GET", "models").split(b"\r\n")
        assert head[0].count(b" ") == 2
        assert [line.partition(b":")[0] for line in head[1:-2]] == [b"Host", b"User-Agent", b"Accept", b"Connection"]


def test_the_key_is_in_the_header_and_in_no_text() -> None:
    endpoint = parse_endpoint("http://h", {KEY: "sk-secret"})
    assert b"\r\nAuthorization: Bearer sk-secret\r\n" in request_bytes(endpoint, "POST", "completions", b"{}")
    assert "secret" not in f"{endpoint} {endpoint!r}"


@pytest.mark.parametrize("key", ["a\nb", "a b", "é", "a\r\nX: y", "\x7f"])
def test_a_key_that_would_be_another_header_is_refused_without_quoting_it(key: str) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_endpoint("http://h", {KEY: key})
    assert str(caught.value) == f"{KEY}: expected printable ASCII without spaces"
