"""A server that says nothing of itself, the proxy before it and a gpumon beside it, each a process: what gpumon tells
of a request is what its client saw.

The client runs beside all of them on whatever CPUs there are, so it may be late itself: the middle request is what is
compared, and the mean gap, which is that of the first and the last token.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import FAST, Daemon
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc
from tests.proxy.process import PacedServer, ProxyProcess, Seen, ask

REAL = ("--procfs=/proc", "--sysfs=/sys", "--cgroupfs=/sys/fs/cgroup")
SOON = {"GPUMON_EXPLAIN__DELAY_S": "2"}
TOKENS = 20
EVERY_S = 0.02
REQUESTS = 4
NEAR_S = 0.001


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[tuple[ProxyProcess, Daemon, str]]:
    """The proxy, gpumon, and the GPU that the server is on."""
    with FakeNode.create(tmp_path / "node", profile="h200", count=2) as node, PacedServer(TOKENS, EVERY_S) as server:
        node.gpus[1].set_processes([Proc(os.getpid(), 2**30)])  # the server is a thread of this process
        with Daemon(tmp_path, *REAL, env=node.env(), options=FAST | OTLP | SOON) as daemon:
            daemon.await_ready()
            otlp = f"http://127.0.0.1:{Gateway(daemon).http_port}"
            with ProxyProcess(tmp_path, server.port, "--otlp", otlp, *arguments) as proxy:
                yield proxy, daemon, daemon.page().select("gpumon_gpu_info", gpu="1")[0][0]["uuid"]


def told(daemon: Daemon, seen: Seen) -> dict[str, Any]:
    """What gpumon says of a request."""

    def look() -> dict[str, Any] | None:
        reply = daemon.ask(f"/api/v1/explain?trace_id={seen.trace_id}")
        found = json.loads(reply.body)["requests"] if reply.status == 200 else []
        return found[0] if found else None

    found: dict[str, Any] = eventually(look, f"an explanation of {seen.trace_id}", within_s=40.0)
    return found


@pytest.mark.slow
def test_gpumon_tells_of_a_request_what_its_client_saw_and_where_it_ran(tmp_path: Path) -> None:
    with running(tmp_path) as (proxy, daemon, uuid):
        first = ask(proxy.port)
        told(daemon, first)  # by then gpumon has looked for the server
        seen = [ask(proxy.port, ("x-tenant-id", "blue")) for _ in range(REQUESTS)]
        first_token_s = []
        for one in seen:
            said = told(daemon, one)
            assert (said["model"], said["tenant"], said["outcome"]) == ("llama", "blue", "ok")
            assert (said["prompt_tokens"], said["completion_tokens"]) == (7, TOKENS)
            assert said["gpus"] == [uuid]
            first_token_s.append((one.token_ns[0] - one.begun_ns) / 1e9 - said["time_to_first_token_seconds"])
        assert -NEAR_S < statistics.median(first_token_s) < 2 * NEAR_S  # connecting and sending are the client's alone
        seen.append(first)
        between_s = sum(one.token_ns[-1] - one.token_ns[0] for one in seen) / 1e9
        gaps = (TOKENS - 1) * len(seen)
        measured = daemon.page()
        assert measured.value("gpumon_inter_token_latency_seconds_count", server="gpumon") == gaps
        told_s = measured.value("gpumon_inter_token_latency_seconds_sum", server="gpumon")
        assert told_s / gaps == pytest.approx(between_s / gaps, abs=NEAR_S)
        page = proxy.page()
        assert f'gpumon_proxy_requests_total{{kind="chat",outcome="ok"}} {REQUESTS + 1}' in page.replace(".0\n", "\n")
        assert proxy.page("/-/healthy") == "ok\n"
        assert proxy.end() == 0
        assert "injection" not in proxy.log


@pytest.mark.slow
def test_what_is_injected_is_what_gpumon_measures(tmp_path: Path) -> None:
    with running(tmp_path, "--inject", "token:30ms", "--inject", "first:100ms", "--inject-seed", "7") as (
        proxy,
        daemon,
        _,
    ):
        said = told(daemon, ask(proxy.port))
        page = daemon.page()
        gaps = page.value("gpumon_inter_token_latency_seconds_count", server="gpumon")
        mean_s = page.value("gpumon_inter_token_latency_seconds_sum", server="gpumon") / gaps
        assert gaps == TOKENS - 1
        assert mean_s == pytest.approx(EVERY_S + 0.03, abs=NEAR_S)
        assert said["time_to_first_token_seconds"] == pytest.approx(EVERY_S + 0.13, abs=0.03)
        assert "injection=on rules='token:30ms first:100ms'" in proxy.log
        assert "injection=seed seed=7" in proxy.log
        assert "gpumon_proxy_injection_rules 2" in proxy.page()
