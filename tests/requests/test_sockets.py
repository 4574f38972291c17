"""Parsers of /proc/<pid>/net: addresses, sockets, inodes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.requests.sockets import Peer, find_inode, parse_fib_trie, parse_if_inet6, parse_peer

TCP = b"""\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:10DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20001 1 0 100 0 0 10 0
   1: 0100007F:A001 0100007F:10DD 01 00000000:00000000 02:000AF 00000000  1000        0 77001 2 0 20 4 30 10 -1
   2: 0100007F:A002 0100007F:10DD 06 00000000:00000000 03:000017 00000000     0        0 0 3 0
   3: 0100007F:10DD 0100007F:A003 01 00000000:00000000 02:000AF 00000000  1000        0 77003 2 0 20 4 30 10 -1
"""
TCP6 = b"""\
  sl  local_address                         remote_address                        st tx_queue rx_queue inode
   0: 0000000000000000FFFF00000A01F40A:9C40 0000000000000000FFFF00000100000A:10DD 01 0:0 00:0 0  0  0 88001 1 0
   1: B80D0120000000000000000001000000:9C41 B80D0120000000000000000002000000:10DD 01 0:0 00:0 0  0  0 88002 1 0
"""
FIB_TRIE = b"""\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.244.1.0/24 2 0 2
        |-- 10.244.1.0
           /24 link UNICAST
        |-- 10.244.1.10
           /32 host LOCAL
        |-- 10.244.1.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.244.1.10
        /32 host LOCAL
"""
IF_INET6 = b"""\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110002 0b 40 20 80     eth0
20010db8000000000000000000000001 0b 40 00 80     eth0
"""


def peer(text: str) -> Peer:
    found = parse_peer(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("127.0.0.1:40961", "127.0.0.1", 40961),
        ("[::1]:4", "::1", 4),
        ("[::ffff:10.0.0.7]:80", "10.0.0.7", 80),
        ("[fe80::1%eth0]:80", "fe80::1", 80),
    ],
)
def test_peers_are_read(text: str, address: str, port: int) -> None:
    assert peer(text) == Peer(ipaddress.ip_address(address), port)


@pytest.mark.parametrize(
    "text", ["", ":", "unix:", "localhost:80", "1.2.3.4", "1.2.3.4:x", "1.2.3.4:70000", "1.2.3.4:-1"]
)
def test_what_is_no_peer_is_none(text: str) -> None:
    assert parse_peer(text) is None


@given(st.text(max_size=100))
def test_no_text_makes_reading_a_peer_fail(text: str) -> None:
    found = parse_peer(text)
    assert found is None or 0 <= found.port < 1 << 16


def test_the_inode_is_that_of_the_peers_own_end() -> None:
    assert find_inode(TCP, peer("127.0.0.1:40961")) == 77001
    assert find_inode(TCP6, peer("10.244.1.10:40000")) == 88001
    assert find_inode(TCP6, peer("[2001:db8::1]:40001")) == 88002


@pytest.mark.parametrize("text", ["127.0.0.1:40962", "127.0.0.1:40963", "10.0.0.1:40961"])
def test_closing_listening_and_other_ends_are_not_found(text: str) -> None:
    assert find_inode(TCP, peer(text)) is None


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parsers_fail(data: bytes) -> None:
    for table in (data, TCP[:300] + data, TCP.replace(b"77001", data)):
        find_inode(table, Peer(ipaddress.IPv4Address("127.0.0.1"), 40961))
    assert all(not address.is_loopback for address in parse_fib_trie(FIB_TRIE + data))
    parse_if_inet6(IF_INET6 + data)


def test_own_addresses_are_those_that_others_can_reach() -> None:
    assert parse_fib_trie(FIB_TRIE) == {ipaddress.IPv4Address("10.244.1.10")}
    assert parse_fib_trie(b"|-- 999.1.1.1\n  /32 host LOCAL\n") == frozenset()
    assert parse_if_inet6(IF_INET6) == {ipaddress.IPv6Address("2001:db8::1")}
