"""Servers appear without a word of configuration when their processes are on a GPU, and go when these end."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from gpumon.config import ServersConfig
from gpumon.config_types import parse_ports
from tests.e2e.conftest import Start
from tests.e2e.daemon import FAST, run_to_end
from tests.e2e.page import Page
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc
from tests.server_process import ServerProcess

REAL = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", "/sys/fs/cgroup")
QUICK = {"GPUMON_CADENCE__SERVERS_S": "0.5", "GPUMON_NUMA__ENABLED": "false"}


def free_port() -> int:
    """Of the first ports that are asked unless told otherwise."""
    for port in parse_ports(ServersConfig().ports[0]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("something listens on every one of vLLM's usual ports")


def test_a_server_appears_without_configuration_and_vanishes_when_it_ends(node: FakeNode, start: Start) -> None:
    daemon = start(node, *REAL, options=QUICK).await_ready()
    port = free_port()
    endpoint = f"127.0.0.1:{port}"
    for turn in range(2):
        with ServerProcess(f"vllm:{port}") as server:
            node.gpu(0).set_processes([Proc(server.child, 1 << 30)])
            page = daemon.await_series("gpumon_server_up", endpoint=endpoint)
            assert page.value("gpumon_server_up", endpoint=endpoint, server="vllm") == 1.0
            page = daemon.await_series("gpumon_server_kv_cache_usage_ratio", endpoint=endpoint)
            assert page.value("gpumon_server_ports", state="scraped") == 1.0
            tokens = page.value("gpumon_server_tokens_total", endpoint=endpoint, kind="generation")
            assert tokens == 2_519_040.0, f"after {turn} restarts"
        node.gpu(0).set_processes([])
        page = daemon.await_series("gpumon_server_up", 0)
        assert page.value("gpumon_source_up", source="servers") == 1.0
        eventually(lambda: daemon.page().value("gpumon_server_ports", state="scraped") == 0.0, "no port", within_s=20)
    assert f"server_port=scraped host=127.0.0.1 port={port}" in daemon.log


def test_a_gpumon_beside_a_server_is_no_server_and_garbage_neither(node: FakeNode, start: Start) -> None:
    other = start(node, *REAL, options=QUICK).await_ready()
    with ServerProcess("ssh", "vllm") as server:
        ports = [other.port, *server.ports]
        node.gpu(0).set_processes([Proc(server.child, 1 << 30)])
        daemon = start(node, *REAL, options={**QUICK, "GPUMON_SERVERS__PORTS": json.dumps(ports)})
        page = daemon.await_series("gpumon_server_up")
        states: Mapping[str, float] = {
            state: page.value("gpumon_server_ports", state=state)
            for state in ("scraped", "no_server", "no_answer", "same_process")
        }
        assert states["scraped"] == 1.0
        assert states["no_server"] + states["no_answer"] + states["same_process"] == 2.0


def test_the_doctor_says_which_servers_it_found(node: FakeNode) -> None:
    with ServerProcess("vllm") as server:
        node.gpu(0).set_processes([Proc(server.child, 1 << 30)])
        options = {"GPUMON_SERVERS__PORTS": json.dumps(server.ports), **QUICK}
        found = run_to_end(["doctor", "--json", *REAL], node.env(), options)
        checks = {check["id"]: check for check in json.loads(found.stdout)["checks"]}
        assert checks["servers"]["status"] == "ok"
        assert checks["servers"]["detail"] == f"vllm at 127.0.0.1:{server.ports[0]} (found)"


def test_a_server_that_was_found_is_found_in_a_masked_recording(node: FakeNode, tmp_path: Path) -> None:
    recording, shown = tmp_path / "node.rec", tmp_path / "page.prom"
    with ServerProcess("vllm") as server:
        node.gpu(0).set_processes([Proc(server.child, 1 << 30)])
        options = {**FAST, **QUICK, "GPUMON_SERVERS__PORTS": json.dumps(server.ports)}
        arguments = ["record", str(recording), "--mask", "--for", "14", "--listen", "127.0.0.1:0", *REAL]
        recorded = run_to_end(arguments, node.env(), options)
        assert recorded.returncode == 0, recorded.stderr
    replayed = run_to_end(["replay", str(recording), "--page", str(shown)])
    assert replayed.returncode == 0, replayed.stderr
    page = Page(shown.read_bytes())
    assert page.value("gpumon_server_up", server="vllm", endpoint=f"127.0.0.1:{server.ports[0]}") == 1.0
