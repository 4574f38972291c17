"""Servers found on this very machine: real processes, real ports of every manner, network namespaces of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Protocol
from urllib.request import urlopen

import pytest

from gpumon.config import Config
from gpumon.host.host_files import HostFiles
from gpumon.host.http_client import HttpClient
from gpumon.model import GpuProcess, GpuUuid, Miss, Reason, Sample, apart
from gpumon.sources.server_discovery import DOORS
from gpumon.sources.servers import ServerSource
from gpumon.wiring import server_source
from tests import veth
from tests.e2e.waiting import eventually
from tests.proxy.process import ProxyProcess
from tests.server_process import ServerProcess

IN_NAMESPACE = ("unshare", "--net")


def holder(pid: int) -> GpuProcess:
    return GpuProcess(pid, "0", GpuUuid("GPU-0"), 1e9, None)


class Find(Protocol):
    """``find(servers, ports=…)``: the source of servers' pages with the children of these on the GPUs, which looks at
    the ports of these unless others are given."""

    def __call__(
        self, *servers: ServerProcess, ports: Sequence[int | str] = (), on_gpus: Sequence[int] = (), **section: object
    ) -> ServerSource: ...


@pytest.fixture
def find() -> Iterator[Find]:
    with ExitStack() as stack:

        def begin(
            *servers: ServerProcess, ports: Sequence[int | str] = (), on_gpus: Sequence[int] = (), **section: object
        ) -> ServerSource:
            asked = list(ports) or [port for server in servers for port in server.ports]
            config = Config.model_validate({"servers": {"ports": asked, **section}})
            holders = [holder(pid) for pid in (*(server.child for server in servers), *on_gpus)]
            client = stack.enter_context(closing(HttpClient()))
            return server_source(config, HostFiles(), client, lambda: holders)

        yield begin


def passes(servers: ServerSource, count: int = 3, *, from_s: float = 0.0) -> tuple[list[Sample], list[Miss]]:
    """What the last of so many passes said."""
    samples: list[Sample] = []
    misses: list[Miss] = []
    for turn in range(count):
        samples, misses, _ = apart(servers.read(from_s + 2.0 * turn))
    return samples, misses


def up(samples: list[Sample]) -> dict[str, float]:
    return {each.labels[1]: float(str(each.value)) for each in samples if each.metric.stem == "server_up"}


def states(samples: list[Sample]) -> dict[str, float]:
    return {
        each.labels[0]: float(str(each.value))
        for each in samples
        if each.metric.stem == "server_ports" and each.value != 0.0
    }


def test_the_api_server_above_the_process_on_the_gpu_is_found_read_and_gone_with_its_end(find: Find) -> None:
    with ServerProcess("vllm") as server:
        servers = find(server)
        samples, misses = passes(servers)
        assert misses == []
        assert up(samples) == {f"127.0.0.1:{server.port('vllm')}": 1.0}
        assert "server_kv_cache_usage" in {each.metric.stem for each in samples}
    passes(servers, from_s=100.0)
    samples, misses = passes(servers, 2, from_s=120.0)
    assert (up(samples), states(samples), misses) == ({}, {}, [])


def test_a_page_below_prometheus_is_found_and_its_neighbour_is_asked_once(find: Find) -> None:
    with ServerProcess("trtllm", "count") as server:
        samples, misses = passes(find(server), 2)
        assert misses == []
        assert up(samples) == {f"127.0.0.1:{server.port('trtllm')}": 1.0}
        assert states(samples) == {"scraped": 1.0, "same_process": 1.0}


def test_a_configured_page_is_the_same_target_and_nothing_else_of_its_process_is_asked(find: Find) -> None:
    with ServerProcess("vllm", "ssh", "count") as server:
        url = f"http://localhost:{server.port('vllm')}/metrics"
        samples, misses = passes(find(server, targets=[url]))
        assert misses == []
        assert up(samples) == {f"localhost:{server.port('vllm')}": 1.0}
        assert server.asked()[1] == 0


@pytest.mark.parametrize("kind", ["ssh", "silent", "endless", "dripping", "redirect"])
def test_what_is_no_server_is_refused_in_time_and_asked_once(kind: str, find: Find) -> None:
    with ServerProcess("count", kind) as server:
        servers = find(server, ports=[server.port(kind)])
        began_s = monotonic()
        samples, misses = passes(servers, 5)
        assert monotonic() - began_s < 30
        assert (up(samples), misses) == ({}, [])
        assert set(states(samples)) <= {"no_server", "no_answer"}
        counts = server.asked()
        assert counts[1] == 1
        assert counts[0] == 1, "only the question of this test: a redirect is not followed"


def test_a_server_is_found_among_ports_of_every_manner(find: Find) -> None:
    kinds = ["ssh", "silent", "endless", "dripping", "redirect"]
    with ServerProcess("vllm") as server, ServerProcess(*kinds) as strange:
        samples, misses = passes(find(strange, server), 6)
        assert misses == []
        assert up(samples) == {f"127.0.0.1:{server.port('vllm')}": 1.0}
        assert sum(states(samples).values()) == 6


def test_of_two_hundred_ports_the_first_ones_are_asked(find: Find) -> None:
    first = 21_000 + os.getpid() % 40 * 200  # none that the system gives away
    with ServerProcess(*(f"ssh:{port}" for port in range(first, first + 200))) as server:
        samples, misses = passes(find(server, ports=[f"{first}-{first + 199}"]), 20)
        found = states(samples)
        assert sum(found.values()) == 200
        assert found["left_out"] == 200 - DOORS
        assert [(miss.what, miss.reason) for miss in misses] == [("listening ports", Reason.OUT_OF_RANGE)]


def test_another_gpumon_in_the_tree_of_a_server_is_asked_and_is_no_server(find: Find) -> None:
    """Started by the very process that is on the GPU, and all ports asked."""
    code = (
        "import http.server\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        '        page = b\'gpumon_build_info{version="1"} 1\\ngpumon_server_requests_running{server="vllm"} 3\\n\'\n'
        "        self.send_response(200); self.send_header('Content-Type', 'text/plain')\n"
        "        self.send_header('Content-Length', str(len(page))); self.end_headers(); self.wfile.write(page)\n"
        "    def log_message(self, *_): pass\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
        "print(server.server_address[1], flush=True); server.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as other:
        assert other.stdout is not None
        samples, misses = passes(find(ports=[int(other.stdout.readline())], on_gpus=[other.pid]))
        assert (up(samples), states(samples), misses) == ({}, {"no_server": 1.0}, [])
        other.kill()


# --- one server by several ways ---------------------------------------------------------------------------------------


def refused(port: int) -> Miss:
    return Miss(f"server 127.0.0.1:{port}", Reason.UNAVAILABLE, "a gpumon proxy, not a server")


def test_a_server_and_a_proxy_in_its_tree_are_one_server(find: Find, tmp_path: Path) -> None:
    with ServerProcess("vllm") as server, ProxyProcess(tmp_path, server.port("vllm")) as proxy:
        page = urlopen(f"http://127.0.0.1:{proxy.port}/metrics", timeout=10).read()
        assert b"vllm:num_requests_running" in page, "everybody else gets it through the proxy"
        ports = [proxy.port, proxy.admin_port, server.port("vllm")]
        samples, misses = passes(find(server, ports=ports, on_gpus=[proxy.process.pid]), 4)
        assert misses == []
        assert up(samples) == {f"127.0.0.1:{server.port('vllm')}": 1.0}
        assert states(samples) == {"scraped": 1.0, "no_server": 2.0}


@pytest.mark.parametrize("is_in_tree", [True, False])
def test_a_target_that_leads_to_a_proxy_is_down_and_the_server_behind_is_found_once(
    find: Find, tmp_path: Path, is_in_tree: bool
) -> None:
    with ServerProcess("vllm") as server, ProxyProcess(tmp_path, server.port("vllm")) as proxy:
        servers = find(
            server,
            targets=[f"http://127.0.0.1:{proxy.port}/metrics"],
            ports=[proxy.port, server.port("vllm")],
            on_gpus=[proxy.process.pid] if is_in_tree else [],
        )
        samples, misses = passes(servers, 4)
        assert misses == [refused(proxy.port)]
        assert up(samples) == {f"127.0.0.1:{proxy.port}": 0.0, f"127.0.0.1:{server.port('vllm')}": 1.0}
        assert [each.labels[-1] for each in samples if each.metric.stem == "server_requests_running"] == [
            f"127.0.0.1:{server.port('vllm')}"
        ]


def test_a_server_behind_two_proxies_is_read_at_its_own_port_alone(find: Find, tmp_path: Path) -> None:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    with (
        ServerProcess("vllm") as server,
        ProxyProcess(tmp_path / "near", server.port("vllm")) as near,
        ProxyProcess(tmp_path / "far", near.port) as far,
    ):
        on_gpus = [near.process.pid, far.process.pid]
        samples, misses = passes(find(server, ports=[far.port, near.port, *server.ports], on_gpus=on_gpus), 4)
        assert misses == []
        assert up(samples) == {f"127.0.0.1:{server.port('vllm')}": 1.0}


def test_workers_that_share_a_port_are_one_server_that_stays(find: Find) -> None:
    code = (
        "import http.server, os, socket\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        page = b'vllm:num_requests_running 3\\n'\n"
        "        self.send_response(200); self.send_header('Content-Type', 'text/plain')\n"
        "        self.send_header('Content-Length', str(len(page))); self.end_headers(); self.wfile.write(page)\n"
        "    def log_message(self, *_): pass\n"
        "class Server(http.server.ThreadingHTTPServer):\n"
        "    def server_bind(self):\n"
        "        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); super().server_bind()\n"
        "first = Server(('127.0.0.1', 0), Handler)\n"
        "port = first.server_address[1]\n"
        "if os.fork() == 0:\n"
        "    first.server_close()\n"
        "    second = Server(('127.0.0.1', port), Handler)\n"
        "    print(port, flush=True); second.serve_forever()\n"
        "first.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as workers:
        try:
            assert workers.stdout is not None
            port = int(workers.stdout.readline())
            servers = find(ports=[port], on_gpus=[workers.pid])
            passes(servers, 1)
            for at_s in range(60, 660, 60):  # a look for sockets each time
                samples, misses = passes(servers, 1, from_s=at_s)
                assert (up(samples), states(samples), misses) == ({f"127.0.0.1:{port}": 1.0}, {"scraped": 1.0}, [])
        finally:
            os.killpg(workers.pid, signal.SIGKILL)


def test_gpumons_own_ports_are_not_asked_even_if_it_holds_a_gpu(find: Find) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        samples, misses = passes(find(ports=[ours.getsockname()[1]], on_gpus=[os.getpid()]))
    assert (up(samples), states(samples), misses) == ({}, {}, [])


def test_nothing_is_asked_where_discovery_is_off(find: Find) -> None:
    with ServerProcess("vllm", "count") as server:
        assert passes(find(server, discover=False)) == ([], [])
        assert server.asked() == [0, 1]


# --- network namespaces; they need root, as CI has it -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "why"),
    [
        ("vllm", "its network namespace has no address"),
        ("vllm:8000@127.0.0.1", "listens on loopback of a network namespace of its own"),
    ],
)
def test_a_server_in_a_namespace_that_cannot_be_reached_says_so(listener: str, why: str, find: Find) -> None:
    with ServerProcess(listener, before=IN_NAMESPACE) as server:
        samples, [miss] = passes(find(server))
        assert (up(samples), states(samples)) == ({}, {"unreachable": 1.0})
        assert (miss.what, miss.reason) == (f"port {server.ports[0]} of pid {server.pid}", Reason.UNSUPPORTED)
        assert miss.detail.startswith(why)


def test_a_server_in_a_namespace_with_an_address_is_read_there(find: Find) -> None:
    address = f"198.18.{os.getpid() % 250}.2"
    with ServerProcess("vllm:8000", before=IN_NAMESPACE, address=address) as server:
        own = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{server.process.pid}/ns/net") != own, "a namespace of its own")
        veth.connect(server.process.pid, address[:-1] + "1")
        server.await_start()
        with closing(HttpClient()) as client:
            assert client.get(f"http://{address}:8000/metrics", timeout_s=5, limit=1 << 20)
        samples, misses = passes(find(server))
        assert misses == []
        assert up(samples) == {f"{address}:8000": 1.0}
