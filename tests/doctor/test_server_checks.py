"""The doctor's check of inference servers: found, configured, refused, not to be seen, not to be reached."""

from __future__ import annotations

from typing import Any

import pytest

from gpumon.config import Config
from gpumon.doctor.report import Check, Status
from gpumon.doctor.server_checks import ServersFound, find_servers, server_check
from gpumon.host.clock import ManualClock
from gpumon.host.http import HttpError
from gpumon.model import Miss, Pid, Reason
from gpumon.sources.server_discovery import Door, Port
from tests.fakes import AskedHttp, FakeFiles


def checked(found: ServersFound, **servers: Any) -> Check:
    return server_check(Config.model_validate({"servers": servers}), found)


def port(number: int, state: str, detail: str = "") -> Port:
    host = "" if state == "unreachable" else "127.0.0.1"
    return Port(Door(Pid(7, 1), number, number, host, detail), state, detail)


def test_servers_that_were_found_and_configured_are_named() -> None:
    found = ServersFound(up=(("vllm", "127.0.0.1:8000", False), ("tgi", "10.0.0.2:80", True)))
    assert checked(found).status is Status.OK
    assert checked(found).detail == "vllm at 127.0.0.1:8000 (found), tgi at 10.0.0.2:80 (configured)"


def test_nothing_found_is_no_problem() -> None:
    assert checked(ServersFound()).status is Status.OK
    assert checked(ServersFound()).detail == "no process on a GPU listens on a port in servers.ports"


def test_ports_that_are_no_servers_are_told_and_are_no_problem() -> None:
    found = ServersFound(ports=(port(8000, "no_server", "BadStatusLine"), port(8001, "scraped"), port(8002, "waiting")))
    assert checked(found).status is Status.OK
    assert checked(found).detail == "no server's page: 127.0.0.1:8000 (BadStatusLine), 127.0.0.1:8002 (waiting)"


def test_off_is_off() -> None:
    assert checked(ServersFound(), discover=False).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("miss", "fix"),
    [
        (Miss("owners of listening sockets", Reason.DENIED, "2: /proc/<pid>/fd"), "SYS_PTRACE and DAC_READ_SEARCH"),
        (Miss("network namespaces", Reason.DENIED, "of 1 processes"), "SYS_PTRACE and DAC_READ_SEARCH"),
        (Miss("port 8000 of pid 7", Reason.UNSUPPORTED, "listens on loopback"), "its pod's address"),
        (Miss("server 10.0.0.2:80", Reason.UNAVAILABLE, "Connection refused"), "correct servers.targets"),
        (Miss("server 10.0.0.2:80", Reason.DENIED, "HTTP 401"), "correct servers.targets"),
        (Miss("listening ports", Reason.OUT_OF_RANGE, "9 past the first 64"), "servers.ports"),
    ],
)
def test_what_is_missing_says_what_would_fix_it(miss: Miss, fix: str) -> None:
    check = checked(ServersFound(up=(("vllm", "127.0.0.1:8000", False),), misses=(miss,)))
    assert check.status is Status.DEGRADED
    assert check.detail == f"vllm at 127.0.0.1:8000 (found); {miss.what}: {miss.detail}"
    assert fix in check.fix


class OnePage(AskedHttp):
    """A page of vLLM on port 8000, and nothing else."""

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        if ":8000/" in url:
            return b"vllm:num_requests_running 1\n"
        raise HttpError(Reason.UNAVAILABLE, "Connection refused")


def test_a_look_asks_what_is_configured_even_without_a_process_on_a_gpu() -> None:
    targets = ["http://10.0.0.2:8000/metrics", "http://10.0.0.2:8001/metrics"]
    config = Config.model_validate({"servers": {"targets": targets}})
    found = find_servers(config, FakeFiles({}), OnePage(ManualClock()), [])
    assert found.up == (("vllm", "10.0.0.2:8000", True),)
    assert [miss.what for miss in found.misses] == ["server 10.0.0.2:8001"]


def test_a_look_finds_the_server_of_a_process_on_a_gpu() -> None:
    table = "   0: 00000000:1F40 00000000:0000 0A 0:0 00:0 0     0        0 5001 1 0\n"
    files = FakeFiles(
        {
            "proc/100/stat": "100 (vllm) S 1 100 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1000 0 0",
            "proc/100/net/tcp": table,
        },
        {"proc/self/ns/net": "net:[1]", "proc/100/ns/net": "net:[1]", "proc/100/fd/3": "socket:[5001]"},
    )
    found = find_servers(Config(), files, OnePage(ManualClock()), [100])
    assert found.up == (("vllm", "127.0.0.1:8000", False),)
    assert [each.state for each in found.ports] == ["scraped"]
