"""Which ports are asked, how often, and what is made of the answers; and the pages found, in the source of servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.host.http import HttpError
from gpumon.model import Item, Miss, Pid, Reason, Sample, apart
from gpumon.sources.server_discovery import (
    ASK_MAX_S,
    DOORS,
    LOOK_MAX_S,
    LOOK_S,
    NO_METRICS,
    PER_PASS,
    REMEMBERED,
    Discovery,
    Door,
    Look,
)
from gpumon.sources.servers import GONE, PROBE_BYTES, TIMEOUTS, ServerSource

PAGE = b"vllm:num_requests_running 3\nvllm:generation_tokens_total 100\n"
REFUSED = HttpError(Reason.UNAVAILABLE, "Connection refused")
NOT_FOUND = HttpError(Reason.UNAVAILABLE, "HTTP 404")
JSON = HttpError(Reason.MALFORMED, "not text")
GARBAGE = HttpError(Reason.MALFORMED, "BadStatusLine")
SLOW = HttpError(Reason.TIMEOUT, "no page within 1 s")


def door(port: int, pid: int = 0, *, socket: int = 0, host: str = "127.0.0.1", why: str = "") -> Door:
    names = frozenset({host, "localhost"}) if host else frozenset()
    return Door(Pid(pid or port, 1), port, socket or port, host, why, names)


class Sockets:
    """``server_discovery.Doors`` of a list. ``looks`` counts."""

    def __init__(self, *doors: Door) -> None:
        self.doors = list(doors)
        self.misses: list[Miss] = []
        self.processes: object = 0
        self.looks = 0

    def stamp(self) -> object:
        return self.processes

    def look(self) -> Look:
        self.looks += 1
        return Look(list(self.doors), self.misses)


class Node:
    """Pages by port and path, and a discovery that asks for them."""

    def __init__(self, *doors: Door, configured: Sequence[str] = (), answer: bytes | HttpError = PAGE) -> None:
        self.sockets = Sockets(*doors)
        self.pages: dict[str, bytes | HttpError] = {}
        self.answer = answer
        self.asked: list[str] = []
        self.limits: set[int] = set()
        self.discovery = Discovery(self.sockets, configured)
        self.source = ServerSource(self, configured, timeout_s=1.0, discovery=self.discovery)

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        assert timeout_s == 1.0
        self.limits.add(limit)
        self.asked.append(url.removeprefix("http://127.0.0.1:"))
        page = self.pages.get(self.asked[-1], self.answer)
        if isinstance(page, HttpError):
            raise page
        return page

    def step(self, at_s: float) -> list[str]:
        """One turn of the discovery alone; what was asked."""
        self.asked.clear()
        self.discovery.follow(at_s)
        self.discovery.ask(at_s, lambda url: bool(self.get(url, timeout_s=1.0, limit=1)))
        return list(self.asked)

    def states(self) -> dict[int, str]:
        return {port.door.port: port.state for port in self.discovery.ports()}

    def read(self, at_s: float) -> tuple[dict[tuple[str, ...], float], list[Miss]]:
        """One pass of the source: values by stem and labels, ports that are 0 left out."""
        samples, misses, rejections = apart(self.source.read(at_s))
        assert rejections == []
        return values(samples), misses


def values(items: Sequence[Item]) -> dict[tuple[str, ...], float]:
    return {
        (each.metric.stem, *each.labels): each.value
        for each in items
        if isinstance(each, Sample)
        and isinstance(each.value, float)
        and (each.value or each.metric is not catalogue.SERVER_PORTS)
    }


# --- what is asked, and when ------------------------------------------------------------------------------------------


def test_a_port_with_a_page_is_asked_once_and_found() -> None:
    node = Node(door(8000))
    assert node.step(0.0) == ["8000/metrics"]
    assert node.discovery.urls == ["http://127.0.0.1:8000/metrics"]
    assert [node.step(float(at_s)) for at_s in range(1, 4000, 60)] == [[]] * 67


@pytest.mark.parametrize("answer", [NOT_FOUND, JSON, HttpError(Reason.UNAVAILABLE, NO_METRICS)])
def test_an_http_server_without_metrics_is_asked_for_the_other_path(answer: HttpError) -> None:
    node = Node(door(8000))
    node.pages["8000/metrics"] = answer
    assert node.step(0.0) == ["8000/metrics", "8000/prometheus/metrics"]
    assert node.discovery.urls == ["http://127.0.0.1:8000/prometheus/metrics"]


@pytest.mark.parametrize(
    "answer", [REFUSED, GARBAGE, SLOW, HttpError(Reason.DENIED, "HTTP 401"), HttpError(Reason.UNAVAILABLE, "HTTP 302")]
)
def test_what_is_no_such_server_is_asked_nothing_more(answer: HttpError) -> None:
    node = Node(door(8000), answer=answer)
    assert node.step(0.0) == ["8000/metrics"]
    assert node.discovery.urls == []
    assert node.states() == {8000: "no_answer" if answer is SLOW else "no_server"}


def test_a_refused_port_is_asked_again_after_longer_and_longer() -> None:
    node = Node(door(8000), answer=GARBAGE)
    times = [at_s for at_s in range(0, 8000, 2) if node.step(float(at_s))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:6] == [60, 120, 240, 480, 960, 960]
    assert gaps[5] == ASK_MAX_S


def test_a_server_that_comes_up_after_it_was_refused_is_found_then() -> None:
    node = Node(door(8000), answer=REFUSED)
    node.step(0.0)
    node.answer = PAGE
    assert node.step(59.0) == []
    assert node.step(60.0) == ["8000/metrics"]
    assert node.states() == {8000: "scraped"}


def test_a_server_that_starts_anew_at_once_is_found_at_once() -> None:
    node = Node(door(8000))
    node.step(0.0)
    node.sockets.doors = [door(8000, socket=2)]
    assert node.step(LOOK_S) == ["8000/metrics"]


def test_one_port_is_asked_at_most_once_a_minute_however_often_its_socket_is_made_anew() -> None:
    node = Node(door(8000), answer=REFUSED)
    times = []
    for at_s in range(0, 600, 2):
        node.sockets.doors = [door(8000, socket=1 + at_s // 4)]
        times += [at_s] * len(node.step(float(at_s)))
    assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert len(times) >= 8, "and a new socket is not refused for the answers of an older one"


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), max_size=6)),
        max_size=30,
    ),
    st.sampled_from([REFUSED, GARBAGE, SLOW]),
)
def test_no_refused_port_is_asked_twice_within_a_minute_whatever_comes_and_goes(
    turns: list[tuple[int, list[tuple[int, int]]]], answer: HttpError
) -> None:
    node = Node(answer=answer)
    at_s, last = 0.0, dict[str, float]()
    for later_s, there in turns:
        at_s += later_s
        node.sockets.processes = at_s
        node.sockets.doors = [door(port, socket=socket) for port, socket in there]
        for asked in node.step(at_s):
            assert at_s - last.get(asked, -60.0) >= 60
            last[asked] = at_s


def test_of_a_process_one_page_is_enough_and_its_other_ports_are_left_alone() -> None:
    node = Node(door(3000, 7), door(9000, 7), door(8000, 8))
    assert node.step(0.0) == ["3000/metrics", "8000/metrics"]
    assert node.states() == {3000: "scraped", 9000: "same_process", 8000: "scraped"}
    node.sockets.doors = node.sockets.doors[1:]
    node.sockets.processes = 1
    assert node.step(60.0) == ["9000/metrics"], "without it, the other is asked"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_a_configured_page_is_not_asked_for_and_is_one_target(host: str) -> None:
    node = Node(door(8000, 7), door(8001, 7), configured=[f"http://{host}:8000/metrics"])
    told, misses = node.read(0.0)
    assert misses == []
    assert len(node.asked) == 1
    assert told == {
        ("server_up", "vllm", f"{host.lower()}:8000"): 1.0,
        ("server_requests_running", "vllm", "", f"{host.lower()}:8000"): 3.0,
        ("server_tokens", "vllm", "", f"{host.lower()}:8000", "generation"): 100.0,
        ("server_ports", "scraped"): 1.0,
        ("server_ports", "same_process"): 1.0,
    }


def test_a_configured_page_on_another_machine_with_the_same_port_is_another() -> None:
    node = Node(door(8000), configured=["http://10.9.9.9:8000/metrics", "http://[bad", "http://localhost:8001"])
    assert node.step(0.0) == ["8000/metrics"]


def test_an_address_of_ipv6_is_the_same_however_it_is_spelled() -> None:
    sockets = Sockets(Door(Pid(1, 1), 8000, 1, "[2001:db8::1]", "", frozenset({"2001:db8::1"})))
    discovery = Discovery(sockets, ["http://[2001:0DB8:0:0::1]:8000/metrics"])
    discovery.follow(0.0)
    assert [port.state for port in discovery.ports()] == ["scraped"]


def test_two_hundred_ports_are_asked_a_few_at_a_time_up_to_the_most() -> None:
    node = Node(*(door(10_000 + index) for index in range(200)), answer=GARBAGE)
    asked = [node.step(at_s * 2.0) for at_s in range(25)]
    assert {len(urls) for urls in asked[: DOORS // PER_PASS]} == {PER_PASS}
    assert len({url for urls in asked for url in urls}) == DOORS
    told, misses = node.read(50.0)
    assert told == {("server_ports", "no_server"): float(DOORS), ("server_ports", "left_out"): 200.0 - DOORS}
    assert misses == [Miss("listening ports", Reason.OUT_OF_RANGE, f"{200 - DOORS} past the first {DOORS}")]


def test_no_more_servers_are_found_than_there_is_room_for() -> None:
    doors = [door(10_000 + index) for index in range(catalogue.SERVERS + 4)]
    node = Node(*doors, configured=["http://10.9.9.9:1/metrics", "http://10.9.9.9:2/metrics"])
    for at_s in range(0, 40, 2):
        node.step(float(at_s))
    assert len(node.discovery.urls) == catalogue.SERVERS - 2
    assert sorted(node.states().values()).count("left_out") == 6


def test_a_port_that_does_not_answer_ends_the_asking_of_that_pass() -> None:
    node = Node(door(8000), door(8001), answer=SLOW)
    assert node.step(0.0) == ["8000/metrics"]
    assert node.step(2.0) == ["8001/metrics"]


def test_answers_are_remembered_in_bounded_room() -> None:
    node = Node(answer=GARBAGE)
    for turn in range(2 * REMEMBERED // DOORS + 2):
        node.sockets.processes = turn
        node.sockets.doors = [door(1 + turn * DOORS + index) for index in range(DOORS)]
        node.step(turn * 10.0)
    assert len(node.discovery._known) == REMEMBERED


def test_ports_are_looked_for_less_and_less_often_until_the_processes_on_gpus_are_others() -> None:
    node = Node(door(8000), answer=GARBAGE)

    def looks(until_s: Callable[[float], bool], at_s: float = 0.0) -> list[float]:
        times = []
        while not until_s(at_s):
            before = node.sockets.looks
            node.discovery.follow(at_s)
            times += [at_s] * (node.sockets.looks - before)
            at_s += 1.0
        return times

    assert looks(lambda at_s: at_s > 200) == [0.0, LOOK_S, 15.0, 35.0, 75.0, 135.0, 195.0]
    assert LOOK_MAX_S == 60.0
    node.sockets.processes = 1
    assert looks(lambda at_s: at_s > 215, 201.0) == [201.0, 206.0]


# --- in the source ----------------------------------------------------------------------------------------------------


def test_the_page_found_is_read_from_the_next_pass_on() -> None:
    node = Node(door(8000))
    told, misses = node.read(0.0)
    assert (told, misses) == ({("server_ports", "scraped"): 1.0}, [])
    told, misses = node.read(2.0)
    assert misses == []
    assert told["server_requests_running", "vllm", "", "127.0.0.1:8000"] == 3.0
    assert told["server_up", "vllm", "127.0.0.1:8000"] == 1.0


def test_a_page_of_a_port_that_is_asked_may_be_smaller_only() -> None:
    node = Node(door(8000))
    node.read(0.0)
    assert node.limits == {PROBE_BYTES}


def test_a_page_of_something_else_is_no_server() -> None:
    node = Node(door(8000), answer=b'python_info 1\ngpumon_server_up{server="vllm"} 1\n')
    told, misses = node.read(0.0)
    assert (told, misses) == ({("server_ports", "no_server"): 1.0}, [])
    assert node.asked == ["8000/metrics", "8000/prometheus/metrics"]


def test_a_server_whose_socket_is_gone_is_gone_within_two_passes() -> None:
    node = Node(door(8000))
    for at_s in (0.0, 2.0, 40.0):
        node.read(at_s)
    node.sockets.doors = []
    node.answer = REFUSED
    told, misses = node.read(46.0)
    assert told["server_up", "vllm", "127.0.0.1:8000"] == 0.0
    assert misses == [Miss("server 127.0.0.1:8000", Reason.UNAVAILABLE, "Connection refused")]
    assert node.read(48.0) == ({}, [])


def test_a_server_that_listens_and_does_not_answer_stays_and_is_down_and_costs_no_look_at_each_pass() -> None:
    node = Node(door(8000))
    node.read(0.0)
    node.read(2.0)
    node.answer = HttpError(Reason.UNAVAILABLE, "HTTP 503")
    for at_s in range(4, 104, 2):
        told, misses = node.read(float(at_s))
        assert told["server_up", "vllm", "127.0.0.1:8000"] == 0.0
        assert len(misses) == 1
    assert node.sockets.looks <= 6


def test_counters_go_on_where_they_were_after_a_restart_at_the_same_port() -> None:
    node = Node(door(8000, 7))
    key = ("server_tokens", "vllm", "", "127.0.0.1:8000", "generation")
    node.read(0.0)
    assert node.read(2.0)[0][key] == 100.0
    node.sockets.doors, node.answer = [], REFUSED
    for at_s in (62.0, 64.0):
        node.read(at_s)
    node.sockets.doors, node.sockets.processes = [door(8000, 8, socket=99)], 1
    node.answer = PAGE.replace(b"100", b"7")
    told, _ = node.read(84.0)
    assert key not in told
    assert node.read(86.0)[0][key] == 107.0


def test_servers_that_come_and_go_for_days_take_bounded_room() -> None:
    node = Node()
    for day in range(60):
        node.sockets.doors, node.sockets.processes = [door(1000 + day)], day
        node.read(day * 100.0)
        node.read(day * 100.0 + 2)
    assert len(node.source._gone) == GONE


def test_nothing_is_asked_in_a_pass_whose_time_others_took() -> None:
    configured = [f"http://10.9.9.9:{port}/metrics" for port in range(TIMEOUTS)]
    node = Node(door(8000), configured=configured, answer=SLOW)
    node.read(0.0)
    assert "8000/metrics" not in node.asked
    node.read(2.0)
    assert "8000/metrics" in node.asked


def test_what_cannot_be_reached_or_seen_is_a_miss_with_its_reason() -> None:
    node = Node(door(8000, 7, host="", why="listens on loopback of a network namespace of its own"))
    denied = Miss("owners of listening sockets", Reason.DENIED, "2: needs CAP_SYS_PTRACE")
    node.sockets.misses = [denied]
    told, misses = node.read(0.0)
    assert told == {("server_ports", "unreachable"): 1.0}
    assert misses == [
        denied,
        Miss("port 8000 of pid 7", Reason.UNSUPPORTED, "listens on loopback of a network namespace of its own"),
    ]
    assert node.asked == []


def test_every_state_is_told_from_the_first_pass_on() -> None:
    samples, _, _ = apart(Node().source.read(0.0))
    assert [(labels, value) for metric, labels, value in samples if metric is catalogue.SERVER_PORTS] == [
        ((state,), 0.0) for state in catalogue.SERVER_PORTS.values
    ]


def test_what_is_found_and_refused_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpumon.sources.server_discovery")
    node = Node(door(8000), door(8001))
    node.pages["8001/metrics"] = GARBAGE
    for at_s in range(0, 1000, 2):
        node.step(float(at_s))
    assert [record.message for record in caplog.records] == [
        "server_port=scraped host=127.0.0.1 port=8000 pid=8000 detail='http://127.0.0.1:8000/metrics'",
        "server_port=no_server host=127.0.0.1 port=8001 pid=8001 detail='BadStatusLine'",
    ]
